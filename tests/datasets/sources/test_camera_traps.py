"""Files of camera traps and other far fields, as their programs write them: a Camera Trap Data Package (Camtrap DP 1.0)
is read by itself, of others the question has a command for each column that may be the label.
"""

import json
import re
from itertools import chain

import pytest
from conftest import ROOT, code_of, each_row, line_of, told
from source_helpers import (
    IMAGE,
    classes_of,
    groups_apart,
    names_of,
    options,
    read_splits,
    tree,
    typed,
    write_table,
)

from datasets.reading import unlabelled

SPECIES = ["Vulpes vulpes", "Capreolus capreolus"]
FILES = [f"site{n // 20}/100RECNX/IMG_{n:04}.JPG" for n in range(40)]
EXPECTED = {file: SPECIES[n // 4 % 2] for n, file in enumerate(FILES)}
MEDIA = "mediaID,deploymentID,captureMethod,timestamp,filePath,filePublic,fileName,fileMediatype"
OBSERVATIONS = (
    "observationID,deploymentID,mediaID,eventID,eventStart,eventEnd,"
    "observationLevel,observationType,scientificName,count"
)


def at(n, zone="Z"):
    """The time of image n, in UTC or two hours east of it."""
    return f"2020-05-30T{10 if zone == 'Z' else 12}:{n:02}:00{zone}"


def medium(n, file=None, kind="image/jpeg"):
    name = FILES[n].rpartition("/")[2]
    return f"m{n},d{n // 20},activityDetection,{at(n, '+02:00')},{file or FILES[n]},true,{name},{kind}"


def of_media(n, kind="animal", species=None, event=None):
    species = SPECIES[n // 4 % 2] if species is None else species
    event = f"e{n // 4}" if event is None else event
    return f"o{n},d{n // 20},m{n},{event},{at(n)},{at(n)},media,{kind},{species},1"


def of_event(n, species):
    """Of four images; each deployment has events at the times of the other one's, too."""
    return f"v{n},d{n // 20},,E{n // 4},{at(n)},{at(n + 3)},event,animal,{species},1"


ROWS = [of_media(n) for n in range(40)]
EVENTS = [of_event(n, SPECIES[n // 4 % 2]) for n in range(0, 40, 4)]


@pytest.fixture
def package(tmp_path):
    """Writes a package and its images."""

    def write(observations, media=None, version="1.0.1", files=FILES):
        profile = f"https://raw.githubusercontent.com/tdwg/camtrap-dp/{version}/camtrap-dp-profile.json"
        resources = [{"name": name, "path": f"{name}.csv"} for name in ("deployments", "media", "observations")]
        (tmp_path / "datapackage.json").write_text(json.dumps({"resources": resources, "profile": profile}, indent=2))
        write_table(tmp_path / "deployments.csv", ["d0,a", "d1,b"], "deploymentID,locationID")
        write_table(tmp_path / "media.csv", media or [medium(n) for n in range(40)], MEDIA)
        write_table(tmp_path / "observations.csv", observations, OBSERVATIONS)
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_bytes(IMAGE)
        return options(tmp_path)

    return write


def table_of(given, heading, **names):
    """The table that the code of the page writes. names: of its files."""
    code = code_of("docs/data.md", heading).replace("DIR", given.data_path)
    for old, new in names.items():
        code = code.replace(old, new)
    exec(code, {})


@pytest.mark.parametrize("rows", [ROWS, EVENTS], ids=["media", "events, in any time zone"])
def test_a_package_is_a_question_and_the_code_of_the_page_makes_its_table(rows, package, tmp_path):
    pytest.importorskip("pandas")
    given = package(rows)
    others = [options(tmp_path / "media.csv"), options(tmp_path, dataset="csv")]
    for data in (given, *others):
        assert "docs/data.md#camera-traps" in line_of(read_splits, data)
    table_of(given, "Camera traps")
    splits = read_splits(options(tmp_path / "images.csv", groups="eventID"))
    assert classes_of(*splits) == EXPECTED
    assert sum(groups_apart(*splits)) == 10
    assert read_splits(given.model_copy(update={"class_folders": True}))[0].class_names == ["site0", "site1"]
    files = [*tmp_path.iterdir()]
    (tmp_path / "p1").mkdir()
    for file in files:
        file.rename(tmp_path / "p1" / file.name)
    assert "p1: is a Camera Trap Data Package" in line_of(read_splits, options(tmp_path))


def test_kinds_several_species_videos_and_remote_images_of_a_package(package, tmp_path):
    pytest.importorskip("pandas")
    rows = [*ROWS, of_media(9, species="Sus scrofa"), of_media(40)]
    rows[0] = of_media(0, "blank", "")
    rows[6] = of_media(6, "unclassified", "")
    media = [medium(n) for n in range(40)]
    media[1] = medium(1, "https://multimedia.agouti.eu/assets/1/file")
    media.append("m40,d1,activityDetection,2020-05-30T12:59:00+02:00,site1/clip.mp4,true,clip.mp4,video/mp4")
    table_of(package(rows, media), "Camera traps")
    splits = read_splits(options(tmp_path / "images.csv", multi_label=True))
    assert sum(map(len, splits)) == 38
    assert sum(samples.targets.sum() for samples in splits) == 39
    assert splits[0].class_names == sorted([*SPECIES, "Sus scrofa", "blank"])


def test_a_package_of_another_version_is_folders(package):
    assert "Camera Trap" not in line_of(read_splits, package(ROWS, version="0.6"))


CARDS = [f"Station{n // 20}/Card{n // 10 % 2}/IMG_{n % 10:04}.jpg" for n in range(39)]
CARDS.append("IMG_0039.jpg")
PHOTOS = [f"images/{2735077 + n}.jpg" for n in range(40)]
EYES = [f"IMAGES/20051020_{43808 + n}_0100_PP.png" for n in range(40)]
PLANTS = ["Quercus robur", "Acer campestre"]
GBIF = "gbifID\ttype\tformat\tidentifier\treferences"


def taken(path):
    """Of an image with a path, its folder as Windows writes it, and its name."""
    folder, _, name = path.rpartition("/")
    return folder.replace("/", "\\"), name


# Of each program: images; its tables, their header and the cells of each row; the columns in the question, the class
FAR = {
    "Timelapse": (  # the same names on each card
        CARDS,
        {"TimelapseData.csv": ("RootFolder,File,RelativePath,DateTime,DeleteFlag,Species,Count", lambda n: (
            f"photos,{taken(CARDS[n])[1]},{taken(CARDS[n])[0]},2024-05-01 10:00:00,false,{SPECIES[n // 2 % 2]},1"))},
        [("RelativePath/File", "Species", lambda n: SPECIES[n // 2 % 2])],
    ),
    "Messidor-2": (  # images that cannot be graded have no grade
        EYES,
        {"messidor_data.csv": ("image_id,adjudicated_dr_grade,adjudicated_dme,adjudicated_gradable", lambda n: (
            f"{EYES[n][7:]},{'' if n == 3 else n % 5},{'' if n == 3 else n // 2 % 2},{int(n != 3)}"))},
        [
            ("image_id", "adjudicated_gradable", lambda n: str(int(n != 3))),
            ("image_id", "adjudicated_dme", lambda n: None if n == 3 else str(n // 2 % 2)),
            ("image_id", "adjudicated_dr_grade", lambda n: None if n == 3 else str(n % 5)),
        ],
    ),
    "GBIF": (  # two photographs of an occurrence
        PHOTOS,
        {
            "multimedia.txt": (GBIF, lambda n: (
                f"{4000 + n // 2}\tStillImage\timage/jpeg\thttps://observation.org/photos/{PHOTOS[n][7:]}\t")),
            "occurrence.txt": ("gbifID\tinstitutionCode\tspecies\tgenus", lambda n: (
                f"{4000 + n}\tK\t{PLANTS[n % 2]}\t{PLANTS[n % 2].split()[0]}")),
        },
        [("identifier", "species", lambda n: PLANTS[n // 2 % 2]),
         ("identifier", "genus", lambda n: PLANTS[n // 2 % 2].split()[0])],
    ),
    "Yelp": (  # of Kaggle: photographs of businesses with several labels
        PHOTOS,
        {
            "train_photo_to_biz_ids.csv": ("photo_id,business_id", lambda n: f"{PHOTOS[n][7:14]},{1000 + n // 2}"),
            "train.csv": ("business_id,labels", lambda n: f"{1000 + n},{('1 2 5', '0 3')[n % 2]}"),
        },
        [("photo_id", "labels", lambda n: ("125", "03")[n // 2 % 2])],
    ),
    "columns of labels with gaps": (
        PHOTOS,
        {
            "labels.csv": (
                "image,Edema,Effusion",
                lambda n: f"{PHOTOS[n][7:14]},{n % 2}.0,{('1.0', '', '-1.0')[n % 3]}",
            )
        },
        [("image", ["Edema", "Effusion"], lambda n: "Edema" * (n % 2) + "Effusion" * (n % 3 == 0))],
    ),
    "RSNA": (  # of Kaggle: two tables, each with labels
        PHOTOS,
        {
            "stage_2_train_labels.csv": ("patientId,x,y,width,Target", lambda n: f"{PHOTOS[n][7:14]},,,,{n % 2}"),
            "stage_2_detailed_class_info.csv": ("patientId,class", lambda n: f"{PHOTOS[n][7:14]},{'abc'[n % 3]}"),
        },
        [("patientId", "class", lambda n: "abc"[n % 3]),
         ("patientId", "Target", lambda n: str(n % 2))],
    ),
    "Conser-vision": (  # features and labels
        PHOTOS,
        {
            "train_features.csv": ("id,filepath,site", lambda n: f"Z{n},{PHOTOS[n]},S{n % 7}"),
            "train_labels.csv": ("id,bird,hog,blank", lambda n: f"Z{n},{('1.0,0,0', '0,1.0,0', '0,0,1.0')[n % 3]}"),
        },
        [("filepath", ["bird", "hog", "blank"], lambda n: ("bird", "hog", "blank")[n % 3])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("program", sorted(FAR.keys() - {"GBIF", "Yelp", "Conser-vision"}))
def test_the_question_has_a_command_for_each_label(program, tmp_path):
    """Also the unlabelled rows are left out, several labels are several; -predict reads the paths of all rows."""
    files, tables, expected = FAR[program]
    tree(tmp_path, *files)
    for name, (header, row) in tables.items():
        write_table(tmp_path / name, [row(n) for n in range(40)], header)
    given = options(tmp_path)
    ways = [one for one in typed(line_of(read_splits, given), given) if one.columns]
    assert [(one.columns["path"], one.columns["label"]) for one in ways] == [
        (path, label) for path, label, _ in expected
    ]
    for one, (*_, label_of) in zip(ways, expected, strict=True):
        found = dict(zip(names_of(unlabelled(one.data_path, one)), map(label_of, range(40)), strict=True))
        splits = read_splits(one)
        if one.multi_label:
            texts = [
                [
                    "".join(name for name, has in zip(samples.class_names, row, strict=True) if has == 1)
                    for row in samples.targets
                ]
                for samples in splits
            ]
            pairs = [zip(names_of(samples), row, strict=True) for samples, row in zip(splits, texts, strict=True)]
            assert dict(chain(*pairs)) == found
        else:
            assert classes_of(*splits) == {path: label for path, label in found.items() if label}


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
    images, tables, expected = FAR[program]
    tree(tmp_path, *images)
    for name, (header, row) in tables.items():
        write_table(tmp_path / name, [row(n) for n in range(40)], header)
    first, second = files.split()
    message = line_of(read_splits, options(tmp_path / "images"))
    assert f"{first} and {second}, which share the column '{on}'" in message
    table_of(options(tmp_path), "Joined tables", **{"multimedia.txt": first, "occurrence.txt": second, "gbifID": on})
    path, label, label_of = expected[0]
    data = options(tmp_path / "joined.csv", columns={"path": path, "label": label})
    splits = read_splits(data.model_copy(update={"multi_label": program == "Yelp"}))
    assert sum(map(len, splits)) == 40
    if program != "Yelp":
        assert {name.rpartition("/")[2]: label for name, label in classes_of(*splits).items()} == {
            f"{2735077 + n}.jpg": label_of(n) for n in range(40)
        }


def test_boxes_of_megadetector_are_named_and_the_way_on_trains_on_them(tmp_path, monkeypatch):
    """The code of the docs writes the table."""
    sites = [f"site{n // 20}/{n}.jpg" for n in range(40)]
    tree(tmp_path / "DIR", *sites)
    boxes = [
        [],
        [{"category": "2", "conf": 0.6}, {"category": "1", "conf": 0.9}],
        [{"category": "1", "conf": 0.1}],
        None,
    ]
    boxes[1][1]["classifications"] = [["7", 0.8], ["3", 0.1]]
    images = [{"file": path, "detections": boxes[n % 4]} for n, path in enumerate(sites)]
    names = {
        "detection_categories": {"1": "animal", "2": "person"},
        "classification_categories": {"3": "elk", "7": "fox"},
    }
    (tmp_path / "DIR/detections.json").write_text(json.dumps({"images": images, **names}, indent=1))
    (note,) = told(read_splits(options(tmp_path / "DIR"))[0].notes, "MegaDetector", "screen")
    assert "detections.json" in note
    (code,) = re.findall(r"```python\n([^`]*detections.json.*?)```", (ROOT / "docs/data.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    found = classes_of(*read_splits(options(tmp_path / "DIR/labels.csv")))
    assert found == {path: "fox" if n % 4 == 1 else "empty" for n, path in enumerate(sites)}
    assert "docs/data.md#labels-in-json" in line_of(read_splits, options(tmp_path / "DIR/detections.json"))
