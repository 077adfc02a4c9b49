"""Data sets in memory: CIFAR-10 and CIFAR-100 (official batches, damaged and malicious ones), digits and noise."""

import pickle

import numpy as np
import pytest
import torch
from source_helpers import options

from datasets.sources import in_memory
from datasets.sources.in_memory import Digits, Fake


def write_batch(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def cifar_pixels(count, seed):
    return np.random.default_rng(seed).integers(256, size=(count, 3072), dtype=np.uint8)


@pytest.fixture
def cifar10(tmp_path):
    root = tmp_path / "cifar-10-batches-py"
    write_batch(root / "batches.meta", {"label_names": [f"class {label}" for label in range(10)]})
    for number, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        content = {"batch_label": name, "labels": [number, 9, 3], "data": cifar_pixels(3, number)}
        write_batch(root / name, content)
    return root


def test_cifar10(cifar10):
    given = options(cifar10.parent)
    train, val = (in_memory.Cifar10(given).read(split) for split in ("train", "val"))
    assert train.targets.tolist() == [label for number in range(5) for label in (number, 9, 3)]
    assert val.targets.tolist() == [5, 9, 3]
    assert train.class_names == [f"class {label}" for label in range(10)]
    assert train.in_memory
    assert torch.equal(train.open(4, 3).pixels, torch.from_numpy(cifar_pixels(3, 1)[1].reshape(3, 32, 32)))


def test_cifar100(tmp_path):
    root = tmp_path / "cifar-100-python"
    write_batch(root / "meta", {"fine_label_names": [str(label) for label in range(100)]})
    write_batch(root / "train", {"fine_labels": [99, 0], "coarse_labels": [1, 2], "data": cifar_pixels(2, 0)})
    write_batch(root / "test", {"fine_labels": [5], "coarse_labels": [1], "data": cifar_pixels(1, 1)})
    train, val = (in_memory.Cifar100(options(tmp_path)).read(split) for split in ("train", "val"))
    assert (train.targets.tolist(), val.targets.tolist()) == ([99, 0], [5])
    assert len(train.class_names) == 100


def test_digits():
    train, val = (Digits(options("unused", image_size=8)).read(split) for split in ("train", "val"))
    assert len(train) + len(val) == 1797
    assert len(val) == pytest.approx(1797 / 5, abs=5)
    assert np.bincount(val.targets).min() >= 34
    assert train.class_names == list("0123456789")
    assert train.in_memory
    grey, rgb = train.open(0, 1).pixels, train.open(0, 3).pixels
    assert (grey.shape, grey.dtype, rgb.shape) == ((1, 8, 8), torch.uint8, (3, 8, 8))
    assert torch.equal(rgb[2], grey[0])
    assert set(np.unique(train.images)) == {round(value * 255 / 16) for value in range(17)}
    rows = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in rows for image in val.images)


def test_fake():
    train, val = (Fake(options("unused", image_size=40)).read(split) for split in ("train", "val"))
    assert (len(train), len(val), len(train.class_names)) == (10_240, 256, 1000)
    image = train.open(17, 3).pixels
    assert (image.shape, image.dtype) == ((3, 40, 40), torch.uint8)
    assert torch.equal(image, Fake(options("unused", image_size=40)).read("train").open(17, 3).pixels)
    assert not torch.equal(image, train.open(18, 3).pixels)
    assert train.open(0, 1).pixels.shape == (1, 40, 40)
    assert train.targets.max() < 1000
