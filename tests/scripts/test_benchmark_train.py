"""benchmark_train.py and programs.py: logs, turns, figures, command lines. No test here asserts a time."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from conftest import TINY_VIT

from configs.reading.command_line import parse_command_line
from engine.run.step_report import StepReport, log_lines
from scripts.benchmarks import benchmark_train
from scripts.benchmarks.benchmark_train import DEFAULTS, build_program, figures_of, program_figures, speed_ratios, texts
from scripts.benchmarks.images import Size, make_images
from scripts.benchmarks.programs import OurLog, PlainLog, Program, ProgramError, Reading, TimmLog, Window, run_turn
from scripts.flags import split_flags
from utils.errors import UserError
from utils.metrics import Metrics

TINY = ["-batch_size=4", "-num_workers=0", "-opts", *TINY_VIT, "MODEL.NAME=vit_tiny_patch16_224"]

TIMM = """
import time
for step in range(0, 10000, 2):
    print(f"Train: 0 [{step:>4d}/9 (  1%)]  Loss: 2 (2)  Time: 0.020s,  200.00/s  (0.020s,  200.00/s)"
          "  LR: 1.0e-05  Data: 0.005 (0.005)", flush=True)
    time.sleep(0.02)
"""
STEPS = (
    "import itertools, time\nfor step in itertools.count(1): print(f'step {step}, 1 GB', flush=True); time.sleep(0.01)"
)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def python(code: str, prefetches: bool = False) -> Program:
    return Program([sys.executable, "-c", code], {}, PlainLog, prefetches)


def parsed(*argv: str):
    flags, rest = split_flags(benchmark_train._parser(), list(argv))
    return flags, rest, parse_command_line([*DEFAULTS, *rest]).config


# Logs


def test_our_log_is_read_as_the_reporter_writes_it():
    metrics = Metrics(6.9312, 0.0, 0.0, 32, 0, 1.23)
    report = {
        "num_epochs": 300, "epoch_step": 1, "steps_per_epoch": 40, "step": 1, "lr": 1e-6, "latest": metrics,
        "average": metrics, "tflops_per_second": 0.24, "model_flops_utilization": None, "is_scaled": True,
        "loss_scale": 65536.0, "skipped_steps": 1, "peak_memory_bytes": 2_270_000_000, "seconds_left": 36_180.0,
    }  # fmt: skip
    log = OurLog(images_per_step=32)
    first = StepReport(epoch=1, images_per_second=16.0, data_wait_share=0.5, **report)
    later = StepReport(epoch=2, images_per_second=32.0, data_wait_share=0.0, **report)
    assert [log.read(line) for line in log_lines(first)] == [Reading(1, 1.0, 2.27e9), None]
    assert log.read("----- Epoch[001/300], epoch time: 1m00s, 24.0 img/s, time left: 10h03m") is None
    assert [log.read(line) for line in log_lines(later)] == [Reading(41, 1.0, 2.27e9), None]
    rounded_to_zero = StepReport(epoch=3, images_per_second=0.0, data_wait_share=0.5, **report)
    assert log.read(log_lines(rounded_to_zero)[0]).steps == 81


def test_timms_lines_have_averages_over_the_epoch():
    line = (
        "Train: 0 [{step:>4d}/1252 (  1%)]  Loss: nan (6.96)  Time: 0.480s,   66.67/s  (0.600s,   53.00/s)  "
        "LR: 1.000e-05  Data: 0.010 ({data})"
    )
    log = TimmLog()
    assert log.read("Model vit_tiny_patch16_224 created, param count:5717416") is None
    assert log.read(line.format(step=0, data="1.000")) == Reading(1, 1.0)
    assert log.read(line.format(step=8, data="0.200")) == Reading(9, pytest.approx(1.8))


def test_a_plain_line_is_read_as_written():
    assert PlainLog().read(PlainLog.line(8, 731_000_000)) == Reading(8, 0.0, 731e6)


# Turns


def test_steps_are_timed_after_the_warm_up():
    window = run_turn(python(STEPS), warmup=3, steps=5, limit_seconds=60)
    assert (window.first.steps, window.last.steps, window.last.memory_bytes) == (3, 8, 1e9) and window.seconds > 0


LOADING = """
import os, subprocess, sys, time
compiling = [sys.executable, "-c", "import time; time.sleep(100)", "torch/_" + "inductor/compile_worker/__main__.py"]
subprocess.Popen(compiling)
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, bytes(40))
    while os.getppid() != 1:
        time.sleep(0.05)
        os.write(write, bytes(1))
for step in range(1, 10000):
    os.read(read, 1)
    print(f"step {step}, 0 GB", flush=True)
    time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.parametrize("prefetches", [True, False])
def test_prefetched_batches_are_used_up_before_a_turn_is_timed(prefetches):
    window = run_turn(python(LOADING, prefetches), warmup=2, steps=5, limit_seconds=60)
    assert (window.first.steps > 40, window.steps) == (prefetches, 5)


def test_child_processes_end_with_the_program(tmp_path):
    pid_file = tmp_path / "pid"
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])"
    code = f"import subprocess, sys\nchild = {child}\n{STEPS}"
    code = code.replace("print(", f"open({str(pid_file)!r}, 'w').write(str(child.pid)); print(")
    run_turn(python(code), 1, 1, limit_seconds=60)
    assert_ended(int(pid_file.read_text()))


def assert_ended(pid: int) -> None:
    """Waits until the process does not exist, or is a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(500):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.02)
    pytest.fail("the process is still running")


@pytest.mark.parametrize(
    ("code", "limit_seconds", "said"),
    [
        ("import sys; sys.exit('error: no such file')", 60, "^no such file$"),
        ("import time; print('loading', flush=True); time.sleep(100)", 1, "1 s; last line: "),
        ("", 60, "no output"),
    ],
)
def test_a_program_that_fails_gives_its_reason(code, limit_seconds, said):
    with pytest.raises(ProgramError, match=said):
        run_turn(python(code), 1, 1, limit_seconds)


def test_the_environment_is_for_the_program_only():
    code = "import os; print('step 1, 0.0 GB'); print(os.environ['ADDED'])"
    with pytest.raises(ProgramError, match="added for it"):
        run_turn(Program([sys.executable, "-c", code], {"ADDED": "added for it"}, PlainLog), 1, 1, 60)
    assert "ADDED" not in os.environ


# Figures


def window(seconds: float, waiting: float = 0.0) -> Window:
    return Window(seconds, Reading(5), Reading(15, waiting, 2e9))


def test_figures_of_turns_and_of_a_failed_program():
    flags, _, config = parsed("-batch_size=8")
    results = {"jpeg": [window(4.0, 1.0), window(2.0)], "timm": ProgramError("no module named timm"), "bare": []}
    figures = figures_of(results, config)
    assert list(figures["programs"]) == ["jpeg", "timm"]
    jpeg = {"images_per_second": [20.0, 40.0], "data_wait_share": [0.25, 0.0], "peak_memory_bytes": 2e9}
    assert program_figures(results["jpeg"], 8) == jpeg == figures["programs"]["jpeg"]
    _, table, _ = texts(**figures, flags=flags)
    assert "| jpeg | 30.0 (20.0 to 40.0) | 12.5% | 2.00 |" in table
    assert "| timm | failed: no module named timm |  |  |" in table


def test_a_ratio_compares_measurements_of_one_round():
    speeds = {"jpeg": [30.0, 90.0, 40.0], "timm": [20.0, 30.0], "ready": [30.0, 90.0, 50.0]}
    figures = {name: {"images_per_second": values} for name, values in speeds.items()} | {"bare": {"failed": "why"}}
    assert speed_ratios(figures) == {"jpeg / timm": [1.5, 3.0], "jpeg / ready": [1.0, 1.0, 0.8]}


# Command lines


def test_the_entry_script_gets_the_options_of_the_user():
    flags, rest, config = parsed("-warmup=4", "-steps=8", "-interval=4", "-compile", "-opts", "SEED=7")
    for name in ("jpeg", "jpeg_whole", "ready"):
        ours = parse_command_line(build_program(name, rest, config, flags, Path("/f")).command[2:]).config
        assert (ours.seed, ours.train.max_steps, ours.report_freq, ours.amp.enabled) == (7, None, 4, True)
        assert (ours.data.batch_size, ours.model.name, ours.model.dropout) == (32, "vit_tiny_patch16_224", 0.0)
        assert ours.train.compile == ("model" if name == "jpeg_whole" else "default")
        assert (ours.data.dataset, ours.data.hflip_prob) == (("fake", 0.0) if name == "ready" else ("folder", 0.5))
    assert "jpeg_whole" in benchmark_train.checked_programs(flags, config)


def test_timm_trains_in_the_same_way():
    flags, rest, config = parsed("-timm_train=train.py", "-compile", "-opts", "MODEL.DROPOUT=0.1")
    explicit, timm = (build_program(name, rest, config, flags, Path("/f")) for name in ("timm_explicit", "timm"))
    assert (explicit.environment, timm.environment) == ({"TIMM_FUSED_ATTN": "0"}, {})
    assert explicit.command == timm.command
    line = f"{' '.join(timm.command)} "
    for words in (
        "--data-dir /f/data",
        "--torchcompile",
        "--log-interval 4",
        "pos_drop_rate=0.1",
        "--amp",
        "--workers 2",
    ):
        assert f" {words} " in line
    assert timm.command[timm.command.index("--val-split") + 1] == ""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-programs=jpegs"], "jpegs; did you mean jpeg"),
        (["-programs=jpeg,timm"], "-timm_train"),
        (["-timm_train=/no/such/train.py"], "/no/such/train.py"),
        (["-interval=8", "-warmup=8", "-steps=12"], "-steps 12.*-interval 8"),
        (["-timm_train=x", "-opts", "MODEL.NAME=my_vit"], "MODEL.NAME my_vit"),
        (["-opts", "TRAIN.MIXUP_ALPHA=0.2"], "TRAIN.MIXUP_ALPHA"),
        (["-opts", "AMP.LEVEL=O2"], "AMP.LEVEL O2"),
        (["-programs=jpeg_whole"], "jpeg_whole.*-compile"),
    ],
)
def test_mistakes_are_reported_before_the_measurements(argv, said, monkeypatch):
    monkeypatch.setattr(benchmark_train, "measure", lambda *_: pytest.fail("a measurement started"))
    monkeypatch.setattr(benchmark_train, "make_images", lambda *_, **__: pytest.fail("images were made"))
    with pytest.raises(UserError, match=said):
        benchmark_train.main(argv)


def test_o2_is_measured_through_the_entry_script_only():
    flags, _, config = parsed("-programs=jpeg,ready", "-opts", "AMP.LEVEL=O2")
    assert benchmark_train.checked_programs(flags, config) == ["jpeg", "ready"]


# Measurements


@pytest.mark.slow
def test_rounds_of_the_entry_script_and_of_a_train_py(tmp_path, capsys):
    make_images(tmp_path / "images", Size(24, 16, 0.0), count=16)
    (tmp_path / "train.py").write_text(TIMM)
    flags = ["-programs=jpeg,timm", "-rounds=2", "-warmup=2", "-steps=4", "-interval=2"]
    paths = [f"-timm_train={tmp_path / 'train.py'}", f"-data={tmp_path / 'images'}", f"-json={tmp_path / 'a.json'}"]
    assert benchmark_train.main([*flags, *paths, *TINY]) == 0
    printed = capsys.readouterr().out
    for start in ("2 turns of 4 steps each", "| program | images/s |", "| jpeg |", "| timm |", "| jpeg / timm |"):
        assert f"\n{start}" in printed
    result = json.loads((tmp_path / "a.json").read_text())
    assert len(result["ratios"]["jpeg / timm"]) == 2 and result["environment"]["batch_size"] == 4
    assert result["programs"]["jpeg"]["peak_memory_bytes"] > 1e8


def test_each_turn_is_written_and_a_failed_program_gets_no_more(tmp_path, monkeypatch):
    file, seen = tmp_path / "a.json", []
    programs = {"ready": python(STEPS), "bare": python("print('no memory')")}
    monkeypatch.setattr(benchmark_train, "build_program", lambda name, *_: programs[name])
    write = benchmark_train.write_json

    def write_json(*arguments) -> None:
        write(*arguments)
        found = json.loads(file.read_text())["programs"]
        seen.append((len(found["ready"]["images_per_second"]), found.get("bare")))

    monkeypatch.setattr(benchmark_train, "write_json", write_json)
    flags = ["-programs=ready,bare", "-rounds=2", "-warmup=1", "-steps=2", "-interval=1", f"-json={file}"]
    assert benchmark_train.main(flags) == 0
    assert seen == [(1, None), *[(number, {"failed": "no memory"}) for number in (1, 2)]]


def test_if_all_programs_fail_the_error_has_a_reason(monkeypatch):
    monkeypatch.setattr(benchmark_train, "build_program", lambda *_: python("print('no memory')"))
    with pytest.raises(UserError, match="ready: no memory"):
        benchmark_train.main(["-programs=ready"])


def test_the_bare_loop_logs_its_steps():
    *_, config = parsed(*TINY)
    lines = benchmark_train.run_bare_loop(config, interval=2)
    assert [PlainLog().read(next(lines)).steps for _ in range(3)] == [2, 4, 6]
