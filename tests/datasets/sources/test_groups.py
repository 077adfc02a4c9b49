"""Evidence of groups in data without DATA.GROUPS: patients in names of files, and numbers in names that are none."""

import random
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import CPU, each_row, line_of, refused, told
from source_helpers import groups_apart, options, read_splits, tree, typed, write_table

from datasets.reading import read_data
from datasets.sources.groups import suggest_groups
from datasets.sources.samples import ImageFiles, listing_arrays
from datasets.sources.shared_arrays import StringPacker
from datasets.sources.source import Wanted
from tests.datasets.shards.tar_files import tar_of

R = random.Random(0)
CASES = range(40)
DATES = [f"2026{1 + case % 12:02}{10 + case % 15}" for case in CASES]
SHOTS = range(3)


def time():
    return f"{R.randrange(24):02}{R.randrange(60):02}{R.randrange(60):02}"


def hexes(digits):
    return f"{R.randrange(16**digits):0{digits}x}"


def shots(name):
    """Three names of files of each of 40 cases."""
    return [name.format(c=c, shot=shot) for c in CASES for shot in SHOTS]


PATIENTS = {  # names of files, each with the same number of its patient
    "clinic": shots("P1{c:03}_{shot}"),
    "of different numbers": [f"P{1000 + c}_{shot}" for c in CASES for shot in range(1 + c % 4)],
    "glued": shots("case{c}img{shot}"),
    "eyes": [f"{c}_{side}" for c in CASES for side in ("left", "right")],
    "ChestX-ray14": shots("{c:08}_{shot:03}"),
    "IDC": [f"{c}_idx5_x{R.randrange(40)}_y{R.randrange(40)}_class{c % 2}" for c in CASES for _ in range(40)],
    "TCGA": shots("TCGA-02-{c:04}-01Z-00-DX1_{shot}") + shots("TCGA-02-{c:04}-01Z-00-DX2_{shot}"),
    "BreaKHis": shots("SOB_B_A-14-1{c:03}AB-40-{shot:03}") + shots("SOB_B_A-14-1{c:03}AB-100-{shot:03}"),
}
OTHERS = {
    "camera": [f"IMG_{c:04}" for c in range(200)],
    "days": [f"{day}_{shot}" for day in DATES for shot in SHOTS],
    "days of Europe": [f"{day[6:]}.{day[4:6]}.2026_{shot}" for day in DATES for shot in SHOTS],
    "phone": [f"IMG_{day}_{time()}" for day in DATES * 4],
    "phone with milliseconds": [f"PXL_{day}_{time()}{R.randrange(1000):03}" for day in DATES * 4],
    "WordNet": shots("n0144{c:04}_{shot}"),
    "breeds": [f"{breed}_{c}" for breed in ("beagle", "pug", "siamese", "boxer", "bengal", "husky") for c in CASES],
    "augmented": shots("img_{c:04}_aug_{shot}"),
    "Roboflow": [f"IMG_{c:04}_jpg.rf.{hexes(12)}" for c in CASES for _ in SHOTS],
    "UTKFace": [f"{c % 60}_{c % 2}_{c % 4}_{DATES[c % 40]}{R.randrange(10**9):09}.jpg.chip" for c in range(300)],
    "Flickr": [f"{R.randrange(10**10)}_{hexes(10)}_n" for _ in range(200)],
    "UUID": [f"{hexes(8)}-{hexes(4)}-4{hexes(3)}-{hexes(12)}" for _ in range(200)],
    "some images twice": [f"IMG_{c:04}" for c in CASES] + [f"IMG_{c:04} (1)" for c in CASES[::4]],
    "masks": [f"{c:04}{kind}" for c in CASES for kind in ("", "_mask")],
}


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
    paths = in_classes(PATIENTS[name])
    (note,) = notes_on(paths)
    words = shlex.split(note.text)
    expression = words[words.index("-opts") + 1].removeprefix("DATA.GROUPS=")
    groups = [re.search(expression, path)[1] for path in paths]
    assert note.kind == "warning"
    assert len({*groups}) == 40
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
    paths = in_classes(PATIENTS["of different numbers"])
    tree(tmp_path, *paths)
    if kind == "csv":
        write_table(tmp_path / "train.csv", [f"{path},{path[0]}" for path in paths])
    given = options(tmp_path, dataset=kind)
    (note,) = told(read_splits(given)[0].notes, "DATA.GROUPS")
    train, val = read_splits(typed(note, given)[0])
    assert sum(groups_apart(train, val)) == 40
    assert not told(train.notes, "-opts")


def test_columns_of_groups_are_proposed_and_a_wrong_name_leads_to_the_right_one(tmp_path):
    tree(tmp_path, "{a,b}")
    rows = [f"{label}/{n}.jpg,{label},ST{n},i{n % 3}{label}" for label in "ab" for n in range(4)]
    write_table(tmp_path / "train.csv", rows, "image_path,target,station,individual")
    for wrong in ("stations", "place"):
        with refused(r"train\.csv.*\bstation\b"):
            read_splits(options(tmp_path, dataset="csv", groups=wrong))
    (note,) = told(read_splits(options(tmp_path, dataset="csv"))[0].notes, "DATA.GROUPS")
    assert [one.groups for one in typed(note, options(tmp_path, dataset="csv"))] == ["individual"]  # of 5 or more


@pytest.mark.parametrize("name", ["Patient (ID)", "Patient ("])
def test_a_column_with_parentheses_is_a_column(name, tmp_path):
    paths = in_classes(PATIENTS["clinic"])
    tree(tmp_path, *paths)
    rows = [f"{path},{path[0]},{place % 7}" for place, path in enumerate(paths)]
    write_table(tmp_path / "train.csv", rows, f"image_path,target,{name}")
    train, val = read_splits(options(tmp_path, dataset="csv", groups=name))
    assert sum(groups_apart(train, val)) == 7
    for wrong in ("(p", r"\(p"):
        with refused(r"DATA\.GROUPS"):
            read_splits(options(tmp_path, dataset="csv", groups=wrong))


def test_groups_of_several_classes_are_told_and_an_expression_is_shown_with_a_path(tmp_path):
    tree(tmp_path / "R", "{ill,well}/P{1,2,3,4,5,6}")
    given = options(tmp_path / "R", dataset="folder", class_folders=True, groups=r"/(P\d+)/")
    assert told(read_data(Wanted(given, ("train", "val")), CPU).notes, "groups-of-several-classes")
    message = line_of(read_splits, given.changed(data_path=str(tmp_path / "R/ill")))
    assert r"DATA.GROUPS /(P\d+)/:" in message  # as it was typed, and a path in which it is searched
    assert re.search(r" '[P\d]+X?/0\.jpg'$", message)


GROUPED = [f"DSC{image:03}.jpg" for image in range(120)]
COLUMNS = """
header | row | columns
camera | cam{site} | camera
Site ID | {site} | 'Site ID'
location,sequence_id | {site},s{sequence} | location sequence_id
deploymentID | d{site} | deploymentID
patient_id | {site} | patient_id
batch | {site} | batch
seq_number | {site} |   # of an image in its sequence
site | {label}{label} |   # of a class
plot | {image} |   # one image each
camera | {few} |   # make
specimen | {gaps} |   # images without
weather | {site} |
"""


@each_row(COLUMNS)
def test_columns_are_groups_by_names_and_values(header, row, columns, tmp_path):
    """Each class has several of the values, which recur; each advice keeps their images together."""
    tree(tmp_path, *GROUPED)
    rows = []
    for image, path in enumerate(GROUPED):
        label = "abcdef"[image % 6]
        values = {"site": image // 10, "sequence": image // 3, "few": image % 4, "gaps": image // 10 or ""}
        rows.append(f"{path},{label},{row.format(image=image, label=label, **values)}")
    write_table(tmp_path / "train.csv", rows, f"image_path,target,{header}")
    given = options(tmp_path, dataset="csv")
    notes = told(read_splits(given)[0].notes, "-opts", "screen")
    advised = [one for note in notes for one in typed(note, given)]
    assert [one.groups for one in advised] == shlex.split(columns)
    assert all(sum(groups_apart(*read_splits(one))) >= 12 for one in advised)


def test_without_groups_of_other_images_the_screen_has_the_reason_alone(tmp_path):
    tree(tmp_path, "val/{a,b}/{1,2}.jpg")
    read = read_data(Wanted(options(tmp_path, dataset="folder", groups="(patient.)/"), ("val",)), CPU)
    (text,) = told(read.notes, "no figures of groups", "screen")
    assert "4 of 4 images" in text
    assert ";" not in text  # its advice would take the place of the reason


def test_shards_have_groups_of_all_images_or_none(tmp_path):
    files = {"a/1.jpg": b"1", "a/1.json": b'{"patient": "P1"}', "b/2.jpg": b"2", "b/2.json": b"{}"}
    (tmp_path / "val-0.tar").write_bytes(tar_of(files))
    read = read_data(Wanted(options(tmp_path, dataset="tar", cache_dir=str(tmp_path), groups="patient"), ("val",)), CPU)
    (text,) = told(read.notes, "no figures of groups", "screen")
    assert "1 of 2 images" in text
    samples = read.splits["val"]
    assert samples.groups is None
    assert samples.select(np.array([1])).groups is None


def test_groups_of_class_folders_are_a_column_of_the_table_beside_them(tmp_path):
    """The option is suggested. The table that names most images counts; others may be of any encoding."""
    paths = [f"{label}/{number}.jpg" for label in "ab" for number in range(12)]
    root = tree(tmp_path, *paths)
    write_table(root / "b.csv", [f"{path},P{path[2:-4]}" for path in paths], "file,patient")
    given = options(root, class_folders=True)
    (note,) = told(read_splits(given)[0].notes, "DATA.GROUPS", "screen")
    assert "DATA.GROUPS=patient (12 values, 2 images a value)" in note
    write_table(root / "a.csv", ["a/0.jpg,P0"], "file,patient")
    (root / "notes.csv").write_bytes("straße".encode("latin-1"))
    (root / "lists.csv").write_text("path,group\n" + "".join(f"{path},{path[2:-4]}\n" for path in paths))
    for groups in ("patient", r"(\d+)", "lists.csv"):
        splits = read_splits(given.changed(groups=groups))
        assert sum(groups_apart(*splits)) == 12
