"""CIFAR-10 and CIFAR-100: official batches, damaged and malicious ones."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from source_helpers import assert_refused, options

from datasets.sources import in_memory


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


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"data": cifar_pixels(1, 0)}, "does not contain the data and labels"),
        ({"labels": [0, 1], "data": cifar_pixels(1, 0)}, "does not contain the data and labels"),
        ({"labels": [10], "data": cifar_pixels(1, 0)}, "a label is not in 0..9"),
        ([], "is not a CIFAR batch"),
    ],
)
def test_bad_cifar_batches_are_refused(cifar10, content, reason):
    write_batch(cifar10 / "test_batch", content)
    assert_refused(
        lambda: in_memory.Cifar10(options(cifar10)).read("val"), f"{cifar10}/test_batch: ", reason, "extract"
    )


def test_incomplete_cifar_is_refused(cifar10):
    read = partial(in_memory.Cifar10(options(cifar10)).read, "train")
    batch = (cifar10 / "data_batch_4").read_bytes()
    (cifar10 / "data_batch_4").write_bytes(batch[:1000])
    assert_refused(read, "data_batch_4: is not a CIFAR batch", "extract")
    (cifar10 / "data_batch_4").write_bytes(pickle.dumps(print))
    assert_refused(read, "data_batch_4: is not", "refers to builtins.print")
    (cifar10 / "data_batch_4").unlink()
    assert_refused(read, "data_batch_4: cannot be read", "extract")
    write_batch(cifar10 / "batches.meta", {"label_names": 3})
    assert_refused(read, "batches.meta: contains no names", "extract")
