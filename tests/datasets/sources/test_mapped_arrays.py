"""Workers share one copy of the list of images, and the temporary files of a run are removed."""

import gc
import pickle
import tempfile
from pathlib import Path

import numpy as np
from pytest import fixture, importorskip, mark, raises
from source_helpers import read, tree, write_table

from datasets.sources import shared_arrays
from datasets.sources.folders.class_folders import read_class_folders
from datasets.sources.sets.in_memory import ImageArray
from datasets.sources.shared_arrays import share_arrays
from tests.datasets.shards.tar_files import numbered, tar_of


@fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """An empty folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@mark.parametrize("dataset, number", [("imagenet2012", 10_000), ("csv", 9_000)])
def test_pickled_samples_are_small(tmp_path, dataset, number):
    names = [f"{number % 10}/{number}.jpg" for number in range(10_000)]
    write_table(tmp_path / "train_list.txt", [f"{name} {name[0]}" for name in names], "")
    write_table(tmp_path / "train.csv", [f"{name},{name[0]}" for name in names])
    (samples,) = read(tmp_path, "train", dataset=dataset, num_classes=10, predicts=True)  # the table is split
    pickled = pickle.dumps(samples)
    assert len(pickled) < 2_000
    received = pickle.loads(pickled)
    assert len(received) == number
    for index in (0, 777, len(received) - 1):
        assert received.name(index) == samples.name(index)
        assert received.targets[index] == samples.targets[index] == int(samples.paths[index][0])
        assert received.location(index) == samples.location(index)


def test_pickled_samples_of_many_folders_are_small(tmp_path):
    samples = read_class_folders(tree(tmp_path, "cat/patient{1..200}/1.jpg"))
    assert len(samples.sizes) == len(samples) == 200
    assert len(pickle.dumps(samples)) < 2_000


@mark.parametrize("fraction", [1.0, 0.5])
def test_pickled_samples_of_shards_are_small(tmp_path, fraction):
    importorskip("obstore")
    (tmp_path / "train-0.tar").write_bytes(tar_of(numbered(2_100)))
    (tmp_path / "val-0.tar").write_bytes(tar_of(numbered(7)))
    samples, _ = read(tmp_path, dataset="tar", batch_size=1, fraction=fraction)
    pickled = pickle.dumps(samples)
    assert len(pickled) < 3_000
    received = pickle.loads(pickled)
    assert len(received) == 2_100 * fraction
    assert received.name(777) == samples.name(777)
    assert received.targets.tolist() == samples.targets.tolist()


def test_the_temporary_folder_is_removed_with_the_arrays(temporary):
    arrays = share_arrays({"a": np.arange(5), "empty": np.empty((0, 3))})
    (folder,) = temporary.iterdir()
    received = pickle.loads(pickle.dumps(arrays))
    assert received["a"].tolist() == [0, 1, 2, 3, 4]
    assert received["empty"].shape == (0, 3)
    with raises(ValueError, match="read-only"):
        received["a"][0] = 1
    del received
    gc.collect()
    assert folder.exists()  # a copy does not own the folder
    del arrays
    gc.collect()
    assert not folder.exists()


@mark.parametrize("error", [(28, "No space left on device"), ("5 requested and 0 written",)])  # of numpy
def test_on_a_full_disk_each_process_has_a_copy_and_the_log_one_line(error, temporary, monkeypatch, run_log):
    def full(*_, **__):
        raise OSError(*error)

    monkeypatch.setattr(shared_arrays.np, "save", full)
    shared_arrays._warn_of_copies.cache_clear()
    samples = ImageArray(np.arange(48, dtype=np.uint8).reshape(4, 3, 2, 2), [0, 1, 1, 0], ["a", "b"])
    for _ in range(2):
        received = pickle.loads(pickle.dumps(samples))
        assert np.array_equal(received.images, samples.images) and np.array_equal(received.targets, samples.targets)
    (line,) = run_log.messages
    assert str(temporary) in line and "TMPDIR" in line
    assert not list(temporary.iterdir())


def test_a_worker_of_a_rank_that_has_ended_exits_without_a_traceback(temporary):
    """A signal may end a rank, and remove its arrays, while the worker still starts."""
    mapped = share_arrays({"targets": np.arange(3)})
    pickled = pickle.dumps(mapped)
    assert pickle.loads(pickled)["targets"].tolist() == [0, 1, 2]
    del mapped
    gc.collect()
    with raises(SystemExit):
        pickle.loads(pickled)
