"""Tables as people download them: columns, splits, encodings, numbers, ids, near paths."""

import csv

import pandas
import pytest
from conftest import CPU, each_row, line_of, read_samples, refused, told
from source_helpers import (
    classes_of,
    groups_apart,
    labels_of,
    names_of,
    options,
    read,
    rows_of,
    tree,
    typed,
    write_classes,
    write_image,
    write_table,
)

from configs.yaml_io import parse_value
from datasets.reading import unlabelled
from datasets.recognition import recognize_dataset
from datasets.sources.checks import check_images
from datasets.sources.split import RunSplit
from datasets.sources.tables import search

FILES = [f"{number}.png" for number in range(30)]
LABELS = ["cat", "dog"] * 15
SPLITS = ["train"] * 18 + ["val"] * 6 + ["test"] * 6


@pytest.fixture
def table(tmp_path):
    """Writes a table of columns, and its images."""

    def write(name="all.csv", files=(), encoding="utf-8", separator=",", **columns):
        for file in files:
            write_image(tmp_path / file, size=(2, 2))
        frame = pandas.DataFrame({key.replace("_space_", " "): values for key, values in columns.items()})
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if name.endswith("jsonl"):
            frame.to_json(tmp_path / name, orient="records", lines=True, force_ascii=False)
        else:
            frame.to_csv(tmp_path / name, index=False, encoding=encoding, sep=separator)
        return tmp_path / name

    return write


@pytest.fixture
def labelled(table):
    """Writes a table of FILES with these labels, and more columns."""
    return lambda labels, **columns: table(files=FILES, file=FILES, label=labels, **columns)


def read_checked(path, **values):
    """As `read`, with the notes and findings of the images."""
    splits = read(path, **values)
    splits[0].notes += check_images(splits, options(path, **values), CPU)
    return splits


SITES = ["Nord"] * 18 + ["7"] * 6 + ["Süd"] * 6
# The header, the row of each of FILES, DATA.COLUMNS, the images of each split
COLUMNS = """
name | header | row | columns | sizes
short names | path,label | {path},{label} | | 26 4
two kinds | file name,id,class_id,Class | {path},{n},{n},{label} | | 26 4
documented | image_path,target,path,label | {path},{label},{n},{n} | | 26 4
the only other column | Unnamed: 0,file_name,finding | {n},{path},{label} | | 26 4
GTSRB | Width,Roi.X1,ClassId,Path | {n},5,{label},{path} | | 26 4
columns of 0 and 1 | filename,cat,dog | {path},{is_cat},{is_dog} | | 26 4
pixels beside paths | file,label,pixel0,pixel1,pixel2 | {path},{label},{n},{n},{n} | | 26 4
invisible signs | file,label | {path},{label}{signs} | | 26 4
numbers | file,label,val,stage | {path},{label},0.{third},{third} | | 26 4
given columns | x,y | {path},{label} | {path: x, label: y} | 26 4
split | file,label,split | {path},{label},{split} | | 18 6 6
data set | file,label,data set | {path},{label},{SPLIT} | | 18 6 6
is_valid | file,label,is_valid | {path},{label},{is_val} | | 24 6
is_train | file,label,is_train | {path},{label},{is_train} | | 18 12
known by its values | file,label,known | {path},{label},{split} | | 18 6 6
given | file,label,given,set | {path},{label},{split},{back} | {split: given} | 18 6 6
site | file,label,site | {path},{label},{site} | {split: {column: site, test: [süd], val: [7]}} | 18 6 6
not used | file,label,not used | {path},{label},{split} | {split: null} | 26 4
"""


VALUES = {"label": LABELS, "split": SPLITS, "SPLIT": list(map(str.upper, SPLITS)), "back": SPLITS[::-1], "site": SITES}
VALUES |= {f"is_{name}": [one == name for one in LABELS] for name in ("cat", "dog")}
VALUES |= {f"is_{name}": [one == name for one in SPLITS] for name in ("train", "val")}
VALUES |= {"third": "123", "signs": ["", "\u200b", "\u200b" * 2]}


# The name of the file, the separator, the encoding
FORMATS = """
name | separator | encoding
data.tsv | tab | utf-8
DATA.CSV | ; | utf-8
all.csv | ; | utf-8-sig  # a spreadsheet
all.csv | tab | utf-16
"""


def assert_read(file, sizes, columns=None):
    """The splits have these numbers of images, in the order of the table, and its labels."""
    assert names_of(unlabelled(str(file), options(file, columns=columns))) == FILES
    splits = read(file, columns=columns, dataset="folder")
    assert classes_of(*splits) == dict(zip(FILES, LABELS, strict=True))
    assert list(map(len, splits)) == sizes
    if len(sizes) == 3:
        assert [names_of(samples) for samples in splits] == [FILES[:18], FILES[18:24], FILES[24:]]


@each_row(COLUMNS)
def test_columns(name, header, row, columns, sizes, tmp_path):
    write_table(tree(tmp_path, *FILES) / "all.csv", rows_of(row, FILES, **VALUES), header)
    assert_read(tmp_path / "all.csv", [*map(int, sizes.split())], columns=parse_value(columns or "null"))


def test_lists_of_one_label(table):
    assert_read(table("a.jsonl", FILES, file_name=FILES, label=[[label] for label in LABELS]), [26, 4])


@each_row(FORMATS)
def test_formats(name, separator, encoding, table):
    assert_read(table(name, FILES, encoding, separator.replace("tab", "\t"), file=FILES, label=LABELS), [26, 4])


# DATA.COLUMNS tells which ones are meant. test: no number of rows says which value is the test
UNCLEAR = """
name | header | row | test
two labels | filename,label,class | {path},{label},{n} |
no path | a b,c,d | {n},{path},{label} |
no label | file,cat,dog,age | {path},{is_cat},{is_dog},{n} |
two splits | file,label,split,set | {path},{label},{split},{split} |
numbers of splits | file,label,partition | {path},{label},{third} | 3
unknown splits | file,label,Split Name | {path},{label},part{third} | part3
"""
PIXELS = {f"pixel{number}": range(30) for number in range(4)}
NO_COLUMN = {  # that could be meant
    "pixels": {"digit": LABELS} | PIXELS,
    "pixels in a text": {"emotion": [0, 1] * 15, "pixels": ["70 70"] * 30, "Usage": SPLITS},
    "no header": {"TRAIN": SPLITS, "gs://b/0.jpg": FILES, "cat": LABELS},
}
OBJECTS = {"file": FILES, "label": ['{"x": 1}', '{"x": 2}'] * 15}


@each_row(UNCLEAR)
def test_the_advice_about_unclear_columns_works(name, header, row, test, tmp_path):
    """One line names the file, the columns and DATA.COLUMNS; as it is typed, the option reads the table."""
    file = tree(tmp_path, *FILES) / "all.csv"
    write_table(file, rows_of(row, FILES, **VALUES), header)
    message = line_of(read, file)
    assert message.startswith(f"{file}:1: ")
    assert "DATA.COLUMNS" in message
    for given in typed(message.replace("VALUE", test), options(file)):
        assert read(file, columns=given.columns)[0].class_names == ["cat", "dog"]


@pytest.mark.parametrize("labels", [["a|b", "a", "b"], ["a", "b", "c"]])
def test_the_advice_about_unclear_columns_has_the_option_for_several_labels(labels, table):
    file = table(files=FILES, **{"Image Index": FILES, "Finding Labels": labels * 10, "age": range(30)})
    (given,) = typed(line_of(read, file), options(file))
    assert given.multi_label == ("a|b" in labels)
    assert read(file, columns=given.columns, multi_label=given.multi_label)[0].class_names == sorted(
        set("|".join(labels)) - {"|"}
    )


@pytest.mark.parametrize("columns", [*NO_COLUMN.values(), OBJECTS], ids=[*NO_COLUMN, "objects"])
def test_tables_without_paths_or_labels_are_refused(columns, table):
    file = table(files=FILES, **columns)
    message = line_of(read, file)
    assert message.startswith(f"{file}:1: ")
    assert ("DATA.COLUMNS" in message) == (columns is OBJECTS)


WRONG_VALUES = """
site | problem
site | its values are no words of splits
{column: site, test: [Ost]} | it has no value 'ost'
{column: site, test: [Nord, '7'], val: ['7']} | list each value once
{column: site, test: [Nord, '7', Süd]} | leave one for train
"""


@each_row(WRONG_VALUES)
def test_the_advised_values_of_a_column_are_the_test_images(site, problem, labelled):
    file = labelled(LABELS, site=SITES)
    message = line_of(read, file, columns={"split": parse_value(site)})
    assert problem in message
    assert "it has 'Nord (18)', '7 (6)', 'Süd (6)'; -opts" in message
    (given,) = typed(message.replace("VALUE", "Süd"), options(file))
    train, val, test = read(file, columns=given.columns)
    assert len(train) + len(val) == 24
    assert names_of(test) == FILES[24:]


def test_a_run_that_exists_keeps_its_split_and_encoding(labelled):
    file = labelled(["Gräser", "dog"] * 15, split=SPLITS, encoding="cp1252")
    assert list(map(len, read(file, is_new=False))) == [18, 6, 6]
    held_out = RunSplit(0, 0.1, ("1.png", "2.png"))
    train, val = read(file, known=held_out, is_new=False)
    assert len(train) == 28
    assert names_of(val) == ["1.png", "2.png"]
    assert train.class_names == ["Gräser", "dog"]


@pytest.mark.parametrize("encoding, first", [("gbk", "狗"), ("utf-16-le", "狗"), ("cp1252", "Gräser")])
def test_the_encoding_is_never_guessed(labelled, encoding, first):
    file = labelled([first, "dog"] * 15, encoding=encoding)
    with refused(r"DATA\.ENCODING"):
        read(file)
    assert read(file, encoding=encoding)[0].class_names == sorted([first, "dog"])


def test_columns_of_classes_among_others_of_zeros_and_ones_are_proposed_after_all_columns(table):
    """An option that leaves columns out names them."""
    shapes = {name: [int(n % 3 == place) for n in range(30)] for place, name in enumerate(["wells", "platelet", "a"])}
    file = table(files=FILES, file=FILES, male=[0, 1] * 15, **shapes, old=[1, 1, 0] * 10)
    message = line_of(read, file)
    assert "without the labels 'male', 'old'" in message
    several, one = typed(message, options(file))
    (beside,) = typed(line_of(read, file.parent), options(file.parent, dataset="folder"))
    assert beside.columns["label"] == ["male", *shapes, "old"]
    assert beside.multi_label
    splits = read_samples(one, None, CPU, "train", "val", is_new=True)
    assert splits[0].class_names == [*shapes]
    assert classes_of(*splits) == {path: [*shapes][n % 3] for n, path in enumerate(FILES)}
    assert len(read_samples(several, None, CPU, "train", is_new=True)[0].class_names) == 5
    (named,) = typed(line_of(read, table(file=FILES, who=range(30), **shapes, old=[1, 1, 0] * 10)), options(file))
    assert named.multi_label


GAPS = ["5 1001 40000", "-1 1 2435099", "1.0 3.0 10.0", "010 001 002", "000 001 002"]
DECIMALS = ["1,0 1,5 2,0 2,5 3,0 3,5", "0,5 1,5 10,25"]


@pytest.mark.parametrize("labels", GAPS + DECIMALS)
def test_numbers_with_gaps_and_decimals_are_names(labelled, labels):
    """With a decimal comma, and a warning, as 0,5 may be 0 and 5; the folder has the advice of the table."""
    file = labelled((labels.split() * 10)[:30])
    names = labels.replace(".0", "").split()
    classes = dict(zip(FILES, names * 10, strict=False))
    splits = read(file)
    known = splits[0].class_names
    assert known == sorted(names, key=lambda name: float(name.replace(",", ".")))
    assert classes_of(*splits) == classes
    assert bool(told(splits[0].notes, "'-1'", "warning")) == ("-1" in names)
    assert bool(told(splits[0].notes, "if these are several labels", "warning")) == (labels in DECIMALS)
    again = read(file, class_names=known, is_new=False)  # with a checkpoint that has these names
    assert again[0].class_names == known
    assert labels_of(*again) == labels_of(*splits)
    if labels in DECIMALS:
        (beside,) = typed(line_of(read, file.parent), options(file.parent, dataset="folder"))
        assert classes_of(*read_samples(beside, None, CPU, "train", "val", is_new=True)) == classes
    elif "-1" not in names:
        for given in ({"is_new": False}, {"num_classes": 40001}):  # without names
            kept = read(file, **given)
            assert not kept[0].has_class_names
            assert labels_of(*kept) == {file: int(name) for file, name in classes.items()}


def test_numbers_without_gaps_are_labels(labelled):
    splits = read(labelled([2, 0, 1] * 10))
    assert not splits[0].has_class_names
    assert labels_of(*splits) == dict(zip(FILES, [2, 0, 1] * 10, strict=True))


@pytest.mark.parametrize("step", [1, -1], ids=["", "in another order"])
@pytest.mark.parametrize("labels", ["0 A B", "a a_b b", "a b nan"])
def test_labels_of_several_kinds_are_names(labelled, labels, step):
    names = [label.replace("_", " ") for label in labels.split()]
    train, _ = read(labelled(names[::step] * 10))
    assert train.class_names == names
    assert len(told(train.notes, "'nan'", "warning")) == ("nan" in names)


# Labels of one image each, which may be several: as of the satellite images of Planet
COMBINED = """
labels | may_be_several
clear; clear road; haze road; haze; haze | true
clear; clear,road; haze,road; haze; haze | true
polar bear; brown bear; cat; cat; cat | false
"""


@each_row(COMBINED)
def test_classes_that_combine_fewer_words_may_be_several_labels(labelled, labels, may_be_several):
    train, _ = read(labelled(labels.split("; ") * 6))
    assert bool(told(train.notes, "MULTI_LABEL", "warning")) == (may_be_several == "true")


@pytest.mark.parametrize("step", [1, -1], ids=["", "in another order"])
@pytest.mark.parametrize("labels", ["1 2 B", "0 1 1.5", "['a'] ['a','b'] ['b']", "a|b b|c a|c"])
def test_labels_without_one_meaning_are_refused(labelled, labels, step):
    with refused(r"all.csv:\d"):
        read(labelled(labels.split()[::step] * 10))


@pytest.mark.parametrize("kind", ["metadata.csv", "metadata.jsonl", "_classes.csv", "root"])
def test_tables_beside_the_images_of_splits(table, tmp_path, kind, cpu):
    counts = {"train": 6, "validation": 4, "test": 2}
    files = [f"{split}/{name}" for split, count in counts.items() for name in FILES[:count]]
    for split, count in counts.items() if kind != "root" else ():
        labels = LABELS[:count]
        columns = pandas.get_dummies(labels) if kind == "_classes.csv" else {"label": labels, "size": range(count)}
        table(f"{split}/{kind}", file_name=FILES[:count], **columns)
    name = "metadata.csv" if kind == "root" else "not_read.csv"
    table(name, files, file_name=files, label=[LABELS[int(file[-5])] for file in files])
    for dataset in ("imagenet2012", "folder"):
        splits = read(tmp_path, dataset=dataset)
        assert [len(samples) for samples in splits] == [6, 4, 2]
        for samples in splits:
            assert samples.class_names == ["cat", "dog"]
            assert samples.targets.tolist() == [int(name[-5]) % 2 for name in names_of(samples)]
            assert samples.open(1, 3).pixels.shape == (3, 2, 2)
    write_classes(tmp_path / "train", a=1, b=1)
    write_classes(tmp_path / "validation", a=1, b=1)
    assert recognize_dataset(options(tmp_path), cpu).dataset == "folder"


TABLE_OR_FOLDERS = """
files | values | dataset
train.csv! train/0.png masks/0.png | {} | csv
train.csv! images/0.png test/1.png | {image_root: images} | csv
train.csv! train_images/0.png test_images/1.png train_tfrecords/0.tfrec! | {} | csv
train.csv! train_images/a/0.png train_images/b/0.png test_images/1.png | {} | folder
train.csv! images/a/0.png images/b/0.png | {} | folder
train.csv! train_station/0.png car/0.png | {} | folder
train.csv! test_positive/0.png test_negative/0.png | {} | folder
train.csv! train/a/0.png train/b/0.png test/0.png | {} | folder
train.csv! 0.png | {class_folders: true} | folder
val.csv! a/0.png | {} | folder
metadata.csv! car/0.png train/0.png | {} | csv
train.csv! train_list.txt! 0.png | {} | imagenet2012
train.csv! data/train-00000-of-00001.parquet! | {} | parquet
 | {} | imagenet2012
{dog,cat}/0.png val/{dog,cat}/0.png | {} | folder
{train,val}/{dog,cat}/0.png | {} | folder
{train,val}/{dog,cat}/0.png val_list.txt! | {} | imagenet2012
"""


@each_row(TABLE_OR_FOLDERS)
def test_a_folder_with_train_csv_is_a_table_unless_it_has_class_folders(tmp_path, files, values, dataset, cpu):
    tree(tmp_path, *files.split())
    given = options(tmp_path, dataset="imagenet2012", **parse_value(values))
    assert recognize_dataset(given, cpu).dataset == dataset


# The table, folders of images, the one that is read
FOLDERS = """
table_name | folders | expected
train.csv | train_images train_masks test_images | train_images
test.csv | train_images test_images | test_images
Training_set.csv | train test | train
labels.csv | train | train
labels.csv | anything | anything
x_GroundTruth/x_Training.csv | x_Training_Input x_Test_Input | x_Training_Input  # ISIC 2018
labels.csv | train other |
labels.csv | test |
train.csv | train_masks |
val.csv | train |
"""


@each_row(FOLDERS)
def test_the_folder_of_images_is_found_by_its_name_or_if_it_is_the_only_one(
    table, tmp_path, table_name, folders, expected
):
    """As in APTOS 2019, Plant Pathology 2020, Cassava, dog breeds; the same ids are in each folder."""
    write_image(tmp_path / "sample" / "other.png")
    files = [f"{folder}/{number}.png" for folder in folders.split() for number in range(30)]
    file = table(table_name, files, id=range(30), label=LABELS)
    if not expected:
        with refused(r"DATA\.IMAGE_ROOT"):
            read_checked(file)
        return
    for samples in read_checked(file):
        assert samples.root == tmp_path / expected
    assert unlabelled(str(file), options(tmp_path), None).name(3) == str(tmp_path / expected / "3.png")


@pytest.mark.parametrize("names", ["id", "/data/upload/1/{}.png", "gs://bucket/{}.png"])
def test_images_in_several_folders_are_found_by_their_names(table, tmp_path, names, monkeypatch):
    """As HAM10000's two parts, and the paths of Label Studio and Vertex AI; groups and splits follow."""
    files = [f"part_{1 + number % 2}/{number}.png" for number in range(30)]
    ids = [number if names == "id" else names.format(number) for number in range(30)]
    file = table("metadata.csv", files, id=ids, label=LABELS, lesion=[number // 2 for number in range(30)])
    train, val = read_checked(file, groups="lesion", columns={"path": "id"})
    assert classes_of(train, val) == dict(zip(FILES, LABELS, strict=True))
    assert {one.name(n) for one in (train, val) for n in range(len(one))} == {f"{tmp_path}/{path}" for path in files}
    assert sum(groups_apart(train, val)) == 15
    given = options(tmp_path, columns={"path": "id"})
    assert unlabelled(str(file), given, None).name(3) == f"{tmp_path}/{files[3]}"
    with monkeypatch.context() as patch:  # a large folder around a small table is not searched to its end
        patch.setattr(search, "_MAX_SEARCHED", 10)
        for number in range(90):
            (tmp_path / f"part_1/{number}.txt").touch()
        with refused(r"DATA\.IMAGE_ROOT"):
            read_checked(file, columns={"path": "id"})
    write_image(tmp_path / "part_2" / "0.png")
    with refused(r"DATA\.IMAGE_ROOT"):
        read_checked(file, columns={"path": "id"})


def test_rows_that_are_there_twice_are_counted(table):
    file = table(files=FILES, file=[*FILES, *FILES[:2]], label=[*LABELS, *LABELS[:2]])
    train, val = read(file)
    assert len(train) + len(val) == 32
    assert len(told(train.notes, "2 rows name an image", "screen")) == 1
    file = table(file=[*FILES, *FILES[:2]], label=[*LABELS, *LABELS[1:3]])
    with refused("line 2.*MULTI_LABEL.*\n.*line 3"):
        read(file)


# The labels in turn, their number; whether they are labels
PLACEHOLDERS = """
labels | number | has_test
-1 | 20 | false
-1 | 5 | false
0.0 | 20 | false
0 0 0 1 | 20 | true
0 | 5 | true  # few
"""


@each_row(PLACEHOLDERS)
def test_labels_of_a_kaggle_test_are_placeholders_if_all_are_equal(table, tmp_path, labels, number, has_test):
    table("train.csv", FILES, file=FILES, label=[0, 1] * 15)
    names = [f"t{name}" for name in FILES[: int(number)]]
    table("test.csv", names, file=names, label=(labels.split() * 20)[: int(number)])
    splits = read(tmp_path, dataset="csv")
    assert len(splits) == 2 + (has_test == "true")
    assert bool(told(splits[0].notes, "not evaluated", "screen")) == (has_test == "false")


ROOTS = """
name | root | trained | expected
test | test | | test/0a.png
test | | | test/0a.png
sample_submission | | | test/0a.png
test | train | train | test/0a.png
test | train | | train/0a
"""


@each_row(ROOTS)
def test_ids_of_images_to_predict_keep_their_column(table, tmp_path, name, root, trained, expected):
    """A table of ids: the images are in the given folder, or where they are found."""
    ids = ["0a", "1", "-2"]
    file = table(f"{name}.csv", [f"test/{one}.png" for one in ids] + ["train/1.png"], id=ids, width=range(3))
    folder = {"train": f"{tmp_path}/train", "test": f"{tmp_path}/test"}
    images = unlabelled(str(file), options(tmp_path, image_root=folder.get(root)), folder.get(trained))
    assert images.column == "id"
    assert [images.listed_name(index) for index in range(3)] == ids
    assert images.name(0) == f"{tmp_path}/{expected}"
    with open(file, newline="") as lines:
        assert [row["id"] for row in csv.DictReader(lines)] == ids


def test_tables_with_other_names_and_empty_rows(table, tmp_path):
    for name, files in (("Train.csv", FILES[:20]), ("VALID.csv", FILES[20:])):
        table(name, files, file=files, label=LABELS[: len(files)])
        (tmp_path / name).write_text((tmp_path / name).read_text().replace("\n", "\n,\n\n"))
    assert list(map(len, read(tmp_path, dataset="csv"))) == [20, 10]
