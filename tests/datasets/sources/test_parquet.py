"""Parquet files with images, as Hugging Face's hub has them."""

import json
import pickle
import random
import re
from ast import literal_eval
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conftest import each_row, line_of, refused, told
from PIL import Image
from pytest import fixture, mark, skip
from source_helpers import answers_to, read, read_checked

from configs.schema import Data
from datasets.reading import unlabelled
from datasets.sources.checks import check_files
from datasets.sources.listed.parquet import ParquetImages
from tests.datasets.photo import encode

NAMES = ["zebra", "ant", "mole"]


def encoded(number):
    """An image whose brightness is its number."""
    return encode(Image.new("L", (6, 4), number), "PNG")


def number_of(image):
    return int(image.pixels[0, 0, 0])


def write(file, numbers, names=NAMES, images=None, **columns):
    """A file with row groups of 4 rows. names: of the classes in the column `label`; None: it has none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    metadata = {}
    if names:
        columns["label"] = [number % 3 for number in numbers]
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        metadata["huggingface"] = json.dumps({"info": {"features": features}})
    images = images or [{"bytes": encoded(number), "path": f"{number}.png"} for number in numbers]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = [("image", kind), *((name, pa.array(values).type) for name, values in columns.items())]
    pq.write_table(pa.table({"image": images} | columns, pa.schema(schema, metadata)), file, row_group_size=4)


@fixture
def hub(tmp_path):
    """Two files of train and one of each other split, beside a README."""
    for number in range(2):
        write(tmp_path / f"data/train-0000{number}-of-00002.parquet", range(15 * number, 15 * number + 15))
    write(tmp_path / "data/validation-00000-of-00001.parquet", range(30, 36))
    write(tmp_path / "data/test-00000-of-00001.parquet", range(36, 39))
    (tmp_path / "README.md").touch()
    return tmp_path


def classes_of(samples):
    """The name of the class of each image, by its number."""
    numbers = [number_of(samples.open(index, 1)) for index in range(len(samples))]
    return dict(zip(numbers, (samples.class_names[label] for label in samples.targets), strict=True))


@mark.parametrize("dataset", ["imagenet2012", "folder"])
def test_splits_classes_and_images(hub, dataset):
    splits = read_checked(hub, dataset=dataset)
    assert [len(samples) for samples in splits] == [30, 6, 3]
    for samples, start in zip(splits, (0, 30, 36), strict=True):
        assert isinstance(samples, ParquetImages)
        assert samples.class_names == NAMES
        indices = random.Random(0).sample(range(len(samples)), len(samples))
        for worker in (samples, pickle.loads(pickle.dumps(samples))):
            images = [number_of(image) for image in worker.open_all(indices, 3)]
            assert images == [start + index for index in indices]
        assert samples.targets.tolist() == [(start + index) % 3 for index in range(len(samples))]
    train = splits[0]
    assert train.name(16) == str(hub / "data/train-00001-of-00002.parquet:1")
    assert train.windows.ends.tolist() == [4, 8, 12, 15, 19, 23, 27, 30]
    assert train.windows.size == 16
    assert sorted(train.windows.order(0, 1).tolist()) == list(range(30))
    assert len(pickle.dumps(train)) < 5000


def test_files_without_a_split_beside_splits_are_left_out(hub):
    write(hub / "data/unlabeled-00000-of-00001.parquet", range(50, 53))
    assert [len(samples) for samples in read(hub, dataset="parquet")] == [30, 6, 3]


def test_each_file_has_its_own_numbers_of_classes(tmp_path):
    write(tmp_path / "train-00000-of-00002.parquet", range(15))
    write(tmp_path / "train-00001-of-00002.parquet", range(15, 30), names=NAMES[::-1])
    write(tmp_path / "test-00000-of-00001.parquet", range(30, 33), names=NAMES[1:] + NAMES[:1])
    train, _, test = read(tmp_path)
    order = [NAMES, NAMES[::-1], NAMES[1:] + NAMES[:1]]
    of_both = classes_of(train) | classes_of(test)
    assert len(of_both) == len(train) + 3
    assert all(of_both[n] == order[n // 15][n % 3] for n in of_both)


@mark.parametrize("labels", [sorted(NAMES), [0, 5, 10], [Decimal(0), Decimal(5), Decimal(10)]])
def test_files_without_splits_are_split(tmp_path, labels):
    write(tmp_path / "0.parquet", range(30), None, label=labels * 10)
    train, val = read(tmp_path)
    assert len(train) == 27
    assert len(val) == 3
    assert train.class_names == list(map(str, labels))
    assert classes_of(train) | classes_of(val) == dict(enumerate(map(str, labels * 10)))
    assert read(tmp_path / "0.parquet")[0].targets.tolist() == train.targets.tolist()


@mark.parametrize("place", ["split=train/label={}", "class={}/site=1"])
def test_folders_of_hive(tmp_path, place):
    """polars' and duckdb's PARTITION_BY: label, class and split decide; another key is no label."""
    for name, numbers in {"Cat": range(10), "a%20b": range(10, 20)}.items():
        write(tmp_path / place.format(name) / "0.parquet", numbers, None)
    if "split" in place:
        write(tmp_path / "split=test/label=Cat/0.parquet", range(20, 24), None)
    train, val, *test = read(tmp_path)
    assert train.class_names == ["Cat", "a b"]
    of_all = classes_of(train) | classes_of(val)
    assert of_all == {number: ("Cat", "a b")[number // 10] for number in range(20)}
    assert [classes_of(samples) for samples in test] == [dict.fromkeys(range(20, 24), "Cat")] * ("split" in place)
    assert bool(told(train.notes, "site=")) == ("site" in place)
    null = place.format("__HIVE_DEFAULT_PARTITION__")
    write(tmp_path / null / "0.parquet", range(30, 33), None)
    with refused(rf"{null}/0\.parquet:0'?: has no label"):
        read(tmp_path)


@mark.parametrize(
    "of_images, of_labels",
    [
        (pa.binary(), pa.string()), (pa.large_binary(), pa.large_string()), (pa.binary(len(encoded(3))), pa.string()),
        (pa.dictionary(pa.int32(), pa.binary()), pa.string()), (pa.binary_view(), pa.string_view()),
    ],
)  # fmt: skip
def test_types_of_images_and_labels(tmp_path, of_images, of_labels):
    try:
        images = pa.array([encoded(3), encoded(5)] * 4, pa.binary()).cast(of_images)
        labels = pa.array(["a", "b"] * 4).cast(of_labels)
        pq.write_table(pa.table({"image": images, "label": labels}), tmp_path / "x.parquet")
    except pa.ArrowNotImplementedError:
        skip("this pyarrow writes no views")
    train, val = read(tmp_path)
    assert classes_of(train) | classes_of(val) == {3: "a", 5: "b"}


# The value in the columns of images and of labels; a part of the error
OF_OTHER_TYPES = r"""
image | label | named
[1, 2] | "a" | image'? \(list<
[{"bytes": b"1"}] | "a" | image'? \(list<
{"path": "x.png"} | "a" | image'? \(struct<path:
{"image": {"bytes": b"1", "path": "x"}} | "a" | image'? \(struct<image:
b"1" | [1] | label'? \(list<
b"1" | {"a": 1} | label'? \(struct<
"""


@each_row(OF_OTHER_TYPES)
@mark.parametrize("given", [None, {"path": "image", "label": "label"}])
def test_a_column_of_another_type_is_named_with_it(tmp_path, image, label, named, given):
    columns = {"image": [literal_eval(image)] * 4, "label": [literal_eval(label)] * 4}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with refused(named):
        read(tmp_path, columns=given)


def test_names_in_a_readme_are_not_read(tmp_path):
    write(tmp_path / "0.parquet", range(30), None, label=[number % 3 for number in range(30)])
    (tmp_path / "README.md").write_text("---\nclass_label:\n  names: {'0': zebra}\n---\n")
    train, _ = read(tmp_path)
    assert told(train.notes, "names of classes", "screen")


def test_images_to_predict(hub):
    file = hub / "data/test-00000-of-00001.parquet"
    samples = unlabelled(str(file), Data())
    assert [number_of(samples.open(index, 1)) for index in range(3)] == [36, 37, 38]
    assert samples.listed_name(2) == f"{file}:2"
    with refused("-predict"):
        unlabelled(str(hub), Data())


def test_unreadable_rows(tmp_path):
    good = [{"bytes": encoded(number), "path": None} for number in range(12)]
    good[3] = {"bytes": b"\x89PNG", "path": "a"}
    good[5] = None
    good[7] = {"bytes": None, "path": "x.png"}
    write(tmp_path / "0.parquet", range(12), images=good)
    with refused(r"3 images cannot be read"):
        read_checked(tmp_path)
    skipped = read_checked(tmp_path, on_bad_image="skip")
    assert told(skipped[0].notes + skipped[1].notes, "cannot be read and are skipped")
    file = tmp_path / "0.parquet"
    content = file.read_bytes()
    samples = read(tmp_path)[0]
    row = int(samples.name(0).rpartition(":")[2])
    at = content.index(encoded(row)[20:])
    file.write_bytes(content[:at] + bytes(40) + content[at + 40 :])
    bad, _ = check_files([samples], 3)
    assert bad[0].path == samples.name(0)
    assert "0.parquet:" in samples.name(0)


# Files; the content of the first one; a part of the error
REFUSED = r"""
names | content | part
0.parquet | version https://git-lfs.github.com/spec/v1\noid sha256:0\n | /0.parquet
0.parquet | PAR1 cut off | /0.parquet
train-00000-of-00003.parquet | | /train-00000-of-00003.parquet
a-train-00000-of-00001.parquet b-train-00000-of-00001.parquet | | /a-train-
train/0.parquet 1.parquet | | /1.parquet
README.md x/a.parquet x/b.parquet | ---\ndata_files:\n- {split: test, path: x/b.parquet}\n | /README.md
a/train-00000-of-00001.parquet b/train-00000-of-00001.parquet | | -data_path=\S+/a or -d\S+/b
"""


@each_row(REFUSED)
def test_what_is_refused(tmp_path, names, content, part):
    files = [tmp_path / name for name in names.split()]
    for file in files:
        write(file, range(6))
    if content:
        files[0].write_text(content.replace("\\n", "\n"))
    assert re.search(part, line_of(read, tmp_path))


def test_large_row_groups_are_shuffled_one_by_one(tmp_path, monkeypatch):
    write(tmp_path / "0.parquet", range(30))
    monkeypatch.setattr("datasets.sources.listed.parquet._CACHE_BYTES", 10)
    train, _ = read(tmp_path)
    assert train.windows.size == 1
    assert [number_of(image) for image in train.open_all([20, 0, 9], 1)]
    assert len(train._cache) == 1
    assert np.array_equal(np.sort(train.windows.order(1, 0)), np.arange(len(train)))


@mark.parametrize("names, path", [("mask image", "image"), ("thumbnail photo", "photo"), ("left right", "")])
def test_the_column_of_images_among_others_is_known_by_its_name_or_each_is_advised(names, path, tmp_path):
    columns = {"label": [*"ab"] * 10}
    for place, name in enumerate(names.split()):
        columns[name] = [{"bytes": encoded(10 * n + place)} for n in range(20)]
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    if path:
        train, _ = read(tmp_path)
        assert number_of(train.open(0, 1)) % 10 == names.split().index(path)
        return
    advised = answers_to(tmp_path)
    assert [one.columns["path"] for one in advised] == names.split()
    for place, one in enumerate(advised):
        assert number_of(read(tmp_path, columns=one.columns)[0].open(0, 1)) % 10 == place
