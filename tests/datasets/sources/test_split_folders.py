"""Which folders of DATA_PATH are splits, and which are classes; held-out test images."""

import re
import shlex

import pytest
from source_helpers import assert_refused, find_test, has_splits, options, write_classes

from datasets.registry import read_samples, recognize_dataset
from datasets.sources.checks import notes_on
from datasets.sources.files.lists import Tables
from datasets.sources.files.split_folders import ClassFolders
from datasets.sources.source import source_class
from utils.errors import UserError


def make(root, *folders):
    """Three images in each folder; 'train: a b' are two class folders in a folder."""
    for written in folders:
        parent, _, names = written.rpartition(": ")
        write_classes(root / parent, **dict.fromkeys(names.split(), 3))


@pytest.mark.parametrize(
    ("folders", "sizes"),
    [
        (["train: a b", "validation: a b"], (6, 6, None)),  # Hugging Face
        (["train: a b", "valid: a b", "test: a b"], (6, 6, 6)),  # Roboflow
        (["Training: a b", "Testing: a b"], (4, 2, 6)),
        (["train: a b", "val: a b", "valid: a b"], (6, 6, None)),
        (["train: a b", "test"], (4, 2, None)),  # images without labels
        (["a b", "validation: a b", "Test: a b"], (6, 6, 6)),
    ],
)
def test_folders_of_splits(tmp_path, folders, sizes, cpu):
    make(tmp_path, *folders)
    given = options(tmp_path, dataset=recognize_dataset(options(tmp_path), cpu).dataset)
    has_test, _ = find_test(given)
    assert has_splits(given) and has_test == (sizes[2] is not None)
    for split, size in zip(("train", "val", "test")[: 2 + has_test], sizes, strict=False):
        samples = ClassFolders(given).read(split)
        assert (samples.class_names, len(samples), samples.findings) == (["a", "b"], size, [])


@pytest.mark.parametrize(
    ("folders", "classes"),
    [
        (["car bus bike train"], ["bike", "bus", "car", "train"]),
        (["car train"], ["car", "train"]),
        (["train: test-tube bus-train"], ["bus-train", "test-tube"]),
    ],
)
def test_a_class_may_have_the_name_of_a_split(tmp_path, folders, classes, cpu):
    make(tmp_path, *folders)
    given = options(tmp_path, dataset="folder", batch_size=1)
    train, val = read_samples(given, None, cpu, "train", "val")
    assert train.class_names == classes and has_splits(given) == (folders[0][:6] == "train:")
    assert len(train) + len(val) == 3 * sum(len(names.rpartition(": ")[2].split()) for names in folders)
    assert ("car" not in classes) or any("train is read as a class" in note for note in train.notes)


@pytest.mark.parametrize(
    ("folders", "problem"),
    [
        (["train: a b", "unsorted"], "is train the training split or a class, beside 'unsorted'"),
        (["car bus", "train: steam electric"], "is train the training split or a class, beside 'bus', 'car'"),
        (["train: a b", "val", "x y"], "is train the training split or a class, beside 'x', 'y'"),
        (["training_set: a b", "test_set: x y"], "'test_set', 'training_set' a class"),
        (["train: a b", "valid: a b", "validation: a b"], "'valid' and 'validation': which one is val"),
        (["validation: a b", "test: a b"], "has no folder train beside 'validation'"),
        (["train val"], "train: contains no folders"),
    ],
)
def test_what_is_not_clear_is_refused(tmp_path, folders, problem, cpu):
    make(tmp_path, *folders)
    with pytest.raises(UserError, match=problem):
        read_samples(options(tmp_path, dataset="folder"), None, cpu, "train", "val")


def test_what_is_not_read_is_named(tmp_path):
    make(tmp_path, "Train: a b", "val: a b", "raw other", "Train: .cache")
    write_classes(tmp_path, Train=2)  # beside the classes
    notes = ClassFolders(options(tmp_path)).read("train").notes
    assert [note.removeprefix(str(tmp_path)) for note in notes] == [
        ": train is 'Train'",
        ": not read: 'other', 'raw'",
        "/Train: 2 image(s) beside the class folders are not read",
        "/Train: 1 file(s), hidden folders and folders of the system are no images, and are ignored: 1 '.cache/'",
    ]


def test_tables_have_the_same_names(tmp_path):
    for name, rows in (("train", "a.jpg,x\nb.jpg,y\n"), ("valid", "c.jpg,y\n"), ("testing", "d.jpg,x\n")):
        (tmp_path / f"{name}.csv").write_text("image_path,target\n" + rows)
    given = options(tmp_path, dataset="csv")
    assert [Tables(given).read(split).targets.tolist() for split in ("train", "val", "test")] == [[0, 1], [1], [0]]
    assert find_test(given) == (True, None) and has_splits(given)


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ({"Dataset/0": 9, "Dataset/1": 9, "Examples": 2}, "Dataset"),  # 18 of 20 images
        ({"data/images/0": 9, "data/images/1": 9, "Examples": 2}, "data/images"),
        (
            {"Dataset/train/a": 3, "Dataset/train/b": 3, "Dataset/val/a": 3, "Dataset/val/b": 3, "Examples": 1},
            "Dataset",
        ),
        ({"Dataset/0": 20, "Dataset": 20, "Examples": 2}, None),  # with images of its own
        ({"well/p1": 20, "well/p2": 18, "ill/p3": 1, "ill/p4": 1}, None),  # patients: 38 of 40 are well
        ({"well/p1": 20, "well/p2": 18, "ill": 2}, "well"),
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


def test_a_folder_without_images_beside_it_is_no_second_problem(tmp_path, cpu):
    make(tmp_path, "Dataset: a b")
    (tmp_path / "__MACOSX").mkdir()
    with pytest.raises(UserError, match=f"only one folder, Dataset: give -data_path={tmp_path}/Dataset$") as error:
        read_samples(options(tmp_path, dataset="folder"), None, cpu, "train", "val")
    assert "\n" not in str(error.value)


def test_splits_in_a_wrong_folder_are_not_taken_for_one(tmp_path, cpu):
    make(tmp_path, "train/Dataset: a b", "val/Dataset: a b")
    with pytest.raises(UserError, match="contains only one folder, Dataset") as error:
        read_samples(options(tmp_path, dataset="folder"), None, cpu, "train", "val")
    assert f"give -data_path={tmp_path}/train/Dataset" in str(error.value)


ROWS = {"train": "a.jpg 0\nb.jpg 1\n", "val": "c.jpg 1\n", "test": "a.jpg 0\n"}


def test_a_folder_test_beside_train_is_read_with_the_same_labels(tmp_path):
    write_classes(tmp_path / "train", cat=2, dog=2)
    write_classes(tmp_path / "test", cat=1, dog=3)
    given = options(tmp_path, dataset="folder")
    assert find_test(given) == (True, None)
    test = ClassFolders(given).read("test")
    assert (test.class_names, test.targets.tolist(), test.findings) == (["cat", "dog"], [0, 1, 1, 1], [])
    write_classes(tmp_path / "test", emu=1)
    assert_refused(lambda: ClassFolders(given).read("test"), "class folder 'emu' is in test, not in train")


def test_a_class_with_another_name_in_val_is_named_with_the_similar_one(tmp_path):
    make(tmp_path, "train: cat dog", "val: cat dogs emu")
    assert [line.partition("folder ")[2] for line in ClassFolders(options(tmp_path)).read("val").findings] == [
        "'dogs' is in val, not in train; add or remove it; did you mean dog?",
        "'emu' is in val, not in train; add or remove it",
    ]


def test_a_folder_test_beside_class_folders_is_no_class(tmp_path):
    write_classes(tmp_path, cat=10, dog=10)
    write_classes(tmp_path / "test", cat=1, dog=1)
    given = options(tmp_path, dataset="folder")
    assert find_test(given) == (True, None)
    for split, count in (("train", 18), ("val", 2), ("all", 20), ("test", 2)):
        samples = ClassFolders(given).read(split)
        assert (samples.class_names, len(samples), samples.findings) == (["cat", "dog"], count, [])
    write_classes(tmp_path, emu=2)
    assert any("has no image of 'emu', unlike the training" in note for note in ClassFolders(given).read("test").notes)


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
    assert test.targets.tolist() == [0]
    assert "1 image(s) are in both train and test, such as 'a.jpg'" in notes_on(train, val, test)


def test_a_test_split_that_is_asked_for_must_have_images_with_labels(tmp_path, cpu):
    def refusal(**given) -> str:
        with pytest.raises(UserError) as error:
            read_samples(options(tmp_path, **given), None, cpu, "test", predicts=True)
        return str(error.value)

    write_classes(tmp_path, cow=2, pig=2)
    for dataset, name in (("csv", "test.csv"), ("folder", "test"), ("imagenet2012", "test_list.txt")):
        assert f"-split test: {tmp_path} has no test images (no {name})" in refusal(dataset=dataset)
    assert "DATA.DATASET digits has no test split" in refusal(dataset="digits")
    write_classes(tmp_path, test=3)
    hint = f"has no folder with the name of a class, so that it is not evaluated; -predict {tmp_path / 'test'} labels"
    assert hint in refusal(dataset="folder")
    for split in ("train", "all"):
        given = options(tmp_path, dataset="folder")
        assert_refused(lambda given=given, split=split: ClassFolders(given).read(split), "'test' a class, or")
