"""Tables of images with several labels: reading, findings, numbers of classes, batches; the share of each label."""

from hashlib import sha256
from itertools import product

import numpy as np
import torch
from conftest import config_for, each_row, eval_loader_for, refused, samples_for, told, train_batches_for
from pytest import approx, fixture, mark
from source_helpers import assert_refused, options, read, typed, write_image, write_rows

from datasets.batch import PADDING
from datasets.sources.listed.lists import Tables, split_labels
from datasets.sources.shared_arrays import StringPacker
from datasets.sources.source import Wanted
from datasets.sources.split import History, cut_images
from datasets.sources.tables.cells import CellValues

FOLDS = 5


@fixture
def tables(tmp_path):
    """Writes a table of each split, and images; returns the options."""

    def write(**targets):
        for split, labels in targets.items():
            images = [f"{split}{number}.png" for number in range(len(labels))]
            write_rows(tmp_path, images, f"{split}.csv", "image_path,target", '{path},"{label}"', label=labels)
        return options(tmp_path, dataset="csv", multi_label=True)

    return write


def bits_of(samples) -> str:
    """A word per image: for each class, whether the image has its label."""
    return " ".join("".join(map(str, target)) for target in samples.targets.tolist())


def test_labels_of_a_target():
    assert split_labels("cat|dog", "|") == split_labels("['cat', 'dog']", ",") == ["cat", "dog"]
    assert split_labels("0, 3", ",") == split_labels("0 3  0", None) == ["0", "3"]
    assert split_labels("", "|") == split_labels("[]", ",") == []


def test_an_image_has_the_labels_of_all_its_rows(tmp_path):
    """Also where two of its rows are equal; the rows of an image whose labels are all equal count one by one."""
    labels = ["fox", "deer", "boar", "fox", "fox", "boar", "boar"]
    for split in ("train", "val"):
        images = [f"{name}.png" for name in "aabcccb"]
        write_rows(tmp_path, images, f"{split}.csv", "image_path,target", "{path},{label}", label=labels)
    (train,) = read(tmp_path, "train", dataset="csv", multi_label=True)
    assert [train.paths[index] for index in range(len(train))] == ["a.png", "b.png", "c.png", "b.png"]
    assert bits_of(train) == "011 100 101 100"  # boar, deer, fox
    assert any("3 rows add labels" in str(note) for note in train.notes)


# The labels of a, b, b, c; the classes
WORDS = """
labels | classes
No finding, Lung Opacity, Other lesion, No finding | Lung Opacity,No finding,Other lesion
ILD, Lung Opacity, Lung lesion, No finding | ILD,Lung Opacity,Lung lesion,No finding
haze road, haze, road haze, road | haze,road
clear road, clear water, clear haze, haze road | clear,haze,road,water
haze, haze fog, haze road, water | fog,haze,road,water
51 616, 734 13, 5, 147 | 5,13,51,147,616,734
"""


@each_row(WORDS)
def test_labels_of_several_words_few_of_which_recur(labels, classes, tmp_path):
    """VinBigData; of Planet and iMet white space separates the labels."""
    images = ["a.png", "b.png", "b.png", "c.png"]
    for split in ("train", "val"):
        write_rows(tmp_path, images, f"{split}.csv", "path,label", "{path},{label}", label=labels.split(", "))
    train, *_ = read(tmp_path, dataset="csv", multi_label=True)
    assert ",".join(train.class_names) == classes


def test_a_label_that_says_that_there_is_none_is_named_until_it_is_none(tables):
    labels = ["a|b", "a", "No Finding", "b", "No Finding", "normal|a"]
    given = tables(train=labels, val=labels)
    (note,) = told(read(given)[0].notes, "counts as a class", "screen")
    (changed,) = typed(note, given)
    train, val = read(changed)
    assert train.class_names == val.class_names == ["a", "b", "normal"]  # which is beside another label
    assert bits_of(train) == bits_of(val) == "110 100 000 010 000 101"
    assert not told(train.notes, "counts as a class")
    assert not told(read(given, is_new=False)[0].notes, "counts as a class")
    assert CellValues({"cells": {"Clear, none": 0}}).is_none("clear, None")


def test_numbers_are_the_labels_and_the_model_has_the_higher_number_of_classes(tables):
    given = tables(train=["0 2", "1", "", "2 0"], val=["4", "0 1"])
    assert not read(given, "train")[0].has_class_names
    assert [read(given, split)[0].targets.shape for split in ("train", "val")] == [(4, 3), (2, 5)]
    assert [*map(bits_of, read(given))] == ["10100 01000 00000 10100", "00001 11000"]
    with refused(r"val.csv:2: label 4, but MODEL.NUM_CLASSES is 4"):
        read(given, num_classes=4)


MANY = list(map(str, range(40)))
WRONG = {  # parts of the error: the targets of train and of val
    ("val.csv:2: ", "'emu'"): (["cat|dog"], ["cat|emu"]),
    ("val.csv:2: ", "'x'"): (["0|1"], ["0|x"]),
    ("val.csv:42: ", "object"): (MANY, [*MANY, '{""choices"": 1}']),
    ("images of 1000000 classes need 12 GB", "check the highest label"): (["0", "999999"] * 6000, ["0"]),
}


@mark.parametrize("parts", WRONG)
def test_bad_tables_are_refused(tables, parts):
    train, val = WRONG[parts]
    given = tables(train=train, val=val)
    assert_refused(lambda: Tables(Wanted(given)).read("train" if "GB" in parts[0] else "val"), *parts)


@mark.parametrize("end, is_cut", [("", True), ("\n", False)])
def test_a_row_of_which_labels_may_be_cut_off_is_refused(tmp_path, end, is_cut):
    """Spreadsheets leave out the separators of empty cells at the end of a line, but not its end."""
    for split in ("train", "val"):
        write_image(tmp_path / f"{split}0.png")
        write_image(tmp_path / f"{split}1.png")
        (tmp_path / f"{split}.csv").write_text(f"image_path,target\n{split}0.png,cat\n{split}1.png{end}")
    read = Tables(Wanted(options(tmp_path, dataset="csv", multi_label=True))).read
    if is_cut:
        assert_refused(lambda: read("train"), "train.csv:3: ")
    else:
        assert read("train").targets.tolist() == [[1], [0]]


def test_labels_follow_the_names_of_a_checkpoint(tables):
    given = tables(train=["dog|cat", "emu"], val=["dog", "dog|cat"])
    names = ["dog", "yak", "cat"]
    (val,) = read(given, "val", class_names=names)
    assert bits_of(val) == "100 101"
    assert val.class_names == names
    with refused("'emu'"):
        read(given, "train", class_names=names)


def test_batches_have_multi_hot_targets_and_rows_of_padding(tables, tmp_path, cpu):
    given = tables(train=["cat|dog", "", "dog"], val=["cat", "dog", "cat|dog"])
    for image in tmp_path.glob("*.png"):
        write_image(image)
    (tmp_path / "val1.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    sizes = ["DATA.MULTI_LABEL=true", "DATA.ON_BAD_IMAGE=skip", "DATA.IMAGE_SIZE=8", "MODEL.PATCH_SIZE=4"]
    flags = [f"-data_path={given.data_path}", "-dataset=csv", "-batch_size=2", "-num_workers=0"]
    config = config_for(*flags, "-epochs=1", "-opts", *sizes, "TRAIN.MIXUP_ALPHA=0.8")
    assert config.loss.name == "bce"
    train, val = samples_for(config, cpu, "train", "val")
    (batch,) = train_batches_for(config, train, cpu)
    assert batch.targets.dtype == torch.int8
    assert batch.targets.shape == (2, 2)
    assert batch.samples == 2
    first, second = eval_loader_for(config, val, cpu)
    assert first.targets.tolist() == [[1, 0], [PADDING, PADDING]]
    assert first.samples == 1
    assert len(first.bad) == 1
    assert second.targets.tolist() == [[1, 1], [PADDING, PADDING]]
    assert second.samples == 1


# Splits: each fold, and the held-out part, has its share of each label; groups, too


def held_out(targets, groups=None, known=None, paths=None, **values):
    """Tells for each image whether it is held out; the notes, and the split. groups: their numbers, (N,)."""
    paths = paths or [f"{number}.jpg" for number in range(len(targets))]
    if groups is not None:
        values["groups"] = "g"
        groups = StringPacker(f"g{group}" for group in groups).strings()
    images = StringPacker(paths).strings(), np.asarray(targets, np.int8), groups
    found = cut_images(*images, options("DIR", **values), ["train", "val"], History(known))
    assert not found.problem
    return found.is_val, list(map(str, found.notes)), found.run_split


def fold_of(targets, groups=None, folds=FOLDS, **values):
    """The fold of each image; every image is held out in one."""
    parts = [held_out(targets, groups, folds=folds, fold=fold, **values)[0] for fold in range(folds)]
    assert np.all(sum(part.astype(int) for part in parts) == 1)
    return np.argmax(parts, axis=0)


def deviation(targets, is_in):
    """The largest difference between the share of a label in a part and in all images, in points."""
    return 100 * np.abs(targets[is_in].mean(0) - targets.mean(0)).max()


def made_table(seed, has_groups):
    """Labels of 3% to 50% of the images; with groups of 1 to about 50 images, the shares differ between groups."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(150, 500))
    classes = int(rng.integers(3, 12))
    groups = np.sort(rng.integers(int(rng.integers(40, 80)), size=number)) if has_groups else np.arange(number)
    logits = rng.uniform(-3.5, 0, classes) + has_groups * rng.normal(0, 1.5, (number, classes))[groups]
    targets = rng.random((number, classes)) < 1 / (1 + np.exp(-logits))
    return targets.astype(np.int8), groups if has_groups else None


@mark.parametrize("has_groups, share_of_dealt, highest", [(False, 0.2, 3), (True, 0.5, 12)])
def test_folds_of_made_tables_have_their_share_of_each_label(has_groups, share_of_dealt, highest):
    """20 tables: by far closer to the shares than groups or images that are dealt in turn."""
    stratified = []
    dealt = []
    for seed in range(20):
        targets, groups = made_table(seed, has_groups)
        units = np.arange(len(targets)) if groups is None else np.unique(groups, return_inverse=True)[1]
        folds = fold_of(targets, groups)
        stratified.append(max(deviation(targets, folds == fold) for fold in range(FOLDS)))
        dealt.append(max(deviation(targets, units % FOLDS == fold) for fold in range(FOLDS)))
        assert np.ptp(np.bincount(folds)) <= (2 if groups is None else 0.2 * len(targets) / FOLDS)
        assert groups is None or all(len(set(folds[groups == group])) == 1 for group in groups)
        assert 0.09 < held_out(targets, groups)[0].mean() < 0.12
    assert np.mean(stratified) < share_of_dealt * np.mean(dealt)
    assert max(stratified) < highest


@mark.parametrize("seed", range(3))
def test_splits_by_hand(seed):
    """Group 0 has four images with the label, 1 and 2 have two, 3 has none: 0 and 3 are one half, 1 and 2 the other.

    Five images of each of the 16 sets of four labels: each fold has 16 images, and eight with each label.
    """
    targets = [[1]] * 4 + [[1], [1], [0], [0]] * 2 + [[0]] * 4
    halves = fold_of(targets, np.repeat(np.arange(4), 4), folds=2, split_seed=seed)[::4]
    assert halves[0] == halves[3] != halves[1] == halves[2]
    targets = np.array([*product((0, 1), repeat=4)] * FOLDS)
    folds = fold_of(targets, split_seed=seed)
    for fold in range(FOLDS):
        assert targets[folds == fold].sum(0).tolist() == [8] * 4
        assert sum(folds == fold) == 16


def test_the_order_of_files_does_not_matter_and_a_seed_is_another_split():
    targets, _ = made_table(3, has_groups=False)
    number = len(targets)
    paths = [f"{index}.jpg" for index in range(number)]
    order = np.random.default_rng(0).permutation(number)
    folds = fold_of(targets)
    assert np.array_equal(fold_of(targets[order], paths=[paths[index] for index in order]), folds[order])
    assert np.array_equal(fold_of(np.repeat(targets, 2, 0), paths=[path for path in paths for _ in "ab"])[::2], folds)
    other = fold_of(targets, split_seed=1)
    assert 0.7 < np.mean(other != folds) < 0.9
    assert max(deviation(targets, other == fold) for fold in range(FOLDS)) < 2
    digest = sha256(folds.astype("u1").tobytes()).hexdigest()
    assert digest[:8] == "61729afe", digest  # on every machine


def test_rare_labels():
    """Of a label with two images one is held out; one with fewer images than folds is in as many folds."""
    targets = np.zeros((200, 4), np.int8)
    targets[:2, 0] = targets[2:5, 1] = targets[5, 2] = 1
    targets[10:110, 3] = 1
    is_val, notes, _ = held_out(targets)
    assert not notes  # `notes_on` warns of labels with few validation images
    assert is_val @ targets == approx([1, 1, 0, 10])
    assert is_val.sum() == 20
    folds = fold_of(targets)
    assert [len(set(folds[targets[:, label] == 1])) for label in range(4)] == [2, 3, 1, 5]
    assert np.bincount(folds).tolist() == [40] * FOLDS
    assert np.bincount(folds[10:110]).tolist() == [20] * FOLDS
    without = np.zeros((50, 3))  # no image has a label
    assert np.bincount(fold_of(without)).tolist() == [10] * FOLDS
    assert held_out(without)[0].sum() == 5


def test_a_run_keeps_its_list_of_images_with_several_labels():
    targets, groups = made_table(5, has_groups=True)
    for of_run in (None, groups):
        is_val, _, run = held_out(targets, of_run)
        assert np.array_equal(held_out(1 - targets, of_run, run)[0], is_val)  # corrected labels are another split
        assert not np.array_equal(held_out(1 - targets, of_run)[0], is_val)
