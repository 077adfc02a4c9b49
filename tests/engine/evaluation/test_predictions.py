"""The numbers in files of predictions."""

from types import SimpleNamespace

import numpy as np
from numpy.random import default_rng

from engine.evaluation.predictions import Predictions


def test_numbers_of_all_classes_are_those_of_python():
    """Also where the seventh digit is a tie, as of 1/128, which is 0.0078125; and of weights that are not finite."""
    random = default_rng(0)
    middles = (random.integers(0, 10**6, 2000) + 0.5) / 1e6
    small = 10 ** random.uniform(-9, 0, 2000)
    values = np.float32([*np.arange(129) / 128, *middles, *small, *random.random(2000), 2**-24, 1 - 2**-24])
    labels = random.permutation(len(values))
    made = SimpleNamespace(class_names=labels)
    for probabilities in (values, np.append(values[1:], np.float32(np.nan))):
        text = Predictions._of_all_classes(made, labels, probabilities[labels])
        assert text.split(",") == [f"{value:.6f}" for value in probabilities.tolist()]
