"""benchmark_train.py: command lines, figures and real runs. No test here asserts a time."""

import json
import sys
from pathlib import Path

import pytest
from conftest import TINY_VIT

from configs.reading.command_line import parse_command_line
from scripts.benchmarks import benchmark_train
from scripts.benchmarks.benchmark_images import make_images
from scripts.benchmarks.benchmark_train import DEFAULTS, build_program, figures_of, program_figures, speed_ratios, texts
from scripts.benchmarks.programs import PlainLog, Program, ProgramError, Reading, Window
from scripts.benchmarks.training_parts import build_plain_model
from scripts.flags import split_flags
from utils.errors import UserError

TINY = ["-batch_size=4", "-num_workers=0", "-opts", *TINY_VIT, "MODEL.NAME=vit_tiny_patch16_224"]

TIMM = """
import sys, time
print("Model m created, param count:{parameters}")
for step in range(0, 10000, 2):
    rate = 4 / 0.02
    print(f"Train: 0 [{{step:>4d}}/9 (  1%)]  Loss: 2 (2)  Time: 0.020s,  {{rate:>7.2f}}/s  (0.020s,  {{rate:>7.2f}}/s)"
          "  LR: 1.0e-05  Data: 0.005 (0.005)", flush=True)
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("scripts.benchmarks.common.visible_gpus", lambda: 0)
    monkeypatch.setattr("scripts.benchmarks.benchmark_train.visible_gpus", lambda: 0)
    monkeypatch.setattr("scripts.benchmarks.timm_command.visible_gpus", lambda: 0)


def window(seconds: float, own_seconds: float, waiting: float = 0.0) -> Window:
    return Window(10, seconds, Reading(5, 3.0), Reading(15, 3.0 + own_seconds, waiting, 2e9))


def parsed(*argv: str):
    flags, rest = split_flags(benchmark_train._parser(), list(argv))
    return flags, rest, parse_command_line([*DEFAULTS, *rest]).config


# Figures


def test_speeds_are_given_by_our_clock_and_by_the_programs_own():
    one = program_figures([window(4.0, 5.0, waiting=1.0), window(2.0, 2.0)], images_per_step=8)
    assert one["images_per_second"] == [20.0, 40.0]
    assert one["images_per_second_in_its_log"] == [16.0, 40.0]
    assert one["data_wait_share"] == [0.2, 0.0]
    assert one["peak_memory_bytes"] == 2e9


def test_a_ratio_compares_measurements_of_one_round():
    speeds = {"jpeg": [30.0, 90.0, 40.0], "timm": [20.0, 30.0, 40.0], "ready": [30.0, 90.0, 50.0]}
    figures = {name: {"images_per_second": values} for name, values in speeds.items()} | {"bare": {"failed": "why"}}
    assert speed_ratios(figures) == {"jpeg / timm": [1.5, 3.0, 1.0], "jpeg / ready": [1.0, 1.0, 0.8]}


def test_programs_without_a_complete_turn_have_no_figures():
    *_, config = parsed("-batch_size=8")
    results = {"jpeg": [window(4.0, 4.0), window(2.0, 2.0)], "timm": [window(8.0, 8.0)], "bare": []}
    figures = figures_of(results, config)
    assert list(figures["programs"]) == ["jpeg", "timm"]
    assert figures["ratios"] == {"jpeg / timm": [2.0]}


def test_a_failed_program_has_a_row():
    flags, *_ = parsed("-rounds=2")
    figures = {
        "jpeg": program_figures([window(4.0, 5.0), window(2.0, 2.0)], images_per_step=8),
        "timm": program_figures(ProgramError("no module named timm"), images_per_step=8),
    }
    _, table, _ = texts(figures, {}, flags)
    assert "| jpeg | 30.0 (20.0 to 40.0) | 28.0 (16.0 to 40.0) | 0.0% | 2.00 |" in table
    assert "| timm | failed: no module named timm |  |  |  |" in table


# Command lines


def test_timm_trains_in_the_same_way():
    flags, rest, config = parsed(
        *["-timm_train=train.py", "-batch_size=48", "-warmup=4", "-steps=8", "-interval=4"],
        *["-opts", "MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.2", "MODEL.DROPPATH=0.3", "TRAIN.SMOOTHING=0.1"],
    )
    command = build_program("timm_explicit", rest, config, flags, Path("/folder")).command
    line = " ".join(command)
    for part in (
        "--amp", "--amp-dtype bfloat16", "--batch-size 48", "--workers 2", "--model vit_tiny_patch16_224",
        "--model-kwargs pos_drop_rate=0.1 proj_drop_rate=0.1 attn_drop_rate=0.2", "--drop-path 0.3", "--opt adamw",
        "--clip-grad 1.0", "--smoothing 0.1", "--data-dir /folder/data", "--log-interval 4", "--device cpu",
        "--train-interpolation bicubic", "--color-jitter 0", "--sched-on-updates", "--mean 0.5 0.5 0.5",
    ):  # fmt: skip
        assert f" {part} " in f"{line} "
    assert command[command.index("--val-split") + 1] == ""
    assert "--torchcompile" not in command
    assert build_program("timm_explicit", rest, config, flags, Path("/folder")).environment == {"TIMM_FUSED_ATTN": "0"}
    assert build_program("timm", rest, config, flags, Path("/folder")).environment == {}


def test_the_entry_script_gets_the_options_of_the_user():
    flags, rest, config = parsed("-warmup=4", "-steps=8", "-interval=4", "-opts", "SEED=7")
    for name in ("jpeg", "ready"):
        command = build_program(name, rest, config, flags, Path("/folder")).command
        ours = parse_command_line(command[2:]).config
        assert (ours.seed, ours.train.max_steps, ours.report_freq, ours.amp.enabled) == (7, None, 4, True)
        assert (ours.data.batch_size, ours.model.name, ours.model.dropout) == (32, "vit_tiny_patch16_224", 0.0)
    assert (ours.data.dataset, ours.data.random_crop_scale, ours.data.hflip_prob) == ("fake", (1.0, 1.0), 0.0)


def test_ours_is_compiled_by_block_and_as_a_whole_like_timm():
    flags, rest, config = parsed("-compile", "-timm_train=train.py")
    assert "--torchcompile" in build_program("timm", rest, config, flags, Path("/folder")).command
    for name, expected in (("jpeg", "default"), ("jpeg_whole", "model")):
        ours = parse_command_line(build_program(name, rest, config, flags, Path("/folder")).command[2:]).config
        assert (ours.train.compile, ours.data.data_path) == (expected, "/folder/data")
    assert "jpeg_whole" in benchmark_train._checked_programs(parsed("-compile")[0], config)


def test_o2_is_measured_through_the_entry_script_only():
    flags, _, config = parsed("-programs=jpeg,ready", "-opts", "AMP.LEVEL=O2")
    assert benchmark_train._checked_programs(flags, config) == ["jpeg", "ready"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-programs=jpegs"], "unknown program jpegs; did you mean jpeg?"),
        (["-programs=jpeg,timm"], "-timm_train"),
        (["-timm_train=/no/such/train.py"], "no such file"),
        (["-interval=8", "-warmup=8", "-steps=12"], "-steps 12: must be a multiple of -interval 8"),
        (["-timm_train=x", "-opts", "MODEL.NAME=my_vit"], "MODEL.NAME my_vit"),
        (["-opts", "TRAIN.MIXUP_ALPHA=0.2"], "TRAIN.MIXUP_ALPHA"),
        (["-opts", "AMP.LEVEL=O2"], "AMP.LEVEL O2: bare, timm, timm_explicit support O1 only"),
        (["-programs=jpeg_whole"], "-programs jpeg_whole: compares two ways of compilation; add -compile"),
        (["-worm_up=8"], "unknown flag -worm_up; did you mean -warmup?"),
    ],
)
def test_mistakes_are_reported_before_the_measurements(argv, said, monkeypatch):
    monkeypatch.setattr(benchmark_train, "measure", lambda *_: pytest.fail("a measurement started"))
    monkeypatch.setattr(benchmark_train, "make_images", lambda *_, **__: pytest.fail("images were made"))
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        benchmark_train.main(argv)


# Measurements


def parameters(argv: list[str]) -> int:
    model = build_plain_model(parse_command_line([*DEFAULTS, *argv]).config)
    return sum(parameter.numel() for parameter in model.parameters())


def test_rounds_of_the_entry_script_and_of_a_train_py(tmp_path, capsys):
    make_images(tmp_path / "images", (24, 16), count=16, mean_bytes=500)
    (tmp_path / "train.py").write_text(TIMM.format(parameters=parameters(TINY)))
    flags = ["-programs=jpeg,timm", "-rounds=2", "-warmup=2", "-steps=4", "-interval=2"]
    paths = [f"-timm_train={tmp_path / 'train.py'}", f"-data={tmp_path / 'images'}", f"-json={tmp_path / 'a.json'}"]
    assert benchmark_train.main([*flags, *paths, *TINY]) == 0
    printed = capsys.readouterr().out
    for start in ("2 turns of 4 steps each", "| program | images/s |", "| jpeg |", "| timm |", "| jpeg / timm |"):
        assert f"\n{start}" in printed
    result = json.loads((tmp_path / "a.json").read_text())
    ours, timms = result["programs"]["jpeg"], result["programs"]["timm"]
    pairs = zip(ours["images_per_second"], timms["images_per_second"], strict=True)
    assert result["ratios"]["jpeg / timm"] == [one / other for one, other in pairs]
    assert timms["images_per_second_in_its_log"] == pytest.approx([200.0, 200.0])
    assert timms["data_wait_share"] == pytest.approx([0.25, 0.25])
    assert ours["peak_memory_bytes"] > 1e8


def test_a_model_with_other_parameters_is_refused(tmp_path):
    (tmp_path / "train.py").write_text(TIMM.format(parameters=5))
    flags, rest, config = parsed(f"-timm_train={tmp_path / 'train.py'}", "-warmup=4", *TINY)
    found = benchmark_train.measure({"timm": build_program("timm", rest, config, flags, tmp_path)}, config, flags)
    assert str(found["timm"]).startswith("timm's model has [5] parameters and ours")


def endless(pid_file: Path) -> Program:
    text = f"import itertools, os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
    text += (
        "for step in itertools.count(1):\n    time.sleep(0.01)\n    print(f'step {step}, {step} s, 1 GB', flush=True)"
    )
    return Program([sys.executable, "-c", text], {}, PlainLog())


def test_a_program_ends_after_its_last_turn(tmp_path):
    flags, _, config = parsed("-rounds=2", "-warmup=1", "-steps=2", "-interval=1")
    failing = Program([sys.executable, "-c", "print('no memory')"], {}, PlainLog())
    programs = {name: endless(tmp_path / name) for name in ("ready", "bare")} | {"jpeg": failing}
    seen = []

    def after_turn(results: benchmark_train.Results) -> None:
        ready, bare, jpeg = results.values()
        running = [file.name for file in tmp_path.iterdir() if Path(f"/proc/{file.read_text()}").exists()]
        seen.append((len(ready), len(bare), str(jpeg), sorted(running)))

    benchmark_train.measure(programs, config, flags, after_turn)
    assert seen == [
        (1, 0, "[]", ["ready"]),
        (1, 1, "[]", ["bare", "ready"]),
        (1, 1, "no memory", ["bare", "ready"]),
        (1, 2, "no memory", ["ready"]),
        (2, 2, "no memory", []),
    ]


def test_json_is_written_after_each_turn(tmp_path, monkeypatch, capsys):
    file, counts = tmp_path / "figures.json", []
    names = ("ready", "bare")
    monkeypatch.setattr(benchmark_train, "build_program", lambda name, *_: endless(tmp_path / name))
    write = benchmark_train.write_json

    def count_turns(*arguments) -> None:
        write(*arguments)
        programs = json.loads(file.read_text())["programs"]
        counts.append(sum(len(programs[name]["images_per_second"]) for name in names if name in programs))

    monkeypatch.setattr(benchmark_train, "write_json", count_turns)
    flags = [f"-programs={','.join(names)}", "-rounds=2", "-warmup=1", "-steps=2", "-interval=1", f"-json={file}"]
    assert benchmark_train.main(flags) == 0
    assert counts == [1, 2, 3, 4, 4]
    assert json.loads(file.read_text())["environment"]["batch_size"] == 32


def test_if_all_programs_fail_the_error_has_a_reason(monkeypatch, capsys):
    failing = Program([sys.executable, "-c", "print('no memory')"], {}, PlainLog())
    monkeypatch.setattr(benchmark_train, "build_program", lambda *_: failing)
    with pytest.raises(UserError, match=r"^all programs failed; ready: no memory$"):
        benchmark_train.main(["-programs=ready"])


def test_the_bare_loop_logs_its_steps(cpu):
    *_, config = parsed(*TINY)
    lines = benchmark_train.run_bare_loop(config, interval=2)
    readings = [PlainLog().read(next(lines)) for _ in range(3)]
    assert [reading.steps for reading in readings] == [2, 4, 6]
    assert 0 < readings[0].seconds < readings[1].seconds < readings[2].seconds
