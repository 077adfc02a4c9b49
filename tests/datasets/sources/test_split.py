"""The held-out images are a function of their paths, and of the list that a run keeps; DATA.GROUPS stay on one side."""

import io
import json
from collections import Counter
from hashlib import blake2b, sha256
from itertools import chain
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch
from conftest import each_row, line_of, refused, told
from pytest import fixture, mark, raises
from safetensors.torch import save_file
from source_helpers import expand, options, read, rows_of, tree, write_image, write_rows, write_table, write_tar

from configs.yaml_io import parse_value
from datasets.sources.shared_arrays import StringPacker
from datasets.sources.split import History, RunSplit, cut_images, hash_paths
from engine.checkpoint.weights_record import ENTRY, exported_entry, read_split, split_to_entry
from scripts import make_shards

PATHS = expand("{a,ä}/{0..9}.jpg")
ADDED = expand("a/new{0..19}.jpg")


def cut(images, split, known=None, initial=None, held_out=None, **values):
    """images: (path, class), or (path, class, group)."""
    paths, classes, *groups = zip(*images, strict=True)
    if groups:
        values["groups"] = "(x)"
    texts, of_groups = ([StringPacker(one).strings() for one in (paths, *groups)] + [None])[:2]
    history = History(known, initial=initial, held_out=held_out)
    return cut_images(texts, np.array(classes), of_groups, options("DIR", **values), [split], history)


def part_of(images, split, known=None, **values):
    """The positions of a part, the messages, and the split of the run."""
    found = cut(images, split, known, **values)
    problem = [f"DIR: {found.problem}"] if found.problem else []
    indices = np.flatnonzero(found.is_val == (split != "train"))
    return indices.tolist(), [*problem, *map(str, found.notes)], found.run_split


def part(paths, split, known=None, **values):
    """The paths of a part, and the notes; the class is the first letter."""
    images = [(path, ord(normalize("NFC", path)[0])) for path in paths]
    indices, *others = part_of(images, split, known, **values)
    return [paths[index] for index in indices], *others


def by_definition(paths, number, seed=0):
    def key(path):
        return int.from_bytes(blake2b(path.encode(), digest_size=8, salt=seed.to_bytes(8, "little")).digest(), "little")

    return {path for name in "aä" for path in sorted((p for p in paths if p[0] == name), key=key)[:number]}


@mark.parametrize("seed", [0, 3])
def test_the_smallest_hashes_of_each_class_are_held_out(seed):
    given = {"split_seed": seed, "val_fraction": 0.3}
    val, notes, _ = part(PATHS, "val", **given)
    assert set(val) == by_definition(PATHS, 3, seed)
    assert not notes
    assert set(part(PATHS, "train", **given)[0]) == set(PATHS) - set(val)
    decomposed = [normalize("NFD", path) for path in reversed(PATHS)]
    moved = part(decomposed, "val", **given)[0]
    assert {normalize("NFC", path) for path in moved} == set(val)
    assert sorted(part(PATHS + PATHS, "val", **given)[0]) == sorted(val + val)
    assert len(np.unique(hash_paths(StringPacker(PATHS).strings(), seed))) == len(PATHS)


def test_splits_of_images_with_one_label_stay():
    """The digests of held-out images, with and without groups, folds and a seed, as in runs that exist."""
    rng = np.random.default_rng(0)
    digests = ""
    for number in range(8):
        classes = rng.integers(4, size=90)
        groups = [f"g{group}" for group in rng.integers(12, size=90)]
        paths = [f"{label}/{index}é.jpg" for index, label in enumerate(classes)]
        for values in ({"split_seed": number}, {"val_fraction": 0.3}, {"folds": 4, "fold": number % 4}):
            for images in (zip(paths, classes, strict=True), zip(paths, classes, groups, strict=True)):
                digests += cut(images, "train", **values).run_split.digest
    assert sha256(digests.encode()).hexdigest()[:8] == "bbe8c50e"


def test_a_run_keeps_its_list():
    train, _, run = part(PATHS, "train", val_fraction=0.2)
    held_out = set(PATHS) - set(train)
    assert set(run.held_out) == held_out
    now = sorted({*PATHS, *ADDED} - {train[0], run.held_out[0]})
    val, notes, _ = part(now, "val", run, val_fraction=0.2)
    assert set(val) == held_out - {run.held_out[0]}
    (note,) = notes
    assert note.startswith("Warning: ")
    assert "lack 1 of the 4 held-out" in note
    resumed = part(now, "train", run, val_fraction=0.2)[2]
    assert resumed.held_out == run.held_out
    assert len(resumed.trained) == 16 + 20  # the missing ones may come back
    assert not part(sorted(PATHS + ADDED), "val", resumed, val_fraction=0.2)[1]


# Whose training it is, images, their part, options, what the note names; of other data some names are the same
IMAGES_OF = {"all": PATHS, "two": [*PATHS[:2], "a/x.jpg"], "five": [*PATHS[:5], *expand("b/{0..14}.jpg")]}
SEEN = """
weights | images | split | options | named
known | all | val | {split_seed: 3, val_fraction: 0.3} | 5 of 6 image(s)
known | all | all | {} | 18 of 20 image(s)
known | two | all | {} |
initial | all | val | {split_seed: 3, val_fraction: 0.3} | trained on 5 of 6 image(s)
initial | all | val | {folds: 5, fold: 2} | of 4 image(s)
initial | all | val | {} |
initial | five | val | {split_seed: 3, val_fraction: 0.3} |
"""


@each_row(SEEN)
def test_evaluated_images_of_the_training_are_named(weights, images, split, options, named):
    values = parse_value(options)
    found, notes, _ = part(IMAGES_OF[images], split, **{weights: part(PATHS, "train")[2]}, **values)
    assert [named in note for note in notes] == [True] * bool(named)
    if "split_seed" in values and images == "all":
        assert set(found) == by_definition(PATHS, 3, seed=3)


def test_without_images_to_evaluate_it_is_an_error_and_without_a_list_a_warning():
    run = part(PATHS, "train")[2]
    other = ["a/x.jpg", "a/y.jpg"]
    for paths, known, lack in ((other, run, "none of the 2 images"), (PATHS, RunSplit(0, 0.1, ()), "no validation")):
        val, (finding, *_), _ = part(paths, "val", known)
        assert finding.startswith(f"DIR: has {lack}")
        assert not val
    val, (note,), _ = part(PATHS, "val", RunSplit(5, 0.3, None), split_seed=5, val_fraction=0.3)
    assert val == part(PATHS, "val", split_seed=5, val_fraction=0.3)[0]
    assert note.startswith("Warning: ")


@mark.parametrize("split, number", [("val", 5), ("train", 0)])
def test_of_the_images_held_out_alone_the_trained_ones_are_counted(split, number):
    images = zip(PATHS, [0] * 10 + [1] * 10, strict=True)
    assert cut(images, split, part(PATHS, "train")[2], split_seed=3, val_fraction=0.3).num_trained == number


def read_again(run, data):
    """The split as it is read from an export, and from a checkpoint. data: the section DATA of the run."""
    torch.save({ENTRY: split_to_entry(run)}, file := io.BytesIO())
    file.seek(0)
    exported = json.loads(json.dumps(exported_entry(run)))
    return [read_split(entry, data) for entry in (exported, torch.load(file, weights_only=True))]


def test_the_entry_of_a_checkpoint():
    data = {"SPLIT_SEED": 0, "VAL_FRACTION": 0.9}
    _, _, run = part([*PATHS, "a/\udcff\n.jpg"], "train", val_fraction=0.9)
    exported, saved = read_again(run, data)
    assert exported == saved == run
    for one in (exported, saved):
        assert np.array_equal(one.trained, run.trained)
    assert read_split({}, data) == RunSplit(0, 0.9, None)
    assert read_split({ENTRY: None}, {}) == RunSplit(0, 0.1, ())
    assert read_split({ENTRY: None}, {"FOLDS": 5, "FOLD": 3}) == RunSplit(0, 0.1, (), fold=(3, 5))


def test_the_split_of_millions_of_images_fits_into_the_header_of_an_export(tmp_path):
    split = RunSplit(0, 0.1, ("a/0.jpg",), trained=np.arange(7 * 10**6, dtype=np.uint64))
    entry = exported_entry(split)
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", {ENTRY: json.dumps(entry)})
    assert read_split(entry, {"SPLIT_SEED": 0, "VAL_FRACTION": 0.1}) == split


@mark.parametrize(
    "key, value",
    [
        ("digest", "0"),
        ("held_out", [1]),
        ("held_out", torch.tensor([*b"x.jpg"], dtype=torch.uint8)),
        ("trained", None),
        ("trained", torch.ones(1)),
    ],
)
def test_a_damaged_entry_is_refused(key, value):
    entry = split_to_entry(part(PATHS, "train", val_fraction=0.9)[2])
    with raises(ValueError):
        read_split({ENTRY: entry | {key: value}}, {"VAL_FRACTION": 0.9})


@mark.parametrize("dataset", ["folder", "csv", "tar"])
def test_the_split_of_a_data_set_stays_without_one_image(tmp_path, dataset):
    held_out = []
    for first in (0, 1):
        names = expand("{cat,dog}/{000..019}.jpg")[first:]
        root = tmp_path / str(first) / "data"
        write_rows(root, names, "train.csv", "path,label", "{path},{folder}")
        write_tar(root / "train-0.tar", names)
        (val,) = read(root, "val", dataset=dataset, cache_dir=str(tmp_path))
        held_out.append([val.relative_name(index, str(root)) for index in range(len(val))])
    assert held_out[0] == held_out[1]
    assert len(held_out[0]) == 4


def folds_of(paths, folds, known=None, **values):
    """The held-out images of each fold; the other images are its training part."""
    parts = []
    for fold in range(folds):
        val, notes, _ = part(paths, "val", known, folds=folds, fold=fold, **values)
        train = part(paths, "train", known, folds=folds, fold=fold, **values)[0]
        assert not notes
        assert sorted(train + val) == sorted(paths)
        parts.append(val)
    return parts


@mark.parametrize("folds, seed", [(2, 0), (5, 7)])
def test_each_image_is_held_out_in_one_fold(folds, seed):
    paths = [f"{name}/{number}.jpg" for name in "abcdefg" for number in range(folds + ord(name) % 5)]
    listed = [*paths, *paths[:9]]  # some twice
    parts = folds_of(listed, folds, split_seed=seed)
    assert sorted(chain(*parts)) == sorted(listed)
    assert sum(len(set(part)) for part in parts) == len(paths)  # the copies of an image are in one fold
    for name in "abcdefg":
        assert np.ptp([sum(path[0] == name for path in set(part)) for part in parts]) <= 1
    totals = [len(part) for part in folds_of([f"{name}/{i}.jpg" for name in "abcde" for i in range(6)], 5)]
    assert totals == [6] * 5  # not the larger part of each class in the same fold


@mark.parametrize("folds", [2, 5])
def test_an_added_or_removed_image_moves_at_most_one_image_per_boundary(folds):
    rng = np.random.default_rng(folds)
    moved = []

    def fold_of(paths):
        return {path: fold for fold, val in enumerate(folds_of(sorted(paths), folds)) for path in val}

    for number in rng.integers(folds, 60, 40).tolist():
        paths = [f"{name}/{i}.jpg" for name, count in (("a", 10), ("b", number)) for i in range(count)]
        before = fold_of(paths)
        after = fold_of([*paths, f"b/new{number}.jpg"])
        moved.append(sum(before[path] != after[path] for path in paths))
    assert 0 < max(moved) <= folds - 1


def test_the_fold_of_a_run_keeps_its_list():
    train, _, run = part(PATHS, "train", folds=5, fold=3)
    read = read_again(run, {"FOLDS": 5, "FOLD": 3})
    assert read == [run, run]
    assert run.fold == (3, 5)
    now = sorted(PATHS + ADDED)
    for known in (run, *read):
        assert set(part(now, "val", known, folds=5, fold=3)[0]) == set(run.held_out) == set(PATHS) - set(train)
    val, (note,), _ = part(PATHS, "val", run, folds=5, fold=2)  # another fold is not the run's
    assert not {*val} & {*run.held_out}
    assert "4 of 4 image(s)" in note
    assert "DATA.FOLDS 5" in part(PATHS[:12], "val", folds=5, fold=0)[1][0]  # a class has two images


def test_folds_of_digits_and_of_data_with_splits(tmp_path):
    digits = [read("DIR", "train", "val", dataset="digits", folds=5, fold=fold) for fold in range(5)]
    counts = [np.bincount(val.targets) for _, val in digits]
    assert sum(counts).tolist() == np.bincount(np.concatenate([one.targets for one in digits[0]])).tolist()
    assert np.ptp(counts, axis=0).max() <= 1
    tree(tmp_path, "data/{train,val}/{cat,dog}/{0..5}.jpg", "data/test/{cat,dog}/0.jpg")
    folded = options(tmp_path / "data", dataset="folder", folds=3, fold=0)
    with refused(r"DATA.FOLDS 3: .* -data_path, or"):
        read(folded)
    assert len(read(folded, "val")[0]) == 12  # an evaluation
    (tmp_path / "data/val").rename(tmp_path / "empty")
    assert list(map(len, read(folded))) == [8, 4, 2]


# Groups


def groups_of(images, indices):
    return {images[index][2] for index in indices}


def of_hospitals(counts):
    """Images (path, class, group), with the numbers of healthy and ill images of each group."""
    pairs = [(label, hospital, count) for hospital, both in enumerate(counts) for label, count in enumerate(both)]
    return [(f"{c}/h{h}_{n}.jpg", c, f"h{h}") for c, h, count in pairs for n in range(count)]


def folds_of_groups(images, folds):
    """The groups of each fold; every group is in one of them."""
    found = list[set[str]]()
    for fold in range(folds):
        train = part_of(images, "train", folds=folds, fold=fold)[0]
        val = part_of(images, "val", folds=folds, fold=fold)[0]
        assert sorted(train + val) == list(range(len(images)))
        found.append(groups_of(images, val))
    assert sorted(chain(*found)) == sorted({group for *_, group in images})
    return found


@mark.parametrize("largest, is_named", [(14, False), (18, True), (120, True)])
def test_a_fold_far_larger_than_the_mean_is_a_warning_with_its_group(largest, is_named):
    """For people whose figures are of one hospital: its fold trains on a quarter of the images."""
    images = of_hospitals([(largest, 0), *[(10, 0)] * 4])
    notes = part_of(images, "val", folds=5, fold=0)[1]
    assert any(f"the group 'h0' has {largest} of {largest + 40}" in note for note in notes) == is_named
    warned = set()
    for seed in range(20):
        held_out, notes, _ = part_of(images, "val", split_seed=seed)
        warned.add((("h0" in groups_of(images, held_out)), any("the held-out part has" in note for note in notes)))
    assert warned == {(False, False), (True, is_named)}


def test_no_fold_is_empty_if_there_are_as_many_groups():
    """As many folds as groups hold out one each, as scikit-learn's GroupKFold; stratified where groups suffice.

    Six plates in three folds are two in each: they were one, three and two.
    """
    plates = of_hospitals([(9, 3), (9, 3), (4, 8), (9, 3), (4, 8), (9, 3)])
    assert [*map(len, folds_of_groups(plates, 3))] == [2, 2, 2]
    rng = np.random.default_rng(0)
    for number in range(60):
        groups = int(rng.integers(2, 12))
        folds = int(rng.integers(2, groups + 1))
        images = of_hospitals(rng.integers(1, 9, (groups, 2)).tolist())
        found = folds_of_groups(images, folds)
        assert min(map(len, found)) > (groups // folds) / 2, number
        counts = Counter(image[1:] for image in images)
        ill = [sum(counts[1, group] > counts[0, group] for group in fold) for fold in found]
        assert np.ptp(ill) <= 1, number
        assert np.ptp([*map(len, found)]) <= 2, number


OF_NAMES = r"/(p\d+)_"
IMAGES = [(f"{group % 2}/p{group}_{shot}.jpg", group % 2, f"p{group}") for group in range(8) for shot in range(3)]


def test_a_new_image_of_a_held_out_group_is_validation():
    run = part_of(IMAGES, "train", val_fraction=0.3)[2]
    assert len(run.held_out_groups) == 2
    assert len(run.held_out) == 6
    assert read_again(run, {"GROUPS": "(x)", "VAL_FRACTION": 0.3}) == [run, run]
    assert not part_of(IMAGES, "val", run, val_fraction=0.3)[1]
    group = run.held_out_groups[0]
    now = [("9/new.jpg", 0, group), *(image for image in IMAGES if image[2] != group), ("9/other.jpg", 0, "p99")]
    val = part_of(now, "val", run, val_fraction=0.3)[0]
    resumed = part_of(now, "train", run, val_fraction=0.3)[2]
    assert groups_of(now, val) == set(run.held_out_groups)
    assert 0 in val
    assert len(now) - 1 not in val
    assert set(resumed.held_out) == {*run.held_out, "9/new.jpg"}
    assert resumed.held_out_groups == run.held_out_groups
    notes = part_of([image[:2] for image in IMAGES], "val", run, val_fraction=0.3)[1]  # without GROUPS: another split
    assert any("the figures are too high: the checkpoint was trained on" in note for note in notes)


NAMES = [path for path, *_ in IMAGES]
PATIENTS = [group for *_, group in IMAGES]


@fixture
def folder(tmp_path):
    return options(tree(tmp_path / "data", *NAMES), dataset="folder", groups=OF_NAMES)


def assert_apart(train, val):
    """No group is in both splits, and each has its three images."""
    of_train, of_val = (Counter(samples.groups) for samples in (train, val))
    assert not of_train.keys() & of_val.keys()
    assert {*of_train.values(), *of_val.values()} == {3}


def test_folders_by_expression_and_by_table(folder, tmp_path):
    train, val = read(folder)
    assert_apart(train, val)
    first, second = sorted({*val.groups})
    assert told(train.notes, f"2 of 8 groups are held out ('{first}', '{second}'), 6 of 24 images")
    for name in ("groups.csv", "groups.txt"):
        write_table(tmp_path / name, rows_of("{path},{name:.2}", NAMES), "path,group")
        assert list(read(folder, groups=str(tmp_path / name))[0].groups) == list(train.groups)


def test_evaluated_splits_have_groups_where_their_paths_have_them(tmp_path):
    """A test split, and a validation split that is read alone; images without a group are no error there."""
    tree(tmp_path, "train/{x,y}/p{1,2}_0.jpg", "val/{x,y}/p{2,3}_1.jpg", "test/{x,y}/p{5_2,5_3,6_4}.jpg")
    data = options(tmp_path, groups=OF_NAMES, dataset="folder")
    train, _, test = read(data)
    assert told(train.notes, "'p2'", "warning")  # is on both sides
    (val,) = read(data, "val")
    assert Counter(test.groups) == {"p5": 4, "p6": 2}
    assert Counter(val.groups) == {"p2": 2, "p3": 2}
    tree(tmp_path, "test/x/other.jpg")
    *_, test = read(data)
    assert test.groups is None
    assert len(test) == 7


WRONG = r"""
groups | dataset | error
(q\d+)_ | folder | 24 of 24 images
/(.*)\.jpg | folder | DATA.GROUPS  # each image is a group
(_) | folder | DATA.GROUPS  # there is one group
absent.csv | folder | DATA.GROUPS absent.csv is unknown
patient | csv | train.csv:11  # is empty there
site | csv | DATA.GROUPS site is unknown
"""


@each_row(WRONG)
def test_wrong_groups_end_the_run(groups, dataset, error, folder):
    patients = [group.replace("p3", "") for group in PATIENTS]
    table = "train.csv", "image_path,target,patient", "{path},{folder},{patient}"
    write_rows(Path(folder.data_path), NAMES, *table, patient=patients)
    assert error in line_of(read, folder, groups=groups, dataset=dataset)


def test_more_folds_than_groups_end_the_run(folder):
    with refused(r"DATA.FOLDS 20: .* at most 8"):
        read(folder, folds=20, fold=0)


def test_shards_by_field_and_an_index_without_groups(tmp_path):
    """An index without the groups is built again only when GROUPS asks for it; with them it serves both."""
    texts = {"json": rows_of('{{"patient": "{name:.2}"}}', NAMES), "cls": rows_of("{folder}", NAMES)}
    write_tar(tmp_path / "data.tar", NAMES, **texts)
    given = options(tmp_path, dataset="tar")
    index = tmp_path / "index.npz"
    assert read(given, "train")[0].groups is None
    first = index.read_bytes()
    train, val = read(given, groups="patient")
    assert_apart(train, val)
    second = index.read_bytes()
    read(given, "train")
    assert index.read_bytes() == second != first
    assert list(read(given, groups="patient")[0].groups) == list(train.groups)
    texts["json"][9:12] = ["{}"] * 3
    write_tar(tmp_path / "data.tar", NAMES, **texts)
    with refused(r"GROUPS patient: 3 of 24 .*data\.tar/1/p3_0"):
        read(given, groups="patient")


def test_make_shards_writes_the_groups(folder, tmp_path):
    """The shards keep the split; training shards can be split again by the field `group`."""
    for path in NAMES:
        write_image(tmp_path / "data" / path)
    flags = ["-dataset=folder", f"-data_path={folder.data_path}", f"-output={tmp_path / 'out'}"]
    assert make_shards.main([*flags, "-opts", f"DATA.GROUPS={OF_NAMES}"]) == 0
    given = options(tmp_path / "out", dataset="tar")
    train, val = read(given, groups="group")
    assert_apart(train, val)
    assert Counter(train.groups) + Counter(val.groups) == Counter(PATIENTS)
    assert not told(train.notes, "val are not independent of train")
    with refused(r"GROUPS patient: .*train-000000\.tar/"):
        read(given, groups="patient")


def test_a_new_training_holds_out_what_another_run_did_and_a_cut_of_the_new_images_alone():
    """Otherwise all added images are trained on; a group with known images stays on its side."""
    _, _, run = part(PATHS, "train", val_fraction=0.2)
    now = sorted({*PATHS[1:], *ADDED})
    train, _, new = part(now, "train", held_out=run)
    expected = {path for path in (*run.held_out, *part(ADDED, "val")[0]) if path in now}
    assert {*now} - {*train} == expected == set(new.held_out)
    assert expected & {*ADDED}
    assert part(now, "train", new, held_out=run)[2] == new
    renamed = [path.replace("a/", "z/") for path in now]
    train, *_ = part(renamed, "train", held_out=run, rename={"a": "z"})
    known = {path.replace("a/", "z/") for path in expected - {*ADDED}}
    assert {path for path in renamed if path not in train and "new" not in path} == known

    groups = [f"old{number // 2}" for number in range(20)]
    _, _, run = part_of(zip(PATHS, [0] * 20, groups, strict=True), "train")
    groups += [*(f"old{number}" for number in range(10)), *(f"new{number // 2}" for number in range(10))]
    images = [*zip(PATHS + ADDED, [0] * 40, groups, strict=True)]
    train, _, new = part_of(images, "train", held_out=run)
    held_out = {*groups} - groups_of(images, train)
    assert {name for name in held_out if name[:3] == "old"} == {*run.held_out_groups}
    assert len(held_out) == len(run.held_out_groups) + 1 == len(new.held_out_groups)
    assert part(ADDED, "train", held_out=run)[1][0].startswith("DIR: ")
