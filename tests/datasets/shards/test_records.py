"""Samples of a shard: the same as WebDataset's, with the labels of its files."""

import json

import pytest
import webdataset
from tar_files import numbered, tar_of

from datasets.shards.indexing.archive import DamagedShard
from datasets.shards.indexing.records import Record, Remarks, read_records
from utils.errors import UserError


def records_of(files, label_key: str = "") -> tuple[list[Record], Remarks]:
    data = tar_of(files)
    return read_records([data[:700], data[700:]], "a.tar", len(data), label_key)


def labels_of(files, label_key: str = "") -> dict[str, object]:
    return {record.name: record.label for record in records_of(files, label_key)[0]}


def error_of(files, label_key: str = "") -> str:
    with pytest.raises(DamagedShard) as error:
        records_of(files, label_key)
    assert "\n" not in str(error.value)
    return str(error.value)


def by_webdataset(data: bytes, tmp_path) -> list[dict]:
    path = tmp_path / "shard.tar"
    path.write_bytes(data)
    stream = webdataset.tariterators.tarfile_samples([{"url": str(path)}], handler=webdataset.reraise_exception)
    return list(stream)


def test_keys_and_extensions_are_those_of_webdataset(tmp_path):
    files = {
        "./a.b/c.JPG": b"1", "./a.b/c.cls": b"1", "x.seg.png": b"2", "x.png": b"3", "y.JPEG": b"4", "d.e/z.webp": b"5",
        "no_extension": b"6", "__meta__": b"7", ".hidden.jpg": b"8", "._x.jpg": b"9",
    }  # fmt: skip
    images = ("jpg", "jpeg", "png", "webp")
    expected = []
    for sample in by_webdataset(tar_of(files), tmp_path):
        content = [sample[extension] for extension in images if extension in sample]
        if content and not sample["__key__"].endswith("/"):
            expected.append((sample["__key__"], content[0]))
    data = tar_of(files)
    found = [
        (record.name.rpartition(".")[0], data[record.offset :][: record.length])
        for record in read_records([data], "a", len(data))[0]
    ]
    assert found == expected
    assert [key for key, _ in found] == ["./a.b/c", "x", "y", "d.e/z"]


@pytest.mark.parametrize(
    ("files", "label"),
    [
        ({"cat/a.jpg": b"", "cat/a.cls": b" 3\n", "cat/a.json": b'{"label": 4}'}, 3),
        ({"cat/a.jpg": b"", "cat/a.json": b'{"other": 1, "cls": 5, "target": 6}'}, 5),
        ({"a.json": b'{"label": true, "class": 2.0, "class_id": 3}', "a.jpg": b""}, 2),
        ({"a.jpg": b"", "a.json": b'{"label": null, "class_name": "dog"}'}, "dog"),
        ({"a.jpg": b"", "a.json": b"7"}, 7),
        ({"a.jpg": b"", "a.json": b'"cat"'}, "cat"),
        ({"train/cat/a.jpg": b"", "train/cat/a.json": b'{"caption": "x"}'}, "cat"),
        ({"./cat/a.jpg": b""}, "cat"),
        ({"./a.jpg": b""}, None),
        ({"a.jpg": b"", "a.txt": b"5"}, None),
        ({"caf\udce9/a.jpg": b""}, "caf\udce9"),
    ],
)
def test_the_label_is_that_of_the_first_source(files, label):
    assert list(labels_of(files).values()) == [label]


def test_a_label_key_selects_the_samples_as_timm_does():
    files = {}
    for number, label in enumerate((4, -1, "dog")):
        files |= {f"{number}.jpg": b"", f"{number}.cls": b"1", f"{number}.json": json.dumps({"alt": label}).encode()}
    records, remarks = records_of(files, "alt")
    assert [(record.name, record.label) for record in records] == [("0.jpg", 4), ("2.jpg", "dog")]
    assert remarks.notes() == ["1 samples are left out: their label 'alt' is -1, such as '1.jpg'"]
    assert ".json has no label 'other'" in error_of(files, "other")
    assert ".json has no label 'alt'" in error_of({"a.jpg": b"", "a.cls": b"1"}, "alt")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("cls", b"-1", "'-1' is not a whole number from 0 to 999999"),
        ("cls", b"1000000", "is not a whole number"),
        ("cls", b"cat", "'cat' is not a whole number"),
        ("cls", "٣".encode(), "is not a whole number"),
        ("cls", b"1" + b" " * 200, "is not a whole number"),
        ("cls", b"", "'' is not a whole number"),
        ("json", b'{"label": -2}', "-2 is not a whole number"),
        ("json", b'{"label": 1000000}', "1000000 is not a whole number"),
        ("json", b"9" * 5000, ".json is not valid JSON"),
        ("json", b"{", ".json is not valid JSON"),
        ("json", b"\xff\xfe\x00", ".json is not valid JSON"),
        ("json", b"[" * 100_000, ".json is not valid JSON"),
        ("json", b'"' + b"a" * 256 + b'"', "is not the name of a class"),
        ("json", b'"\\ud800"', "is not the name of a class"),
        ("json", b" " * (1 << 20) + b"1", "more than 1,048,576 bytes"),
    ],
)
def test_invalid_labels_are_named(name, content, problem):
    message = error_of({"b/a.jpg": b"", f"b/a.{name}": content})
    assert message.startswith(f"a.tar: sample 'b/a': .{name}") and problem in message


def test_samples_without_an_image_are_counted():
    files = {"a.txt": b"", "b.jpg": b"", "c.cls": b"1", "README": b"", "n.2020.jpg": b"", "d.jpg": b"", "d.png": b""}
    records, remarks = records_of(files)
    assert [record.name for record in records] == ["b.jpg", "d.jpg"]
    assert remarks.notes() == [
        "3 samples have no image (.jpg, .jpeg, .png, .webp, .bmp, .gif, .tif, .tiff, .ppm, .pgm), such as 'a.txt'",
        "1 samples have several images, of which one is used, such as 'd.jpg'",
    ]


def test_files_of_a_sample_must_follow_one_another():
    assert "sample 'a' do not follow one another" in error_of({"a.jpg": b"", "b.jpg": b"", "a.cls": b"1"})
    assert "member 'a.JPG' occurs twice" in error_of({"a.jpg": b"", "a.JPG": b""})
    assert "do not follow one another" in error_of([("a.jpg", b""), ("b.jpg", b""), ("a.jpg", b"")])


def test_a_shard_of_another_size_is_named():
    data = tar_of(numbered(2))
    with pytest.raises(UserError, match=r"has 10,240 bytes, not 10,241; start again"):
        read_records([data], "a.tar", len(data) + 1)
