"""Evidence of groups in data without DATA.GROUPS: patients in names of files, and numbers in names that are none."""

import random
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import refused, told
from source_helpers import options, read_splits, tree, typed

from datasets.sources.groups import suggest_groups
from datasets.sources.samples import ImageFiles, listing_arrays
from datasets.sources.shared_arrays import StringPacker

R = random.Random(0)
CASES = range(40)
DATES = [f"2026{1 + case % 12:02}{10 + case % 15}" for case in CASES]
SHOTS = range(3)


def time():
    return f"{R.randrange(24):02}{R.randrange(60):02}{R.randrange(60):02}"


def hexes(digits):
    return f"{R.randrange(16**digits):0{digits}x}"


PATIENTS = {  # names of files, and the number of groups by the expression that is advised
    "clinic": ([f"P{1000 + c}_{shot}" for c in CASES for shot in SHOTS], 40),
    "of different numbers": ([f"P{1000 + c}_{shot}" for c in CASES for shot in range(1 + c % 4)], 40),
    "glued": ([f"case{c}img{shot}" for c in CASES for shot in SHOTS], 40),
    "eyes": ([f"{c}_{side}" for c in CASES for side in ("left", "right")], 40),
    "ChestX-ray14": ([f"{c:08}_{shot:03}" for c in CASES for shot in SHOTS], 40),
    "IDC": ([f"{c}_idx5_x{R.randrange(40)}_y{R.randrange(40)}_class{c % 2}" for c in CASES for _ in range(40)], 40),
    "TCGA": ([f"TCGA-{c % 7:02}-{c:04}-01Z-00-DX{s}_{shot}" for c in CASES for s in (1, 2) for shot in SHOTS], 40),
    "BreaKHis": ([f"SOB_B_A-14-{137 * c}AB-{x}-{i:03}" for c in CASES for x in (40, 100) for i in SHOTS], 40),
}  # fmt: skip
OTHERS = {
    "camera": [f"IMG_{c:04}" for c in range(200)],
    "days": [f"{day}_{shot}" for day in DATES for shot in SHOTS],
    "days of Europe": [f"{day[6:]}.{day[4:6]}.2026_{shot}" for day in DATES for shot in SHOTS],
    "phone": [f"IMG_{day}_{time()}" for day in DATES * 4],
    "phone with milliseconds": [f"PXL_{day}_{time()}{R.randrange(1000):03}" for day in DATES * 4],
    "WordNet": [f"n{1440000 + c:08}_{shot}" for c in CASES for shot in SHOTS],
    "breeds": [f"{breed}_{c}" for breed in ("beagle", "pug", "siamese", "boxer", "bengal", "husky") for c in CASES],
    "augmented": [f"img_{c:04}_aug_{shot}" for c in CASES for shot in SHOTS],
    "Roboflow": [f"IMG_{c:04}_jpg.rf.{hexes(12)}" for c in CASES for _ in SHOTS],
    "UTKFace": [f"{c % 60}_{c % 2}_{c % 4}_{DATES[c % 40]}{R.randrange(10**9):09}.jpg.chip" for c in range(300)],
    "Flickr": [f"{R.randrange(10**10)}_{hexes(10)}_n" for _ in range(200)],
    "UUID": [f"{hexes(8)}-{hexes(4)}-4{hexes(3)}-{hexes(12)}" for _ in range(200)],
    "some images twice": [f"IMG_{c:04}{end}" for c in CASES for end in ("", " (1)")[: 1 + (c % 4 == 0)]],
    "masks": [f"{c:04}{kind}" for c in CASES for kind in ("", "_mask")],
}  # fmt: skip


def notes_on(paths, is_cut=True):
    folders = sorted({path.split("/")[0] for path in paths})
    targets = np.array([folders.index(path.split("/")[0]) for path in paths])
    listing = ImageFiles(Path("DIR"), folders, listing_arrays(StringPacker(paths), targets=targets))
    return suggest_groups(listing, options("DIR", dataset="folder"), None, is_cut)


def in_classes(names):
    return [f"{'ab'[place // 10 % 2]}/{name}.jpg" for place, name in enumerate(dict.fromkeys(names))]


@pytest.mark.parametrize("name", PATIENTS)
def test_patients_in_names_are_noticed(name):
    """The expression gives each patient one group."""
    names, number = PATIENTS[name]
    paths = in_classes(names)
    (note,) = notes_on(paths)
    expression = shlex.split(note.text)[shlex.split(note.text).index("-opts") + 1].removeprefix("DATA.GROUPS=")
    groups = [re.search(expression, path)[1] for path in paths]
    assert note.kind == "warning"
    assert len({*groups}) == number
    assert all(path.split("/")[1].startswith(group) for path, group in zip(paths, groups, strict=True))
    assert not notes_on(paths, is_cut=False)


@pytest.mark.parametrize("name", OTHERS)
def test_other_numbers_in_names_are_no_patients(name):
    assert not notes_on(in_classes(OTHERS[name]))


def test_names_of_classes_are_no_patients():
    assert not notes_on([f"{c:03}.x/{c:03}_{shot:04}.jpg" for c in range(8) for shot in range(20)])
    assert not notes_on([f"n{c:08}/n{c:08}_{shot}.jpg" for c in range(8) for shot in range(20)])
    assert not notes_on([f"{label}/{number}.jpg" for label in "ab" for number in range(40)])  # of each class


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_the_expression_of_a_warning_works_when_typed(kind, tmp_path):
    paths = in_classes(PATIENTS["of different numbers"][0])
    tree(tmp_path, *paths)
    if kind == "csv":
        rows = "".join(f"{path},{path[0]}\n" for path in paths)
        (tmp_path / "train.csv").write_text(f"image_path,target\n{rows}")
    given = options(tmp_path, dataset=kind)
    (note,) = told(read_splits(given)[0].notes, "DATA.GROUPS")
    train, val = read_splits(typed(note, given)[0])
    assert len({*train.groups}) + len({*val.groups}) == 40
    assert not {*train.groups} & {*val.groups}
    assert not told(train.notes, "-opts")


@pytest.mark.parametrize("name", ["Patient (ID)", "Patient ("])
def test_a_column_with_parentheses_is_a_column(name, tmp_path):
    paths = in_classes(PATIENTS["clinic"][0])
    tree(tmp_path, *paths)
    rows = "".join(f"{path},{path[0]},{place % 7}\n" for place, path in enumerate(paths))
    (tmp_path / "train.csv").write_text(f"image_path,target,{name}\n{rows}")
    train, val = read_splits(options(tmp_path, dataset="csv", groups=name))
    assert len({*train.groups} | {*val.groups}) == 7
    for wrong in ("(p", r"\(p"):
        with refused(r"DATA\.GROUPS"):
            read_splits(options(tmp_path, dataset="csv", groups=wrong))
