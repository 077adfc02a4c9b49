"""The facts of a run: each kind is read as it was written; damaged lines; the records of a run."""

import shlex
import sys
from pathlib import Path

import pytest
from conftest import train

from engine.run.facts import (
    FACTS,
    MAX_CHARS,
    Attention,
    Devices,
    Environment,
    EvaluationData,
    Model,
    PixelBaseline,
    Preprocessing,
    RunWarning,
    Start,
    TrainingData,
    read_facts,
    to_json,
)

EXAMPLES = [
    (Start("output/\udcffrun\n", 40), "output/\udcffrun\n"),
    (Devices(1, "cpu", "float32"), "1 process, cpu, float32"),
    (Devices(11, "cuda:0", "O1: bfloat16"), "11 processes, cuda:0, O1: bfloat16"),
    (
        Environment("python a.py", {"Python": "3.12.1", "commit": "\udcff"}, ["a", "b"], {"OMP_NUM_THREADS": "1"}),
        "Python 3.12.1, commit \udcff",
    ),
    (Model(455_000, 46_600_000, None), "0.455 M parameters, 0.0466 GFLOP"),
    (Model(455_000, 46_600_000, None, 1930), "0.455 M parameters, 0.002 M trainable, 0.0466 GFLOP"),
    (Model(86_000_000, 105 * 10**9, 2e15), "86.000 M parameters, 105 GFLOP per training image; datasheet peak: 2000 T"),
    (TrainingData(1437, 360, 20, 9, 10), "1437 training images of 9 classes, 360 for validation, 20 for the test"),
    (EvaluationData(8, 2, 3, "val"), "8 images of 2 of 3 classes: the validation split"),
    (EvaluationData(8, 2, 3), "8 images of 2 of 3 classes"),
    (EvaluationData(8, path="photos"), "8 images of photos"),
    (Attention(["flash_attention", "math"]), "flash_attention, math"),
    (
        Preprocessing(8, 1.0, "bilinear", [0.5], [0.25], "default: all"),
        "8 pixels, crop 1, bilinear, mean [0.5], std [0.25]",
    ),
    (PixelBaseline(78.37, 10.21, 1854, 208), "ixel baseline 78.4%, majority class 10.2%"),
    (RunWarning("Warning: slow"), "Warning: slow"),
]


@pytest.mark.parametrize(("fact", "shown"), EXAMPLES)
def test_each_kind_is_read_as_it_was_written(tmp_path, fact, shown):
    (tmp_path / FACTS).write_text(f"{to_json(fact, time='now')}\n")
    assert read_facts(tmp_path / FACTS).get(type(fact)) == fact and shown in str(fact)


def test_the_latest_of_each_kind_counts_and_starts_and_warnings_are_counted(tmp_path):
    warning = RunWarning("w" * 2 * MAX_CHARS)
    facts = [Start("a", 0), warning, Devices(1, "cpu", "float32"), warning, Start("a", 7), Devices(2, "cpu", "float32")]
    (tmp_path / FACTS).write_text("".join(f"{to_json(fact)}\n" for fact in facts))
    read = read_facts(tmp_path / FACTS)
    assert read.starts == 2 and read.get(Start).steps_done == 7 and read.get(Devices).processes == 2
    assert read.warnings == {"w" * MAX_CHARS: 2} and read.get(Model) is None


DAMAGED = (
    "", "{", "[]", "7", "{}", '{"fact": "Model"}', '{"fact": ["Model"]}', '{"fact": "OfALaterVersion", "a": 1}',
    '{"fact": "Devices", "processes": "many", "device": "cpu", "precision": "float32"}',
    '{"fact": "Devices", "processes": -1, "device": "cpu", "precision": "float32"}',
    '{"fact": "Attention", "kernels": "flash"}', '{"fact": "RunWarning", "text": {"a": 1}}',
    '{"fact": "Model", "parameters": 1' + "0" * 400 + ', "flops_per_image": null, "peak_flops_per_second": null}',
    "[" * 100_000,
)  # fmt: skip


def test_damaged_lines_are_left_out(tmp_path):
    lines = [*DAMAGED, to_json(Devices(1, "cpu", "float32")), to_json(Start("a", 0))[:-5]]
    (tmp_path / FACTS).write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\n")
    facts = read_facts(tmp_path / FACTS)
    assert list(facts.latest) == [Devices] and not facts.starts and not facts.warnings


def test_a_run_records_itself_and_its_log_has_the_lines_of_the_facts(digits_argv, cpu):
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=3", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_WARMUP=false"], cpu)
    train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=5"], cpu)
    facts, log = read_facts(folder / FACTS), (folder / "log.txt").read_text()
    assert facts.latest.keys() == {Start, Devices, Environment, TrainingData, Preprocessing, Model, RunWarning}
    program = shlex.join([sys.executable, str(Path(__file__).parents[3] / "main_single_gpu.py")])
    assert facts.starts == 2 and facts.get(Start) == Start(str(folder), 3, program)
    assert facts.get(Devices) == Devices(1, "cpu", facts.get(Devices).precision)
    data = facts.get(TrainingData)
    assert data == TrainingData(1437, 360, 0, 10, 10, data.validation_digest) and len(data.validation_digest) == 16
    assert facts.get(Model).parameters > 1000
    assert all(f" ----- {fact}\n" in log for fact in facts.latest.values())
    assert any("TRAIN.MODEL_EMA_DECAY" in text for text in facts.warnings)
