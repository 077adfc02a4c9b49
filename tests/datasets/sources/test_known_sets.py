"""Data sets as they are published: the reading is the published one, or a line whose commands, typed, give it."""

import os
import re

import numpy as np
from conftest import code_of, line_of, refused, told
from PIL import Image
from pytest import fixture, mark
from source_helpers import (
    answers_to,
    classes_of,
    expand,
    groups_apart,
    options,
    paths_of,
    read,
    rows_of,
    tree,
    typed,
    write_rows,
    write_set,
    write_table,
)

from configs.yaml_io import parse_value
from datasets.reading import unlabelled

IMAGES = expand("img/{0000..0023}.jpg")
SETS = parse_value(
    r"""  # images; tables, their header and the row of each image; columns of each command, label of an image
CelebA:  # -1 is no
  images: img/{0000..0023}.jpg
  tables:
    list_attr.csv: ["image_id,Male,Smiling,Young", "{name},{cells}"]
    list_eval_partition.txt: ["", "{name} {parity}"]
    eval_partition.csv: ["image_id,partition", "{name},{third}"]
  values: {cells: ["1,-1,-1", "-1,1,-1", "-1,-1,1"], parity: [0, 1], third: [0, 1, 2], kind: [Male, Smiling, Young]}
  asked: [[image_id, [Male, Smiling, Young], "{kind}"]]
blank is no:
  images: img/{0000..0023}.jpg
  tables: {all.csv: ["image_id,Edema,Effusion,Mass", "{name},{cells}"]}
  values: {cells: ["1,,", ",1,", ",,1"], kind: [Edema, Effusion, Mass]}
  asked: [[image_id, [Edema, Effusion, Mass], "{kind}"]]
CheXpert:  # paths that begin with the name of the folder; columns that are no labels
  images: train/p{0..5}/v{0..3}/1.jpg
  tables: {train.csv: ["Path,Sex,AP/PA,Edema,Effusion,Mass", "CheXpert/{path},Male,{view},{cells}"]}
  values: {view: [PA, AP, AP, AP, AP], cells: ["1.0,0.0,0.0", "0.0,1.0,0.0", "0.0,0.0,1.0"],
           kind: [Edema, Effusion, Mass]}
  asked: [[Path, [Edema, Effusion, Mass], "{kind}"], [Path, AP/PA, "{view}"]]
VinDr-CXR:
  images: img/{0000..0023}.jpg
  tables: {annotations/labels.csv: ["image_id,rad_id,Edema,Effusion,Mass", "{stem},R{reader},{cells}"]}
  values: {reader: [0, 1, 2, 3, 4], cells: ["1,0,0", "0,1,0", "0,0,1"], kind: [Edema, Effusion, Mass]}
  asked: [[image_id, [Edema, Effusion, Mass], "{kind}"], [image_id, rad_id, "R{reader}"]]
ODIR-5K:  # columns of other images; a row of 0 and 1 in a cell
  images: img/{0000..0023}.jpg
  tables:
    full_df.csv: ["ID,Left-Fundus,filepath,labels,target", '{n},{n}_left.jpg,../input/{name},{kind},"[{cells}]"']
  values: {cells: ["1, 0, 0", " 0,1, 0", " 0, 0,1"], kind: ["['aca']", "['benign']", "['cyst']"]}
  asked: [[filepath, labels, "{kind}"]]
PadChest:  # pandas' index has the name of a folder, too
  images: 0/{0000..0005}_x.jpg & 1/{0006..0011}_x.jpg & 2/{0012..0017}_x.jpg & 3/{0018..0023}_x.jpg
  tables: {all.csv: [",ImageID,ImageDir,Labels", "{n},{name},{folder},{kind}"]}
  values: {kind: ["['aca']", "['benign']", "['cyst']"]}
  asked: [[ImageDir/ImageID, Labels, "{kind}"]]
CBIS-DDSM:
  images: img/{0000..0023}.jpg
  tables:
    csv/train.csv: ["patient_id,image view,pathology,image file path,ROI mask file path",
                    "P_{half},CC,{kind},{path},roi/{n}.jpg"]
  values: {kind: [aca, benign, cyst]}
  asked: [[image file path, pathology, "{kind}"]]
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
labels.csv:
  images: p{a,b,c,d,e,f}/{0..3}.jpg
  tables: {labels.csv: ["image,label", "{path},{label}"]}
  values: {label: [benign, malignant]}
  asked: [[image, label, "{label}"]]
of a split:
  images: train/p{a,b,c,d,e,f}/{0..3}.jpg
  tables: {train/metadata.csv: ["file_name,label", "{inner},{label}"]}
  values: {label: [benign, malignant]}
  asked: [[file_name, label, "{label}"]]
Roboflow:
  images: train/p{a,b,c,d,e,f}/{0..3}.jpg
  tables: {train/_classes.csv: ["filename,benign,malignant", "{inner},{not_place},{place}"]}
  values: {label: [benign, malignant], place: [0, 1], not_place: [1, 0]}
  asked: [[filename, [benign, malignant], "{label}"]]
of a clinic:
  images: Köln/IMG_{0..5}0.jpg & Bonn/IMG_{0..5}1.jpg
  tables: {Befunde.csv: ["Datei;Alter;Befund", "{name};{n};{label}"]}
  values: {label: [benign, malignant]}
  asked: [[Datei, Befund, "{label}"]]
no known name:
  images: p{a,b,c,d,e,f}/{0..3}.jpg
  tables: {x.csv: ["file,age,sex,result", "{path},{n},m,{label}"]}
  values: {label: [benign, malignant]}
  asked: [[file, result, "{label}"]]
a list:
  images: p{a,b,c,d,e,f}/{0..3}.jpg
  tables: {list_label.txt: ["", "{path} {place}"]}
  values: {place: [0, 1]}
  asked: [[path, label, "{place}"]]
ChestX-ray14:  # a row is shorter, as spreadsheets write it
  images: images_001/images/{00000000..00000003}_{000..002}.png & images_002/images/{00000004..00000007}_{000..002}.png
  tables: {Data_Entry.csv: ["Image,Finding Labels,Follow-up #,Patient,Age,Width,Height]", "{name},{label},0,{n},58,9"]}
  values: {label: [benign, malignant]}
  asked: [[Image, Finding Labels, "{label}"]]
names of the images:
  images: images/{4000..4023}.jpg
  tables: {occurrence.txt: ["gbifID\tcatalogNumber\tscientificName", "{stem}\tK{n}\t{label}"]}
  values: {label: [benign, malignant]}
  asked: [[gbifID, scientificName, "{label}"]]
in another folder:
  images: images/PAT_{0..11}_{1,2}_77.png
  tables: {meta/labels.csv: ["image,label", "{path},{label}"]}
  values: {label: [benign, malignant]}
  asked: [[image, label, "{label}"]]
PAD-UFES-20:
  images: images/PAT_{0..11}_{1,2}_77.png
  tables:
    metadata.csv: ["patient_id,lesion_id,smoke,diagnostic,img_id,biopsed", "PAT_{n},1,False,{label},{name},True"]
  values: {label: [benign, malignant]}
  asked: [[img_id, diagnostic, "{label}"]]
AffectNet:
  images: M/p{a,b,c,d,e,f}/{0..3}.jpg
  tables: {training.csv: ["subDirectory_filePath,face_x,expression,valence", "{inner},134,{label},-0.5"]}
  values: {label: [benign, malignant]}
  asked: [[subDirectory_filePath, expression, "{label}"]]
before and after:  # of images in a folder each, the table names one per row
  images: full/{0..11}.jpg
  more: "{t0,t1}/{0..11}.jpg"
  tables: {pairs.csv: ["t0,t1,image,label", "t0/{name},t1/{name},{path},{label}"]}
  values: {label: [benign, malignant]}
  asked: [[image, label, "{label}"]]
BBBC021:  # of images of channels, the table names one per row
  images: Week1/a{0..11}.jpg
  more: Week1/b{0..11}.jpg
  tables:
    pairs.csv: ["Image_FileName_DAPI,Image_PathName_DAPI,Image_FileName_Actin,Image_Well,Image_Metadata_Compound",
                "{name},Week1/a,b{number}.jpg,W{number},{label}"]
  values: {label: [benign, malignant]}
  asked: [[Image_FileName_DAPI, Image_Metadata_Compound, "{label}"]]
""".replace("\\\n    ", "")
)


@mark.parametrize("name", sorted(SETS.keys() - {"GBIF", "Yelp", "Conser-vision"}))
def test_the_question_has_a_command_for_each_label(name, tmp_path):
    """Rows without a label are left out, several labels are several; -predict reads the paths of all rows."""
    of_set = SETS[name]
    root = tmp_path / name.split("-")[0]
    paths = write_set(root, **of_set)
    ways = [one for one in answers_to(root, "2") if one.columns]
    assert [[one.columns["path"], one.columns["label"]] for one in ways] == [asked[:2] for asked in of_set["asked"]]
    for one, (*_, label) in zip(ways, of_set["asked"], strict=True):
        found = {}
        for samples in read(one):
            found |= zip(map(samples.name, range(len(samples))), classes_of(samples).values(), strict=True)
        labels = dict(zip([f"{root}/{path}" for path in paths], rows_of(label, paths, **of_set["values"]), strict=True))
        assert found == {path: label for path, label in labels.items() if label or one.multi_label}
        if os.path.isfile(one.data_path):
            assert paths_of(unlabelled(one.data_path, one)) == labels.keys()


VECTORS = ["[0, 1, 0]", "[1.0, 0.0, 0.0]", "0 0 1", "(0,0,1,1)"]


@mark.parametrize("multi_label", [True, False])
@mark.parametrize("vector", VECTORS)
def test_a_number_per_class_in_a_cell_is_refused(vector, multi_label, tmp_path):
    write_rows(tmp_path, IMAGES, "a.csv", "path,label", f'{{path}},"{vector}"')
    write_rows(tmp_path, IMAGES, "b.jsonl", "", '{{"path": "{path}", "label": [0, 1, 0]}}')
    for name in ("a.csv", "b.jsonl"):
        given = options(tmp_path / name, multi_label=multi_label)
        assert "0 and 1" in line_of(read, given)
        with refused("a number per class"):
            read(given.changed(columns={"path": "path", "label": "label"}))


@mark.parametrize("label", ["[0, 1]", "1 0", "[0, 1, 2]", "[2, 1]"])
def test_lists_of_numbers_are_labels(label, tmp_path):
    file = write_rows(tmp_path, IMAGES, "a.csv", "path,label", f'{{path}},"{label}"')
    train, _ = read(file, multi_label=True)
    assert train.targets[0].sum() == len({*label} & {*"012"})


@mark.parametrize("numbers", ["011", ["0.0", "1.0", "1.0"]])
def test_rows_of_absent_labels_are_refused(numbers, tmp_path):
    """Open Images: a row with the confidence 0 says that the label is not in the image."""
    row = "{stem},verification,/m/0{label},{number}"
    table = tmp_path, IMAGES, "all.csv", "ImageID,Source,LabelName,Confidence", row
    file = write_rows(*table, label="01", number=numbers)
    assert "Confidence" in line_of(read, file)
    write_rows(*table, label="01", number="1")
    assert read(file)[0].class_names == ["/m/00", "/m/01"]
    of_a_person = "image,label,Confidence", "{path},{label},{number}"
    write_rows(tmp_path, IMAGES, "all.csv", *of_a_person, label="01", number=[0, 0.25, 0.5, 0.75, 1])
    assert read(file)[0].class_names == ["0", "1"]


@fixture
def run_code(tmp_path, monkeypatch):
    """Runs the code of a section of docs/data.md beside the folder DIR."""
    monkeypatch.chdir(tmp_path)
    return lambda heading: exec(code_of("docs/data.md", heading), {})


SLIDES = expand("TCGA-{A1,3F,XX,B7,Q0,9Z}")


@mark.parametrize("place", [".", "tiles"])
def test_a_table_of_slides_beside_their_folders_is_a_question(place, tmp_path, run_code):
    """TCGA: the code of the docs gives the tiles of a slide its label, and they stay in one split."""
    tree(tmp_path / "DIR" / place, *(f"{slide}/{n}.png" for slide in SLIDES for n in range(4)))
    write_table(
        tmp_path / "DIR/labels.csv", rows_of("P{n},{path},{label}", SLIDES, label="ab"), "case_id,slide_id,label"
    )
    given = options(tmp_path / "DIR" / place, dataset="folder")
    message = line_of(read, given)
    assert "labels.csv" in message
    assert "docs/data.md#labels-of-folders" in message
    (folders,) = typed(message, given)
    assert read(folders)[0].class_names == sorted(SLIDES)
    if place == ".":
        run_code("Labels of folders")
        splits = read(tmp_path / "DIR/images.csv", groups="slide")
        groups_apart(*splits)
        expected = {f"{slide}/{n}.png": "ab"[place % 2] for place, slide in enumerate(SLIDES) for n in range(4)}
        assert classes_of(*splits) == expected


@mark.parametrize("names", [["tench", "shark", "crane"], ["bird", "fish", "crab"]])
def test_names_of_the_folders_in_a_table_are_no_question(names, tmp_path):
    folders = expand("n0{1440764,1484850,2012849}")
    write_table(
        tree(tmp_path, *folders) / "words.csv", rows_of("{path},{name_of}", folders, name_of=names), "wnid,label"
    )
    assert len(read(tmp_path, dataset="folder")[0].class_names) == 3


def test_lists_of_splits_become_a_table(tmp_path, run_code):
    """Food-101: the code of the docs keeps the official test images."""
    tree(tmp_path / "DIR", "images/{apple_pie,waffles}/{0,1,2,3}.jpg", "meta/")
    for split, numbers in (("train", "{0..2}"), ("test", "3")):
        write_table(tmp_path / f"DIR/meta/{split}.txt", expand(f"{{apple_pie,waffles}}/{numbers}"), "")
    assert told(read(tmp_path / "DIR/images")[0].notes, "docs/data.md#lists-of-splits", "warning")
    run_code("Lists of splits")
    *_, test = read(tmp_path / "DIR/images.csv")
    assert classes_of(test) == {f"images/{label}/3.jpg": label for label in ("apple_pie", "waffles")}


@mark.parametrize("line", ["{name}", "images/{stem}", "{name} 3", "{stem},3"])
def test_lists_of_splits_beside_a_table_are_named_until_they_are_a_column(line, tmp_path, run_code):
    """ChestX-ray14: the code of the docs keeps the official test images."""
    images = expand("images/{000..029}_0.png")
    row = "Image Index,Finding Labels", "{name},{label}"
    root = tmp_path / "DIR"
    write_rows(root, images, "Data_Entry_2017.csv", *row, label="ab")
    tree(root, "test.txt/")  # no list
    write_rows(root, images[:20], "train_val_list.txt", "", line)
    write_rows(root, images[20:], "test_list.txt", "", line)
    write_table(root / "train_other.txt", ["other.png"], "")
    columns = {"path": "Image Index", "label": "Finding Labels"}
    train, _ = read(root / "Data_Entry_2017.csv", columns=columns)
    (note,) = told(train.notes, "docs/data.md#lists-of-splits-beside-a-table", "warning")
    assert "DIR/test_list.txt" in note
    assert "train_other" not in note
    run_code("Lists of splits beside a table")
    train, val, test = read(root / "images.csv", columns=columns)
    assert sorted(classes_of(test)) == expand("{020..029}_0.png")
    assert len(train) + len(val) == 20
    assert not told(train.notes, "lists-of-splits")
    write_rows(root, images[:20], "train.csv", *row, label="ab")
    write_rows(root, images[20:], "val.csv", *row, label="ab")
    assert not told(read(root, dataset="csv", columns=columns)[0].notes, "lists-of-splits")


def test_arrays_become_class_folders_and_a_workbook_beside_them_is_named(tmp_path, run_code):
    """MedMNIST: the code of the docs keeps the official splits and the pixels."""
    (tmp_path / "DIR").mkdir()
    arrays = {}
    for split, number in (("train", 12), ("val", 4), ("test", 2)):
        arrays[f"{split}_images"] = np.full((number, 9, 9), number, np.uint8)
        arrays[f"{split}_labels"] = np.arange(number)[:, None] % 2
    np.savez(tmp_path / "DIR/medmnist.npz", **arrays)
    run_code("Images in arrays")
    (tmp_path / "DIR/images/Labels.XLSX").write_bytes(b"PK\3\4")
    splits = read(tmp_path / "DIR/images", dataset="folder")
    assert [*map(len, splits)] == [12, 4, 2]
    assert [samples.class_names for samples in splits] == [["0", "1"]] * 3
    pixels = [np.unique(Image.open(path)).tolist() for path in (tmp_path / "DIR/images/val").glob("*/*")]
    assert pixels == [[4]] * 4
    assert told(splits[0].notes, "Labels.XLSX: is a workbook", "screen")


def test_a_workbook_beside_images_without_folders_is_named(tmp_path):
    tree(tmp_path, "{1,2,3,4}.jpg")
    (tmp_path / "labels.xlsx").write_bytes(b"PK\3\4")
    assert re.search("labels.xlsx.*CSV", line_of(read, tmp_path, dataset="folder"))
