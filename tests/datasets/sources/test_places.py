"""The names and files of the images of a table, however its paths are written and wherever the files lie."""

import numpy as np
from conftest import each_row, line_of, told
from pytest import mark
from source_helpers import expand, names_of, options, paths_of, read, rows_of, tree, typed, write_rows, write_table

from datasets.reading import unlabelled
from datasets.sources.shared_arrays import StringPacker
from datasets.sources.split import RunSplit, hash_paths
from datasets.sources.tables.files import open_table
from datasets.sources.tables.search import with_folder

IMAGES = expand("{train,test}/{0..11}.png")
# How a table writes the path of `folder`/`name`, where the images are in R
WRITTEN = r"""
path | place
{folder}/{name} |
./{folder}/{name} |
.//././{folder}/{name} |
{folder}\{name} |
.\{folder}\{name} |
/{folder}/{name} |
R/{folder}/{name} |
R\{folder}\{name} |
/mnt/x/R/{folder}/{name} |
C:\x\R\{folder}\{name} |
gs://bucket/x/{folder}/{name} |
{folder}/{number} |
{folder}/{number}.PNG |
{folder}/{name} | data/
{folder}/{name} | deep/data/
/mnt/x/{folder}/{name} | data/
C:\x\{folder}\{name} | data/
"""


@each_row(WRITTEN)
def test_the_rows_of_test_are_test_images_however_their_paths_are_written(path, place, tmp_path):
    images = [f"{place}{image}" for image in IMAGES]
    root = tree(tmp_path / "R", *images)
    write_table(root / "labels.csv", rows_of(f"{path},{{label}}", IMAGES, label="xy"), "path,label")
    given = options(root / "labels.csv")
    train, val, test = read(given)
    assert sorted([*names_of(train), *names_of(val)]) == sorted(IMAGES[:12])
    assert names_of(test) == IMAGES[12:]
    files = {f"{root}/{image}" for image in images}
    assert paths_of(train, val, test) == paths_of(unlabelled(given.data_path, given)) == files


# The folders of the images of one table, by their numbers modulo 2
LAYOUTS = {"beside the table": ["", ""], "split": ["train/"] * 2, "one": ["img/"] * 2, "two": ["p1/", "p2/"]}


@mark.parametrize("layout", LAYOUTS)
@mark.parametrize("trained", LAYOUTS)
def test_a_run_holds_out_the_same_images_wherever_they_are_moved(trained, layout, tmp_path):
    held_out = []
    known = None
    for place in (trained, layout):
        images = [f"{LAYOUTS[place][n % 2]}{n:03}.png" for n in range(40)]
        file = write_rows(tmp_path / f"of {place}", images, "train.csv", "id,label", "{stem},{label}", label="xy")
        train, val = read(file, known=known, is_new=known is None)
        held_out.append(names_of(val))
        known = RunSplit(0, 0.1, tuple(sorted(names_of(val))), np.sort(hash_paths(train.paths)))
        assert not told(val.notes, kind="warning")
    assert held_out[0] == held_out[1]


# The images that runs of earlier versions held out, by the rule that found the folder, of tables of 12 images
BEFORE = r"""
rule | images | path | table | held_out
below the table | images/{number}.png | images\{number}.png | labels.csv | images/3.png images/6.png
below the table, all | {folder}/{number}.png | {folder}\{number}.png | labels.csv | test/0.png train/7.png
its parent | {number}.png | R/{number}.png | labels.csv | R/8.png R/9.png
its parent, all | {folder}/{number}.png | R/{folder}/{number}.png | labels.csv | R/test/9.png R/train/6.png
by name | images/{number}.png | /mnt/set/{number}.png | labels.csv | images/3.png images/6.png
by name in two folders | p{one_or_two}/{number}.png | x/{number}.png | labels.csv | p1/8.png p2/11.png
in the folder of train | {folder}/{number}.png | {folder}/{number}.png | train/labels.csv | test/0.png train/3.png
in a folder | images/{number}.png | {number}.png | labels.csv | 0.png 3.png
"""


@each_row(BEFORE)
def test_runs_of_before_keep_their_held_out_images(rule, images, path, table, held_out, tmp_path):
    """Of a table in the folder of train the present names are 0.png and test/0.png."""
    base = IMAGES if "{folder}" in images else expand("{0..11}.png")
    files = rows_of(images, base, one_or_two="12")
    root = tree(tmp_path / "R", *files)
    write_table(root / table, rows_of(f"{path},{{label}}", base, label="xy"), "path,label")
    known = RunSplit(0, 0.1, tuple(held_out.split()), hash_paths(StringPacker([rule]).strings()))
    train, val = read(root / table, known=known, is_new=False)
    assert sorted(names_of(val)) == held_out.split()
    assert len(train) == len(files) - 2


# The lines of a file beside a table; whether it is a list of splits, or the question about a table of splits
BESIDE = """
file | header | line | found
test_list.txt | | images/{n:03}.png | list
val_list.txt | | images\\{n:03}.png | list
a/test.csv | id,label | {n:03},x | list
eval_partition.csv | image_id,partition | {n:03}.png,0 | asks
list_eval.csv | "image" ;"Split Name" | "{n:03}.png";0 | asks
parts.tsv | part\tid | {part}\t{n:03} | asks
other_partition.csv | image_id,partition | {n:04}.png,0 |
trips.csv | id,distance | {n:03},5 |
sizes.csv | split,images | {part},1{n} |
test_empty.txt | | |
"""


@each_row(BESIDE)
def test_splits_of_the_images_of_a_table_in_a_file_beside_it(file, header, line, found, tmp_path):
    """Lists are named in a warning; a table of splits is a question with an option for all rows."""
    table = tmp_path, "images/{000..011}.png"
    given = options(write_rows(*table, "labels.csv", "path,label", "{windows},{label}", label="xy"))
    write_rows(*table, file, header, line, part=["train", "test"])
    if found == "asks":
        message = line_of(read, given)
        assert f"{file}; docs/data.md#joined-tables" in message
        (given,) = typed(message, given)
    splits = read(given)
    assert sum(map(len, splits)) == 12
    assert [file in note for note in told(splits[0].notes, "lists of splits", "warning")] == [True] * (found == "list")


def test_the_column_of_paths_is_no_folder_of_itself(tmp_path):
    tree(tmp_path, "0.jpg", "tables/")
    table = tmp_path / "tables" / "labels.csv"
    write_table(table, ["../0.jpg,a"], "path,label")
    assert with_folder(open_table(table), "path") == "path"
