"""The facts of a run: each kind is read as it was written."""

import json
from dataclasses import asdict

import pytest

from engine.run.facts import (
    Attention,
    Devices,
    Environment,
    EvaluationData,
    Model,
    PixelBaseline,
    Preprocessing,
    Start,
    TrainingData,
    read_fact,
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
]


@pytest.mark.parametrize(("fact", "shown"), EXAMPLES)
def test_each_kind_is_read_as_it_was_written(fact, shown):
    facts = json.loads(json.dumps({type(fact).__name__: asdict(fact)}))
    assert read_fact(facts, type(fact)) == fact and shown in str(fact)
