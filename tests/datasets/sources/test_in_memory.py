"""The digits of scikit-learn, in memory."""

import numpy as np
import torch
from pytest import approx
from source_helpers import read


def test_digits():
    train, val = read("unused", dataset="digits", image_size=8)
    assert len(train) + len(val) == 1797
    assert len(val) == approx(1797 / 5, abs=5)
    assert np.bincount(val.targets).min() >= 34
    assert train.class_names == list("0123456789")
    assert train.in_memory
    grey = train.open(0, 1).pixels
    rgb = train.open(0, 3).pixels
    assert grey.shape == (1, 8, 8)
    assert torch.equal(rgb[2], grey[0])
    assert set(np.unique(train.images)) == {round(value * 255 / 16) for value in range(17)}
    rows = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in rows for image in val.images)
