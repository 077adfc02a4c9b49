"""Files and folders that no source reads: the error is one line that names the file, the problem or the key."""

import re

from conftest import each_row, line_of, refused
from pytest import mark
from source_helpers import read, tree

from configs.schema import Data
from configs.schema.data import DATA_SETS
from datasets.reading import unlabelled

FOLDERS = """
name | dataset | files | part
no class folders | folder | | : contains no folders
classes without images | folder | train/{a,b}/x.txt! | train/a: contains no images
one image per class | folder | train/{cat,dog}/0.jpg | : .* too few
other case in val | folder | train/{cat,dog}/0.jpg val/{Cat,Dog}/0.jpg | did you mean cat
other case in test | folder | {cat,dog}/0.jpg test/{Cat,Dog}/0.jpg | did you mean cat
another name of ImageNet | imagnet | | known: imagenet2012,
a lost table | csv | | train.csv: cannot be read .*check the path
class folders in place of a table | csv | {cat,dog}/0.jpg | train.csv.* -dataset=folder$
"""
# DATA.DATASET, a file and its content, a part of the error
PATHS = r"""
dataset | path | content | part
csv | x.csv | PK\5\6\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0 | x.csv: is a ZIP archive.* CSV$  # or an archive of Kaggle's
csv | x.txt | a.jpg big cat\nb.jpg big dog\n | x.txt:1: .* \(as all 2 rows\): .*or one word
csv | x.csv | version https://git-lfs\n | x.csv:1:
csv | x.csv | image_path,target\n | x.csv: .*lists no images
csv | x.csv | image_path,target\nb.jpg,\n | x.csv:2: .*DATA.COLUMNS
csv | x.csv | image_path,target\na.jpg,0\nb.jpg,cat\n | x.csv:3: .*'cat'
csv | x.csv | image_path,target\na.jpg,0\nb.jpg,0.5\n | x.csv:3: .*0.5
csv | x.csv | image_path,target\na.jpg,cat\nb.jpg,"[0, 3]"\n | x.csv:3: .*'\[0, 3\]'
csv | x.csv | image_path,target\na.jpg,cat\nb.jpg,"{""choices"":[""cat"",""dog""]}"\n | x.csv:1: .*DATA.COLUMNS
imagenet2012 | a.xlsx | PK | a.xlsx: is a workbook.* CSV$
csv | a.ODS | PK | a.ODS: is a workbook.* CSV$
folder | a.npz | PK | a.npz: .*docs/data.md#images-in-arrays
csv | a.mat | PK | a.mat: .*docs/data.md#images-in-arrays
imagenet2012 | a.json | PK | a.json: .*docs/data.md#labels-in-json
csv | a.ndjson | PK | a.ndjson: .*docs/data.md#labels-in-json
imagenet2012 | a.bin | PK | is a file
folder | a.zip | PK | a.zip: is an archive
csv | a.csv.gz | PK | a.csv.gz: is compressed; .*gunzip
folder | a.tar.gz | PK | a.tar.gz: is an archive
folder | a.h5 | PK | a.h5: .*docs/data.md#images-in-arrays
folder | a.mp4 | PK | a.mp4: is a video; .*ffmpeg
"""
TO_PREDICT = r"""
path | content | part
empty.txt | \n\n | empty.txt: lists no images
no.csv | a,b\nx.jpg,1\n | no.csv:1: .*DATA.COLUMNS
x.csv | id,image_path\n1,a.jpg\n2,\n | x.csv:3: '' is not a path
x.xlsx | PK | x.xlsx: is a workbook.* CSV$
x.ndjson | {} | x.ndjson: .*docs/data.md#labels-in-json
x.txt | a\0.\0j\0p\0g\0 | x.txt:1: 'a\\x00\.\\x00  # UTF-16
"""


@each_row(FOLDERS)
def test_folders(name, dataset, files, part, tmp_path):
    tree(tmp_path, *files.split())
    with refused(part):
        read(tmp_path, dataset=dataset)


def write(file, content):
    """content: with escapes, as in a string of Python."""
    file.write_bytes(content.encode().decode("unicode_escape").encode("latin-1"))
    return file


@each_row(PATHS)
def test_paths(dataset, path, content, part, tmp_path):
    with refused(part):
        read(write(tmp_path / path, content), "train", dataset=dataset)


@each_row("""
url                       | fix
hf://datasets/org/name    | download it
https://host/images.zip   | download it
s3://bucket/shards        | -dataset=tar [^;]*; add it
https://host/{0..9}.tar   | -dataset=tar [^;]*; add it
""")
def test_a_url(url, fix):
    with refused(f"^{re.escape(url)}: is a URL, [^\n]*{fix}"):
        read(url, "train", dataset="folder")


@each_row(TO_PREDICT)
def test_files_to_predict(path, content, part, tmp_path):
    file = write(tmp_path / path, content)
    assert re.search(part, line_of(unlabelled, str(file), Data()))


def test_folders_to_predict(tmp_path):
    (tmp_path / "folder/sub").mkdir(parents=True)
    (tmp_path / "folder/sub/a.txt").touch()
    assert "folder: contains no images" in line_of(unlabelled, str(tmp_path / "folder"), Data())
    assert "missing: no such file or folder" in line_of(unlabelled, str(tmp_path / "missing"), Data())
    for path, fix in (
        ("https://example.org/a.csv", "is a URL; download it"),
        (f"file://{tmp_path}/folder", f"is a URL; give its path, {tmp_path}/folder"),
        (f"{tmp_path}/folder/*.png", "is a pattern; give the folder"),
    ):
        assert fix in line_of(unlabelled, path, Data())


def test_class_folders_have_no_other_root_of_images(tmp_path):
    tree(tmp_path, "{cat,dog}/0.jpg")
    with refused(r"DATA\.IMAGE_ROOT.*-opts DATA\.IMAGE_ROOT=null"):
        read(tmp_path, "train", dataset="folder", image_root=str(tmp_path / "cat"))
    with refused(r"-dataset=folder -opts DATA\.IMAGE_ROOT=null"):
        read(tmp_path, "train", dataset="csv", image_root=str(tmp_path / "cat"))


def test_a_misspelt_path_is_named(tmp_path):
    (tmp_path / "shapes").mkdir()
    write(tmp_path / "labels.csv", "path,label\n")
    for dataset, name, known in (("folder", "shape", "shapes"), ("csv", "lables.csv", "labels.csv")):
        assert f"did you mean {known}?" in line_of(read, tmp_path / name, "train", dataset=dataset)
        assert f"did you mean {known}?" in line_of(unlabelled, str(tmp_path / name), Data())
    assert "did you mean" not in line_of(read, tmp_path / "shapes", "train", dataset="csv")
    write(tmp_path / "shapes/1.jpg", "")
    write(tmp_path / "train_list.txt", "shapes/1.jpg 0\n")
    with refused(r"val_list.txt: cannot be read \([^)]+\); check"):  # it is not train_list.txt
        read(tmp_path, dataset="imagenet2012")


@mark.parametrize("dataset", [name for name in DATA_SETS if name not in ("digits", "fake") and "/" not in name])
def test_a_missing_folder(dataset, tmp_path):
    with refused(f"{tmp_path}/gone"):
        read(tmp_path / "gone", "train", dataset=dataset)
