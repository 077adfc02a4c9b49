"""The numbers in files of predictions."""

import csv

import numpy as np
from numpy.random import default_rng

from configs.flags import Prediction
from datasets.sources.samples import Samples
from engine.evaluation.predictions import Predictions
from engine.evaluation.results import SampleResults
from utils.distributed import single_process


def test_numbers_of_all_classes_are_those_of_python(tmp_path, monkeypatch):
    """Also where the seventh digit is a tie: 1/128 is 0.0078125."""
    monkeypatch.setattr(Samples, "listed_name", lambda self, index: "a.jpg")
    random = default_rng(0)
    middles = (random.integers(0, 10**6, 2000) + 0.5) / 1e6
    small = 10 ** random.uniform(-9, 0, 2000)
    values = np.concatenate([np.arange(129) / 128, middles, small, random.random(2000), [2**-24, 1 - 2**-24]])
    rows = np.stack([values, values[::-1]]).astype(np.float32)
    rows[1, 0] = np.nan  # of weights that are not finite
    labels = np.argsort(-rows, 1).astype(np.int32)
    results = SampleResults(np.zeros(2), labels, np.take_along_axis(rows, labels, 1), np.zeros(2))
    names = [f"class {label}" for label in range(rows.shape[1])]
    predictions = Predictions(tmp_path, Samples(["a"]), names, Prediction("photos", None, None, False, False, None))
    (path,) = predictions.write([results], single_process("cpu"))
    with path.open(newline="") as file:
        written = [row[1:] for row in csv.reader(file)]
    assert written == [names, *[[f"{value:.6f}" for value in row] for row in rows.tolist()]]
