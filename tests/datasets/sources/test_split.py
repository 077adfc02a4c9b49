"""The held-out images are a function of their paths, and of the list that a run keeps."""

import io
import json
from hashlib import blake2b
from unicodedata import normalize

import numpy as np
import pytest
import torch
from source_helpers import names_of, options, write_classes, write_image

from datasets.registry import read_samples
from datasets.shards.samples import TarSamples
from datasets.sources.shared_arrays import StringPacker, strings_in
from datasets.sources.source import source_class
from datasets.sources.split import RunSplit, Splitter, hash_paths
from engine.checkpoint.weights_record import ENTRY, exported_entry, read_split, split_to_entry
from tests.datasets.shards.tar_files import tar_of
from utils.errors import UserError

PATHS = [f"{name}/{number}.jpg" for name in ("a", "ä") for number in range(10)]


def part(paths, split, known=None, **values):
    """The paths of a part, and the notes; the class is the first letter."""
    splitter = Splitter(options("DIR", **values), known)
    strata = np.array([ord(normalize("NFC", path)[0]) for path in paths])
    part = splitter.part(StringPacker(paths).strings(), strata, split)
    return [paths[index] for index in part.indices], [*part.findings, *map(str, part.notes)], splitter.result


def by_definition(paths, number, seed=0):
    def key(path):
        return int.from_bytes(blake2b(path.encode(), digest_size=8, salt=seed.to_bytes(8, "little")).digest(), "little")

    return {path for name in "aä" for path in sorted((p for p in paths if p[0] == name), key=key)[:number]}


@pytest.mark.parametrize("seed", [0, 3])
def test_the_smallest_hashes_of_each_class_are_held_out(seed):
    val, notes, _ = part(PATHS, "val", split_seed=seed, val_fraction=0.3)
    assert set(val) == by_definition(PATHS, 3, seed) and not notes
    assert set(part(PATHS, "train", split_seed=seed, val_fraction=0.3)[0]) == set(PATHS) - set(val)
    decomposed = [normalize("NFD", path) for path in reversed(PATHS)]
    moved = part(decomposed, "val", split_seed=seed, val_fraction=0.3)[0]
    assert {normalize("NFC", path) for path in moved} == set(val)
    twice = part(PATHS + PATHS, "val", split_seed=seed, val_fraction=0.3)[0]
    assert sorted(twice) == sorted(val + val)
    assert len(np.unique(hash_paths(StringPacker(PATHS).strings(), seed))) == len(PATHS)


def test_a_run_keeps_its_list():
    train, _, run = part(PATHS, "train", val_fraction=0.2)
    held_out = set(PATHS) - set(train)
    assert set(run.held_out) == held_out
    added = [f"a/new{number}.jpg" for number in range(20)]
    now = sorted({*PATHS, *added} - {train[0], run.held_out[0]})
    val, notes, _ = part(now, "val", run, val_fraction=0.2)
    assert set(val) == held_out - {run.held_out[0]}
    (note,) = notes
    assert all(number in note for number in ("Warning", "20 image(s) were added", "1 of 4 held-out", "1 of 16 train"))
    resumed = part(now, "train", run, val_fraction=0.2)[2]
    assert (resumed.held_out, len(resumed.trained)) == (run.held_out, 16 + 20)  # the missing ones may come back
    assert not part(sorted(PATHS + added), "val", resumed, val_fraction=0.2)[1]


def test_images_of_the_training_are_named():
    _, _, run = part(PATHS, "train")
    seen = by_definition(PATHS, 2, seed=1) - by_definition(PATHS, 1)
    val, notes, _ = part(PATHS, "val", run, split_seed=1, val_fraction=0.2)
    assert set(val) == by_definition(PATHS, 2, seed=1) and len(notes) == 1 and f"{len(seen)} of 4 image(s)" in notes[0]
    assert "18 of 20 image(s)" in part(PATHS, "all", run)[1][0]
    assert not part([*PATHS[:2], "a/x.jpg"], "all", run)[1]  # other data, of which some names are the same
    for paths, known in ((["a/x.jpg", "a/y.jpg"], run), (PATHS, RunSplit(0, 0.1, ()))):  # nothing to evaluate
        assert part(paths, "val", known)[1][0].startswith("DIR: ") and not part(paths, "val", known)[0]
    val, (note,), _ = part(PATHS, "val", RunSplit(5, 0.3, None), split_seed=5, val_fraction=0.3)  # without a list
    assert val == part(PATHS, "val", split_seed=5, val_fraction=0.3)[0] and note.startswith("Warning: ")


def test_the_entry_of_a_checkpoint():
    _, _, run = part([*PATHS, "a/\udcff\n.jpg"], "train", val_fraction=0.9)
    torch.save({ENTRY: split_to_entry(run)}, file := io.BytesIO())
    file.seek(0)
    content, data = torch.load(file, weights_only=True), {"SPLIT_SEED": 0, "VAL_FRACTION": 0.9}
    read = read_split(content, data)
    assert read == run and np.array_equal(read.trained, run.trained)
    assert read_split(json.loads(json.dumps(exported_entry(run))), data) == run
    assert read_split({}, data) == RunSplit(0, 0.9, None)
    assert read_split({ENTRY: None}, {}) == RunSplit(0, 0.1, ())
    assert read_split({ENTRY: None}, {"FOLDS": 5, "FOLD": 3}) == RunSplit(0, 0.1, (), fold=(3, 5))
    entry = content[ENTRY]
    for damage in (
        {"digest": "0"}, {"held_out": [1]}, {"held_out": entry["held_out"][:1].expand(2**50)}, {"trained": None},
        {"held_out": entry["held_out"].flip(0)}, {"trained": entry["trained"].float()},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            read_split({ENTRY: entry | damage}, data)


@pytest.mark.parametrize("dataset", ["folder", "csv", "tar"])
def test_the_split_of_a_data_set_stays_without_one_image(tmp_path, dataset):
    def held_out(first):
        root = tmp_path / f"{dataset}{first}" / "data"
        names = [f"{name}/{number:03d}.jpg" for name in ("cat", "dog") for number in range(20)][first:]
        for name in names:
            write_image(root / name)
        if dataset == "csv":
            (root / "train.csv").write_text("\n".join(["image_path,target", *(f"{name},{name[:3]}" for name in names)]))
        if dataset == "tar":
            (root / "train-0.tar").write_bytes(tar_of({name: (root / name).read_bytes() for name in names}))
        samples = source_class(dataset)(options(root, dataset=dataset, cache_dir=str(tmp_path))).read("val")
        return list(strings_in(samples._arrays, "names")) if isinstance(samples, TarSamples) else names_of(samples)

    assert held_out(1) == held_out(0) and len(held_out(0)) == 4


def folds_of(paths, folds, known=None, **values):
    """The held-out images of each fold; the other images are its training part."""
    parts = []
    for fold in range(folds):
        val, notes, _ = part(paths, "val", known, folds=folds, fold=fold, **values)
        train = part(paths, "train", known, folds=folds, fold=fold, **values)[0]
        assert not notes and sorted(train + val) == sorted(paths)
        parts.append(val)
    return parts


@pytest.mark.parametrize(("folds", "seed"), [(2, 0), (5, 7)])
def test_each_image_is_held_out_in_one_fold(folds, seed):
    paths = [f"{name}/{number}.jpg" for name in "abcdefg" for number in range(folds + ord(name) % 5)]
    parts = folds_of([*paths, *paths[:9]], folds, split_seed=seed)  # some are listed twice
    assert sorted(path for part in parts for path in part) == sorted([*paths, *paths[:9]])
    assert sum(len(set(part)) for part in parts) == len(paths)  # the copies of an image are in one fold
    for name in "abcdefg":
        sizes = [sum(path[0] == name for path in set(part)) for part in parts]
        assert max(sizes) - min(sizes) <= 1
    totals = [len(part) for part in folds_of([f"{name}/{i}.jpg" for name in "abcde" for i in range(6)], 5)]
    assert totals == [6] * 5  # not the larger part of each class in the same fold


@pytest.mark.parametrize("folds", [2, 5])
def test_an_added_or_removed_image_moves_at_most_one_image_per_boundary(folds):
    rng, moved = np.random.default_rng(folds), []

    def fold_of(paths):
        return {path: fold for fold, val in enumerate(folds_of(sorted(paths), folds)) for path in val}

    for number in rng.integers(folds, 60, 40).tolist():
        paths = [f"{name}/{i}.jpg" for name, count in (("a", 10), ("b", number)) for i in range(count)]
        before, after = fold_of(paths), fold_of([*paths, f"b/new{number}.jpg"])
        moved.append(sum(before[path] != after[path] for path in paths))
    assert 0 < max(moved) <= folds - 1


def test_the_fold_of_a_run_keeps_its_list():
    train, _, run = part(PATHS, "train", folds=5, fold=3)
    read = read_split(json.loads(json.dumps(exported_entry(run))), {"FOLDS": 5, "FOLD": 3})
    assert read == run and run.fold == (3, 5)
    now = sorted({*PATHS, *(f"a/new{number}.jpg" for number in range(20))})
    for known in (run, read):
        assert set(part(now, "val", known, folds=5, fold=3)[0]) == set(run.held_out) == set(PATHS) - set(train)
    val, (note,), _ = part(PATHS, "val", run, folds=5, fold=2)  # another fold is not the run's
    assert not {*val} & {*run.held_out} and "4 of 4 image(s)" in note
    assert "DATA.FOLDS" in part(PATHS[:12], "val", folds=5, fold=0)[1][0]  # a class has two images


def test_folds_of_digits_and_of_data_with_splits(tmp_path, cpu):
    digits = [source_class("digits")(options("DIR", folds=5, fold=fold)).read for fold in range(5)]
    counts = [np.bincount(read("val").targets) for read in digits]
    assert np.array_equal(sum(counts), np.bincount(np.concatenate([digits[0](s).targets for s in ("train", "val")])))
    assert np.ptp(counts, axis=0).max() <= 1
    for split in ("train", "val"):
        write_classes(tmp_path / "data" / split, cat=6, dog=6)
    write_classes(tmp_path / "data/test", cat=1, dog=1)
    folded, context = {"dataset": "folder", "folds": 3, "fold": 0, "batch_size": 2}, cpu
    with pytest.raises(UserError, match=r"DATA.FOLDS 3: .* -data_path, or"):
        read_samples(options(tmp_path / "data", **folded), None, context, "train", "val")
    assert len(read_samples(options(tmp_path / "data", **folded), None, context, "val")[0]) == 12  # an evaluation
    (tmp_path / "data/val").rename(tmp_path / "empty")
    train, val, test = read_samples(options(tmp_path / "data", **folded), None, context, "train", "val", "test")
    assert (len(train), len(val), len(test)) == (8, 4, 2)
