"""Evidence of groups in data without DATA.GROUPS: patients in names of files, and numbers in names that are none."""

import random
import re
import shlex
from pathlib import Path

import numpy as np
from conftest import each_row, line_of, refused, told
from pytest import mark
from source_helpers import expand, groups_apart, options, read, tree, typed, write_rows, write_table, write_tar

from datasets.sources.groups import suggest_groups
from datasets.sources.samples import ImageFiles, listing_arrays
from datasets.sources.shared_arrays import StringPacker

R = random.Random(0)
# Names of files, see `files_of`; those of patients with the same number of each
PATIENTS = """
name | file
clinic | P1{c:03}_{s}
of different numbers | P10{c:02}_{few}
glued | case{c}img{s}
eyes | {c}_{side}
ChestX-ray14 | {c:08}_{s:03}
IDC | {c}_idx5_x{age}_y{s}_class{even}
TCGA | TCGA-02-{c:04}-01Z-00-DX{half}_{s}
BreaKHis | SOB_B_A-14-1{c:03}AB-{half}0-{s:03}
"""
OTHERS = """
name | file
camera | IMG_{n:04}
days | {day}_{s}
days of Europe | {day[6]}{day[7]}.{day[4]}{day[5]}.2026_{s}
phone | IMG_{day}_{time}
phone with milliseconds | PXL_{day}_{time}{s}{few}{even}
WordNet | n0144{c:04}_{s}
breeds | {breed}_{c}
augmented | img_{c:04}_aug_{s}
Roboflow | IMG_{c:04}_jpg.rf.{hex}
UTKFace | {age}_{even}_{s}_{day_of_n}{r:09}.jpg.chip
Flickr | {r}_{hex:.10}_n
UUID | {hex:.8}-{hex:.4}-4{hex:.3}-{hex}
some images twice | IMG_{c:04}{copy}
masks | {c:04}{kind}
"""


def files_of(pattern):
    """Names of 160 files: number n, of case c its shot s; with a day, a time, random digits and more."""
    days = [f"2026{1 + case % 12:02}{10 + case % 15}" for case in range(40)]
    for n in range(160):
        c, s = divmod(n, 4)
        words = {"n": n, "c": c, "s": s, "few": s % (1 + c % 4), "half": 1 + s // 2, "even": c % 2, "age": n % 60}
        words |= {"side": ("left", "right")[s % 2], "kind": ("", "_mask")[s % 2], "copy": ("", " (1)")[n % 16 == 1]}
        words |= {
            "day": days[c],
            "day_of_n": days[n % 40],
            "time": f"{R.randrange(10**5, 2 * 10**5)}",
            "r": R.randrange(10**9),
        }
        breed = ("beagle", "pug", "siamese", "boxer")[s]
        yield pattern.format(**words, breed=breed, hex=f"{R.randrange(16**12):012x}")


def notes_on(paths, is_cut=True):
    folders = sorted({path.split("/")[0] for path in paths})
    targets = np.array([folders.index(path.split("/")[0]) for path in paths])
    listing = ImageFiles(Path("DIR"), folders, listing_arrays(StringPacker(paths), targets=targets))
    return suggest_groups(listing, options("DIR", dataset="folder"), None, is_cut)


def in_classes(names):
    return [f"{'ab'[place // 10 % 2]}/{name}.jpg" for place, name in enumerate(dict.fromkeys(names))]


@each_row(PATIENTS)
def test_patients_in_names_are_noticed(name, file):
    """The expression gives each patient one group."""
    paths = in_classes(files_of(file))
    (note,) = notes_on(paths)
    words = shlex.split(note.text)
    expression = words[words.index("-opts") + 1].removeprefix("DATA.GROUPS=")
    groups = [re.search(expression, path)[1] for path in paths]
    assert note.kind == "warning"
    assert len({*groups}) == 40
    assert all(path.split("/")[1].startswith(group) for path, group in zip(paths, groups, strict=True))
    assert not notes_on(paths, is_cut=False)


@each_row(OTHERS)
def test_other_numbers_in_names_are_no_patients(name, file):
    assert not notes_on(in_classes(files_of(file)))


def test_names_of_classes_are_no_patients():
    assert not notes_on([f"{c:03}.x/{c:03}_{shot:04}.jpg" for c in range(8) for shot in range(20)])
    assert not notes_on([f"n{c:08}/n{c:08}_{shot}.jpg" for c in range(8) for shot in range(20)])
    assert not notes_on([f"{label}/{number}.jpg" for label in "ab" for number in range(40)])  # of each class


def test_columns_of_groups_are_proposed_and_a_wrong_name_leads_to_the_right_one(tmp_path):
    row = "image_path,target,station,individual", "{path},{folder},ST{number},i{individual}{folder}"
    write_rows(tmp_path, "{a,b}/{0..3}.jpg", "train.csv", *row, individual="0120")
    for wrong in ("stations", "place"):
        with refused(r"train\.csv.*\bstation\b"):
            read(tmp_path, dataset="csv", groups=wrong)
    (note,) = told(read(tmp_path, dataset="csv")[0].notes, "DATA.GROUPS")
    assert [one.groups for one in typed(note, options(tmp_path, dataset="csv"))] == ["individual"]  # of 5 or more
    write_rows(tmp_path, "{a,b}/{0..3}.jpg", "val.csv", *row, individual="0120")
    (note,) = told(read(tmp_path, dataset="csv")[0].notes, kind="screen")  # nothing is cut
    assert "DATA.GROUPS=individual" in note


@mark.parametrize("name", ["Patient (ID)", "Patient ("])
def test_a_column_with_parentheses_is_a_column(name, tmp_path):
    paths = in_classes(files_of("P1{c:03}_{s}"))
    row = f"image_path,target,{name}", "{path},{folder},{of_seven}"
    write_rows(tmp_path, paths, "train.csv", *row, of_seven="0123456")
    train, val = read(tmp_path, dataset="csv", groups=name)
    assert sum(groups_apart(train, val)) == 7
    for wrong in ("(p", r"\(p"):
        with refused(r"DATA\.GROUPS"):
            read(tmp_path, dataset="csv", groups=wrong)


def test_groups_of_several_classes_are_told_and_an_expression_is_shown_with_a_path(tmp_path):
    tree(tmp_path / "R", "{ill,well}/P{1,2,3,4,5,6}")
    given = options(tmp_path / "R", dataset="folder", class_folders=True, groups=r"/(P\d+)/")
    assert told(read(given)[0].notes, "groups-of-several-classes")
    message = line_of(read, given.changed(data_path=str(tmp_path / "R/ill")))
    assert r"DATA.GROUPS /(P\d+)/:" in message  # as it was typed, and a path in which it is searched
    assert re.search(r" '[P\d]+X?/0\.jpg'$", message)


GROUPED = expand("DSC{000..119}.jpg")
COLUMNS = """
header | row | columns
camera | cam{site} | camera
Site ID | {site} | 'Site ID'
location,sequence_id | {site},s{sequence} | location sequence_id
sequence_id,location | s{sequence},{site} | location sequence_id
deploymentID | d{site} | deploymentID
patient_id | {site} | patient_id
batch | {site} | batch
seq_number | {site} |   # of an image in its sequence
site | {label}{label} |   # of a class
plot | {n} |   # one image each
camera | {few} |   # make
specimen | {gaps} |   # images without: the column is named with them
specimen | {rare} |   # most images without
specimen | {of_half} |   # three of each class that has some
weather | {site} |
"""


@each_row(COLUMNS)
def test_columns_are_groups_by_names_and_values(header, row, columns, tmp_path):
    """Each class has several of the values, which recur; each advice keeps their images together."""
    images = range(120)
    words = {"site": [n // 10 for n in images], "sequence": [n // 3 for n in images], "few": "0123"}
    words |= {"gaps": [n // 10 or "" for n in images], "label": "abcdef"}
    words["of_half"] = [f"{'abcdef'[n % 6]}{n // 6 % 3}" if n % 6 < 3 else "" for n in images]
    words["rare"] = [n // 5 if n < 40 else "" for n in images]
    row_of = f"{{path}},{{label}},{row}"
    write_rows(tmp_path, GROUPED, "train.csv", f"image_path,target,{header}", row_of, **words)
    given = options(tmp_path, dataset="csv")
    warnings = told(read(given)[0].notes, "train.csv", "warning")  # which always have a line of the screen
    advised = [one for text in warnings for one in typed(text, given)]
    assert [one.groups for one in advised] == shlex.split(columns)
    assert all(sum(groups_apart(*read(one))) >= 12 for one in advised)
    to_fill = ["11 values, and none in 10 of 120 images: fill it in" in text for text in warnings if "fill" in text]
    assert to_fill == [True] * (row == "{gaps}")


def test_without_groups_of_other_images_the_screen_has_the_reason_alone(tmp_path):
    tree(tmp_path, "val/{a,b}/{1,2}.jpg")
    (val,) = read(tmp_path, "val", dataset="folder", groups="(patient.)/")
    (text,) = told(val.notes, "no figures of groups", "screen")
    assert "4 of 4 images" in text
    assert ";" not in text  # its advice would take the place of the reason


def test_shards_have_groups_of_all_images_or_none(tmp_path):
    write_tar(tmp_path / "val-0.tar", ["a/1.jpg", "b/2.jpg"], json=['{"patient": "P1"}', "{}"])
    (val,) = read(tmp_path, "val", dataset="tar", cache_dir=str(tmp_path), groups="patient")
    (text,) = told(val.notes, "no figures of groups", "screen")
    assert "1 of 2 images" in text
    assert val.groups is None
    assert val.select(np.array([1])).groups is None


def test_a_column_of_a_table_around_class_folders_is_proposed_and_a_wrong_name_leads_to_it(tmp_path):
    write_rows(tmp_path, "flowers/{a,b}/{0..11}.jpg", "patients.csv", "file,patient", "{path},P{stem}")
    given = options(tmp_path / "flowers", class_folders=True)
    (note,) = told(read(given)[0].notes, "DATA.GROUPS", "warning")
    assert [one.groups for one in typed(note, given)] == ["patient"]
    with refused(r"patients\.csv.*\bpatient\b"):
        read(given.changed(groups="patients"))


def test_groups_of_class_folders_are_a_column_of_the_table_beside_them(tmp_path):
    """The option is suggested. The table that names most images counts; others may be of any encoding."""
    images = tmp_path, "{a,b}/{0..11}.jpg"
    write_rows(*images, "b.csv", "file,patient", "{path},P{stem}")
    given = options(tmp_path, class_folders=True)
    (note,) = told(read(given)[0].notes, "DATA.GROUPS", "warning")
    assert "DATA.GROUPS=patient (12 values, 2 images a value)" in note
    write_table(tmp_path / "a.csv", ["a/0.jpg,P0"], "file,patient")
    write_table(tmp_path / "notes.csv", ["straße"], "", "latin-1")
    write_rows(*images, "lists.csv", "path,group", "{path},{stem}")
    for groups in ("patient", r"(\d+)", "lists.csv"):
        splits = read(given.changed(groups=groups))
        assert sum(groups_apart(*splits)) == 12
