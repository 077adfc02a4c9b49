"""benchmark_gpu.py: selection, commands and time limits of the parts, tables, archives. One test needs a GPU."""

import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import TINY_VIT
from test_benchmark_train import TIMM, assert_ended

from configs.reading.command_line import parse_command_line
from configs.schema import Config
from engine.run.mfu.flops import training_flops
from scripts.benchmarks import benchmark_gpu, benchmark_train
from scripts.benchmarks.gpu import archive, machine, parallel, parts, plan
from scripts.benchmarks.gpu.archive import drop_incomplete, pack_cache, unpack_cache, write_archive
from scripts.benchmarks.gpu.parts import Part, part_environment, run_part
from scripts.benchmarks.gpu.plan import NAMES, TRAINING, Plan
from scripts.benchmarks.gpu.report import bound_images_per_second, training_rows, variant_rows, write_figures
from scripts.benchmarks.training_parts import build_plain_model
from scripts.flags import split_flags
from utils.errors import UserError

TINY = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", *TINY_VIT]


def parts_of(*argv: str) -> dict[str, Part]:
    flags, rest = split_flags(benchmark_gpu._parser(), list(argv))
    made = Plan(flags, [*benchmark_gpu.DEFAULTS, *rest], [64, 256], Path("/images")).parts()
    return {part.name: part for part in made}


def flags_and_config(part: Part) -> tuple[list[str], Config]:
    """The flags of a training part for benchmark_train.py, and the configuration that it trains."""
    flags, rest = split_flags(benchmark_train._parser(), part.command[part.command.index("-u") + 2 :])
    return flags, parse_command_line([*benchmark_train.DEFAULTS, *rest]).config


def part(code: str, limit_seconds: float = 60.0) -> Part:
    return Part("one", [sys.executable, "-c", code], limit_seconds)


def run(one: Part, folder: Path) -> Part:
    run_part(one, folder, dict(os.environ))
    return one


def figures(speed: float, wait: float = 0.0) -> dict:
    return {"images_per_second": [speed], "data_wait_share": [wait], "peak_memory_bytes": 20e9}


def trained(name: str, programs: dict) -> Part:
    settings = TRAINING[name]._replace(programs=tuple(programs))._asdict()
    settings |= {"batch_size": 256, "is_compiled": settings["kind"] != "eager"}
    return Part(name, [], 1.0, settings, None, "done", 1.0, {"programs": programs, "ratios": {}})


# The plan


@pytest.fixture
def no_time(monkeypatch) -> list[str]:
    """The parts that main runs, by a clock on which each takes its whole limit."""
    ran, clock = [], [0.0]

    def run(part: Part, *_) -> None:
        clock[0] += part.limit_seconds
        part.outcome = "done"
        ran.append(part.name)

    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(benchmark_gpu.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(benchmark_gpu, "run_part", run)
    monkeypatch.setattr(benchmark_gpu, "make_images", lambda *_, **__: None)
    return ran


def test_the_printed_commands_run_all_parts_in_calls_of_nine_minutes(no_time, tmp_path, capsys):
    command, calls = [f"-output={tmp_path}", "-opts", "SEED=3"], 0
    while command:
        calls += 1
        assert benchmark_gpu.main(command) == 0
        assert benchmark_gpu.time.monotonic() <= calls * (540 - benchmark_gpu.RESERVED_SECONDS)
        printed = capsys.readouterr().out.strip().splitlines()[-1].split()
        command = printed[2:] if printed[0] == sys.executable else []
    assert no_time[:11] == [*NAMES[:10], "tests"]
    assert set(no_time) == set(NAMES) - {"timm"}


def test_the_printed_command_repeats_failed_parts_with_the_same_packages(no_time, tmp_path, monkeypatch, capsys):
    def run(part: Part, *_) -> None:
        part.outcome = {"O1": "failed: why", "jpeg": "stopped after 1 s"}.get(part.name, "done")

    monkeypatch.setattr(benchmark_gpu, "run_part", run)
    monkeypatch.setenv("PYTHONPATH", "with space:site")
    assert benchmark_gpu.main([f"-output={tmp_path}"]) == 1
    words = shlex.split(capsys.readouterr().out.strip().splitlines()[-1])
    assert words[:3] == ["env", "PYTHONPATH=with space:site", sys.executable]
    assert "-parts=machine,O1,jpeg" in words
    assert "Not run: timm." in (tmp_path / "figures.md").read_text()


def test_a_part_without_time_keeps_the_result_of_an_earlier_call(no_time, tmp_path):
    kept = trained("O1", {"ready": figures(100.0)})
    write_figures(tmp_path, [Part("profile", [], 1.0, outcome="done", result={"former": 1}), kept], "", [])
    assert benchmark_gpu.main([f"-output={tmp_path}", "-parts=O1,profile", "-minutes=1.1"]) == 0
    assert no_time == ["profile"]  # in the order of the plan
    rows = {row["name"]: row for row in json.loads((tmp_path / "figures.json").read_text())["parts"]}
    assert rows["profile"]["result"] is None
    assert (rows["O1"]["outcome"], rows["O1"]["result"]) == ("done", kept.result)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-opts", "TRAIN.MODEL_EMA=true"], "TRAIN.MODEL_EMA=false"),
        (["-parts=jpg"], "-parts: unknown jpg; did you mean jpeg"),
        *(([f"-batch_sizes={text}"], "-batch_sizes") for text in ("64,", "a", "0", "6.4")),
    ],
)
def test_mistakes_are_reported_first(argv, said, no_time, tmp_path):
    with pytest.raises(UserError, match=said):
        benchmark_gpu.main([f"-output={tmp_path}", *argv])
    assert no_time == []


def test_a_call_without_a_gpu_says_so(no_time, tmp_path, monkeypatch, capsys):
    for visible in (0, 1):
        monkeypatch.setattr(benchmark_gpu, "visible_gpus", lambda visible=visible: visible)
        benchmark_gpu.main([f"-output={tmp_path}", "-minutes=0.1"])
        assert ("no GPU is visible" in capsys.readouterr().err) == (visible == 0)


def test_every_training_part_is_a_command_of_benchmark_train(tmp_path):
    (tmp_path / "train.py").touch()
    made = parts_of(f"-output={tmp_path}", f"-timm_train={tmp_path / 'train.py'}", "-opts", "SEED=3")
    for name, setting in TRAINING.items():
        flags, config = flags_and_config(made[name])
        assert tuple(benchmark_train.checked_programs(flags, config)) == setting.programs
        assert config.data.batch_size == {"small": 64, "large": 256}[setting.size]
        assert config.amp.enabled == setting.mode.startswith("O")
        assert (config.train.compile == "none") == setting.kind.startswith("eager")
        assert (
            made[name].images == flags.data == (None if setting.programs[0] in ("ready", "bare") else Path("/images"))
        )
        assert config.seed == 3 or setting.model
    assert flags_and_config(made["compiled"])[0].steps == 60
    shipped = parse_command_line(["-cfg=configs/vit_base_patch16_224.yaml"]).config.model
    assert flags_and_config(made["dropout"])[1].model == shipped
    assert flags_and_config(made["O1"])[1].model.dropout == 0 < shipped.dropout
    assert made["flash"].command[:2] == ["env", "TORCH_CUDNN_SDPA_DEPRIORITIZED=1"]


# Parts


def test_a_part_keeps_its_output_and_its_result(tmp_path):
    one = run(part(f"open({str(tmp_path / 'one.json')!r}, 'w').write('{{}}'); print('some output')"), tmp_path)
    assert (one.outcome, one.result) == ("done", {})
    assert "some output" in (tmp_path / "one.txt").read_text()


FAILED = {"programs": {"ready": {"failed": "not done within 50 s"}, "bare": figures(1.0)}}


@pytest.mark.parametrize(
    ("code", "result", "outcome"),
    [
        ("import sys; print('| a table |'); sys.exit('error: no GPU')", None, "failed: no GPU"),
        ("print('1 failed, 9 passed'); raise SystemExit(1)", None, "failed: 1 failed, 9 passed"),
        ("print('==== 90 passed, 9 skipped in 1.25s ====')", None, "done: 90 passed, 9 skipped in 1.25s"),
        ("print('==== 99 skipped in 1.25s ====')", None, "failed: no test passed: 99 skipped in 1.25s"),
        ("", FAILED, "failed: ready: not done within 50 s"),
    ],
)
def test_the_outcome_of_a_part(code, result, outcome, tmp_path):
    (tmp_path / "one.json").write_text('{"of": "the run before"}')
    if result:
        code += f"\nopen({str(tmp_path / 'one.json')!r}, 'w').write({json.dumps(result)!r})"
    one = run(part(code), tmp_path)
    assert (one.outcome, one.result) == (outcome, result)


HANGS = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])
open({folder!r} + '/pid', 'w').write(str(child.pid))
print('the last line'); print('| --- |'); print('interrupted by SIGTERM', flush=True)
open({folder!r} + '/tmp', 'w').write('{{"turns": 1}}')
os.rename({folder!r} + '/tmp', {folder!r} + '/one.json')
child.wait()
"""


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_part_that_hangs_is_killed_with_its_child_processes_and_keeps_its_result(interrupted, tmp_path, monkeypatch):
    """It ignores SIGTERM."""
    monkeypatch.setattr(parts, "TERMINATION_SECONDS", 0.2)
    one = part(HANGS.format(folder=str(tmp_path)), limit_seconds=3.0)
    if interrupted:
        wait = subprocess.Popen.wait

        def interrupted_wait(process, timeout=None):
            monkeypatch.setattr(subprocess.Popen, "wait", wait)
            while not (tmp_path / "one.json").exists():
                time.sleep(0.02)
            raise KeyboardInterrupt

        monkeypatch.setattr(subprocess.Popen, "wait", interrupted_wait)
        with pytest.raises(KeyboardInterrupt):
            run(one, tmp_path)
    else:
        run(one, tmp_path)
    assert one.outcome == ("interrupted" if interrupted else "stopped after 3 s; last line: the last line")
    assert one.result == {"turns": 1}
    assert_ended(int((tmp_path / "pid").read_text()))


def test_parts_find_packages_in_a_relative_folder_and_share_a_compile_cache(tmp_path, monkeypatch):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "carried.py").write_text("NAME = 'from the folder'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "wheels")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "/set/by/torch")
    caches = "os.environ['TORCHINDUCTOR_CACHE_DIR'], os.environ['TRITON_CACHE_DIR']"
    one = part(f"import carried, os; print(carried.NAME, {caches})")
    run_part(one, tmp_path, part_environment(Path("/cache")))
    assert "from the folder /cache /cache/triton" in (tmp_path / "one.txt").read_text()


# The machine and the strategies


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(machine, "SIZES", (8,))
    monkeypatch.setattr(machine, "COPY_BYTES", {"cuda": 8, "cpu": 8})


def test_the_machine_is_measured(small_machine, tmp_path):
    machine.main([f"-json={tmp_path / 'machine.json'}", *TINY])
    found = json.loads((tmp_path / "machine.json").read_text())
    assert set(found["peak_flops_per_second"]) == {setting.mode for setting in TRAINING.values()}
    assert found["training_flops_per_image"] > 0 and found["copy_bytes_per_second"] > 0


@pytest.mark.gpu
def test_a_gpu_is_measured(tmp_path):
    machine.main([f"-json={tmp_path / 'machine.json'}", *TINY])
    found = json.loads((tmp_path / "machine.json").read_text())
    assert found["device"] == torch.cuda.get_device_name()
    assert min(found["peak_flops_per_second"].values()) > 0 and found["copy_bytes_per_second"] > 0


def test_a_measurement_that_fails_ends_no_other(small_machine, tmp_path, monkeypatch):
    def fails_in_bf16(precision):
        if precision.dtype == torch.bfloat16:
            raise RuntimeError("no such op")
        return 1e12

    monkeypatch.setattr(machine, "matmul_flops_per_second", fails_in_bf16)
    with pytest.raises(UserError, match="O1-bf16: RuntimeError: no such op"):
        machine.main([f"-json={tmp_path / 'machine.json'}", *TINY])
    found = json.loads((tmp_path / "machine.json").read_text())
    assert found["peak_flops_per_second"]["fp32"] == 1e12 and found["copy_bytes_per_second"] > 0


def test_every_strategy_runs_in_one_process(tmp_path, cpu, monkeypatch):
    monkeypatch.setattr(parallel, "WARMUP_STEPS", 1)
    monkeypatch.setattr(parallel, "STEPS", 1)
    file = tmp_path / "parallel.json"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        result = parallel.measure_all([*TINY, "AMP.ENABLED=false"], list(parallel.VARIANTS), [2], file, cpu)
    finally:
        dist.destroy_process_group()
    assert json.loads(file.read_text()) == result and result["ranks"] == 1
    assert list(result["variants"]) == [f"{name}-2" for name in parallel.VARIANTS]
    for one in result["variants"].values():
        assert one["images_per_second"] == pytest.approx(2 / one["step_seconds"])
    with pytest.raises(UserError, match="-variants: unknown fsd; did you mean fsdp"):
        parallel.main(["-variants=ddp,fsd"])


# Tables


def test_the_bound_is_computed_for_the_model_that_was_counted(tmp_path):
    _, config = flags_and_config(parts_of(f"-output={tmp_path}")["O1"])
    flops = training_flops(build_plain_model(config), config.data)
    found = {"peak_flops_per_second": {"O1-bf16": 790e12, "fp32": 60e12}, "copy_bytes_per_second": 4.3e12}
    found |= {"training_flops_per_image": flops}
    bound = bound_images_per_second("O1-bf16", "O1", 256, found)
    assert bound == pytest.approx(256 / (256 * 105.15e9 / 790e12 + 106.1e9 / 4.3e12), rel=1e-3)
    assert bound_images_per_second("O1-bf16", "O1", 64, found) < bound
    assert bound_images_per_second("O1-bf16", "", 256, found) is None
    assert bound_images_per_second("tf32", "fp32", 256, found) is None
    assert bound_images_per_second("fp32", "fp32", 256, found | {"training_flops_per_image": 1e9}) is None


def test_rows_and_pages(tmp_path):
    one = trained("jpeg", {"jpeg": figures(50.0, 0.125), "bare": {"failed": "a | b"}})
    rows = training_rows(one, {})
    assert rows[0] == ["jpeg", "O1-bf16", "256", "blocks", "jpeg", "50.0", "", "", "12.5%", "20.00"]
    assert rows[1][5] == "failed: a \\| b"
    variants = {"fsdp-64": {"step_seconds": 0.12, "images_per_second": 533.3, "peak_memory_bytes": 1e9}}
    variants["ddp_bf16-64"] = {"failed": "why"}
    assert variant_rows({"variants": variants}) == [
        ["fsdp-64", "120.0", "533.3", "1.00"], ["ddp_bf16-64", "failed: why", "", ""],
    ]  # fmt: skip
    found = {"device": "NVIDIA H200", "torch": "2", "model": "vit", "peak_flops_per_second": {"fp32": 6e13}}
    strategies = Part("parallel", [], 1.0, outcome="done", result={"ranks": 1, "variants": variants})
    write_figures(tmp_path, [Part("machine", [], 1.0, outcome="done", result=found), one, strategies], "x.py", ["-a"])
    page = (tmp_path / "figures.md").read_text()
    for text in ("python scripts/x.py -a", "NVIDIA H200, torch 2", "fp32 60", "| jpeg |", "| fsdp-64 |"):
        assert text in page


# Archives


def test_the_archive_has_the_smaller_files_and_no_archive(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(archive, "MAX_BYTES", 4000)
    for name, size in (("a.txt", 10), ("large.bin", 5000), ("cache.tar.gz.000", 10), ("figures.tar.gz", 10)):
        (tmp_path / name).write_bytes(os.urandom(size))
    write_archive(tmp_path)
    with tarfile.open(tmp_path / "figures.tar.gz") as tar:
        assert tar.getnames() == ["a.txt"]
    assert "large.bin" in capsys.readouterr().err


@pytest.fixture
def packed(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(archive, "MAX_BYTES", 4000)
    (tmp_path / "cache" / "triton").mkdir(parents=True)
    (tmp_path / "cache" / "triton" / "kernel").write_bytes(os.urandom(9000))
    pack_cache(tmp_path / "cache", tmp_path / "pieces")
    return tmp_path / "pieces"


def test_the_compile_cache_is_packed_in_pieces_and_unpacked(packed, tmp_path):
    pieces = sorted(packed.iterdir())
    assert [piece.name for piece in pieces] == [f"cache.tar.gz.00{number}" for number in range(3)]
    assert all(piece.stat().st_size <= 4000 for piece in pieces)
    (tmp_path / "new").mkdir()
    unpack_cache(packed, tmp_path / "new")
    kernel = Path("triton", "kernel")
    assert (tmp_path / "new" / kernel).read_bytes() == (tmp_path / "cache" / kernel).read_bytes()


@pytest.mark.parametrize("missing", [0, 2, None])
def test_a_damaged_cache_is_not_used(packed, missing, tmp_path, capsys):
    if missing is None:
        content = bytearray((packed / "cache.tar.gz.001").read_bytes())
        content[2000] ^= 1
        (packed / "cache.tar.gz.001").write_bytes(content)
    else:
        (packed / f"cache.tar.gz.00{missing}").unlink()
    (tmp_path / "new").mkdir()
    unpack_cache(packed, tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())
    assert f"-cache {packed}" in capsys.readouterr().err


def test_an_interrupted_call_keeps_its_compile_cache_without_incomplete_files(tmp_path, monkeypatch):
    def interrupt(*arguments) -> None:
        for name in ("kernel", "new.main.so"):
            file = Path(arguments[2]["TORCHINDUCTOR_CACHE_DIR"], name)
            file.touch()
            os.utime(file, (time.time() + 10,) * 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark_gpu, "run_part", interrupt)
    with pytest.raises(KeyboardInterrupt):
        benchmark_gpu.main([f"-output={tmp_path / 'a'}", f"-cache={tmp_path / 'b'}"])
    (tmp_path / "new").mkdir()
    unpack_cache(tmp_path / "b", tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["kernel"]
    assert (tmp_path / "a" / "figures.tar.gz").exists()
    (tmp_path / "old.so").touch()
    drop_incomplete(tmp_path, since=time.time() + 100)
    assert (tmp_path / "old.so").exists()


# All kinds of parts


@pytest.mark.slow
@pytest.mark.parametrize("names", [("machine", "profile", "compiled"), ("timm", "parallel", "tests", "loaders")])
def test_parts_run_on_a_cpu(names, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # compilation takes minutes, and has tests of its own
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(plan, "LIMITS", dict.fromkeys(plan.LIMITS, 600))
    tiny = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", "MODEL.DEPTH=1", "DATA.IMAGE_SIZE=32"]
    (tmp_path / "train.py").write_text(TIMM)
    benchmark_gpu.main([
        *(f"-output={tmp_path / 'figures'}", f"-parts={','.join(names)}", "-minutes=60", "-batch_sizes=2"),
        *("-timed_images=20", f"-timm_train={tmp_path / 'train.py'}", *tiny),
    ])  # fmt: skip
    rows = json.loads((tmp_path / "figures" / "figures.json").read_text())["parts"]
    outcomes = {row["name"]: row["outcome"] for row in rows if row["name"] in names}
    assert "skipped" in outcomes.pop("tests", "skipped")
    assert outcomes == dict.fromkeys(outcomes, "done")
