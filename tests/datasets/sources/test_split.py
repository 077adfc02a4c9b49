"""The held-out images are a function of their paths, and of the list that a run keeps."""

import io
import json
import tarfile
from hashlib import blake2b
from unicodedata import normalize

import numpy as np
import pytest
import torch
from source_helpers import names_of, options, write_image

from datasets.registry import DATASETS
from datasets.shards.samples import TarSamples
from datasets.sources.arrays.strings import StringPacker, strings_in
from datasets.sources.split import RunSplit, Splitter, hash_paths
from engine.checkpoint.split_entry import ENTRY, exported_entry, read_split, split_to_entry

PATHS = [f"{name}/{number}.jpg" for name in ("a", "ä") for number in range(10)]


def part(paths, split, known=None, **values):
    """The paths of a part, and the notes; the class is the first letter."""
    splitter = Splitter(options("DIR", **values), known)
    strata = np.array([ord(normalize("NFC", path)[0]) for path in paths])
    indices, findings, notes = splitter.part(StringPacker(paths).strings(), strata, split)
    return [paths[index] for index in indices], findings + notes, splitter.result


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
    assert notes == [
        f"Warning: 1 of 4 held-out image(s) are missing, such as '{run.held_out[0]}'",
        "20 image(s) were added as training images, such as 'a/new0.jpg'",
        "1 of 16 training image(s) of the checkpoint are missing",
    ]
    resumed = part(now, "train", run, val_fraction=0.2)[2]
    assert (resumed.held_out, len(resumed.trained)) == (run.held_out, 16 + 20)  # the missing ones may come back
    assert not part(sorted(PATHS + added), "val", resumed, val_fraction=0.2)[1]


def test_images_of_the_training_are_named():
    _, _, run = part(PATHS, "train")
    seen = by_definition(PATHS, 2, seed=1) - by_definition(PATHS, 1)
    val, notes, _ = part(PATHS, "val", run, split_seed=1, val_fraction=0.2)
    assert set(val) == by_definition(PATHS, 2, seed=1)
    assert len(notes) == 1 and notes[0].startswith(f"Warning: {len(seen)} of 4 image(s) to evaluate, such as ")
    assert part(PATHS, "all", run)[1][0].startswith("Warning: 18 of 20 image(s) to evaluate")
    assert not part([*PATHS[:2], "a/x.jpg"], "all", run)[1]  # other data, of which some names are the same
    assert part(["a/x.jpg", "a/y.jpg"], "val", run)[1][0].startswith("DIR: has none of the 2 images that the run held")
    assert part(PATHS, "val", RunSplit(0, 0.1, ()))[1][0].startswith("DIR: the run had a validation split")


@pytest.mark.parametrize(("then", "warns"), [(14, False), (15, True), (None, True)])
def test_a_checkpoint_without_a_list_is_split_as_it_was(then, warns):
    rng, expected = np.random.Generator(np.random.PCG64(5)), []
    for members in np.split(np.arange(20), 2):
        expected += sorted(rng.permutation(members)[:3])
    val, notes, _ = part(PATHS, "val", RunSplit(5, 0.3, None, num_trained=then), split_seed=5, val_fraction=0.3)
    assert val == [PATHS[index] for index in expected]
    assert len(notes) == 1 and notes[0].startswith("Warning: ") == warns and "14 now" in notes[0]


def test_the_entry_of_a_checkpoint():
    _, _, run = part([*PATHS, "a/\udcff\n.jpg"], "train", val_fraction=0.9)
    torch.save({ENTRY: split_to_entry(run)}, file := io.BytesIO())
    file.seek(0)
    content, data = torch.load(file, weights_only=True), {"SPLIT_SEED": 0, "VAL_FRACTION": 0.9}
    read = read_split(content, data)
    assert read == run and np.array_equal(read.trained, run.trained)
    assert read_split(json.loads(json.dumps(exported_entry(run))), data) == run
    assert read_split({"geometry": {"samples": 9}}, data) == RunSplit(0, 0.9, None, num_trained=9)
    assert read_split({ENTRY: None}, {}) == RunSplit(0, 0.1, ())
    entry = content[ENTRY]
    for damage in (
        {"digest": "0"}, {"held_out": [1]}, {"held_out": entry["held_out"][:1].expand(2**50)}, {"trained": None},
        {"held_out": entry["held_out"].flip(0)}, {"trained": entry["trained"].float()},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            read_split({ENTRY: entry | damage}, data)


@pytest.mark.parametrize("dataset", ["folder", "csv", "caltech101", "tar"])
def test_the_split_of_a_data_set_stays_without_one_image(tmp_path, dataset):
    def held_out(first):
        root = tmp_path / f"{dataset}{first}" / "data"
        names = [f"{name}/{number:03d}.jpg" for name in ("cat", "dog") for number in range(20)][first:]
        for name in names:
            write_image(root / name)
        if dataset == "csv":
            (root / "train.csv").write_text("\n".join(["image_path,target", *(f"{name},{name[:3]}" for name in names)]))
        if dataset == "tar":
            with tarfile.open(root / "train-0.tar", "w") as tar:
                for name in names:
                    tar.add(root / name, name)
        samples = DATASETS[dataset](options(root, dataset=dataset, cache_dir=str(tmp_path)))("val")
        return list(strings_in(samples._arrays, "names")) if isinstance(samples, TarSamples) else names_of(samples)

    assert held_out(1) == held_out(0) and len(held_out(0)) == 4
