"""Tables and lists beside folders; classes one level too high: each advice trains on what it names when it is typed."""

import json

import pytest
from conftest import line_of, told
from source_helpers import classes_of, expand, options, read_splits, tree, typed

from utils.errors import UserError

PATIENTS = [f"p{patient}/{number}.jpg" for patient in "abcdef" for number in range(4)]
LABELS = ["benign", "malignant"] * 12
SITES = [f"{site}/IMG_{10 * number + place}.jpg" for place, site in enumerate(("Köln", "Bonn")) for number in range(6)]
ONE = [f"images/PAT_{number // 2}_{number // 2}_{7 * number}.png" for number in range(24)]
PARTS = [f"images_00{1 + number // 12}/images/{number // 3:08}_{number % 3:03}.png" for number in range(24)]
SPLIT = [f"Image/aligned/{'train' if number < 8 else 'test'}_{number:03}_aligned.jpg" for number in range(12)]


def rows(header, paths, labels=LABELS, row="{path},{label}"):
    names = [path.rpartition("/")[2] for path in paths]
    texts = (row.format(path=path, label=one, name=name, number=number)
             for number, (path, one, name) in enumerate(zip(paths, labels, names, strict=False)))  # fmt: skip
    return "\n".join([*filter(None, [header]), *texts])


TRAIN = [f"train/{path}" for path in PATIENTS]
NIH = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Age,Width,Height]"  # a row is shorter, as spreadsheets write it
)
PAD = "patient_id,lesion_id,smoke,diagnostic,img_id,biopsed"
FACES = "subDirectory_filePath,face_x,expression,valence"
BESIDE = {  # images; a file and its content; whether the folders could be classes, too; classes of the table
    "labels.csv": (PATIENTS, {"labels.csv": rows("image,label", PATIENTS)}, True),
    "of a split": (TRAIN, {"train/metadata.csv": rows("file_name,label", PATIENTS)}, True),
    "Roboflow": (TRAIN, {"train/_classes.csv": rows("filename,benign,malignant", PATIENTS, ["1,0", "0,1"] * 12)}, True),
    "a clinic's": (
        SITES, {"Befunde.csv": rows("Datei;Alter;Befund", SITES, LABELS, "{name};{number};{label}")}, True,
    ),
    "no known name": (
        PATIENTS, {"x.csv": rows("file,age,sex,result", PATIENTS, LABELS, "{path},{number},m,{label}")}, True,
    ),
    "a list": (PATIENTS, {"list_label.txt": rows("", PATIENTS, [0, 1] * 12, "{path} {label}")}, True),
    "ChestX-ray14": (PARTS, {"Data_Entry.csv": rows(NIH, PARTS, row="{name},{label},0,{number},58,9")}, True),
    "PAD-UFES-20": (ONE, {"metadata.csv": rows(PAD, ONE, row="PAT_{number},1,False,{label},{name},True")}, False),
    "AffectNet": (
        [f"M/{one}" for one in PATIENTS], {"training.csv": rows(FACES, PATIENTS, row="{path},134,{label},-0.5")}, False,
    ),
}  # fmt: skip
NO_WORD = {  # tables that agree with the folders, that this program writes, or without labels
    "other names": {"labels.csv": rows("image,label", PATIENTS, [path[1] for path in PATIENTS])},
    "age and site": {"meta.csv": rows("image,age,site", PATIENTS, row="{path},{number},{label}")},
    "of the folders": {"meta.csv": rows("image,kind", PATIENTS, [path < "pd" for path in PATIENTS])},
    "predictions": {"predictions.csv": rows("path,class_1,probability_1,label", PATIENTS, row="{path},x,0.9,{label}")},
    "other images": {"labels.csv": rows("image,label", [f"{number}.png" for number in range(24)])},
}


def write(root, images, files):
    tree(root, *images)
    for name, content in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(content)
    return options(root, dataset="folder")


@pytest.mark.parametrize("name", BESIDE)
def test_a_table_beside_the_folders_is_an_answer(name, tmp_path):
    images, files, are_classes = BESIDE[name]
    given = write(tmp_path, images, files)
    of_table, *of_folders = typed(line_of(read_splits, given), given)
    train, val = read_splits(of_table)
    classes = classes_of(train, val)
    expected = ["0", "1"] * 12 if name == "a list" else LABELS
    assert len(classes) == len(images)
    for path, label in classes.items():
        assert label == expected[[image.endswith(path) for image in images].index(True)]
    assert len(of_folders) == are_classes
    for one in of_folders:
        folders = {path.partition("/")[0] for path in images}
        assert len(read_splits(one)[0].class_names) == (6 if folders == {"train"} else len(folders))


@pytest.mark.parametrize("name", NO_WORD)
def test_a_table_that_adds_nothing_is_not_mentioned(name, tmp_path):
    train, _ = read_splits(write(tmp_path, PATIENTS, NO_WORD[name]))
    assert len(train.class_names) == 6
    assert not [note for note in train.notes if note.kind != "log"]


@pytest.mark.parametrize(
    "images, files",
    [
        (SPLIT, {"Label/list.txt": "train_000.jpg 1\ntrain_001.jpg 2\n"}),
        ([f"images/PAT{n // 2}_{n}.png" for n in range(9)], {}),
    ],
)
def test_no_advice_trains_on_splits_or_patients(images, files, tmp_path):
    given = write(tmp_path, images, files)
    message = line_of(read_splits, given)
    assert not [one for one in typed(message, given) if one.labels or one.class_folders]
    assert all(f"not read: {tmp_path / file}" in message for file in files)


ORGANS = "{colon/colon_{aca,n},lung/lung_{aca,n,scc}}"
INNER = {  # the tree, with images named after their class; the number of classes that the question gives
    "organs": ([f"{{train,val}}/{ORGANS}"], 5),
    "LC25000": ([ORGANS], 5),
    "HyperKvasir": (
        ["{lower/{pathological/{polyps,haem},landmarks/{cecum,ileum}},upper/landmarks/{pylorus,z-line}}"],
        6,
    ),
    "iNaturalist 2018": (["train_val2018/{Aves/{200,202},Plantae/{201,203}}"], 4),
    "hospitals": (["{Bonn,Ulm}/{ill,well}"], 2),
    "patients": (["ill/{p1,p2}", "well/{p3,p4}"], None),
}


@pytest.mark.parametrize("name", INNER)
def test_classes_in_the_folders_of_folders(name, tmp_path):
    """A question on the screen, or an error, has the expression, counted from DATA_PATH."""
    parts, number = INNER[name]
    folders = [folder for part in parts for folder in expand(part)]
    images = [f"{folder}/{folder.replace('/', '_')}_{place}.jpg" for folder in folders for place in range(4)]
    given = write(tmp_path, images, {})
    if name == "iNaturalist 2018":
        (tmp_path / "train2018.json").write_text(json.dumps({"images": [{"file_name": image} for image in images]}))
    try:
        train, *_ = read_splits(given)
        (text,) = told(train.notes, kind="screen")
        assert ("train2018.json" in str([*map(str, train.notes)])) == (name == "iNaturalist 2018")
    except UserError as error:
        text = str(error)
    advised = [one for one in typed(text, given) if one.labels]
    assert len(advised) == (number is not None)
    assert not any(one.data_path != str(tmp_path) for one in typed(text, given))
    for one in advised:
        classes = classes_of(*read_splits(one))
        assert len({*classes.values()}) == number
        assert all(path.split("/")[-2] == classes[path] for path in classes)


def test_lists_of_both_splits_are_an_answer(tmp_path):
    paths = [f"{split}/{number}.jpg" for split in ("train", "val") for number in range(4)]
    lists = {f"{split}_list.txt": "".join(f"{split}/{n}.jpg {n % 2}\n" for n in range(4)) for split in ("train", "val")}
    given = write(tmp_path, paths, lists)
    (advised,) = typed(line_of(read_splits, given), given)
    train, val = read_splits(advised)
    assert [*classes_of(train, val)] == paths
