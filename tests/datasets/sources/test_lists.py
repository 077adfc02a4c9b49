"""Text lists and CSV tables of images."""

import os
import shutil

import numpy as np
import pytest
import torch
from source_helpers import assert_refused, find_test, names_of, options, write_classes, write_image

from configs.command_line import parse_command_line
from datasets.registry import read_samples, recognize_dataset, unlabelled
from datasets.sources.lists import Lists, Tables
from datasets.sources.source import source_class
from datasets.sources.split_folders import ClassFolders
from utils.errors import UserError


def test_imagenet_lists(tmp_path):
    write_image(tmp_path / "train" / "a b" / "x 1.JPEG", colour=(250, 0, 0))
    (tmp_path / "train_list.txt").write_bytes(b"train/a b/x 1.JPEG 3\n\n  \ntrain/missing.JPEG\t 0\r\n")
    samples = Lists(options(tmp_path)).read("train")
    assert names_of(samples) == ["train/a b/x 1.JPEG", "train/missing.JPEG"]
    assert samples.targets.tolist() == [3, 0]
    assert samples.targets.dtype == np.int64
    assert (len(samples), samples.class_names) == (2, ["0", "1", "2", "3"])
    assert not samples.in_memory
    image = samples.open(0, 3).pixels
    assert (image.shape, image.dtype) == ((3, 9, 12), torch.uint8)
    assert image[0].min() > 230
    assert image[1].max() < 20
    assert samples.open(0, 1).pixels.shape == (1, 9, 12)


def test_paths_of_any_bytes(tmp_path):
    name = os.fsdecode(b"b\xe9\xff \xc3\xa9.png")
    write_image(tmp_path / name)
    (tmp_path / "train_list.txt").write_bytes(os.fsencode(f"{name} 0\n"))
    assert Lists(options(tmp_path)).read("train").open(0, 3).pixels.shape == (3, 9, 12)


@pytest.mark.parametrize("split", ["", "train"])
def test_without_lists_class_folders_are_recognized(tmp_path, split, cpu):
    assert recognize_dataset(options(tmp_path), cpu).dataset == "imagenet2012"
    write_classes(tmp_path / split, dog=3, cat=3)
    write_classes(tmp_path / "val", dog=1, cat=1)
    assert recognize_dataset(options(tmp_path), cpu).dataset == "folder"
    (tmp_path / "val_list.txt").touch()
    assert recognize_dataset(options(tmp_path), cpu).dataset == "imagenet2012"


# CSV


@pytest.fixture
def tables(tmp_path):
    write_image(tmp_path / "images" / "a, b.jpg")

    def write(**texts):
        for split, text in texts.items():
            (tmp_path / f"{split}.csv").write_text(text)
        return options(tmp_path)

    return write


FIRST = '"images/a, b.jpg"'


def test_csv_with_numbers_or_names(tables):
    given = tables(
        train=f"image_path,target\n{FIRST},2\n\nimages/c.jpg, 0\n", val=f"target,extra,image_path\n1,,{FIRST}\n"
    )
    train, val = (Tables(given).read(split) for split in ("train", "val"))
    assert names_of(train) == ["images/a, b.jpg", "images/c.jpg"]
    assert (train.targets.tolist(), train.class_names) == ([2, 0], ["0", "1", "2"])
    assert val.targets.tolist() == [1]
    assert val.open(0, 3).pixels.shape == (3, 9, 12)
    header = "image_path,target\n"  # with names
    given = tables(train=f"{header}{FIRST},dog\nb.jpg,cat\nc.jpg,7\n", val=f"{header}{FIRST},dog\n")
    train, val = (Tables(given).read(split) for split in ("train", "val"))
    assert train.class_names == val.class_names == ["7", "cat", "dog"]
    assert (train.targets.tolist(), val.targets.tolist()) == ([2, 1, 0], [2])


def test_paths_through_another_folder_may_end_in_the_data_folder(tmp_path):
    """../input/256_ObjectCategories/... in input/data.csv: relative to a sibling of the data folder."""
    write_image(tmp_path / "input" / "images" / "a.jpg")
    (tmp_path / "src").mkdir()
    table, text = tmp_path / "input" / "data.csv", "image_path,target\n{},0\n{}/images/b.jpg,1\n"
    table.write_text(text.format("../input/images/a.jpg", tmp_path / "input"))
    for root in (None, str(tmp_path / "src")):
        samples = Tables(options(table, image_root=root, val_fraction=0.5)).read("all")
        assert samples.open(0, 3).pixels.shape == (3, 9, 12)
    table.write_text(text.format("images/a.jpg", "../other"))
    assert_refused(lambda: Tables(options(table)).read("all"), "data.csv:3", "DATA.IMAGE_ROOT")
    table.write_text(text.format("a.jpg", "."))
    samples = Tables(options(table, image_root=str(tmp_path / "input" / "images"))).read("all")
    assert samples.open(0, 3).pixels.shape == (3, 9, 12)


def test_columns_by_their_names_and_ids_without_ending(tables, tmp_path):
    """As in a table of Kaggle; 'c.1' is a file without ending, and has precedence over c.1.png."""
    for name in ("a.JPG", "b.2.png", "c.1.png"):
        write_image(tmp_path / name)
    shutil.copy(tmp_path / "c.1.png", tmp_path / "c.1")
    tables(train="id,size,breed,age\na,1,pug,3\nb.2,1,boxer,3\nc.1,1,pug,3\ngone,1,pug,3\n")
    argv = ["-dataset=csv", f"-data_path={tmp_path}/train.csv", "-opts", "DATA.COLUMNS={path: id, label: breed}"]
    given = parse_command_line(argv).config.data
    samples = Tables(given).read("all")
    assert names_of(samples) == ["a.JPG", "b.2.png", "c.1", "gone"]
    assert [samples.class_names[label] for label in samples.targets] == ["pug", "boxer", "pug", "pug"]
    assert names_of(unlabelled(str(tmp_path / "train.csv"), given)) == names_of(samples)


SHEET = "image_path{0}target\nblüte.jpg{0}Blüte\nb.jpg{0}Gräser\n"


@pytest.mark.parametrize(
    ("separator", "encoding"), [(",", "utf-8"), (";", "cp1252"), (";", "utf-8-sig"), ("\t", "utf-16")]
)
def test_tables_of_spreadsheets(tmp_path, separator, encoding):
    write_image(tmp_path / "blüte.jpg")
    file = tmp_path / "train.csv"
    file.write_bytes(SHEET.format(separator).encode(encoding))
    given = options(file, encoding=encoding if encoding == "cp1252" else None)
    samples = Tables(given).read("all")
    assert (names_of(samples), samples.class_names) == (["blüte.jpg", "b.jpg"], ["Blüte", "Gräser"])
    images = unlabelled(str(file), given)
    assert (names_of(images), images.column, images.listed_name(1)) == (["blüte.jpg", "b.jpg"], "image_path", "b.jpg")
    assert samples.open(0, 3).size == (9, 12)


# Test images

ROWS = {"train": "a.jpg 0\nb.jpg 1\n", "val": "c.jpg 1\n", "test": "a.jpg 0\nb.jpg 1\n"}


@pytest.mark.parametrize(
    ("dataset", "file", "content"),
    [
        ("folder", "test/x.jpg", ""),
        ("csv", "test.csv", "image_path\nx.jpg"),
        ("imagenet2012", "test_list.txt", "x.jpg"),
    ],
)
def test_test_images_without_labels_are_not_evaluated(dataset, file, content, tmp_path):
    write_classes(tmp_path / "train", cat=2, dog=2)
    for name, text in (("train.csv", "image_path,target\na.jpg,0\n"), ("train_list.txt", "a.jpg 0\n"), (file, content)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    if dataset == "folder":
        write_image(tmp_path / file)
    has_test, note = find_test(options(tmp_path, dataset=dataset))
    assert not has_test and str(tmp_path / file.split("/")[0]) in note


@pytest.mark.parametrize("dataset", ["imagenet2012", "csv"])
def test_splits_of_lists_and_tables(tmp_path, dataset):
    given = options(tmp_path, dataset=dataset)
    assert find_test(given) == (False, None)
    for split, rows in ROWS.items():
        (tmp_path / f"{split}_list.txt").write_text(rows)
        (tmp_path / f"{split}.csv").write_text("image_path,target\n" + rows.replace(" ", ","))
    assert find_test(given) == (True, None)
    assert source_class(dataset)(given).read("test").targets.tolist() == [0, 1]


def test_a_test_split_that_is_asked_for_must_have_images_with_labels(tmp_path, cpu):
    write_classes(tmp_path, cow=2, pig=2)
    for dataset in ("csv", "folder", "imagenet2012", "digits"):
        with pytest.raises(UserError, match=f"-split test: {tmp_path}"):
            read_samples(options(tmp_path, dataset=dataset), None, cpu, "test", predicts=True)
    write_classes(tmp_path, test=3)
    for split in ("train", "all", "test"):
        given = options(tmp_path, dataset="folder")
        assert_refused(lambda given=given, split=split: ClassFolders(given).read(split), tmp_path, "'test' (3 images)")
