"""Held-out test images: found, checked, never a class."""

import pytest
from source_helpers import assert_refused, find_test, options, write_classes

from datasets.registry import read_samples
from datasets.sources.checks import notes_on
from datasets.sources.files.split_folders import ClassFolders
from datasets.sources.source import source_class
from utils.errors import UserError

ROWS = {"train": "a.jpg 0\nb.jpg 1\n", "val": "c.jpg 1\n", "test": "a.jpg 0\n"}


def test_a_folder_test_beside_train_is_read_with_the_same_labels(tmp_path):
    write_classes(tmp_path / "train", cat=2, dog=2)
    write_classes(tmp_path / "test", cat=1, dog=3)
    given = options(tmp_path, dataset="folder")
    assert find_test(given) == (True, None)
    test = ClassFolders(given).read("test")
    assert (test.class_names, test.targets.tolist(), test.findings) == (["cat", "dog"], [0, 1, 1, 1], [])
    write_classes(tmp_path / "test", emu=1)
    assert_refused(lambda: ClassFolders(given).read("test"), "class folder 'emu' is only in one of train and test")


def test_a_folder_test_beside_class_folders_is_no_class(tmp_path):
    write_classes(tmp_path, cat=10, dog=10)
    write_classes(tmp_path / "test", cat=1, dog=1)
    given = options(tmp_path, dataset="folder")
    assert find_test(given) == (True, None)
    for split, count in (("train", 18), ("val", 2), ("all", 20), ("test", 2)):
        samples = ClassFolders(given).read(split)
        assert (samples.class_names, len(samples), samples.findings) == (["cat", "dog"], count, [])
    write_classes(tmp_path, emu=2)
    assert_refused(lambda: ClassFolders(given).read("test"), "class folder 'emu' is only in one of train and test")


def test_test_images_without_labels_are_not_evaluated(tmp_path):
    write_classes(tmp_path / "train", cat=2, dog=2)
    write_classes(tmp_path, test=3)
    has_test, note = find_test(options(tmp_path, dataset="folder"))
    assert not has_test and f"{tmp_path / 'test'}: has no folder with the name of a class" in note
    assert ClassFolders(options(tmp_path, dataset="folder")).read("train").findings == []
    (tmp_path / "test.csv").write_text("image_path\nx.jpg\n")
    has_test, note = find_test(options(tmp_path, dataset="csv"))
    assert not has_test and "test.csv: has no column target" in note
    (tmp_path / "test_list.txt").write_text("test/x.jpg\n")
    has_test, note = find_test(options(tmp_path))
    assert not has_test and "test_list.txt: its first line ends without a label" in note


@pytest.mark.parametrize("dataset", ["imagenet2012", "csv"])
def test_lists_and_tables(tmp_path, dataset):
    given = options(tmp_path, dataset=dataset)
    assert find_test(given) == (False, None)
    for split, rows in ROWS.items():
        (tmp_path / f"{split}_list.txt").write_text(rows)
        (tmp_path / f"{split}.csv").write_text("image_path,target\n" + rows.replace(" ", ","))
    assert find_test(given) == (True, None)
    train, val, test = (source_class(dataset)(given).read(split) for split in ("train", "val", "test"))
    assert test.targets.tolist() == [0]
    assert "1 image(s) are in both train and test, such as 'a.jpg'" in notes_on(train, val, test)


def test_a_test_split_that_is_asked_for_must_have_images_with_labels(tmp_path, cpu):
    def refusal(**given) -> str:
        with pytest.raises(UserError) as error:
            read_samples(options(tmp_path, **given), None, cpu, "test", predicts=True)
        return str(error.value)

    write_classes(tmp_path, cat=2, dog=2)
    for dataset, name in (("csv", "test.csv"), ("folder", "test"), ("imagenet2012", "test_list.txt")):
        assert f"-split test: {tmp_path} has no test images (no {name})" in refusal(dataset=dataset)
    assert "DATA.DATASET digits has no test split" in refusal(dataset="digits")
    write_classes(tmp_path, test=3)
    hint = f"has no folder with the name of a class, so that it is not evaluated; -predict {tmp_path / 'test'} labels"
    assert hint in refusal(dataset="folder")
    for split in ("train", "all"):
        given = options(tmp_path, dataset="folder")
        assert_refused(
            lambda given=given, split=split: ClassFolders(given).read(split), tmp_path / "test", "is it a class, or"
        )
    write_classes(tmp_path / "train", cat=2, dog=2)
    assert hint in refusal(dataset="folder")
