"""Files of camera traps and other far fields, as their programs write them: a Camera Trap Data Package (Camtrap DP 1.0)
is read by itself, of others the question has a command for each column that may be the label.
"""

import json
import re

import pytest
from conftest import ROOT, code_of, each_row, line_of, told
from pytest import fixture, mark
from source_helpers import (
    answers_to,
    classes_of,
    expand,
    groups_apart,
    names_of,
    options,
    read,
    rows_of,
    tree,
    write_set,
    write_table,
)

from configs.yaml_io import parse_value
from datasets.reading import unlabelled

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


@fixture
def package(tmp_path):
    """Writes a package and its images."""

    def write(observations, media=None, version="1.0.1"):
        profile = f"https://raw.githubusercontent.com/tdwg/camtrap-dp/{version}/camtrap-dp-profile.json"
        resources = [{"name": name, "path": f"{name}.csv"} for name in ("deployments", "media", "observations")]
        root = tree(tmp_path / "p1", *FILES)
        (root / "datapackage.json").write_text(json.dumps({"resources": resources, "profile": profile}, indent=2))
        write_table(root / "deployments.csv", ["d0,a", "d1,b"], "deploymentID,locationID")
        write_table(root / "media.csv", media or rows_of(MEDIUM, FILES, **VALUES), MEDIA)
        write_table(root / "observations.csv", observations, OBSERVATIONS)
        return options(root)

    return write


def table_of(given, heading, **names):
    """The table that the code of the page writes. names: of its files."""
    code = code_of("docs/data.md", heading).replace("DIR", given.data_path)
    for old, new in names.items():
        code = code.replace(old, new)
    exec(code, {})


@mark.parametrize("rows", [ROWS, EVENTS], ids=["media", "events, in any time zone"])
def test_a_package_is_a_question_and_the_code_of_the_page_makes_its_table(rows, package, tmp_path):
    pytest.importorskip("pandas")
    given = package(rows)
    others = [options(tmp_path / "p1/media.csv"), options(tmp_path / "p1", dataset="csv")]
    for data in (given, *others):
        assert "docs/data.md#camera-traps" in line_of(read, data)
    table_of(given, "Camera traps")
    splits = read(tmp_path / "p1/images.csv", groups="eventID")
    assert classes_of(*splits) == dict(zip(FILES, rows_of("{species}", FILES, **VALUES), strict=True))
    assert sum(groups_apart(*splits)) == 10
    assert read(given.changed(class_folders=True))[0].class_names == ["site0", "site1"]
    assert "p1: is a Camera Trap Data Package" in line_of(read, tmp_path)


def test_kinds_several_species_videos_and_remote_images_of_a_package(package, tmp_path):
    pytest.importorskip("pandas")
    rows = [*ROWS, ROWS[9].replace(SPECIES[0], "Sus scrofa"), ROWS[39].replace("39", "40")]
    rows[0] = rows[0].replace(f"animal,{SPECIES[0]}", "blank,")
    rows[6] = rows[6].replace(f"animal,{SPECIES[1]}", "unclassified,")
    media = rows_of(MEDIUM, [*FILES, "site1/clip.mp4"], **VALUES)
    media[1] = media[1].replace(FILES[1], "https://multimedia.agouti.eu/assets/1/file")
    media[40] = media[40].replace("image/jpeg", "video/mp4")
    table_of(package(rows, media), "Camera traps")
    splits = read(tmp_path / "p1/images.csv", multi_label=True)
    assert sum(map(len, splits)) == 38
    assert sum(samples.targets.sum() for samples in splits) == 39
    assert splits[0].class_names == sorted([*SPECIES, "Sus scrofa", "blank"])


def test_a_package_of_another_version_is_folders(package):
    assert "Camera Trap" not in line_of(read, package(ROWS, version="0.6"))


# Of each program: images; its tables, their header and the row of each image; columns in the question, and the class
FAR = parse_value(
    r"""
Timelapse:  # the same names on each card
  images: Station0/Card{0,1}/IMG_{0000..0009}.jpg & Station1/Card0/IMG_{0000..0009}.jpg & \
    Station1/Card1/IMG_{0000..0008}.jpg & IMG_0039.jpg
  tables:
    TimelapseData.csv: ["RootFolder,File,RelativePath,DateTime,DeleteFlag,Species,Count",
                        "photos,{name},{folder_windows},2024-05-01 10:00:00,false,{species},1"]
  values: {species: [Vulpes vulpes, Vulpes vulpes, Capreolus capreolus, Capreolus capreolus]}
  asked: [[RelativePath/File, Species, "{species}"]]
Messidor-2:  # images that cannot be graded have no grade
  images: IMAGES/20051020_{43808..43847}_0100_PP.png
  tables:
    messidor_data.csv: ["image_id,adjudicated_dr_grade,adjudicated_dme,adjudicated_gradable",
                        "{name},{grade},{dme},{gradable}"]
  values: {grade: [0, 1, 2, '', 4], dme: [0, 0, 1, '', 1], gradable: [1, 1, 1, 0, 1]}
  asked: [[image_id, adjudicated_gradable, "{gradable}"], [image_id, adjudicated_dme, "{dme}"],
          [image_id, adjudicated_dr_grade, "{grade}"]]
GBIF:  # two photographs of an occurrence
  images: images/{2735077..2735116}.jpg
  tables:
    multimedia.txt: ["gbifID\ttype\tformat\tidentifier\treferences",
                     "40{half:02}\tStillImage\timage/jpeg\thttps://observation.org/photos/{name}\t"]
    occurrence.txt: ["gbifID\tinstitutionCode\tspecies\tgenus", "40{n:02}\tK\t{species}\t{genus}"]
  values: {species: [Quercus robur, Acer campestre], genus: [Quercus, Acer], of_image: [Quercus robur, Quercus robur,
           Acer campestre, Acer campestre]}
  asked: [[identifier, species, "{of_image}"]]
Yelp:  # of Kaggle: photographs of businesses with several labels
  images: images/{2735077..2735116}.jpg
  tables:
    train_photo_to_biz_ids.csv: ["photo_id,business_id", "{stem},10{half:02}"]
    train.csv: ["business_id,labels", "10{n:02},{labels}"]
  values: {labels: [1 2 5, 0 3], of_image: ['125', '125', '03', '03']}
  asked: [[photo_id, labels, "{of_image}"]]
columns of labels with gaps:
  images: images/{2735077..2735116}.jpg
  tables: {labels.csv: ["image,Edema,Effusion", "{stem},{edema}.0,{effusion}"]}
  values: {edema: [0, 1], effusion: ['1.0', '', '-1.0'], both: [Effusion, Edema, '', EdemaEffusion, '', Edema]}
  asked: [[image, [Edema, Effusion], "{both}"]]
RSNA:  # of Kaggle: two tables, each with labels
  images: images/{2735077..2735116}.jpg
  tables:
    stage_2_train_labels.csv: ["patientId,x,y,width,Target", "{stem},,,,{target}"]
    stage_2_detailed_class_info.csv: ["patientId,class", "{stem},{kind}"]
  values: {target: [0, 1], kind: [a, b, c]}
  asked: [[patientId, class, "{kind}"], [patientId, Target, "{target}"]]
Conser-vision:  # features and labels
  images: images/{2735077..2735116}.jpg
  tables:
    train_features.csv: ["id,filepath,site", "Z{n},{path},S{site}"]
    train_labels.csv: ["id,bird,hog,blank", "Z{n},{cells}"]
  values: {site: [0, 1, 2, 3, 4, 5, 6], cells: ["1.0,0,0", "0,1.0,0", "0,0,1.0"], kind: [bird, hog, blank]}
  asked: [[filepath, [bird, hog, blank], "{kind}"]]
""".replace("\\\n    ", "")
)


@mark.parametrize("program", sorted(FAR.keys() - {"GBIF", "Yelp", "Conser-vision"}))
def test_the_question_has_a_command_for_each_label(program, tmp_path):
    """Also the unlabelled rows are left out, several labels are several; -predict reads the paths of all rows."""
    one_set = FAR[program]
    paths = write_set(tmp_path, **one_set)
    given = options(tmp_path)
    ways = [one for one in answers_to(given) if one.columns]
    assert [[one.columns["path"], one.columns["label"]] for one in ways] == [asked[:2] for asked in one_set["asked"]]
    for one, (*_, label) in zip(ways, one_set["asked"], strict=True):
        labels = rows_of(label, paths, **one_set["values"])
        found = dict(zip(names_of(unlabelled(one.data_path, one)), labels, strict=True))
        expected = {path: label for path, label in found.items() if label or one.multi_label}
        assert classes_of(*read(one)) == expected


JOINED = r"""
program | files | on
GBIF | multimedia.txt occurrence.txt | gbifID
Yelp | train_photo_to_biz_ids.csv train.csv | business_id
Conser-vision | train_features.csv train_labels.csv | id
"""


@each_row(JOINED)
def test_two_tables_are_a_question_and_the_code_of_the_page_makes_one(program, files, on, tmp_path):
    """One names the images, and the other has the labels and a column of both."""
    pytest.importorskip("pandas")
    paths = write_set(tmp_path, **FAR[program])
    first, second = files.split()
    message = line_of(read, tmp_path / "images")
    assert f"{first} and {second}, which share the column '{on}'" in message
    table_of(options(tmp_path), "Joined tables", **{"multimedia.txt": first, "occurrence.txt": second, "gbifID": on})
    ((path, label, class_of),) = FAR[program]["asked"]
    data = options(tmp_path / "joined.csv", columns={"path": path, "label": label})
    found = classes_of(*read(data.changed(multi_label=program == "Yelp")))
    labels = rows_of(class_of, paths, **FAR[program]["values"])
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
