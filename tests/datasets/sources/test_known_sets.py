"""Data sets as they are published: the reading is the published one, or a line whose commands, typed, give it."""

import json
import re

import numpy as np
import pytest
from conftest import code_of, line_of, told
from PIL import Image
from source_helpers import classes_of, groups_apart, options, read_splits, tree, typed

from utils.errors import UserError

NUMBERS = range(24)
KINDS = ["aca", "benign", "cyst"]


def write(root, images, **tables):
    """Images, and tables of a header and the row of each number."""
    tree(root, *images)
    for name, (header, row) in tables.items():
        rows = [row(number) for number in NUMBERS]
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("\n".join([*filter(None, [header]), *rows, ""]))


def cells(number, names, one, other):
    return ",".join(one if number % len(names) == place else other for place in range(len(names)))


IMAGES = [f"img/{number:04}.jpg" for number in NUMBERS]
PARENT = [f"train/p{number // 4}/v{number % 4}/1.jpg" for number in NUMBERS]  # of a set whose paths begin with its name
CARDS = [f"{number % 4}/{number:04}_x.jpg" for number in NUMBERS]
FINDINGS = ("Edema", "Effusion", "Mass")
SETS = {  # images, tables, the class or classes of each number
    "CelebA": (  # -1 is no
        IMAGES,
        {
            "list_attr.csv": ("image_id,Male,Smiling,Young", lambda n: f"{n:04}.jpg,{cells(n, KINDS, '1', '-1')}"),
            "list_eval_partition.txt": ("", lambda n: f"{n:04}.jpg {n % 2}"),
            "eval_partition.csv": ("image_id,partition", lambda n: f"{n:04}.jpg,{n % 3}"),
        },
        lambda n: ("Male", "Smiling", "Young")[n % 3],
    ),
    "blank is no": (
        IMAGES,
        {"all.csv": ("image_id,Edema,Effusion,Mass", lambda n: f"{n:04}.jpg,{cells(n, KINDS, 'x'[:0] + '1', '')}")},
        lambda n: FINDINGS[n % 3],
    ),
    "CheXpert": (  # paths that begin with the name of the folder; columns that are no labels
        PARENT,
        {"train.csv": (f"Path,Sex,AP/PA,{','.join(FINDINGS)}", lambda n: (
            f"CheXpert/{PARENT[n]},Male,{'AP' if n % 5 else 'PA'},{cells(n, KINDS, '1.0', '0.0')}"))},
        lambda n: FINDINGS[n % 3],
    ),
    "VinDr-CXR": (
        IMAGES,
        {"annotations/labels.csv": (f"image_id,rad_id,{','.join(FINDINGS)}", lambda n: (
            f"{n:04},R{n % 5},{cells(n, KINDS, '1', '0')}"))},
        lambda n: FINDINGS[n % 3],
    ),
    "ODIR-5K": (  # columns of other images; a row of 0 and 1 in a cell
        IMAGES,
        {"full_df.csv": ("ID,Left-Fundus,filepath,labels,target", lambda n: (
            f"{n},{n}_left.jpg,../input/{n:04}.jpg,['{KINDS[n % 3]}'],\"[{cells(n, KINDS, '1', ' 0')}]\""))},
        lambda n: f"['{KINDS[n % 3]}']",
    ),
    "PadChest": (  # pandas' index has the name of a folder, too
        CARDS,
        {"all.csv": (",ImageID,ImageDir,Labels", lambda n: f"{n},{n:04}_x.jpg,{n % 4},['{KINDS[n % 3]}']")},
        lambda n: f"['{KINDS[n % 3]}']",
    ),
    "CBIS-DDSM": (
        IMAGES,
        {"csv/train.csv": ("patient_id,image view,pathology,image file path,ROI mask file path", lambda n: (
            f"P_{n // 2},CC,{KINDS[n % 3]},{IMAGES[n]},roi/{n}.jpg"))},
        lambda n: KINDS[n % 3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_each_command_reads_the_published_labels(name, tmp_path):
    images, tables, label_of = SETS[name]
    root = tmp_path / name.split("-")[0]
    write(root, images, **tables)
    given = options(root)
    ways = [one for one in typed(line_of(read_splits, given).replace("VALUE", "2"), given) if one.columns]
    assert len(ways) == (2 if name in ("CheXpert", "VinDr-CXR") else 1)
    splits = read_splits(ways[0].model_copy(update={"multi_label": False}))
    found = classes_of(*splits)
    expected = {image: label_of(number) for number, image in enumerate(images)}
    assert len(found) == len(expected)
    for path, label in found.items():
        (number,) = (image for image in expected if image.endswith(path) or path.endswith(image))
        assert label == expected[number]


VECTORS = ["[0, 1, 0]", "[1.0, 0.0, 0.0]", "0 0 1", "(0,0,1,1)"]


@pytest.mark.parametrize("multi_label", [True, False])
@pytest.mark.parametrize("vector", VECTORS)
def test_a_number_per_class_in_a_cell_is_refused(vector, multi_label, tmp_path):
    write(tmp_path, IMAGES, **{"a.csv": ("path,label", lambda n: f'{IMAGES[n]},"{vector}"')})
    lines = [json.dumps({"file_name": path, "labels": [0, 1, 0]}) for path in IMAGES]
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    for name in ("a.csv", "b.jsonl"):
        given = options(tmp_path / name, multi_label=multi_label)
        assert "0 and 1" in line_of(read_splits, given)
        given = given.model_copy(
            update={
                "columns": {"path": ("path", "file_name")[name[0] == "b"], "label": ("label", "labels")[name[0] == "b"]}
            }
        )
        with pytest.raises(UserError, match="a number per class"):
            read_splits(given)


@pytest.mark.parametrize("label", ["[0, 1]", "1 0", "[0, 1, 2]", "[2, 1]"])
def test_lists_of_numbers_are_labels(label, tmp_path):
    write(tmp_path, IMAGES, **{"a.csv": ("path,label", lambda n: f'{IMAGES[n]},"{label}"')})
    train, _ = read_splits(options(tmp_path / "a.csv", multi_label=True))
    assert train.targets[0].sum() == len({*label} & {*"012"})


@pytest.mark.parametrize("number", [int, float])
def test_rows_of_absent_labels_are_refused(number, tmp_path):
    """Open Images: a row with the confidence 0 says that the label is not in the image."""
    header = "ImageID,Source,LabelName,Confidence"
    write(tmp_path, IMAGES, **{"all.csv": (header, lambda n: f"{n:04},verification,/m/0{n % 2},{number(n % 3 > 0)}")})
    given = options(tmp_path / "all.csv")
    assert "Confidence" in line_of(read_splits, given)
    (tmp_path / "all.csv").write_text((tmp_path / "all.csv").read_text().replace(f",{number(0)}\n", ",1\n"))
    assert read_splits(given)[0].class_names == ["/m/00", "/m/01"]
    write(tmp_path, IMAGES, **{"all.csv": ("image,label,Confidence", lambda n: f"{IMAGES[n]},{n % 2},{n % 5 / 4}")})
    assert read_splits(given)[0].class_names == ["0", "1"]  # of a person or a model


SLIDES = [f"TCGA-{name}" for name in ("A1", "3F", "XX", "B7", "Q0", "9Z")]


@pytest.mark.parametrize("place", [".", "tiles"])
def test_a_table_of_slides_beside_their_folders_is_a_question(place, tmp_path, monkeypatch):
    """TCGA: the code of the docs gives the tiles of a slide its label, and they stay in one split."""
    monkeypatch.chdir(tmp_path)
    tree(tmp_path / "DIR" / place, *(f"{slide}/{n}.png" for slide in SLIDES for n in range(4)))
    rows = [f"P{n},{slide},{KINDS[n % 2]}" for n, slide in enumerate(SLIDES)]
    (tmp_path / "DIR/labels.csv").write_text("\n".join(["case_id,slide_id,label", *rows]))
    given = options(tmp_path / "DIR" / place, dataset="folder")
    message = line_of(read_splits, given)
    assert "labels.csv" in message
    assert "docs/data.md#labels-of-folders" in message
    (folders,) = typed(message, given)
    assert read_splits(folders)[0].class_names == sorted(SLIDES)
    if place == ".":
        exec(code_of("docs/data.md", "Labels of folders"), {})
        splits = read_splits(options(tmp_path / "DIR/images.csv", groups="slide"))
        groups_apart(*splits)
        expected = {f"{slide}/{n}.png": KINDS[place % 2] for place, slide in enumerate(SLIDES) for n in range(4)}
        assert classes_of(*splits) == expected


@pytest.mark.parametrize("names", [["tench", "shark", "crane"], ["bird", "fish", "crab"]])
def test_names_of_the_folders_in_a_table_are_no_question(names, tmp_path):
    tree(tmp_path, "n01440764", "n01484850", "n02012849")
    rows = zip(("n01440764", "n01484850", "n02012849"), names, strict=True)
    (tmp_path / "words.csv").write_text("\n".join(["wnid,label", *map(",".join, rows)]))
    assert len(read_splits(options(tmp_path, dataset="folder"))[0].class_names) == 3


def test_lists_of_splits_become_a_table(tmp_path, monkeypatch):
    """Food-101: the code of the docs keeps the official test images."""
    monkeypatch.chdir(tmp_path)
    tree(tmp_path / "DIR", "images/{apple_pie,waffles}/{0,1,2,3}.jpg", "meta/")
    for split, numbers in (("train", "012"), ("test", "3")):
        lines = [f"{label}/{n}" for label in ("apple_pie", "waffles") for n in numbers]
        (tmp_path / f"DIR/meta/{split}.txt").write_text("\n".join(lines))
    assert told(read_splits(options(tmp_path / "DIR/images"))[0].notes, "docs/data.md#lists-of-splits", "warning")
    exec(code_of("docs/data.md", "Lists of splits"), {})
    *_, test = read_splits(options(tmp_path / "DIR/images.csv"))
    assert classes_of(test) == {f"images/{label}/3.jpg": label for label in ("apple_pie", "waffles")}


@pytest.mark.parametrize("line", ["{}.png", "images/{}", "{}.png 3", "{},3"])
def test_lists_of_splits_beside_a_table_are_named_until_they_are_a_column(line, tmp_path, monkeypatch):
    """ChestX-ray14: the code of the docs keeps the official test images."""
    monkeypatch.chdir(tmp_path)
    tree(tmp_path / "DIR", *(f"images/{n:03}_0.png" for n in range(30)))
    rows = [f"{n:03}_0.png,{['a', 'b'][n % 2]}" for n in range(30)]
    (tmp_path / "DIR/Data_Entry_2017.csv").write_text("\n".join(["Image Index,Finding Labels", *rows]))
    for name, numbers in (("train_val_list", range(20)), ("test_list", range(20, 30))):
        (tmp_path / f"DIR/{name}.txt").write_text("".join(f"{line.format(f'{n:03}_0')}\n" for n in numbers))
    (tmp_path / "DIR/train_other.txt").write_text("other.png\n")
    (tmp_path / "DIR/test.txt").mkdir()  # no list
    columns = {"path": "Image Index", "label": "Finding Labels"}
    given = options(tmp_path / "DIR/Data_Entry_2017.csv", columns=columns)
    (note,) = told(read_splits(given)[0].notes, "docs/data.md#lists-of-splits-beside-a-table", "warning")
    assert "DIR/test_list.txt" in note
    assert "train_other" not in note
    exec(code_of("docs/data.md", "Lists of splits beside a table"), {})
    train, val, test = read_splits(options(tmp_path / "DIR/images.csv", columns=columns))
    assert sorted(classes_of(test)) == [f"{n:03}_0.png" for n in range(20, 30)]
    assert len(train) + len(val) == 20
    assert not told(train.notes, "lists-of-splits")
    for name, part in (("train", rows[:20]), ("val", rows[20:])):
        (tmp_path / f"DIR/{name}.csv").write_text("\n".join(["Image Index,Finding Labels", *part]))
    assert not told(read_splits(options(tmp_path / "DIR", dataset="csv", columns=columns))[0].notes, "lists-of-splits")


def test_arrays_become_class_folders_and_a_workbook_beside_them_is_named(tmp_path, monkeypatch):
    """MedMNIST: the code of the docs keeps the official splits and the pixels."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DIR").mkdir()
    arrays = {}
    for split, number in (("train", 12), ("val", 4), ("test", 2)):
        arrays[f"{split}_images"] = np.full((number, 9, 9), number, np.uint8)
        arrays[f"{split}_labels"] = np.arange(number)[:, None] % 2
    np.savez(tmp_path / "DIR/medmnist.npz", **arrays)
    exec(code_of("docs/data.md", "Images in arrays"), {})
    (tmp_path / "DIR/images/Labels.XLSX").write_bytes(b"PK\3\4")
    splits = read_splits(options(tmp_path / "DIR/images", dataset="folder"))
    assert [*map(len, splits)] == [12, 4, 2]
    assert [samples.class_names for samples in splits] == [["0", "1"]] * 3
    pixels = [np.unique(Image.open(path)).tolist() for path in (tmp_path / "DIR/images/val").glob("*/*")]
    assert pixels == [[4]] * 4
    assert told(splits[0].notes, "Labels.XLSX: is a workbook", "screen")


def test_a_workbook_beside_images_without_folders_is_named(tmp_path):
    tree(tmp_path, "{1,2,3,4}.jpg")
    (tmp_path / "labels.xlsx").write_bytes(b"PK\3\4")
    assert re.search("labels.xlsx.*CSV", line_of(read_splits, options(tmp_path, dataset="folder")))
