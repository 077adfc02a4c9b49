"""Tables as people download them: columns, splits, encodings, numbers, ids, near paths."""

from conftest import each_row, line_of, refused, told
from pytest import fixture, mark
from source_helpers import (
    answers_to,
    classes_of,
    expand,
    groups_apart,
    labels_of,
    names_of,
    options,
    paths_of,
    read,
    rows_of,
    tree,
    typed,
    write_rows,
)

from configs.yaml_io import parse_value
from datasets.reading import unlabelled
from datasets.recognition import recognize_dataset
from datasets.sources.split import RunSplit
from datasets.sources.tables import search

FILES = expand("{0..29}.png")
LABELS = ["cat", "dog"] * 15
SPLITS = ["train"] * 18 + ["val"] * 6 + ["test"] * 6


@fixture
def labelled(tmp_path):
    """Writes a table of FILES with these labels in turn, and columns of VALUES."""

    def write(labels, *columns, encoding="utf-8"):
        row = ",".join(f'"{{{name}}}"' for name in ("path", "label", *columns))
        header = ",".join(["file", "label", *columns])
        return write_rows(tmp_path, FILES, "all.csv", header, row, encoding, **VALUES | {"label": labels})

    return write


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
is_train | file,label,in_train | {path},{label},{is_train} | | 18 12
known by its values | file,label,known | {path},{label},{split} | | 18 6 6
given | file,label,given,set | {path},{label},{split},{back} | {split: given} | 18 6 6
site | file,label,site | {path},{label},{site} | {split: {column: site, test: [süd], val: [7]}} | 18 6 6
not used | file,label,not used | {path},{label},{split} | {split: null} | 26 4
"""


VALUES = {"label": LABELS, "split": SPLITS, "SPLIT": list(map(str.upper, SPLITS)), "back": SPLITS[::-1], "site": SITES}
VALUES |= {f"is_{name}": [one == name for one in LABELS] for name in ("cat", "dog")}
VALUES |= {f"is_{name}": [one == name for one in SPLITS] for name in ("train", "val")}
VALUES |= {f"is_{one}": [int(one == other) for other in "123"] for one in "123"}
VALUES |= {
    "male": "01",
    "old": "110",
    "third": "123",
    "several": ["a|b", "a", "b"],
    "signs": ["", "\u200b", "\u200b" * 2],
}


# The file, names of its columns behind lines before, the row of an image, the encoding
FORMATS = """
file | header | row | encoding
data.tsv | file\tlabel | {path}\t{label} | utf-8
DATA.CSV | file;label | {path};{label} | utf-8
all.csv | file;label | {path};{label} | utf-8-sig  # a spreadsheet
all.csv | file\tlabel | {path}\t{label} | utf-16
all.csv | sep=;/file;label;x | {stem};{label};{n} | utf-8  # as Excel writes it
all.csv | "sep=!"/file!label | {stem}!{label} | utf-8
all.txt | file\tlabel | {stem}\t{label} | utf-8
all.txt | image,species,family | {stem},{label},{third} | utf-8
a.jsonl | | {{"file_name": "{path}", "label": ["{label}"]}} | utf-8
"""


def assert_read(file, sizes, columns=None):
    """The splits have these numbers of images, in the order of the table, and its labels."""
    assert names_of(unlabelled(str(file), options(file, columns=columns))) == FILES
    splits = read(file, columns=columns, dataset="folder")
    assert classes_of(*splits) == dict(zip(FILES, LABELS, strict=True))
    assert " ".join(str(len(samples)) for samples in splits) == sizes
    if len(splits) == 3:
        assert [names_of(samples) for samples in splits] == [FILES[:18], FILES[18:24], FILES[24:]]


@each_row(COLUMNS)
def test_columns(name, header, row, columns, sizes, tmp_path):
    file = write_rows(tmp_path, FILES, "all.csv", header, row, **VALUES)
    assert_read(file, sizes, parse_value(columns or "null"))


@each_row(FORMATS)
def test_formats(file, header, row, encoding, tmp_path):
    table = write_rows(tmp_path, FILES, file, header.replace("/", "\n"), row, encoding, **VALUES)
    assert_read(table, "26 4")


# Each option that is typed reads these classes. test: no number of rows says which value is the test
UNCLEAR = """
name | header | row | test | classes
two labels | filename,label,class | {path},{label},{n} | | cat dog
labels of one name | file,label,label | {path},{label},{label} | | cat dog
no path | a b,c,d | {n},{path},{label} | | cat dog
no label | file,cat,dog,age | {path},{is_cat},{is_dog},{n} | | cat dog
two splits | file,label,split,set | {path},{label},{split},{split} | | cat dog
numbers of splits | file,label,partition | {path},{label},{third} | 3 | cat dog
unknown splits | file,label,Split Name | {path},{label},part{third} | part3 | cat dog
several labels | Image Index,Finding Labels,age | {path},{several},{n} | | a b
one of three labels | Image Index,Finding Labels,age | {path},{third},{n} | | 1 2 3
several columns | file,who,wells,platelet,a,old | {path},{n},{is_1},{is_2},{is_3},{old} | | wells platelet a old
pixels | digit,pixel0,pixel1,pixel2,pixel3 | {label},{n},{n},{n},{n} | |
pixels in a text | emotion,pixels,Usage | {third},70 70,{split} | |
no header | train,gs://b/x.jpg,cat | {split},{path},{label} | |
"""


@each_row(UNCLEAR)
def test_the_advice_about_unclear_columns_works(name, header, row, test, classes, tmp_path):
    """One line names the file, the columns and DATA.COLUMNS, if there is a column that could be meant."""
    file = write_rows(tmp_path, FILES, "all.csv", header, row, **VALUES)
    message = line_of(read, file)
    assert message.startswith(f"{file}:1: ")
    advised = typed(message.replace("VALUE", test), options(file))
    assert bool(advised) == ("DATA.COLUMNS" in message) == bool(classes)
    for given in advised:
        assert given.multi_label == name.startswith("several")
        assert read(given)[0].class_names == classes.split()


WRONG_VALUES = """
site | problem
site | its values are no words of splits
{column: site, test: [Ost]} | it has no value 'ost'
{column: site, test: [Nord, '7'], val: ['7']} | list each value once
{column: site, test: [Nord, '7', Süd]} | leave one for train
"""


@each_row(WRONG_VALUES)
def test_the_advised_values_of_a_column_are_the_test_images(site, problem, labelled):
    file = labelled(LABELS, "site")
    message = line_of(read, file, columns={"split": parse_value(site)})
    assert problem in message
    assert "it has 'Nord (18)', '7 (6)', 'Süd (6)'; -opts" in message
    train, val, test = read(*typed(message.replace("VALUE", "Süd"), options(file)))
    assert len(train) + len(val) == 24
    assert names_of(test) == FILES[24:]


def test_a_run_that_exists_keeps_its_split_and_encoding(labelled):
    file = labelled(["Gräser", "dog"], "split", encoding="cp1252")
    assert list(map(len, read(file, is_new=False))) == [18, 6, 6]
    held_out = RunSplit(0, 0.1, ("1.png", "2.png"))
    train, val = read(file, known=held_out, is_new=False)
    assert len(train) == 28
    assert names_of(val) == ["1.png", "2.png"]
    assert train.class_names == ["Gräser", "dog"]


@mark.parametrize("encoding, first", [("gbk", "狗"), ("utf-16-le", "狗"), ("cp1252", "Gräser")])
def test_the_encoding_is_never_guessed(labelled, encoding, first):
    file = labelled([first, "dog"], encoding=encoding)
    with refused(r"DATA\.ENCODING"):
        read(file)
    assert read(file, encoding=encoding)[0].class_names == sorted([first, "dog"])


def test_columns_of_classes_among_others_of_zeros_and_ones_are_proposed_after_all_columns(tmp_path):
    """An option that leaves columns out names them."""
    columns = ["male", "wells", "platelet", "a", "old"]
    row = "{path},{male},{is_1},{is_2},{is_3},{old}"
    file = write_rows(tmp_path, FILES, "all.csv", ",".join(["file", *columns]), row, **VALUES)
    message = line_of(read, file)
    assert "without the labels 'male', 'old'" in message
    several, one = typed(message, options(file))
    assert read(several)[0].class_names == columns
    assert classes_of(*read(one)) == dict(zip(FILES, columns[1:4] * 10, strict=True))
    (beside,) = answers_to(tmp_path, dataset="folder")
    assert beside.multi_label
    assert beside.columns["label"] == columns


# Labels in turn, the classes, a part of the warning; with a decimal comma one, as 0,5 may be 0 and 5
GAPS = """
labels | classes | warning
5 1001 40000 | 5 1001 40000 |
-1 1 2435099 | -1 1 2435099 | '-1'
1.0 3.0 10.0 | 1 3 10 |
010 001 002 | 001 002 010 |
000 001 002 | 000 001 002 |
1,0 1,5 2,0 2,5 3,0 3,5 | 1,0 1,5 2,0 2,5 3,0 3,5 | if these are several labels
0,5 10,25 1,5 | 0,5 1,5 10,25 | if these are several labels
"""


@each_row(GAPS)
def test_numbers_with_gaps_and_decimals_are_names(labels, classes, warning, labelled):
    file = labelled(labels.split())
    expected = dict(zip(FILES, labels.replace(".0", "").split() * 10, strict=False))
    splits = read(file)
    again = read(file, class_names=classes.split(), is_new=False)  # with a checkpoint that has these names
    assert splits[0].class_names == again[0].class_names == classes.split()
    assert classes_of(*splits) == classes_of(*again) == expected
    assert [warning in text for text in told(splits[0].notes, kind="warning")] == [True] * bool(warning)
    if "," in labels:  # the folder has the advice of the table
        (beside,) = answers_to(file.parent, dataset="folder")
        assert classes_of(*read(beside)) == expected
    for given in () if warning else ({"is_new": False}, {"num_classes": 40001}):  # without names
        kept = read(file, **given)
        assert not kept[0].has_class_names
        assert labels_of(*kept) == {path: int(name) for path, name in expected.items()}


def test_numbers_without_gaps_are_labels(labelled):
    splits = read(labelled("201"))
    assert not splits[0].has_class_names
    assert labels_of(*splits) == dict(zip(FILES, [2, 0, 1] * 10, strict=True))


@mark.parametrize("step", [1, -1], ids=["", "in another order"])
@mark.parametrize("labels", ["0 A B", "a a_b b", "a b nan"])
def test_labels_of_several_kinds_are_names(labelled, labels, step):
    names = [label.replace("_", " ") for label in labels.split()]
    train, _ = read(labelled(names[::step]))
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
    train, _ = read(labelled(labels.split("; ")))
    assert bool(told(train.notes, "MULTI_LABEL", "warning")) == (may_be_several == "true")


@mark.parametrize("step", [1, -1], ids=["", "in another order"])
@mark.parametrize("labels", ["1 2 B", "0 1 1.5", "['a'] ['a','b'] ['b']", "a|b b|c a|c"])
def test_labels_without_one_meaning_are_refused(labelled, labels, step):
    with refused(r"all.csv:\d"):
        read(labelled(labels.split()[::step]))


# The table in the folder of each split, or around them; its header; the row of an image
IN_FOLDERS = """
table | header | row
{folder}/metadata.csv | file_name,label,size | {name},{label},{n}
{folder}/metadata.jsonl | | {{"file_name": "{name}", "label": "{label}", "size": {n}}}
{folder}/_classes.csv | file_name,cat,dog | {name},{is_cat},{is_dog}
metadata.csv | file_name,label | {path},{label}
"""


@each_row(IN_FOLDERS)
def test_tables_beside_the_images_of_splits(table, header, row, tmp_path, cpu):
    images = expand("train/{0..5}.png & validation/{0..3}.png & test/{0,1}.png")
    write_rows(tmp_path, images, table, header, row, **VALUES)
    write_rows(tmp_path, images, "not_read.csv", "file_name,label", "{path},{label}", **VALUES)
    for dataset in ("imagenet2012", "folder"):
        splits = read(tmp_path, dataset=dataset)
        assert [len(samples) for samples in splits] == [6, 4, 2]
        assert paths_of(*splits) == {f"{tmp_path}/{image}" for image in images}
        for samples in splits:
            assert samples.class_names == ["cat", "dog"]
            assert samples.targets.tolist() == [int(name[-5]) % 2 for name in names_of(samples)]
    tree(tmp_path, "{train,validation}/{a,b}/0.jpg")
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


# The table, folders of images with the same ids, the one that is read, as facts.txt has it; as in APTOS 2019, Plant
# Pathology 2020, Cassava, dog breeds
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


@mark.parametrize("name", ["{stem}", "/data/upload/1/{name}", "gs://bucket/{name}"])
def test_images_in_several_folders_are_found_by_their_names(name, tmp_path, monkeypatch):
    """As HAM10000's two parts, and the paths of Label Studio and Vertex AI; groups and splits follow."""
    files = rows_of("part_{part}/{path}", FILES, part="12")
    file = write_rows(tmp_path, files, "metadata.csv", "id,label,lesion", f"{name},{{label}},{{half}}", **VALUES)
    given = options(file, columns={"path": "id"})
    splits = read(given, groups="lesion")
    assert classes_of(*splits) == dict(zip(FILES, LABELS, strict=True))
    assert paths_of(*splits) == {f"{tmp_path}/{path}" for path in files}
    assert sum(groups_apart(*splits)) == 15
    assert unlabelled(str(file), given, None).name(3) == f"{tmp_path}/{files[3]}"
    (tmp_path / "part_2/0.png").touch()
    with refused(r"DATA\.IMAGE_ROOT"):
        read(given)
    (tmp_path / "part_2/0.png").unlink()
    tree(tmp_path, "part_1/{0..89}.txt!")  # a large folder around a small table is not searched to its end
    monkeypatch.setattr(search, "_MAX_SEARCHED", 10)
    with refused(r"DATA\.IMAGE_ROOT"):
        read(given)


def test_rows_that_are_there_twice_are_counted(tmp_path):
    table = [*FILES, *FILES[:2]], "all.csv", "file,label", "{path},{label}"
    file = write_rows(tmp_path, *table, label=LABELS)
    train, val = read(file)
    assert len(train) + len(val) == 32
    assert len(told(train.notes, "2 rows name an image", "screen")) == 1
    write_rows(tmp_path, *table, label=[*LABELS, "dog", "cat"])
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
def test_labels_of_a_kaggle_test_are_placeholders_if_all_are_equal(labels, number, has_test, tmp_path):
    table = "file,label", "{path},{label}"
    write_rows(tmp_path, FILES, "train.csv", *table, label="01")
    write_rows(tmp_path, [f"t{name}" for name in FILES[: int(number)]], "test.csv", *table, label=labels.split())
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
def test_ids_of_images_to_predict_keep_their_column(name, root, trained, expected, tmp_path):
    """A table of ids: the images are in the given folder, or where they are found."""
    images = expand("test/{0a,1,-2}.png")
    file = write_rows(tmp_path, [*images, "train/1.png"], f"{name}.csv", "id,width", "{stem},{n}")
    folder = {"": None, "train": f"{tmp_path}/train", "test": f"{tmp_path}/test"}
    images = unlabelled(str(file), options(tmp_path, image_root=folder[root]), folder[trained])
    assert images.column == "id"
    assert [images.listed_name(index) for index in range(3)] == ["0a", "1", "-2"]
    assert images.name(0) == f"{tmp_path}/{expected}"


def test_tables_with_other_names_and_empty_rows(tmp_path):
    for name, files in (("Train.csv", FILES[:20]), ("VALID.csv", FILES[20:])):
        write_rows(tmp_path, files, name, "file,label", "{path},{label}\n,\n", **VALUES)
    assert list(map(len, read(tmp_path, dataset="csv"))) == [20, 10]
