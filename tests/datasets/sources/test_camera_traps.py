"""Files of camera traps, and data of two tables: a question, and the code of docs/data.md makes the table of a Camera
Trap Data Package (Camtrap DP 1.0), of two tables, and of MegaDetector's boxes.
"""

import json
import re

from conftest import ROOT, code_of, each_row, line_of, told
from pytest import importorskip, mark
from source_helpers import classes_of, expand, groups_apart, options, read, rows_of, tree, write_set, write_table
from test_known_sets import SETS

from configs.yaml_io import parse_value

SPECIES = ["Vulpes vulpes", "Capreolus capreolus"]
FILES = expand("site0/100RECNX/IMG_{0000..0019}.jpg & site1/100RECNX/IMG_{0020..0039}.jpg")
VALUES = {"site": "0" * 20 + "1" * 20, "event": [n // 4 for n in range(40)], "end": range(3, 43)}
VALUES["species"] = [SPECIES[0]] * 4 + [SPECIES[1]] * 4
MEDIA = "mediaID,deploymentID,captureMethod,timestamp,filePath,filePublic,fileName,fileMediatype"
MEDIUM = "m{n},d{site},activityDetection,2020-05-30T12:{n:02}:00+02:00,{path},true,{name},image/jpeg"
OBSERVATIONS = (
    "observationID,deploymentID,mediaID,eventID,eventStart,eventEnd,"
    "observationLevel,observationType,scientificName,count"
)
TIME = "2020-05-30T10:{n:02}:00Z"
ROWS = rows_of(f"o{{n}},d{{site}},m{{n}},e{{event}},{TIME},{TIME},media,animal,{{species}},1", FILES, **VALUES)
# Of four images; each deployment has events at the times of the other one's, too
EVENT = f"v{{n}},d{{site}},,E{{event}},{TIME},2020-05-30T10:{{end:02}}:00Z,event,animal,{{species}},1"
EVENTS = rows_of(EVENT, FILES, **VALUES)[::4]


def package(root, observations, media=None, version="1.0.1"):
    """Writes a package and its images; returns its options."""
    profile = f"https://raw.githubusercontent.com/tdwg/camtrap-dp/{version}/camtrap-dp-profile.json"
    resources = [{"name": name, "path": f"{name}.csv"} for name in ("deployments", "media", "observations")]
    tree(root, *FILES)
    (root / "datapackage.json").write_text(json.dumps({"resources": resources, "profile": profile}, indent=2))
    write_table(root / "deployments.csv", ["d0,a", "d1,b"], "deploymentID,locationID")
    write_table(root / "media.csv", media or rows_of(MEDIUM, FILES, **VALUES), MEDIA)
    write_table(root / "observations.csv", observations, OBSERVATIONS)
    return options(root)


def table_of(given, heading, **names):
    """The table that the code of the page writes. names: of its files."""
    code = code_of("docs/data.md", heading).replace("DIR", given.data_path)
    for old, new in names.items():
        code = code.replace(old, new)
    exec(code, {})


@mark.parametrize("rows", [ROWS, EVENTS], ids=["media", "events, in any time zone"])
def test_a_package_is_a_question_and_the_code_of_the_page_makes_its_table(rows, tmp_path):
    importorskip("pandas")
    given = package(tmp_path / "p1", rows)
    others = [options(tmp_path / "p1/media.csv"), options(tmp_path / "p1", dataset="csv")]
    for data in (given, *others):
        assert "docs/data.md#camera-traps" in line_of(read, data)
    table_of(given, "Camera traps")
    splits = read(tmp_path / "p1/images.csv", groups="eventID")
    assert classes_of(*splits) == dict(zip(FILES, rows_of("{species}", FILES, **VALUES), strict=True))
    assert sum(groups_apart(*splits)) == 10
    assert read(given.changed(class_folders=True))[0].class_names == ["site0", "site1"]
    assert "p1: is a Camera Trap Data Package" in line_of(read, tmp_path)


def test_kinds_several_species_videos_and_remote_images_of_a_package(tmp_path):
    importorskip("pandas")
    rows = [*ROWS, ROWS[9].replace(SPECIES[0], "Sus scrofa"), ROWS[39].replace("39", "40")]
    rows[0] = rows[0].replace(f"animal,{SPECIES[0]}", "blank,")
    rows[6] = rows[6].replace(f"animal,{SPECIES[1]}", "unclassified,")
    media = rows_of(MEDIUM, [*FILES, "site1/clip.mp4"], **VALUES)
    media[1] = media[1].replace(FILES[1], "https://multimedia.agouti.eu/assets/1/file")
    media[40] = media[40].replace("image/jpeg", "video/mp4")
    table_of(package(tmp_path / "p1", rows, media), "Camera traps")
    splits = read(tmp_path / "p1/images.csv", multi_label=True)
    assert sum(map(len, splits)) == 38
    assert sum(samples.targets.sum() for samples in splits) == 39
    assert splits[0].class_names == sorted([*SPECIES, "Sus scrofa", "blank"])


def test_a_package_of_another_version_is_folders(tmp_path):
    assert "Camera Trap" not in line_of(read, package(tmp_path, ROWS, version="0.6"))


JOINED = r"""
program | files | on
GBIF | multimedia.txt occurrence.txt | gbifID
Yelp | train_photo_to_biz_ids.csv train.csv | business_id
Conser-vision | train_features.csv train_labels.csv | id
"""


@each_row(JOINED)
def test_two_tables_are_a_question_and_the_code_of_the_page_makes_one(program, files, on, tmp_path):
    """One names the images, and the other has the labels and a column of both."""
    importorskip("pandas")
    paths = write_set(tmp_path, **SETS[program])
    first, second = files.split()
    message = line_of(read, tmp_path / "images")
    assert f"{first} and {second}, which share the column '{on}'" in message
    table_of(options(tmp_path), "Joined tables", **{"multimedia.txt": first, "occurrence.txt": second, "gbifID": on})
    ((path, label, class_of),) = SETS[program]["asked"]
    data = options(tmp_path / "joined.csv", columns={"path": path, "label": label})
    found = classes_of(*read(data.changed(multi_label=program == "Yelp")))
    labels = rows_of(class_of, paths, **SETS[program]["values"])
    assert {name[-11:]: label for name, label in found.items()} == dict(
        zip([one[-11:] for one in paths], labels, strict=True)
    )


def test_boxes_of_megadetector_are_named_and_the_way_on_trains_on_them(tmp_path, monkeypatch):
    """The code of the docs writes the table."""
    sites = expand("site0/{0..19}.jpg & site1/{20..39}.jpg")
    tree(tmp_path / "DIR", *sites)
    animal = "{category: '1', conf: 0.9, classifications: [['7', 0.8], ['3', 0.1]]}"
    boxes = parse_value(f"[[], [{{category: '2', conf: 0.6}}, {animal}], [{{category: '1', conf: 0.1}}], null]")
    names = parse_value(
        "{detection_categories: {'1': animal, '2': person}, classification_categories: {'3': elk, '7': fox}}"
    )
    images = [{"file": path, "detections": boxes[n % 4]} for n, path in enumerate(sites)]
    (tmp_path / "DIR/detections.json").write_text(json.dumps({"images": images, **names}, indent=1))
    (note,) = told(read(tmp_path / "DIR")[0].notes, "MegaDetector", "screen")
    assert "detections.json" in note
    (code,) = re.findall(r"```python\n([^`]*detections.json.*?)```", (ROOT / "docs/data.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    found = classes_of(*read(tmp_path / "DIR/labels.csv"))
    assert found == {path: "fox" if n % 4 == 1 else "empty" for n, path in enumerate(sites)}
    assert "docs/data.md#labels-in-json" in line_of(read, tmp_path / "DIR/detections.json")
