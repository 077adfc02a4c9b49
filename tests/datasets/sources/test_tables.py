"""Tables as people download them: columns, splits, encodings, numbers, ids, near paths."""

import csv
import json
import re
import shlex
import subprocess

import pandas
import pytest
from source_helpers import names_of, options, write_classes, write_image

from configs.command_line import parse_command_line
from datasets.registry import has_test_split, read_samples, recognize_dataset, unlabelled
from datasets.sources.checks import check_images
from datasets.sources.split import RunSplit, Splitter, as_read_before
from utils.errors import UserError

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
        frame.to_csv(tmp_path / name, index=False, encoding=encoding, sep=separator)
        return tmp_path / name

    return write


def read(path, cpu, num_classes=None, class_names=None, known=None, is_new=True, checked=False, **values):
    """The splits of the data set that is recognized: (samples, ...)."""
    data = recognize_dataset(options(path, batch_size=1, **values), cpu)
    data = data if is_new else as_read_before(data, known or RunSplit(0, 0.1, ()))
    names = ["train", "val", *["test"] * has_test_split(data, cpu)[0]]
    splitter = Splitter(data, known)
    splits = read_samples(data, num_classes, cpu, *names, class_names=class_names, splitter=splitter, is_new=is_new)
    if checked:
        check_images(splits, data, cpu)
    return splits


def labels_of(samples):
    return {name: samples.class_names[label] for name, label in zip(names_of(samples), samples.targets, strict=True)}


@pytest.mark.parametrize(
    ("columns", "given"),
    [
        ({"path": FILES, "label": LABELS}, None),
        ({"file_space_name": FILES, "id": range(30), "class_id": range(30), "Class": LABELS}, None),
        ({"image_path": FILES, "target": LABELS, "path": range(30), "label": range(30)}, None),
        ({"Unnamed: 0": range(30), "file_name": FILES, "finding": LABELS}, None),
        ({"x": FILES, "y": LABELS}, {"path": "x", "label": "y"}),
    ],
)
def test_columns_are_found_by_their_names(table, columns, given, cpu):
    train, val = read(table(files=FILES, **columns), cpu, columns=given)
    assert {**labels_of(train), **labels_of(val)} == dict(zip(FILES, LABELS, strict=True))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"filename": FILES, "label": LABELS, "class": range(30)}, "'label' is 'label' or 'class'"),
        ({"a b": range(30), "c": FILES, "d": LABELS}, "'path' is not clear"),
        ({"file": FILES, "cat": [0, 1] * 15, "dog": [1, 0] * 15, "age": range(30)}, "'label' is not clear"),
        ({"file": FILES, "label": LABELS, "split": SPLITS, "set": SPLITS}, "is 'split' or 'set' the column of splits"),
        ({"file": FILES, "label": LABELS, "partition": [0, 1, 2] * 10}, "is 'partition' the column of splits"),
        ({"file": FILES, "label": LABELS, "Split Name": ["trn", "tst"] * 15}, "is 'Split Name' the column of splits"),
    ],
)
def test_the_advice_about_unclear_columns_works(table, columns, problem, cpu):
    file = table(files=FILES, **columns)
    with pytest.raises(UserError, match=re.escape(problem)) as error:
        read(file, cpu)
    message = str(error.value)
    assert "\n" not in message and len(message) < 400
    for advice in set(re.findall(r"-opts ('DATA.COLUMNS=[^']*')", message)):
        if "NAME" in advice:
            continue
        data = parse_command_line([f"-data_path={file}", "-opts", *shlex.split(advice)]).config.data
        assert read(file, cpu, columns=data.columns)[0].class_names == ["cat", "dog"]


@pytest.mark.parametrize(
    ("columns", "given", "counts"),
    [
        ({"split": SPLITS}, None, [18, 6, 6]),
        ({"data_space_set": [name.upper() for name in SPLITS]}, None, [18, 6, 6]),
        ({"is_valid": [name == "val" for name in SPLITS]}, None, [24, 6]),
        ({"val": [0.1, 0.2, 0.3] * 10, "stage": [1, 2, 3] * 10}, None, [26, 4]),
        ({"is_train": [int(name == "train") for name in SPLITS]}, None, [18, 12]),
        ({"zzz": SPLITS}, None, [18, 6, 6]),
        ({"zzz": SPLITS, "set": SPLITS[::-1]}, {"split": "zzz"}, [18, 6, 6]),
        ({"split": SPLITS}, {"split": None}, [26, 4]),
    ],
)
def test_rows_of_test_are_never_trained_on(table, columns, given, counts, cpu):
    splits = read(table(files=FILES, file=FILES, label=LABELS, **columns), cpu, columns=given)
    assert list(map(len, splits)) == counts
    if counts == [18, 6, 6]:
        assert [names_of(samples) for samples in splits] == [FILES[:18], FILES[18:24], FILES[24:]]


def test_the_folders_of_the_paths_are_splits(table, cpu):
    paths = [f"{split}/{file}" for split, file in zip(SPLITS, FILES, strict=True)]
    splits = read(table(files=paths, file=paths, label=LABELS), cpu)
    assert [names_of(samples) for samples in splits] == [paths[:18], paths[18:24], paths[24:]]


def test_a_run_that_exists_keeps_its_split_and_encoding(table, cpu):
    file = table(files=FILES, file=FILES, label=["Gräser", "dog"] * 15, split=SPLITS, encoding="cp1252")
    with pytest.raises(UserError, match=r"not text in UTF-8.*DATA.ENCODING=NAME"):
        read(file, cpu)
    assert read(file, cpu, encoding="cp1252")[0].class_names == ["Gräser", "dog"]
    assert list(map(len, read(file, cpu, is_new=False))) == [18, 6, 6]
    held_out = RunSplit(0, 0.1, ("1.png", "2.png"))
    train, val = read(file, cpu, known=held_out, is_new=False)
    assert (len(train), names_of(val), train.class_names) == (28, ["1.png", "2.png"], ["Gräser", "dog"])


@pytest.mark.parametrize("encoding", ["gbk", "utf-16-le"])
def test_the_encoding_is_never_guessed(table, encoding, cpu):
    file = table(files=FILES, file=FILES, label=["猫", "狗"] * 15, encoding=encoding)
    with pytest.raises(UserError, match="name its encoding"):
        read(file, cpu)
    assert read(file, cpu, encoding=encoding)[0].class_names == sorted(["狗", "猫"])


def test_columns_of_zeros_and_ones(table, tmp_path, cpu):
    one_hot = pandas.get_dummies(pandas.Series(LABELS))
    train, val = read(table("_classes.csv", FILES, filename=FILES, **one_hot), cpu)
    assert {**labels_of(train), **labels_of(val)} == dict(zip(FILES, LABELS, strict=True))
    assert len(read(tmp_path, cpu)[0]) == len(train)  # the folder of Roboflow's table
    several = {"filename": FILES, "b": [1, 0] * 15, "a": [1.0] * 30, "c": [0] * 30}
    file = table(**several)
    with pytest.raises(UserError, match=r"all.csv:2: target 'b \| a' has several labels.*DATA.MULTI_LABEL=true"):
        read(file, cpu)
    train, _ = read(file, cpu, dataset="csv", multi_label=True)
    assert train.class_names == ["b", "a", "c"]
    assert train.targets[:, 1:].tolist() == [[1, 0]] * len(train) and 0 < train.targets[:, 0].sum() < len(train)


@pytest.mark.parametrize(
    ("values", "names", "labels"),
    [
        ([5, 1001, 40000], ["5", "1001", "40000"], [0, 1, 2]),
        ([-1, 1, 2435099], ["-1", "1", "2435099"], [0, 1, 2]),
        ([1.0, 3.0, 10.0], ["1", "3", "10"], [0, 1, 2]),
        ([2, 0, 1], None, [2, 0, 1]),
    ],
)
def test_numbers_with_gaps_are_names(table, values, names, labels, cpu):
    file = table(files=FILES, file=FILES, label=values * 10)
    train, _ = read(file, cpu)
    assert train.has_class_names == (names is not None) and (names is None or train.class_names == names)
    assert train.targets.tolist() == [labels[int(name.removesuffix(".png")) % 3] for name in names_of(train)]
    if names:  # with a checkpoint that has these names
        again, _ = read(file, cpu, class_names=names, is_new=False)
        assert (again.class_names, again.targets.tolist()) == (names, train.targets.tolist())
    if names and min(values) >= 0:  # labels of a run without names, or of a model
        for given in ({"is_new": False}, {"num_classes": 40001}):
            kept, _ = read(file, cpu, **given)
            expected = [int(values[int(name.removesuffix(".png")) % 3]) for name in names_of(kept)]
            assert not kept.has_class_names and kept.targets.tolist() == expected


@pytest.mark.parametrize("kind", ["metadata.csv", "metadata.jsonl", "_classes.csv", "root"])
def test_tables_beside_the_images_of_splits(table, tmp_path, kind, cpu):
    rows = {}
    for split, count in (("train", 6), ("validation", 4), ("test", 2)):
        names, labels = [f"{number}.png" for number in range(count)], (["cat", "dog"] * 3)[:count]
        files = [f"{split}/{name}" for name in names]
        rows |= dict(zip(files, labels, strict=True))
        columns = pandas.get_dummies(labels) if kind == "_classes.csv" else {"label": labels, "size": range(count)}
        written = table(f"{split}/{kind}", files, file_name=names, **columns)
        if kind == "metadata.jsonl":
            pandas.read_csv(written).to_json(written, orient="records", lines=True)
        elif kind == "root":
            written.unlink()
    if kind == "root":
        table("metadata.csv", file_name=list(rows), label=list(rows.values()))
    for dataset in ("imagenet2012", "folder"):
        splits = read(tmp_path, cpu, dataset=dataset)
        assert [len(samples) for samples in splits] == [6, 4, 2]
        for samples in splits:
            assert samples.class_names == ["cat", "dog"]
            assert samples.targets.tolist() == [int(name[-5]) % 2 for name in names_of(samples)]
            assert samples.open(1, 3).size == (2, 2)
    write_classes(tmp_path / "train", a=1, b=1)
    write_classes(tmp_path / "validation", a=1, b=1)
    assert recognize_dataset(options(tmp_path), cpu).dataset == "folder"


def test_tables_beside_the_folders_of_splits(table, tmp_path, cpu):
    """train.csv beside train/, as Kaggle's, with ids or names of files, and with groups of images."""
    groups = [f"patient{number // 2}" for number in range(12)]
    table("train.csv", [f"train/{number}.png" for number in range(12)], id=range(12), label=LABELS[:12], who=groups)
    train, val = read(tmp_path, cpu, groups="who")
    held_out = {groups[int(name.removesuffix(".png"))] for name in names_of(val)}
    assert len(train) + len(val) == 12 and len(val) == 2 * len(held_out)
    table("valid.csv", [f"valid/{number}.png" for number in range(4)], id=FILES[:4], label=LABELS[:4])
    notes = [note.text for samples in read(tmp_path, cpu, checked=True) for note in samples.notes]
    for split in ("train", "valid"):
        assert f"{tmp_path}/{split}.csv: the images are in {tmp_path}/{split}" in notes
    write_image(tmp_path / "masks" / "0.png")
    write_image(tmp_path / "0.png", size=(3, 3))
    train, val = read(tmp_path, cpu)
    assert (train.open(0, 3).size, val.open(0, 3).size) == ((3, 3), (3, 3))


@pytest.mark.parametrize(
    ("files", "values", "dataset"),
    [
        (["train.csv", "train/0.png", "masks/0.png"], {}, "csv"),
        (["train.csv", "images/0.png", "test/1.png"], {"image_root": "images"}, "csv"),
        (["train.csv", "train_images/0.png", "test_images/1.png", "train_tfrecords/0.tfrec"], {}, "csv"),
        (["train.csv", "train_images/a/0.png", "train_images/b/0.png", "test_images/1.png"], {}, "folder"),
        (["train.csv", "images/a/0.png", "images/b/0.png"], {}, "folder"),
        (["train.csv", "train_station/0.png", "car/0.png"], {}, "folder"),
        (["train.csv", "test_positive/0.png", "test_negative/0.png"], {}, "folder"),
        (["train.csv", "train/a/0.png", "train/b/0.png", "test/0.png"], {}, "folder"),
        (["train.csv", "0.png"], {"class_folders": True}, "folder"),
        (["val.csv", "a/0.png"], {}, "folder"),
        (["metadata.csv", "car/0.png", "train/0.png"], {}, "folder"),
        (["train.csv", "train_list.txt", "0.png"], {}, "imagenet2012"),
        (["train.csv", "data/train-00000-of-00001.parquet"], {}, "parquet"),
    ],
)
def test_a_folder_with_train_csv_is_a_table_unless_it_has_class_folders(tmp_path, files, values, dataset, cpu):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        write_image(tmp_path / file) if file.endswith(".png") else (tmp_path / file).touch()
    assert recognize_dataset(options(tmp_path, dataset="imagenet2012", **values), cpu).dataset == dataset


@pytest.mark.parametrize(
    ("table_name", "folders", "expected"),
    [
        ("train.csv", ["train_images", "train_masks", "test_images"], "train_images"),
        ("test.csv", ["train_images", "test_images"], "test_images"),
        ("Training_set.csv", ["train", "test"], "train"),
        ("labels.csv", ["train"], "train"),
        ("labels.csv", ["anything"], "anything"),
        ("labels.csv", ["train", "other"], None),
        ("labels.csv", ["test"], None),
        ("train.csv", ["train_masks"], None),
        ("val.csv", ["train"], None),
    ],
)
def test_the_folder_of_images_is_found_by_its_name_or_if_it_is_the_only_one(
    table, tmp_path, table_name, folders, expected, cpu
):
    """As in APTOS 2019, Plant Pathology 2020, Cassava, dog breeds; the same ids are in each folder."""
    write_image(tmp_path / "sample" / "other.png")
    files = [f"{folder}/{number}.png" for folder in folders for number in range(30)]
    file = table(table_name, files, id=range(30), label=LABELS)
    if expected is None:
        with pytest.raises(UserError, match=r"DATA\.IMAGE_ROOT"):
            read(file, cpu, checked=True)
        return
    for samples in read(file, cpu, checked=True):
        assert samples.listing.root == tmp_path / expected
    images = unlabelled(str(file), options(tmp_path), None)
    assert images.name(3) == str(tmp_path / expected / "3.png")


def test_images_beside_the_folder_of_the_table(table, tmp_path, cpu):
    """As of ISIC 2018, whose ids are in the columns of the classes."""
    files = [f"Task3_{split}_Input/{number}.png" for split in ("Training", "Test") for number in range(30)]
    columns = {"image": range(30), "MEL": [1.0, 0.0] * 15, "NV": [0.0, 1.0] * 15}
    train, _ = read(table("Task3_Training_GroundTruth/x_Training.csv", files, **columns), cpu, checked=True)
    assert train.listing.root == tmp_path / "Task3_Training_Input" and train.class_names == ["MEL", "NV"]


@pytest.mark.parametrize(
    ("labels", "has_test"), [([-1] * 4, False), ([0] * 4, True), ([0.0] * 20, False), ([*[0] * 19, 1], True)]
)
def test_labels_of_a_kaggle_test_are_placeholders_if_all_are_equal(table, tmp_path, labels, has_test, cpu):
    table("train.csv", FILES, file=FILES, label=[0, 1] * 15)
    table("test.csv", (names := [f"t{name}" for name in FILES[: len(labels)]]), file=names, label=labels)
    assert len(read(tmp_path, cpu, dataset="csv")) == 2 + has_test


def test_labels_in_lists_of_one_and_with_invisible_signs(table, tmp_path, cpu):
    table("images.csv", FILES, id=FILES, label=LABELS)
    rows = [{"file_name": name, "label": [label]} for name, label in zip(FILES, LABELS, strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    labels = [label + "\u200b" * (number % 3) for number, label in enumerate(LABELS)]
    for file in (tmp_path / "a.jsonl", table("b.csv", file=FILES, label=labels)):
        train, val = read(file, cpu)
        assert {**labels_of(train), **labels_of(val)} == dict(zip(FILES, LABELS, strict=True))


def test_missing_images_are_one_problem_and_broken_links_another(table, tmp_path, cpu):
    (tmp_path / "24.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(UserError) as error:
        read(table(files=FILES[:24], file=FILES, label=LABELS), cpu, checked=True)
    headline, *lines = str(error.value).split("\n  ")
    assert headline.startswith("6 images cannot be read") and len(lines) == 2
    assert sum("and 4 others" in line for line in lines) == 1 and sum("gone.png" in line for line in lines) == 1


@pytest.mark.parametrize("name", ["data.csv", "data.tsv", "DATA.CSV"])
def test_a_path_that_names_a_table_is_a_table(table, name, cpu):
    separator = "\t" if "tsv" in name else ";"
    file = table(name, FILES, file=FILES, label=LABELS, separator=separator)
    file.write_text(f"sep={separator}\n{file.read_text()}")
    assert len(read(file, cpu, dataset="folder")[0]) == 26


@pytest.mark.parametrize(("root", "trained"), [("test", None), (None, None), ("train", "train"), ("train", None)])
def test_ids_of_images_to_predict_keep_their_column(table, tmp_path, root, trained, cpu):
    """A table of ids: the images are in the given folder, or where they are found."""
    ids = ["0a", "1", "-2"]
    file = table("test.csv", [f"test/{name}.png" for name in ids] + ["train/1.png"], id=ids, width=range(3))
    root, trained = (str(tmp_path / name) if name else None for name in (root, trained))
    images = unlabelled(str(file), options(tmp_path, image_root=root), trained)
    assert images.column == "id" and [images.listed_name(index) for index in range(3)] == ids
    folder = "train" if root and root.endswith("train") and not trained else "test"
    ending = ".png" if folder == "test" else ""
    assert images.name(0) == str(tmp_path / folder / f"0a{ending}")
    with open(file, newline="") as lines:
        assert [row["id"] for row in csv.DictReader(lines)] == ids


@pytest.mark.parametrize(
    ("labels", "read_as"),
    [
        (["0", "A", "B"], ["0", "A", "B"]),
        (["1", "2", "B"], "label 'B' is not a class number"),
        (["['a']", "['a', 'b']", "['b']"], "has several labels"),
        (["a|b", "b|c", "a|c"], "has several labels"),
        (["a b", "a", "b"], ["a", "a b", "b"]),
        (['{"x": 1}', '{"x": 2}', '{"x": 3}'], "'label' is not clear"),
    ],
)
def test_labels_of_several_kinds(table, labels, read_as, cpu):
    """Their order in the table does not matter."""
    for turned in (labels, labels[::-1]):
        file = table(files=FILES, file=FILES, label=turned * 10)
        if isinstance(read_as, str):
            with pytest.raises(UserError, match=re.escape(read_as)):
                read(file, cpu)
        else:
            train, _ = read(file, cpu)
            assert train.class_names == read_as


def test_tables_with_other_names_and_empty_rows(table, tmp_path, cpu):
    for name, files in (("Train.csv", FILES[:20]), ("VALID.csv", FILES[20:])):
        table(name, files, file=files, label=LABELS[: len(files)])
        (tmp_path / name).write_text((tmp_path / name).read_text().replace("\n", "\n,\n\n"))
    assert list(map(len, read(tmp_path, cpu, dataset="csv"))) == [20, 10]


@pytest.mark.parametrize("names", ["id", "/data/upload/1/{}.png", "gs://bucket/{}.png"])
def test_images_in_several_folders_are_found_by_their_names(table, tmp_path, names, cpu):
    """As HAM10000's two parts, and the paths of Label Studio and Vertex AI; groups and splits follow."""
    files = [f"part_{1 + number % 2}/{number}.png" for number in range(30)]
    ids = [number if names == "id" else names.format(number) for number in range(30)]
    file = table("metadata.csv", files, id=ids, label=LABELS, lesion=[number // 2 for number in range(30)])
    train, val = read(file, cpu, checked=True, groups="lesion", columns={"path": "id"})
    found = {**labels_of(train), **labels_of(val)}
    assert found == dict(zip(files, LABELS, strict=True)) and not {*train.groups} & {*val.groups}
    assert unlabelled(str(file), options(tmp_path, columns={"path": "id"}), None).name(3) == f"{tmp_path}/{files[3]}"
    write_image(tmp_path / "part_2" / "0.png")
    with pytest.raises(UserError, match=r"DATA\.IMAGE_ROOT|is not inside"):
        read(file, cpu, checked=True, columns={"path": "id"})


def test_the_line_that_a_table_without_a_header_needs(tmp_path, cpu):
    (tmp_path / "x.csv").write_text("TRAIN,gs://b/0.jpg,cat\nTEST,gs://b/1.jpg,dog")
    with pytest.raises(UserError, match=r"x\.csv:1: has no header.*write this line above it: split,image_path,target$"):
        read(tmp_path / "x.csv", cpu)


def test_pixels_in_columns_are_refused_without_paths(table, cpu):
    pixels = {f"pixel{number}": range(30) for number in range(4)}
    with pytest.raises(UserError, match=r"pixels of the images .* -dataset=torchvision/MNIST"):
        read(table(digit=LABELS, **pixels), cpu)
    train, val = read(table(files=FILES, file=FILES, label=LABELS, **pixels), cpu)
    assert {**labels_of(train), **labels_of(val)} == dict(zip(FILES, LABELS, strict=True))


def test_pixels_in_a_text_are_torchvisions_fer2013(table, tmp_path, cpu):
    text = " ".join(["70"] * 2304)
    file = table("fer2013.csv", emotion=[0, 1] * 3, pixels=[text] * 6, Usage=["Training", "PublicTest"] * 3)
    with pytest.raises(UserError, match=r"-dataset=torchvision/FER2013 -data_path=") as error:
        read(file, cpu)
    subprocess.run(str(error.value).partition("columns; ")[2].partition(", then ")[0], shell=True, check=True)
    assert (tmp_path / "fer2013" / "fer2013.csv").is_file()
