"""Rows of test or holdout are never trained on in silence: a column of splits is read, or it is a question."""

import re

from conftest import each_row, line_of, refused, told
from pytest import mark
from source_helpers import answers_to, expand, names_of, options, read, rows_of, tree, typed, write_rows, write_table

IMAGES = expand("{0..19}.png")
# The column, its values in turn, the images of train and val, of test; or the value of test that only a person knows
COLUMNS = """
column | values | sizes | unknown
split | train train train holdout | 15 0 5 |
split | holdout holdout holdout train | 5 0 15 |
split | tr tr tr te | 15 0 5 |
split | tr tr va te | 10 5 5 |
split | train train validation evaluation | 10 5 5 |
split | 0 0 0 1 | 15 0 5 | 1
split | pool pool pool labeled_train | 15 0 5 | labeled_train
split | train train x9 x9 | 10 0 10 | x9
train | TRAIN TRAIN TRAIN TEST | 15 0 5 |
"""


def write(root, images, column, values):
    table = images, "labels.csv", f"path,label,{column}", "{path},{label},{value}"
    return write_rows(root, *table, label="xxxxyyyy", value=values)


@each_row(COLUMNS)
@mark.parametrize("place", ["labels.csv", "."])
def test_words_of_splits(column, values, sizes, unknown, place, tmp_path):
    """Of a table, and of one beside folders, whose command is the one of the table alone."""
    write(tmp_path, rows_of("p{parity}/{path}", IMAGES, parity="01"), column, values.split())
    given = options(tmp_path / place, dataset="folder")
    if place == "." or unknown or column == "train":
        message = line_of(read, given)
        assert ("VALUE" in message) == bool(unknown)
        given = typed(message.replace("VALUE", unknown), given)[0]
    splits = read(given)
    of_train, of_val, of_test = map(int, sizes.split())
    assert len(splits[0]) + len(splits[1]) == of_train + of_val
    assert of_val in (0, len(splits[1]))
    assert len(splits[2]) == of_test


def test_a_large_table_of_splits_beside_class_folders_is_a_question(tmp_path):
    """The images of the folders are the last ones in it, and its parts are cut in the words of splits."""
    images = [*expand("a/{0..9}.jpg"), *expand("b/{10..19}.jpg")]
    rows = [f"image of another folder {n}.png,{('validation', 'training')[n % 2]}" for n in range(4000)]
    write_table(tree(tmp_path, *images) / "x.csv", [*rows, *(f"{path},test" for path in images)], "f,g")
    assert "x.csv" in line_of(read, tmp_path, dataset="folder")


def test_a_class_without_rows_of_train_is_named_so(tmp_path):
    words = {"label": [*"xy" * 9, "x", "c"], "split": ["train"] * 15 + ["val"] * 5}
    file = write_rows(tmp_path, IMAGES, "labels.csv", "path,label,split", "{path},{label},{split}", **words)
    with refused("labels.csv:21: .*'c' has no row of train"):
        read(file)


# The column, its values in turn, how many folds its note counts, if it has one
FOLDS = """
column | values | number
fold | 0 1 2 3 | 4
CV-fold id | 0 1 "" 2 | 3  # rows without a fold
fold | 0 0 "" |
fold | {0..20} |  # too many
folder | 0 1 2 |
"""


@each_row(FOLDS)
def test_a_column_of_folds_is_told_with_the_option_of_one(column, values, number, tmp_path):
    write(tmp_path, expand("{0..41}.png"), column, [one for part in values.split() for one in expand(part)])
    given = options(tmp_path / "labels.csv")
    notes = told(read(given)[0].notes, "do not split the images", "screen")
    assert [f"the {number} values" in note for note in notes] == [True] * bool(number)
    for one in typed("".join(notes), given):
        _, val = read(one)
        assert names_of(val) == [f"{n}.png" for n in range(0, 42, len(values.split()))]


# The images, what the row of a path begins with, and the images of train with val, and of test; asks: an option for all
PATHS = """
images | before | image_root | trained | test
{train,test}/{0,1,2,3}.png | | | 4 | 4
{train,test}/{0,1,2,3}.png | e/ | .. | 4 | 4
images/{train,test}/{0,1,2,3}.png | | | 4 | 4
x/images/{train,valid,TEST}/{0,1,2,3}.png | | | 8 | 4
{a,b}/{train,test}/{0,1,2,3}.png | | | 8 | 8
{0,1,2,3}.png & test/{0,1,2,3}.png | | | 4 | 4
{a,b}/{0,1,2,3}.png & {a,b}/test/{0,1}.png | | | 8 | 4
{a,b}/{0,1,2,3}.png & test/{a,b}/{0,1}.png | | | 8 | 4
images/{a,b}/{0,1,2,3}.png & images/test/{a,b}/{0,1}.png | | | 8 | 4
{train,test,extra}/{0,1,2,3}.png | | | 8 | 4
{0,1,2,3}.png & {train,test}/{0,1,2,3}.png | | | 8 | 4
a/b/c/d/{train,test}/{0,1,2,3}.png | | | 4 | 4
{a,b}/c/d/e/f/g/{train,test}/{0,1}.png | | | 4 | 4
{train_images,test_images}/{0,1,2,3}.png | | | 4 | 4
{seg_train,seg_test}/{0,1,2,3}.png | | | 4 | 4
{imgTrain,imgTest}/{0,1,2,3}.png | | | 4 | 4
test data/{train,test}/{0,1,2,3}.png | | | 4 | 4
{0,1,2,3}.png & a/test/{0,1,2,3}.png | | | 4 | 4
{contest,testament}/{0,1,2,3}.png | | | 8 |
{train,extra}/{0,1,2,3}.png | | | 8 |
{a,test}/{0,1,2,3}.png | | | 8 | asks
{a,b,val}/{0,1,2,3}.png | | | 12 | asks
test/{0,1,2,3}.png | | | 4 | asks
{train station,test strip}/{0,1,2,3}.png | | | 8 | asks
{train,val}/{0,1}.png & c/test/{0,1,2,3}.png | | | 8 | asks
{train,test}/{a,test}/{0,1}.png | | | 4 | 4
train/{a,test}/{0,1}.png & test/a/{0,1}.png | | | 6 | asks
{train,test}/{train,test}/{0,1}.png | | | 8 | asks
{train,test}/{a,test}/b/{0,1}.png | | | 8 | asks
train/a/{0,1}.png & val/{a,test}/{0,1}.png | | | 6 | asks
train/a/{0,1,2,3}.png & train/test/a/{0,1}.png | | | 4 | 2
{train,val}/{a,b}/test/{0,1}.png | | | 8 | asks
"""


@each_row(PATHS)
def test_folders_of_test_in_the_paths_of_a_table(images, before, image_root, trained, test, tmp_path):
    """A level of words of splits is one; in it no folder, or one that recurs in theirs or is beside train, is train."""
    root = tmp_path / "e"
    paths = expand(images)
    labels = [int(path[-5]) % 2 for path in paths]
    tables = ("a.csv", "image_path,target", "{path},class {label}"), ("a.txt", "", "{path} {label}")
    for name, header, row in tables:
        file = write_rows(root, paths, name, header, before + row, label=labels)
        given = options(file, image_root=str(tmp_path) if image_root else None)
        if test == "asks":
            (given,) = answers_to(given)
        first, second, *others = map(names_of, read(given))
        assert len(first + second) == int(trained)
        assert [str(len(one)) for one in others] == [test] * test.isdigit()
        assert not (others and re.search("(?i)(?<!train/)test(_images)?/[0-9ab]", " ".join(first + second)))
