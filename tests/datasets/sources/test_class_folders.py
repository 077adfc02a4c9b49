"""Class folders, Caltech-101 and Caltech-256 among them."""

import os

import numpy as np
import pytest
from source_helpers import assert_refused, names_of, options, write_classes, write_image

from configs.schema import Data
from datasets.registry import has_test_split, read_samples
from datasets.sources import class_folders
from datasets.sources.class_folders import read_class_folders
from datasets.sources.source import source_class
from datasets.sources.split_folders import ClassFolders
from utils.errors import UserError


def test_folder_without_val_is_split(tmp_path):
    write_classes(tmp_path / "train", a=20, b=10, c=2, d=1)
    train, val = (ClassFolders(options(tmp_path)).read(split) for split in ("train", "val"))
    assert np.bincount(val.targets).tolist() == [2, 1, 1]
    assert not set(names_of(train)) & set(names_of(val))
    assert len(set(names_of(train)) | set(names_of(val))) == 33
    assert all(name[0] == "abc"[target] for name, target in zip(names_of(val), val.targets, strict=True))


def test_links_are_followed_but_never_up(tmp_path):
    root = tmp_path / "data"
    write_classes(root, a=2, b=1)
    write_image(tmp_path / "elsewhere" / "y.jpg")
    (root / "a" / "more").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "self").symlink_to(root / "a")
    (root / "a" / "up").symlink_to(root)
    (root / "b" / "far_up").symlink_to(tmp_path)
    (root / "b" / "across").symlink_to(root / "a")
    (root / "a" / "across").symlink_to(root / "b")
    assert list(read_class_folders(root).paths) == [
        *("a/000.jpg", "a/001.jpg", "a/across/000.jpg", "a/more/y.jpg"),
        *("b/000.jpg", "b/across/000.jpg", "b/across/001.jpg", "b/across/more/y.jpg"),
    ]


@pytest.mark.parametrize("dataset", ["folder", "imagenet2012", "tar"])
def test_a_missing_default_folder_names_the_flag(dataset, cpu, monkeypatch):
    monkeypatch.setattr("os.path.exists", lambda path: False)
    data = Data.model_validate({"DATASET": dataset})
    for read in (has_test_split, lambda *given: read_samples(given[0], None, given[1], "train", "val")):
        with pytest.raises(UserError, match=f"^{data.data_path}: .* give -data_path=FOLDER$"):
            read(data, cpu)


def test_an_unreadable_folder_is_refused(tmp_path, monkeypatch):
    write_classes(tmp_path, cat=2, dog=2)
    scandir = os.scandir

    def deny(folder):
        if str(folder).endswith("dog"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(class_folders.os, "scandir", deny)
    assert_refused(
        lambda: ClassFolders(options(tmp_path)).read("train"), f"{tmp_path}/dog: ", "Permission denied", "check"
    )


@pytest.mark.parametrize(("dataset", "folder", "left_out"), [
    ("caltech101", "101_ObjectCategories", "BACKGROUND_Google"), ("caltech256", "256_ObjectCategories", "257.clutter"),
])  # fmt: skip
def test_caltech(tmp_path, dataset, folder, left_out):
    write_classes(tmp_path / folder, **{"001.ak47": 20, "Faces": 10, left_out: 5})
    read = source_class(dataset)(options(tmp_path if dataset == "caltech101" else tmp_path / folder)).read
    (note,) = (note.text for note in read_class_folders(tmp_path / folder).notes if note.kind == "screen")
    assert f"-dataset={dataset}" in note
    train, val = read("train"), read("val")
    assert train.class_names == val.class_names == ["001.ak47", "Faces"]
    assert (np.bincount(train.targets).tolist(), np.bincount(val.targets).tolist()) == ([18, 9], [2, 1])
