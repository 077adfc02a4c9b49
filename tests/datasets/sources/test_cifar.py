"""CIFAR-10 and CIFAR-100: official batches, damaged and malicious ones."""

import os
import pickle
import struct

import numpy as np
import pytest
import torch
from source_helpers import assert_refused, options

from datasets.sources.arrays import cifar


def python2_pickle(content) -> bytes:
    """As CIFAR's authors wrote it: protocol 2, and texts and pixels as the byte strings of Python 2."""
    if isinstance(content, np.ndarray):
        shape = b"".join(b"J" + struct.pack("<i", side) for side in content.shape)
        dtype = b"cnumpy\ndtype\n" + python2_pickle("u1") + b"K\x00K\x01\x87R(K\x03" + python2_pickle("|")
        dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + python2_pickle("b") + b"\x87R"
        state = b"(K\x01(" + shape + b"t" + dtype + b"\x89" + python2_pickle(content.tobytes().decode("latin1")) + b"t"
        return empty + state + b"b"
    if isinstance(content, str):
        return b"T" + struct.pack("<i", len(content)) + content.encode("latin1")
    if isinstance(content, int):
        return b"J" + struct.pack("<i", content)
    if isinstance(content, list):
        return b"](" + b"".join(map(python2_pickle, content)) + b"e"
    return b"}(" + b"".join(python2_pickle(part) for item in content.items() for part in item) + b"u"


def write_batch(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x80\x02" + python2_pickle(content) + b".")


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


@pytest.mark.parametrize("at", ["parent", "itself"])
def test_cifar10(cifar10, at):
    given = options(cifar10 if at == "itself" else cifar10.parent)
    train, val = (cifar.cifar10(given, split) for split in ("train", "val"))
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
    train, val = (cifar.cifar100(options(tmp_path), split) for split in ("train", "val"))
    assert (train.targets.tolist(), val.targets.tolist()) == ([99, 0], [5])
    assert len(train.class_names) == 100


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_malicious_cifar_pickle_is_refused_and_not_run(cifar10, tmp_path):
    content = {"extra": Malicious(str(tmp_path / "harm")), "data": cifar_pixels(1, 0), "labels": [0]}
    for protocol in (0, 2, 4):
        (cifar10 / "test_batch").write_bytes(pickle.dumps(content, protocol=protocol))
        assert_refused(lambda: cifar.cifar10(options(cifar10), "val"), f"{cifar10}/test_batch: ", "mkdir", "extract")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"labels": [0]}, "does not contain the data and labels"),
        ({"data": cifar_pixels(1, 0)}, "does not contain the data and labels"),
        ({"labels": [0, 1], "data": cifar_pixels(1, 0)}, "does not contain the data and labels"),
        ({"labels": [0], "data": "pixels"}, "does not contain the data and labels"),
        ({"labels": [10], "data": cifar_pixels(1, 0)}, "a label is not in 0..9"),
        ({"labels": [-1], "data": cifar_pixels(1, 0)}, "a label is not in 0..9"),
        ([], "is not a CIFAR batch"),
    ],
)
def test_bad_cifar_batches_are_refused(cifar10, content, reason):
    write_batch(cifar10 / "test_batch", content)
    assert_refused(lambda: cifar.cifar10(options(cifar10), "val"), f"{cifar10}/test_batch: ", reason, "extract")


def test_incomplete_cifar_is_refused(cifar10):
    batch = (cifar10 / "data_batch_4").read_bytes()
    (cifar10 / "data_batch_4").write_bytes(batch[:1000])
    assert_refused(lambda: cifar.cifar10(options(cifar10), "train"), "data_batch_4: is not a CIFAR batch", "extract")
    (cifar10 / "data_batch_4").unlink()
    assert_refused(lambda: cifar.cifar10(options(cifar10), "train"), "data_batch_4: cannot be read", "extract")
    write_batch(cifar10 / "batches.meta", {"label_names": 3})
    assert_refused(lambda: cifar.cifar10(options(cifar10), "train"), "batches.meta: contains no names", "extract")
