"""Digests of all that reading finds: paths, labels, class names, groups, the split of the run; and its lines.

They are kept in golden.txt. After a wanted change, `GOLDEN=write python -m pytest -m slow` writes them anew, and
`git diff` shows which readings have changed: their data, or only their lines.
"""

import os
from hashlib import sha256
from pathlib import Path

import numpy as np
from conftest import CPU, values_of
from pytest import importorskip, mark
from source_helpers import expand, options, rows_of, tree, write_rows, write_tar

from datasets.reading import read_data
from datasets.recognition import recognize_dataset
from datasets.sources.source import Wanted
from datasets.sources.split import History
from utils.errors import UserError

FILE = Path(__file__).with_name("golden.txt")
IMAGES = expand("{ant,bee,Cat10}/p{1..8}_{0,1}.jpg")


def table(root, header, row):
    """row: the cells of an image, by its path, class folder, patient, split and the number of its label."""
    splits = ["test" if n == 0 else "val" if n == 6 else "train" for n in range(12)]
    place = [n // 16 for n in range(48)]
    return {"DATA_PATH": str(write_rows(root, IMAGES, "all.csv", header, row, bar="|", split=splits, place=place))}


def number_of(path):
    return str("abC".index(path[0]))


def lists(root):
    for split, images in (("train", IMAGES[::2]), ("val", IMAGES[1::2])):
        write_rows(root, images, f"{split}_list.txt", "", "{path} {label}", label=[*map(number_of, images)])
    return {"DATA_PATH": str(root), "DATASET": "imagenet2012"}


def folders(root, *parts):
    tree(root, *(f"{part}{path}" for part in parts for path in IMAGES))
    return {"DATA_PATH": str(root), "DATASET": "folder"}


def shards(root, *splits):
    texts = {"json": rows_of('{{"patient": "{name:.2}"}}', IMAGES)}
    if len(splits) > 1:  # numbers in place of the names of folders
        texts["cls"] = [*map(number_of, IMAGES)]
    for split in splits:
        write_tar(root / f"{split}-0000.tar", IMAGES, **texts)
    return {"DATA_PATH": str(root), "DATASET": "tar", "CACHE_DIR": str(root)}


def parquet(root, *splits):
    pa = importorskip("pyarrow")
    files = importorskip("pyarrow.parquet")
    root.mkdir()
    for split in splits:
        columns = {"image": [path.encode() for path in IMAGES], "label": rows_of("{folder}", IMAGES)}
        files.write_table(pa.table(columns), root / f"{split}.parquet", row_group_size=7)
    return {"DATA_PATH": str(root)}


WRITERS = {write.__name__: write for write in (folders, table, lists, shards, parquet)}
# Who writes it, the arguments, more options
LAYOUTS = """
folders | folders | [''] | {}
folders with splits | folders | [train/, val/, test/] | {}
folders and test | folders | [train/, test/] | {}
labels in paths | folders | [''] | {LABELS: /p(.)_}
table | table | ['path,label,patient', '{path},{folder},{name:.2}'] | {}
table with splits | table | ['path,label,split,patient', '{path},{folder},{split},{name:.2}'] | {}
numbers | table | ['path,label,patient', '{path},{place},{name:.2}'] | {}
numbers with gaps | table | ['path,label,patient', '{path},{place}7,{name:.2}'] | {}
several labels | table | ['path,label,patient', '{path},{folder}{bar}{name:.2},{name:.2}'] | {MULTI_LABEL: true}
lists | lists | [] | {}
shards | shards | [train] | {}
shards with splits | shards | [train, val] | {}
parquet | parquet | [train] | {}
parquet with splits | parquet | [train, validation, test] | {}
"""
GROUPS = {"folder": r"/(p\d+)_", "imagenet2012": r"/(p\d+)_"}
WAYS = """
plain | {}
seed | {SPLIT_SEED: 3, VAL_FRACTION: 0.3}
fold | {FOLDS: 3, FOLD: 1}
groups | {GROUPS: patient}
share of groups | {GROUPS: patient, FRACTION: 0.4}
rename | {RENAME: {ant: bug, bee: bug}}
only | {ONLY_CLASSES: [bee, ant], FRACTION: 0.5}
natural | {CLASSES: natural}
"""


def given(written, **more):
    """The options of a layout that is written, and more."""
    if more.get("GROUPS") and written.get("DATASET") in GROUPS:
        more["GROUPS"] = GROUPS[written["DATASET"]]
    return options("DIR", **{key.lower(): value for key, value in (written | more).items()})


def digest(*values):
    return sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()[:8]


def facts_of(samples):
    groups = [*samples.groups] if samples.groups else None
    windows = samples.windows.ends.tolist() if samples.windows else None
    labels = samples.targets.tolist()
    paths = [*samples.paths] if len(samples) < 1000 else []
    return (
        paths,
        labels,
        samples.class_names,
        samples.has_class_names,
        groups,
        windows,
        sum(samples.checksums().tolist()),
    )


def read(root, data, *splits, known=None, initial=None, **more):
    """The digests of a reading and of its lines, and the split of the run."""
    try:
        data = recognize_dataset(data, CPU)
        names = splits or ("train", "val")
        history = History(known, initial)
        found = read_data(Wanted(data, names, history=history, with_test=not splits, **more), CPU)
    except UserError as error:
        return "refused", digest(str(error).replace(str(root), "ROOT")), None
    split = found.run_split
    facts = [*map(facts_of, found.splits.values())]
    if split:
        facts.append((split.held_out, np.sort(split.trained).tolist(), split.held_out_groups, split.rule))
    lines = sorted(str(note).replace(str(root), "ROOT") for note in found.notes)
    return digest(facts, found.num_trained if splits else None), digest(*lines), split


def readings(root):
    """Each reading: its name and its digests."""
    yield "digits", *read(root, options("DIR", dataset="digits"), is_new=True)[:2]
    for layout, writer, arguments, more in values_of(LAYOUTS):
        written = WRITERS[writer](root / layout.replace(" ", "_"), *arguments) | more
        for way, values in values_of(WAYS):
            yield f"{layout}, {way}", *read(root, given(written, **values), is_new=True)[:2]
        data = given(written)
        yield f"{layout}, all", *read(root, data, "all")[:2]
        yield f"{layout}, names of a checkpoint", *read(root, data, "val", class_names=["bee", "ant", "Cat10"])[:2]
        run = read(root, data)[2]
        if run:
            other = given(written, SPLIT_SEED=9)
            for split in ("train", "val", "all"):
                yield f"{layout}, {split} of the run", *read(root, data, split, known=run)[:2]
                yield f"{layout}, {split} of another seed", *read(root, other, split, known=run)[:2]
            yield f"{layout}, initial weights", *read(root, other, "train", "val", initial=run)[:2]


@mark.slow
def test_readings_are_those_of_the_committed_digests(tmp_path):
    lines = [" | ".join(reading) for reading in readings(tmp_path)]
    assert len(lines) > 150
    if os.environ.get("GOLDEN") == "write":
        FILE.write_text("\n".join(lines) + "\n")
    assert lines == FILE.read_text().splitlines()
