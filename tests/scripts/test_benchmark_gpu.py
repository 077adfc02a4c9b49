"""benchmark_gpu.py: selection, commands and time limits of the parts, tables, archives. No test here needs a GPU."""

import json
import os
import shlex
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import TINY_VIT
from test_benchmark_train import TIMM, parameters

from configs.reading.command_line import parse_command_line
from configs.schema import Config
from engine.run.mfu.flops import training_flops
from scripts.benchmarks import benchmark_gpu, benchmark_train, device_speed, gpu_archive, gpu_parts, gpu_plan
from scripts.benchmarks.gpu_archive import drop_incomplete, pack_cache, unpack_cache, write_archive
from scripts.benchmarks.gpu_parts import Part, part_environment, run_part
from scripts.benchmarks.gpu_plan import NAMES, TRAINING, Plan
from scripts.benchmarks.gpu_report import bound_images_per_second, target_rows, training_rows, write_figures
from scripts.benchmarks.training_parts import build_plain_model
from scripts.flags import split_flags
from utils.errors import UserError


def parts_of(*argv: str) -> dict[str, Part]:
    flags, rest = split_flags(benchmark_gpu._parser(), list(argv))
    parts = Plan(flags, [*benchmark_gpu.DEFAULTS, *rest], [64, 256], Path("/images")).parts()
    return {part.name: part for part in parts}


def flags_of(part: Part) -> list[str]:
    """Those of its script."""
    return part.command[part.command.index("-u") + 2 :]


def config_of(part: Part) -> Config:
    """The configuration that a training part passes on."""
    _, rest = split_flags(benchmark_train._parser(), flags_of(part))
    return parse_command_line([*benchmark_train.DEFAULTS, *rest]).config


def part(text: str, limit_seconds: float = 60.0, name: str = "one") -> Part:
    return Part(name, [sys.executable, "-c", text], limit_seconds)


def run(one: Part, folder: Path, after_result: Callable[[], None] = lambda: None) -> None:
    run_part(one, folder, dict(os.environ), after_result)


def trained(name: str, programs: dict) -> Part:
    settings = gpu_plan.TRAINING[name]._replace(programs=tuple(programs))._asdict()
    settings |= {"batch_size": 256, "is_compiled": settings["kind"] != "eager"}
    return Part(name, [], 1.0, settings, None, "done", 1.0, {"programs": programs, "ratios": {}})


def figures(speed: float, wait: float = 0.0) -> dict:
    return {"images_per_second": [speed], "data_wait_share": [wait], "peak_memory_bytes": 20e9}


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


FIRST = [
    *("machine", "profile", "profile_compiled", "compiled", "fp32_small", "fp16_small"),
    *("O1", "O2", "dropout", "flash", "tests"),
]


def test_without_names_the_parts_that_fit_into_the_time_run_in_their_order(no_time, tmp_path, capsys):
    assert benchmark_gpu.main([f"-output={tmp_path}"]) == 0
    assert no_time == FIRST
    assert sum(parts_of()[name].limit_seconds for name in no_time) <= 540
    command = capsys.readouterr().out.strip().splitlines()[-1].split()
    names = next(word for word in command if word.startswith("-parts=")).removeprefix("-parts=").split(",")
    assert sorted({*FIRST, *names}) == sorted(set(NAMES) - {"timm"})


def test_the_commands_for_the_parts_that_were_not_run_cover_all_parts(no_time, tmp_path, capsys):
    command, calls = [f"-output={tmp_path}", "-opts", "SEED=3"], 0
    while command:
        calls += 1
        assert benchmark_gpu.main(command) == 0
        assert benchmark_gpu.time.monotonic() <= calls * (540 - benchmark_gpu.RESERVED_SECONDS)
        printed = capsys.readouterr().out.strip().splitlines()[-1].split()
        command = printed[2:] if printed[0] == sys.executable else []
    assert set(no_time) == set(NAMES) - {"timm"}


def test_the_printed_command_runs_the_parts_that_failed_or_were_stopped_with_the_same_packages(
    no_time, tmp_path, monkeypatch, capsys
):
    def run(part: Part, *_) -> None:
        part.outcome = {"O1": "failed: why", "jpeg": "stopped after 1 s"}.get(part.name, "done")

    monkeypatch.setattr(benchmark_gpu, "run_part", run)
    monkeypatch.setenv("PYTHONPATH", "with space:site")
    assert benchmark_gpu.main([f"-output={tmp_path}"]) == 1
    words = shlex.split(capsys.readouterr().out.strip().splitlines()[-1])
    assert words[:3] == ["env", "PYTHONPATH=with space:site", sys.executable]
    assert "-parts=machine,O1,jpeg" in words
    assert "Not run: timm. `timm` needs -timm_train PATH." in (tmp_path / "figures.md").read_text()


def test_a_part_without_time_keeps_the_result_of_an_earlier_call(no_time, tmp_path):
    kept = trained("O1", {"ready": figures(100.0)})
    write_figures(tmp_path, [Part("profile", [], 1.0, outcome="done", result={"former": 1}), kept], "", [])
    assert benchmark_gpu.main([f"-output={tmp_path}", "-parts=profile,O1", "-minutes=1.1"]) == 0
    assert no_time == ["profile"]
    rows = {row["name"]: row for row in json.loads((tmp_path / "figures.json").read_text())["parts"]}
    assert rows["profile"]["result"] is None
    assert (rows["O1"]["outcome"], rows["O1"]["result"]) == ("done", kept.result)


def test_options_that_no_part_supports_are_reported_first(no_time, tmp_path):
    with pytest.raises(UserError, match=r"-opts TRAIN.MODEL_EMA=false$"):
        benchmark_gpu.main([f"-output={tmp_path}", "-opts", "TRAIN.MODEL_EMA=true"])
    assert no_time == []


def test_a_call_without_a_gpu_says_so(no_time, tmp_path, monkeypatch, capsys):
    for visible in (0, 1):
        monkeypatch.setattr(benchmark_gpu, "visible_gpus", lambda visible=visible: visible)
        benchmark_gpu.main([f"-output={tmp_path}", "-minutes=0.1"])
        assert ("no GPU is visible" in capsys.readouterr().err) == (visible == 0)


def test_named_parts_run_in_the_order_of_the_plan(no_time, tmp_path):
    benchmark_gpu.main([f"-output={tmp_path}", "-parts=jpeg,machine"])
    assert no_time == ["machine", "jpeg"]
    with pytest.raises(UserError, match=r"^-parts: unknown part jpg; did you mean jpeg\? \(known: machine, profile, "):
        benchmark_gpu.main([f"-output={tmp_path}", "-parts=jpg"])


def test_a_training_part_is_a_command_of_benchmark_train(tmp_path):
    (tmp_path / "train.py").touch()
    timm = f"-timm_train={tmp_path / 'train.py'}"
    parts = parts_of(timm, "-opts", "SEED=3")
    for word in ("-programs=ready,bare", "-batch_size=256", "-compile", "-steps=60", "SEED=3", "AMP.DTYPE=bfloat16"):
        assert word in parts["compiled"].command
    for word in ("-programs=timm,jpeg_whole", timm, "-data=/images", "-json=gpu_figures/timm.json"):
        assert word in parts["timm"].command
    for word in ("-programs=ready", "-batch_size=64", "-steps=60", "AMP.ENABLED=false", "AMP.TF32=false"):
        assert word in parts["fp32_small"].command
    assert not {"-compile", timm, "-data=/images"} & set(parts["fp32_small"].command)


def test_every_training_part_has_programs_that_can_be_compared(tmp_path):
    (tmp_path / "train.py").touch()
    parts = parts_of(f"-output={tmp_path}", f"-timm_train={tmp_path / 'train.py'}")
    for name, setting in TRAINING.items():
        flags, _ = split_flags(benchmark_train._parser(), flags_of(parts[name]))
        assert tuple(benchmark_train._checked_programs(flags, config_of(parts[name]))) == setting.programs


def test_the_flash_kernel_is_measured_without_cudnn(tmp_path):
    parts = parts_of(f"-output={tmp_path}")
    assert parts["flash"].command[:2] == ["env", "TORCH_CUDNN_SDPA_DEPRIORITIZED=1"]
    assert flags_of(parts["flash"])[2:] == flags_of(parts["O1"])[2:]


def test_the_shipped_recipe_is_measured_with_its_dropout(tmp_path):
    shipped = parse_command_line(["-cfg=configs/vit_base_patch16_224.yaml"]).config.model
    parts = parts_of(f"-output={tmp_path}")
    assert config_of(parts["dropout"]).model == config_of(parts["dropout_compiled"]).model == shipped
    assert config_of(parts["O1"]).model.dropout == 0 < shipped.dropout


@pytest.mark.parametrize("text", ["64,", "a", "0", "-1", "6.4"])
def test_batch_sizes_are_positive_integers(text):
    with pytest.raises(UserError, match="-batch_sizes"):
        benchmark_gpu.main([f"-batch_sizes={text}"])


# Parts


def test_a_part_keeps_its_output_and_its_result(tmp_path):
    one = part(f"open({str(tmp_path / 'one.json')!r}, 'w').write('{{}}'); print('some output')")
    run(one, tmp_path)
    assert (one.outcome, one.result) == ("done", {})
    assert "some output" in (tmp_path / "one.txt").read_text()


def test_a_failed_part_has_a_reason(tmp_path):
    (tmp_path / "one.json").write_text('{"of": "the run before"}')
    one = part("import sys; print('error: no GPU', file=sys.stderr); print('| a table |'); sys.exit(1)")
    run(one, tmp_path)
    assert (one.outcome, one.result) == ("failed: no GPU", None)


def test_the_reason_of_a_failed_part_can_be_in_its_standard_output(tmp_path):
    one = part("print('1 failed, 9 passed'); raise SystemExit(1)")
    run(one, tmp_path)
    assert one.outcome == "failed: 1 failed, 9 passed"


PROGRAMS = """
import os, sys
sys.path.insert(0, {root!r})
from scripts.benchmarks.programs import PlainLog, Program
from utils.entry import run_and_report_errors
child = "import os, time; open({pid!r}, 'w').write(str(os.getpid())); time.sleep(100)"
def main(argv):
    with Program([sys.executable, "-c", child], {{}}, PlainLog()) as program:
        open({json!r} + ".tmp", "w").write('{{"turns": 1}}')
        os.rename({json!r} + ".tmp", {json!r})
        program.turn(1, 1, 100)
sys.exit(run_and_report_errors(main, []))
"""


def part_that_hangs(folder: Path, limit_seconds: float) -> Part:
    """It writes a result, and then waits for a program."""
    text = PROGRAMS.format(root=str(gpu_parts.ROOT), pid=str(folder / "pid"), json=str(folder / "one.json"))
    return part(text, limit_seconds)


def assert_ended(pid_file: Path) -> None:
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid_file.read_text()}"):
            return
        time.sleep(0.02)
    pytest.fail("the program is still running")


def test_a_part_that_hangs_is_ended_with_its_programs_and_keeps_its_result(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts, "POLL_SECONDS", 0.05)
    one, seen = part_that_hangs(tmp_path, limit_seconds=4.0), []
    run(one, tmp_path, after_result=lambda: seen.append((one.outcome, one.result)))
    assert seen == [("running", {"turns": 1})]
    assert one.outcome.startswith("stopped after 4 s") and one.result == {"turns": 1}
    assert_ended(tmp_path / "pid")


def test_an_interrupted_part_is_ended_with_its_programs_and_keeps_its_result(tmp_path):
    def interrupt() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.02)
        raise KeyboardInterrupt

    one = part_that_hangs(tmp_path, limit_seconds=60.0)
    with pytest.raises(KeyboardInterrupt):
        run(one, tmp_path, after_result=interrupt)
    assert (one.outcome, one.result) == ("interrupted", {"turns": 1})
    assert_ended(tmp_path / "pid")


def test_a_part_that_ignores_sigterm_is_killed_with_its_child_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts, "TERMINATION_SECONDS", 0.2)
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    one = part(
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.run([sys.executable, '-c', {child!r}])",
        limit_seconds=1.5,
    )
    run(one, tmp_path)
    assert one.outcome.startswith("stopped after 2 s")
    assert_ended(tmp_path / "pid")


@pytest.mark.parametrize(
    ("summary", "outcome"),
    [("90 passed, 9 skipped", "done: 90 passed, 9 skipped"), ("99 skipped", "failed: no test passed: 99 skipped")],
)
def test_the_outcome_of_tests_is_their_summary_and_needs_a_test_that_passed(summary, outcome, tmp_path):
    one = part(f"print('tests/a.py::test_b SKIPPED'); print('==== {summary} in 1.25s ====')")
    run(one, tmp_path)
    assert one.outcome == f"{outcome} in 1.25s"


def test_a_part_with_a_program_that_failed_has_failed(tmp_path):
    result = {"programs": {"ready": {"failed": "not done within 50 s"}, "bare": figures(1.0)}}
    one = part(f"open({str(tmp_path / 'one.json')!r}, 'w').write({json.dumps(result)!r})")
    run(one, tmp_path)
    assert one.outcome == "failed: ready: not done within 50 s"


@pytest.mark.parametrize(
    ("programs", "outcome"),
    [(("ready",), "done: all figures"), (("ready", "bare"), "stopped after 2 s; last line: the last line")],
)
def test_a_stopped_part_is_done_if_its_figures_are_complete(programs, outcome, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts, "POLL_SECONDS", 0.05)
    result = {"programs": {"ready": figures(1.0)}}
    one = part(
        "import time; print('the last line'); print('| --- |'); print('interrupted by SIGTERM', flush=True)\n"
        f"open({str(tmp_path / 'one.json')!r}, 'w').write({json.dumps(result)!r}); time.sleep(100)",
        limit_seconds=2.0,
    )
    one.settings = {"programs": programs}
    run(one, tmp_path)
    assert one.outcome.startswith(outcome)


def test_parts_find_packages_in_a_relative_folder_and_share_a_compile_cache(tmp_path, monkeypatch):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "carried.py").write_text("NAME = 'from the folder'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "wheels")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/set/by/torch")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/set/by/torch")
    caches = "os.environ['TORCHINDUCTOR_CACHE_DIR'], os.environ['TRITON_CACHE_DIR']"
    one = part(f"import carried, os; print(carried.NAME, {caches})")
    run_part(one, tmp_path, part_environment(Path("/cache")), lambda: None)
    assert "from the folder /cache /cache/triton" in (tmp_path / "one.txt").read_text()


# The machine


MACHINE = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", *TINY_VIT]


def measured_machine(file: Path, monkeypatch) -> dict:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(device_speed, "SIZES", (8,))
    monkeypatch.setattr(device_speed, "_COPY_BYTES", {"cuda": 8, "cpu": 8})
    device_speed.main([f"-json={file}", *MACHINE])
    return json.loads(file.read_text())


def test_the_machine_is_measured(tmp_path, monkeypatch):
    machine = measured_machine(tmp_path / "machine.json", monkeypatch)
    assert set(machine["peak_flops_per_second"]) == {setting.mode for setting in TRAINING.values()}
    assert machine["training_flops_per_image"] > 0 and machine["copy_bytes_per_second"] > 0


@pytest.mark.gpu
def test_a_gpu_is_measured(tmp_path):
    device_speed.main([f"-json={tmp_path / 'machine.json'}", *MACHINE])
    machine = json.loads((tmp_path / "machine.json").read_text())
    assert machine["device"] == torch.cuda.get_device_name()
    assert min(machine["peak_flops_per_second"].values()) > 0 and machine["copy_bytes_per_second"] > 0


def test_a_measurement_that_fails_ends_no_other(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("no such op")

    def fails_in_bf16(precision):
        return fails() if precision.dtype == torch.bfloat16 else 1e12

    monkeypatch.setattr(device_speed, "training_flops", fails)
    monkeypatch.setattr(device_speed, "matmul_flops_per_second", fails_in_bf16)
    with pytest.raises(UserError, match=r"^not measured: training_flops_per_image: RuntimeError: no such op; O1-bf16"):
        measured_machine(tmp_path / "machine.json", monkeypatch)
    machine = json.loads((tmp_path / "machine.json").read_text())
    assert machine["peak_flops_per_second"]["fp32"] == 1e12 and machine["copy_bytes_per_second"] > 0


# Tables


CEILINGS = {"peak_flops_per_second": {"O1-bf16": 790e12, "fp32": 60e12}, "copy_bytes_per_second": 4.3e12}


def test_the_bound_is_computed_for_the_model_that_was_counted(tmp_path):
    config = config_of(parts_of(f"-output={tmp_path}")["O1"])
    machine = CEILINGS | {"training_flops_per_image": training_flops(build_plain_model(config), config.data)}
    bound = bound_images_per_second("O1-bf16", "O1", 256, machine)
    assert bound == pytest.approx(256 / (256 * 105.15e9 / 790e12 + 106.1e9 / 4.3e12), rel=1e-3)
    assert bound_images_per_second("O1-bf16", "O1", 64, machine) < bound
    assert bound_images_per_second("O1-bf16", "dropout", 256, machine) < bound
    assert bound_images_per_second("O1-bf16", "", 256, machine) is None
    assert bound_images_per_second("tf32", "fp32", 256, machine) is None
    assert bound_images_per_second("fp32", "fp32", 256, machine | {"training_flops_per_image": 1e9}) is None


def figures_text(folder: Path, machine: dict) -> str:
    machine |= {"device": "GPU", "torch": "2", "model": "vit"}
    write_figures(folder, [Part("machine", [], 1.0, outcome="done", result=machine)], "", [])
    return (folder / "figures.md").read_text()


def test_rows_have_the_bound_and_the_share_of_it(tmp_path):
    machine = CEILINGS | {"training_flops_per_image": 105.15e9}
    one = trained("compiled", {"ready": figures(2000.0, 0.01), "bare": figures(4100.0), "jpeg": {"failed": "why"}})
    one.settings["programs"] += ("timm",)
    bound = bound_images_per_second("O1-bf16", "O1", 256, machine)
    cells = [f"{bound:,.0f}", f"{2000 / bound:.1%}"]
    head = ["compiled", "O1-bf16", "256", "blocks"]
    assert training_rows(one, machine) == [
        [*head, "ready", "2000.0", *cells, "1.0%", "20.00"],
        [*head, "bare", "4100.0", cells[0], f"{4100 / bound:.1%}", "", "20.00"],
        [*head, "jpeg", "failed: why", "", "", "", ""],
        [*head, "timm", "done", "", "", "", ""],
    ]
    assert training_rows(one, {})[0][5:] == ["2000.0", "", "", "1.0%", "20.00"]
    assert "target" not in figures_text(tmp_path, machine | {"training_flops_per_image": 1e9})
    assert "target" in figures_text(tmp_path, machine)
    one.result, one.outcome = None, "failed: a | b"
    assert [row[5] for row in training_rows(one, machine)] == ["failed: a \\| b"] * 4


def test_targets_are_compared_with_the_measured_values():
    parts = [
        trained("compiled", {"ready": figures(4000.0)}),
        trained("fp16_small", {"ready": figures(1900.0)}),
        trained("fp32_small", {"ready": figures(1000.0)}),
        trained("jpeg", {"jpeg": figures(3600.0)}),
        trained("timm", {"timm": figures(3000.0), "jpeg_whole": figures(3300.0)}),
    ]
    assert [row[2] for row in target_rows(parts, {})] == ["4,000", "", "1.900", "0.900", "1.100", "1.200"]
    assert [row[2] for row in target_rows([], {})] == [""] * 6


def test_figures_are_written_after_each_part_and_a_later_call_adds_to_them(tmp_path, monkeypatch, capsys):
    machine = {"device": "GPU", "torch": "2", "model": "vit", "training_flops_per_image": 1e9}
    machine |= {"peak_flops_per_second": {"O1-bf16": 1e12}}

    def writing(name: str, result: dict, first: str = "0") -> Part:
        text = f"{first}; open({str(tmp_path / name)!r} + '.json', 'w').write({json.dumps(result)!r})"
        return Part(name, part(text).command, 60.0, trained(name, {"ready": {}}).settings if name == "O1" else {})

    def parts(*_):
        check = f"assert 'machine | done' in open({str(tmp_path / 'figures.md')!r}).read()"
        o1 = {"programs": {"ready": figures(100.0)}, "ratios": {}}
        return [writing("machine", machine), writing("O1", o1, check), part("raise SystemExit(3)", name="loaders")]

    monkeypatch.setattr(Plan, "parts", parts)
    assert benchmark_gpu.main([f"-output={tmp_path}", "-parts=loaders,machine"]) == 1
    assert benchmark_gpu.main([f"-output={tmp_path}", "-parts=O1"]) == 0
    printed = capsys.readouterr().out
    assert "| O1 | O1-bf16 | 256 | no | ready | 100.0 |  |  | 0.0% | 20.00 |" in printed
    assert printed.count("| loaders | failed: ended with status 3 |") == 2
    kept = json.loads((tmp_path / "figures.json").read_text())["parts"]
    assert [one["outcome"] for one in kept] == ["done", "done", "failed: ended with status 3"]
    with tarfile.open(tmp_path / "figures.tar.gz") as archive:
        assert {"figures.md", "figures.json", "O1.txt", "loaders.txt"} <= set(archive.getnames())


# Archives


def test_the_archive_is_small_enough_and_leaves_out_the_largest_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_archive, "MAX_BYTES", 4000)
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "trace.json.gz").write_bytes(os.urandom(5000))
    (tmp_path / "figures.md").write_text("table")
    (tmp_path / "cache.tar.gz.000").touch()
    for _ in range(2):
        write_archive(tmp_path)
    assert (tmp_path / "figures.tar.gz").stat().st_size <= 4000
    with tarfile.open(tmp_path / "figures.tar.gz") as archive:
        assert archive.getnames() == ["figures.md"]
    assert "trace.json.gz" in capsys.readouterr().err


@pytest.fixture
def packed(tmp_path, monkeypatch) -> Path:
    """A folder with the pieces of a cache of 10,000 bytes, and a piece of an older and larger cache."""
    monkeypatch.setattr(gpu_archive, "MAX_BYTES", 4000)
    (tmp_path / "cache" / "triton").mkdir(parents=True)
    (tmp_path / "cache" / "triton" / "kernel").write_bytes(os.urandom(10_000))
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "cache.tar.gz.007").touch()
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


@pytest.mark.parametrize("missing", [0, 1, 2, None])
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
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"-cache {packed}: ")


def test_compilers_output_of_a_part_that_is_not_done_is_dropped(tmp_path):
    for name in ("old.so", "new.main.so", "new.gch", "new.py"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "old.so", (1000, 1000))
    drop_incomplete(tmp_path, 2000.0)
    assert {path.name for path in tmp_path.iterdir()} == {"old.so", "new.py"}


def test_an_interrupted_call_keeps_its_compile_cache_without_incomplete_files(tmp_path, monkeypatch):
    def interrupt(*arguments) -> None:
        environment = arguments[2]
        for name in ("kernel", "new.main.so"):
            file = Path(environment["TORCHINDUCTOR_CACHE_DIR"], name)
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


# All parts


@pytest.mark.slow
@pytest.mark.parametrize("group", range(8))
def test_every_part_runs_on_a_cpu(group, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # compilation takes minutes, and has tests of its own
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(gpu_plan, "visible_gpus", lambda: 0)
    monkeypatch.setattr(gpu_plan, "LIMITS", dict.fromkeys(gpu_plan.LIMITS, 600))
    tiny = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", "MODEL.DEPTH=1", "DATA.IMAGE_SIZE=32"]
    (tmp_path / "train.py").write_text(TIMM.format(parameters=parameters(tiny)))
    names = NAMES[group::8]
    benchmark_gpu.main([
        *(f"-output={tmp_path / 'figures'}", f"-parts={','.join(names)}", "-minutes=60", "-batch_sizes=2"),
        *("-timed_images=20", f"-timm_train={tmp_path / 'train.py'}", *tiny),
    ])  # fmt: skip
    rows = json.loads((tmp_path / "figures" / "figures.json").read_text())["parts"]
    outcomes = {row["name"]: row["outcome"] for row in rows if row["name"] in names}
    for name, reason in {"cudnn": "MODEL.ATTENTION", "tests": "skipped", "tests_compile": "skipped"}.items():
        assert reason in outcomes.pop(name, reason)
    assert outcomes == dict.fromkeys(outcomes, "done")
    results = [row["result"]["programs"] for row in rows if row["name"] in outcomes and row["settings"]]
    assert all(one["images_per_second"][0] > 0 for programs in results for one in programs.values())
