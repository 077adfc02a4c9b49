"""DATA.RENAME, ONLY_CLASSES and CLASSES name and number the classes of every kind of data; labels may be numbers."""

import numpy as np
from conftest import config_for, each_row, refused, told
from pytest import fixture, mark
from source_helpers import classes_of, options, read, tree, write_data

from configs.yaml_io import parse_value
from datasets.sources.class_names import merged_outputs, rename_classes
from datasets.sources.numbering import check_names, number_classes, rename, take_classes
from datasets.sources.rows import Rows
from datasets.sources.sets.in_memory import ImageArray
from datasets.sources.source import Wanted

LABELS = [0, 1, 2, 1, 0, 2, 1, 0, 2, 2, 1, 0]
KINDS = ["csv", "imagenet2012", "parquet", "tar"]
SPLITS = {"train": LABELS[:6], "val": LABELS[6:]}


def names_in(samples):
    return [samples.class_names[label] for label in samples.targets.tolist()]


@fixture
def numbered(tmp_path):
    """The options of a data set of a kind, whose labels are numbers, perhaps with names in a file."""

    def write(kind, names):
        (tmp_path / "classes.txt").write_text(names.replace(" ", "\n"))
        data = write_data(tmp_path / "data", kind, **SPLITS)
        return data.changed(classes=str(tmp_path / "classes.txt")) if names else data

    return write


# Names in a file, options, the classes, and those of the labels 0, 1 and 2; -: left out
RENAMED = """
names | given | classes | of_labels
 | {rename: {'0': none, '1': ill, '2': ill}} | none ill | none ill ill
 | {rename: {'1': '2', '0': none}} | none 2 | none 2 2
 | {only_classes: ['2', '0']} | 0 2 | 0 - 2
none mild severe | {} | none mild severe | none mild severe
none mild severe | {rename: {mild: ill, severe: ill}} | none ill | none ill ill
none mild severe | {only_classes: [severe, mild]} | mild severe | - mild severe
"""
UNKNOWN = """
names | given | part
 | {rename: {'7': x}} | RENAME: .* has no class '7'
 | {only_classes: ['7']} | ONLY_CLASSES: the data have no class '7'
none mild severe | {rename: {sever: ill}} | has no class 'sever'; did you mean severe
"""


@mark.parametrize("kind", KINDS)
@each_row(RENAMED)
def test_labels_that_are_numbers_are_named_renamed_and_left_out(kind, names, given, classes, of_labels, numbered):
    train, val = read(numbered(kind, names), **parse_value(given))
    assert train.class_names == val.class_names == classes.split()
    found = [of_labels.split()[label] for label in LABELS]
    assert names_in(train) + names_in(val) == [name for name in found if name != "-"]
    assert bool(told(train.notes, "(4 images)', DATA.ONLY_CLASSES", "screen")) == ("-" in found)


@mark.parametrize("kind", KINDS)
@each_row(UNKNOWN)
def test_unknown_names_of_numbers_are_refused(kind, names, given, part, numbered):
    with refused(part):
        read(numbered(kind, names), **parse_value(given))


def test_numbers_are_the_places_of_the_names_of_a_checkpoint(tmp_path):
    """Which DATA.RENAME merges."""
    data = write_data(tmp_path / "data", "imagenet2012", **SPLITS)
    known = {"class_names": ["none", "ill", "severe"], "of_weights": ["none", "mild", "severe"]}
    (val,) = read(data, "val", rename={"mild": "ill", "severe": "ill"}, **known)
    assert val.class_names == known["class_names"]
    assert names_in(val) == ["ill" if label else "none" for label in LABELS[6:]]
    (train,) = read(data, "train", rename={"mild": "ill", "severe": "ill"}, **known)  # an evaluation of train
    assert names_in(train) == ["ill" if label else "none" for label in LABELS[:6]]


def test_several_labels_that_are_numbers_are_renamed(tmp_path):
    data = write_data(tmp_path / "data", "csv", cell="{}|3", **SPLITS).changed(multi_label=True)
    train, val = read(data, rename={"3": "any", "1": "ill", "2": "ill"})
    assert train.class_names == val.class_names == ["0", "ill", "any"]
    expected = [[int(label == 0), int(label > 0), 1] for label in LABELS]
    assert train.targets.tolist() + val.targets.tolist() == expected


WRITTEN = """
given | kept
[1.10, 007, 1e3] | 007 1.10 1e3
[1.1, '7', 1000.0] | 1.1 1000.0 7
["null", ~, true] | null true ~
[null, True] | True null
[007, 8] | 007 8
[true, 08] | 08 true
"""


@each_row(WRITTEN)
def test_names_are_the_texts_that_are_written(given, kept, tmp_path):
    names = ["1.1", "1.10", "7", "007", "8", "08", "1e3", "1000.0", "null", "~", "true", "True"]
    flags = [f"-data_path={tmp_path / 'data'}", "-dataset=folder"]
    tree(tmp_path / "data", *(f"{name}/{n}.jpg" for name in names for n in range(3)))
    file = tmp_path / "of_run.yaml"
    file.write_text(f"DATA:\n  ONLY_CLASSES: {given}\n  RENAME: {{1.10: 2.50}}\n")
    typed = config_for(*flags, "-batch_size=1", "-opts", f"DATA.ONLY_CLASSES={given}", "DATA.RENAME={1.10: 2.50}").data
    written = config_for(f"-cfg={file}", *flags, "-batch_size=1").data
    for data in (typed, written):
        train, _ = read(data)
        assert train.class_names == [{"1.10": "2.50"}.get(name, name) for name in kept.split()]
        assert set(classes_of(train).values()) == {*train.class_names}


class Counted(str):
    """A text that counts its comparisons."""

    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)


@mark.parametrize("count", [500, 1000])
def test_comparisons_grow_with_the_classes_and_not_with_their_square(count):
    names = [Counted(f"class {number}") for number in range(count)]
    others = {Counted(f"class {number}"): Counted(f"new {number // 2}") for number in range(count)}
    rows = Rows({"val": ImageArray(np.zeros((count, 1, 1, 1), np.uint8), range(count), names)})
    known = [Counted(name) for name in reversed(names)]
    new = [Counted(f"new {number}") for number in range(count // 2)]
    Counted.compared = 0
    assert number_classes(
        check_names(rows, Wanted(options("DIR"))), Wanted(options("DIR"), class_names=known)
    ).class_names
    data = options("DIR").changed(rename=others)
    assert rename(rows, Wanted(data)).class_names == new
    only = options("DIR").changed(only_classes=known[: count // 2])
    assert len(take_classes(rows, Wanted(only)).class_names) == count // 2
    assert len(rename_classes(names, others)) == count
    assert len(merged_outputs(names, others)) == count // 2
    assert Counted.compared < 60 * count
