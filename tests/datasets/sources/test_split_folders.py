"""Which folders of DATA_PATH are splits, and which are classes; held-out test images."""

import re
import shlex

import pytest
from source_helpers import assert_refused, find_test, options, write_classes

from datasets.registry import read_samples
from datasets.sources.checks import notes_on
from datasets.sources.source import source_class
from datasets.sources.split_folders import ClassFolders
from utils.errors import UserError
from utils.notes import Note


def make(root, *folders):
    """Three images in each folder; 'train: a b' are two class folders in a folder."""
    for written in folders:
        parent, _, names = written.rpartition(": ")
        write_classes(root / parent, **dict.fromkeys(names.split(), 3))


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ({"Dataset/0": 9, "Dataset/1": 9, "Examples": 2}, "Dataset"),  # 18 of 20 images
        (
            {"Dataset/train/a": 3, "Dataset/train/b": 3, "Dataset/val/a": 3, "Dataset/val/b": 3, "Examples": 1},
            "Dataset",
        ),
        ({"Dataset/0": 20, "Dataset": 20, "Examples": 2}, None),  # with images of its own
        ({"well/p1": 20, "well/p2": 18, "ill/p3": 1, "ill/p4": 1}, None),  # patients: 38 of 40 are well
        ({f"ants/{split}/{name}": 2 for split in ("train", "val") for name in "ab"}, "ants"),
    ],
)
def test_the_folder_of_the_classes_is_named(tmp_path, cpu, sizes, found):
    """A run that was started before keeps its classes; its held-out images do not change what is found."""
    for name, count in sizes.items():
        write_classes(tmp_path, **{name: count})
    names = sorted({name.partition("/")[0] for name in sizes})
    for seed in range(3):
        given = options(tmp_path, dataset="folder", batch_size=1, split_seed=seed)
        if found:
            path = shlex.quote(str(tmp_path / found))
            with pytest.raises(UserError, match=re.escape(f"-data_path={path}") + "(;|$)"):
                read_samples(given, None, cpu, "train", "val")
        for known in [names] if found else [names, None]:
            train, val = read_samples(given, None, cpu, "train", "val", class_names=known)
            assert train.class_names == names and len(train) + len(val) == sum(sizes.values())


ROWS = {"train": "a.jpg 0\nb.jpg 1\n", "val": "c.jpg 1\n", "test": "a.jpg 0\nb.jpg 1\n"}


def test_test_images_without_labels_are_not_evaluated(tmp_path):
    write_classes(tmp_path / "train", cat=2, dog=2)
    write_classes(tmp_path, test=3)
    has_test, note = find_test(options(tmp_path, dataset="folder"))
    assert not has_test and f"{tmp_path / 'test'}: has no folder with the name of a class" in note
    assert ClassFolders(options(tmp_path, dataset="folder")).read("train").findings == []
    (tmp_path / "test.csv").write_text("image_path\nx.jpg\n")
    has_test, note = find_test(options(tmp_path, dataset="csv"))
    assert not has_test and "test.csv: has no column of labels" in note
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
    assert test.targets.tolist() == [0, 1]
    assert Note("warning", "2 image(s) are in both train and test, such as 'a.jpg'") in notes_on(train, val, test)


def test_a_test_split_that_is_asked_for_must_have_images_with_labels(tmp_path, cpu):
    def refusal(**given) -> str:
        with pytest.raises(UserError) as error:
            read_samples(options(tmp_path, **given), None, cpu, "test", predicts=True)
        return str(error.value)

    write_classes(tmp_path, cow=2, pig=2)
    for dataset in ("csv", "folder", "imagenet2012", "digits"):
        assert f"-split test: {tmp_path} has no test images" in refusal(dataset=dataset)
    write_classes(tmp_path, test=3)
    hint = f"has no folder with the name of a class, so that it is not evaluated; -predict {tmp_path / 'test'} labels"
    assert hint in refusal(dataset="folder")
    for split in ("train", "all"):
        given = options(tmp_path, dataset="folder")
        assert_refused(lambda given=given, split=split: ClassFolders(given).read(split), "'test' a class, or")
