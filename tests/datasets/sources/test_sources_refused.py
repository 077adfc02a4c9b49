"""Files and folders that no source reads: the error is one line that names the file, the problem or the key."""

import pytest
from conftest import refused
from source_helpers import options, write_image

from configs.schema import Data
from configs.schema.data import DATA_SETS
from datasets.reading import read_samples, unlabelled
from datasets.recognition import recognize_dataset

TABLE = "image_path,target\n"
IMAGE = None  # in place of the content of a file
FOLDERS = {"cat/0.jpg": IMAGE, "dog/0.jpg": IMAGE}
CASES = {  # DATA.DATASET (None: images to predict), files, the path that is given, a part of the error
    "no class folders": ("folder", {}, "", ": contains no folders"),
    "classes without images": ("folder", {"train/a/x.txt": "", "train/b/x.txt": ""}, "", "train/a: contains no images"),
    "one image per class": ("folder", {f"train/{name}": IMAGE for name in FOLDERS}, "", ": .* too few"),
    "another name of ImageNet": ("imagnet", {}, "", "known: imagenet2012, "),
    "a lost table": ("csv", FOLDERS, "", "train.csv: cannot be read .*DATA.DATASET"),
    "no rows": ("csv", {"train.csv": TABLE}, "", "train.csv: .*lists no images"),
    "no label": ("csv", {"train.csv": f"{TABLE}b.jpg,\n"}, "", r"train.csv:2: .*DATA.MULTI_LABEL=true"),
    "a name among numbers": ("csv", {"train.csv": f"{TABLE}a.jpg,0\nb.jpg,cat\n"}, "", "train.csv:3: .*'cat'"),
    "several labels": ("csv", {"train.csv": f'{TABLE}a.jpg,cat\nb.jpg,"[0, 3]"\n'}, "", r"train.csv:3: .*'\[0, 3\]'"),
    "several choices": (
        "csv",
        {"train.csv": f'{TABLE}a.jpg,cat\nb.jpg,"{{""choices"":[""cat"",""dog""]}}"\n'},
        "",
        r"train.csv:1: .*DATA.COLUMNS",
    ),
    "a broken number": ("csv", {"train.csv": f"{TABLE}a.jpg,0\nb.jpg,0.5\n"}, "", "train.csv:3: .*0.5"),
    "an id of two images": (
        "csv", {"train.csv": f"{TABLE}a,x\n", "a.png": IMAGE, "a.jpg": IMAGE}, "", "train.csv:2: 'a' is not a file",
    ),
    "a workbook": ("csv", {"x.csv": "PK\3\4" + "\0" * 99}, "x.csv", "x.csv: .*CSV"),
    "a Git LFS pointer": ("csv", {"x.csv": "version https://git-lfs\n"}, "x.csv", "x.csv:1: "),
    "columns of one name": ("csv", {"x.csv": "file,label,label\n1.png,a,b\n"}, "x.csv", "x.csv:1: .*DATA.COLUMNS"),
    **{f"a file {name}": ("imagenet2012", {name: "PK"}, name, "is a file") for name in ("a.xlsx", "a.json")},
    "a URL": ("folder", {}, "hf://datasets/org/name", "hf://datasets/org/name: is a URL"),
    "an archive": ("folder", {"a.zip": "PK"}, "a.zip", "a.zip: is an archive"),
    "no images to predict": (None, {}, "missing", "missing: no such file or folder"),
    "an empty list": (None, {"empty.txt": "\n\n"}, "empty.txt", "empty.txt: lists no images"),
    "no column of paths": (None, {"no.csv": "a,b\nx.jpg,1\n"}, "no.csv", "no.csv:1: .*DATA.COLUMNS"),
    "a row without a path": (None, {"x.csv": "id,image_path\n1,a.jpg\n2,\n"}, "x.csv", "x.csv:3: '' is not a path"),
    "UTF-16": (None, {"x.txt": "a.jpg".encode("utf-16-le")}, "x.txt", r"x.txt:1: 'a\\x00\.\\x00"),
    "a folder without images": (None, {"folder/sub/a.txt": ""}, "folder", "folder: contains no images"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refusals(case, tmp_path, cpu):
    dataset, files, path, part = CASES[case]
    for name, content in files.items():
        write_image(tmp_path / name)
        if content is not IMAGE:
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    data = options(path if "://" in path else tmp_path / path, dataset=dataset or "folder")
    with refused(part) as error:
        if dataset:
            read_samples(recognize_dataset(data, cpu), None, cpu, "train")
        unlabelled(data.data_path, Data())
    assert dataset or "\n" not in str(error.value)


@pytest.mark.parametrize("dataset", [name for name in DATA_SETS if name not in ("digits", "fake") and "/" not in name])
def test_a_missing_folder(dataset, tmp_path, cpu):
    gone = options(tmp_path / "gone", dataset=dataset)
    with refused(f"{tmp_path}/gone"):
        read_samples(gone, None, cpu, "train")
