"""The file of features: a killed extraction continues, features of other inputs are refused, damage starts again."""

import errno
import os

import numpy as np
import pytest

from engine.features.store import FeatureFile
from utils.errors import UserError

FEATURES = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)


def filled(path, number: int) -> FeatureFile:
    file = FeatureFile(path, "digest", 10)
    assert file.num_done == 0
    file.append(FEATURES[:number].copy(), {2: "is empty"})
    return file


def test_it_continues_after_the_last_complete_part(tmp_path):
    filled(path := tmp_path / "features.npy", 4)
    np.load(path, mmap_mode="r+")[4:6] = 7  # written, but not noted, when the process was killed
    file = FeatureFile(path, "digest", 10)
    assert file.num_done == 4
    file.append(FEATURES[4:].copy(), {9: "is no image"})
    values = np.load(path)
    unreadable = np.isnan(values).all(axis=1)
    assert np.flatnonzero(unreadable).tolist() == [2, 9] and file.errors == {2: "is empty", 9: "is no image"}
    assert np.array_equal(values[~unreadable], FEATURES[~unreadable])
    assert FeatureFile(path, "digest", 10).num_done == 10


def test_features_of_other_inputs_are_refused(tmp_path):
    filled(path := tmp_path / "features.npy", 10)
    with pytest.raises(UserError, match=r"features.npy: has features of other weights"):
        FeatureFile(path, "another", 10)


@pytest.mark.parametrize("damage", ["changed", "cut", "empty", "missing", "other shape", "no json"])
def test_a_damaged_file_starts_again(tmp_path, damage):
    filled(path := tmp_path / "features.npy", 10)
    content = path.read_bytes()
    if damage == "changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "missing":
        path.unlink()
    elif damage == "other shape":
        np.save(path, FEATURES[:9])
    elif damage == "no json":
        (tmp_path / "features.npy.json").write_text("{")
    else:
        path.write_bytes(content[: 100 * (damage == "cut")])
    assert filled(path, 10).num_done == 10


def test_a_full_disk_is_reported_before_the_first_image(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match=r"No space left on device: 0.0 MB of features") as error:
        filled(path := tmp_path / "features.npy", 10)
    assert error.value.filename == path and not path.exists()
