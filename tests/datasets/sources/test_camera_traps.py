"""Files of camera traps and other far fields, as their programs write them: a Camera Trap Data Package (Camtrap DP 1.0)
is read by itself, of others the question has a command for each column that may be the label.
"""

import json
import os
import re
from itertools import chain
from pathlib import Path

import pytest
from conftest import ROOT, TINY_VIT, line_of, run_here, told
from source_helpers import (
    IMAGE,
    classes_of,
    groups_apart,
    names_of,
    options,
    read_splits,
    tree,
    typed,
    write_image,
    write_table,
)

from datasets.reading import unlabelled
from datasets.sources.tables.joins import MEDIA as TABLE
from datasets.sources.tables.joins import open_for

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


def test_media_have_the_labels_of_their_rows_and_events_are_groups(package):
    """A label is scientificName, else observationType; two rows of a species are one; a row of an event is not used."""
    rows = [*ROWS]
    rows[0] = of_media(0, "blank", "")
    rows[5] = of_media(5, "human", "")
    rows[6] = of_media(6, "unclassified", "")
    more = [of_media(9), of_event(0, "Sus scrofa"), of_event(4, "Sus scrofa")]
    train, val = read_splits(package([*rows, *more]))
    expected = {**EXPECTED, FILES[0]: "blank", FILES[5]: "human"}
    del expected[FILES[6]]
    assert classes_of(train, val) == expected
    assert sum(groups_apart(train, val)) == 10
    (unused,) = told(train.notes, "level event", "screen")
    assert "observations.csv: 2 rows" in unused
    (unlabelled,) = told(train.notes, "no label")
    assert FILES[6] in unlabelled


def test_the_screen_names_the_groups_of_a_package(package, tmp_path, capsys):
    package(ROWS)
    for file in FILES:
        write_image(tmp_path / file)
    given = ["-dataset=csv", f"-data_path={tmp_path}", "-batch_size=4", f"-output={tmp_path / 'out'}", "-dry_run"]
    run_here(*given, "-opts", *TINY_VIT, "MODEL.NUM_CLASSES=2")
    assert "eventID" in capsys.readouterr().out


def test_events_label_the_images_of_their_deployment_and_time(package):
    """In any time zone."""
    splits = read_splits(package(EVENTS))
    assert classes_of(*splits) == EXPECTED
    assert sum(groups_apart(*splits)) == 10


@pytest.mark.parametrize("size", [4, 20])
@pytest.mark.parametrize("event", ["", "each image"])
def test_deployments_are_groups_without_events_of_several_images(event, size, package):
    """Fewer than five are none. Also if DATA_PATH is the table."""
    media = [medium(n).replace(f"d{n // 20}", f"d{n // size}") for n in range(40)]
    rows = [of_media(n, event=event and f"e{n}").replace(f"d{n // 20}", f"d{n // size}") for n in range(40)]
    given = package(rows, media)
    for data in (given, options(f"{given.data_path}/media.csv")):
        train, val = read_splits(data)
        assert classes_of(train, val) == EXPECTED
        if size == 4:
            assert sum(groups_apart(train, val)) == 10
        else:
            assert train.groups is None
    columns = {"path": "filePath", "label": "scientificName", "join": {"file": "observations.csv", "on": "mediaID"}}
    train, _ = read_splits(options(f"{given.data_path}/media.csv", columns=columns))  # as runs of before
    assert train.groups is None


@pytest.mark.parametrize(("kind", "species"), [("animal", "Sus scrofa"), ("vehicle", "")])
def test_two_species_of_an_image_are_several_labels(kind, species, package):
    """Also a species and a kind without one."""
    given = package([*ROWS, of_media(9, kind, species)])
    (advised,) = typed(line_of(read_splits, given), given)
    train, val = read_splits(advised)
    assert train.class_names == sorted([*SPECIES, species or kind])
    assert sum(samples.targets.sum() for samples in (train, val)) == 41


def test_images_that_are_remote_or_missing_are_counted_until_they_are_there(package, tmp_path):
    """A line for each reason; the option in it reads images that were downloaded by their names."""
    media = [medium(n) for n in range(40)]
    for n in range(5):
        media[n] = medium(n, f"https://multimedia.agouti.eu/assets/{n}/file")
    media.append("m40,d1,activityDetection,2020-05-30T12:59:00+02:00,site1/clip.mp4,true,clip.mp4,video/mp4")
    given = package([*ROWS, of_media(40)], media, files=FILES[:38])
    splits = read_splits(given)
    assert classes_of(*splits) == {file: EXPECTED[file] for file in FILES[5:38]}
    notes = told(splits[0].notes, "media.csv, such as")
    assert [note.split()[:2] for note in notes] == [["7", "images"], ["1", "videos"]]
    for file in (*FILES[:5], *FILES[38:]):
        (tmp_path / "downloads").mkdir(exist_ok=True)
        (tmp_path / "downloads" / file.rpartition("/")[2]).write_bytes(IMAGE)
        (tmp_path / file).unlink(missing_ok=True)
    (advised,) = typed(notes[0], given)
    assert sum(map(len, read_splits(advised))) == 40
    for file in FILES:
        (tmp_path / file).unlink(missing_ok=True)
    assert "remote" in line_of(read_splits, given)


def test_each_folder_is_listed_and_no_image_looked_at_before_the_check_of_images(package, monkeypatch):
    data = package(ROWS)
    looked = []
    stat = os.stat
    monkeypatch.setattr(
        os, "stat", lambda path, *args, **kwargs: looked.append(str(path)) or stat(path, *args, **kwargs)
    )
    table = open_for(Path(data.data_path, TABLE), data)
    assert len([*table]) == 40
    assert not [path for path in looked if path.endswith(".JPG")]


def test_a_time_that_is_none_is_named(package):
    assert "'noon'" in line_of(read_splits, package([row.replace(at(4), "noon") for row in EVENTS]))


def test_other_packages_and_confirmed_folders_are_folders(package):
    given = package(ROWS)
    sites = ["site0", "site1"]
    assert read_splits(given.model_copy(update={"class_folders": True}))[0].class_names == sites
    assert "media.csv" in line_of(read_splits, package(ROWS, version="0.6"))


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


@pytest.mark.parametrize("program", FAR)
def test_the_question_has_a_command_for_each_label(program, tmp_path):
    """Also the unlabelled rows are left out, several labels are several; -predict reads the paths of all rows."""
    files, tables, expected = FAR[program]
    tree(tmp_path, *files)
    for name, (header, row) in tables.items():
        write_table(tmp_path / name, [row(n) for n in range(40)], header)
    given = options(tmp_path / "images" if program == "Yelp" else tmp_path)  # train.csv in DIR is read as the table
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


def test_a_joined_table_has_the_paths_of_images_to_predict(tmp_path):
    """An image has a row without a partner, too, unless the partner has its path."""
    tree(tmp_path, *PHOTOS)
    write_table(tmp_path / "a.csv", [f"{n},{PHOTOS[n]}" for n in range(4)], "key,file")
    write_table(tmp_path / "b.csv", [f"{n},{'xy'[n % 2]}" for n in range(1, 6)], "key,label")
    join = {"join": {"file": "b.csv", "on": "key"}}
    columns = {"path": "file", "label": "label"}
    assert names_of(unlabelled(f"{tmp_path}/a.csv", options(tmp_path, columns=columns | join))) == PHOTOS[:4]
    join["join"]["file"] = "a.csv"
    assert names_of(unlabelled(f"{tmp_path}/b.csv", options(tmp_path, columns=columns | join))) == PHOTOS[1:4]


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
