"""Samples of a shard: the same as WebDataset's, with the labels of its files."""

import json

import pytest
import webdataset
from tar_files import numbered, tar_of

from datasets.shards.records import DamagedShard, Record, Remarks, read_records


def records_of(files, label_key: str = "") -> tuple[list[Record], Remarks]:
    data = tar_of(files)
    return read_records([data[:700], data[700:]], "a.tar", len(data), label_key)


def error_of(files, label_key: str = "") -> str:
    with pytest.raises(DamagedShard) as error:
        records_of(files, label_key)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_keys_and_extensions_are_those_of_webdataset(tmp_path):
    files = {
        "./a.b/c.JPG": b"1", "./a.b/c.cls": b"1", "x.seg.png": b"2", "x.png": b"3", "y.JPEG": b"4", "d.e/z.webp": b"5",
        "no_extension": b"6", "__meta__": b"7", ".hidden.jpg": b"8", "._x.jpg": b"9",
    }  # fmt: skip
    (tmp_path / "shard.tar").write_bytes(data := tar_of(files))
    source = [{"url": str(tmp_path / "shard.tar")}]
    expected = []
    for sample in webdataset.tariterators.tarfile_samples(source, handler=webdataset.reraise_exception):
        content = [sample[extension] for extension in ("jpg", "jpeg", "png", "webp") if extension in sample]
        if content and not sample["__key__"].endswith("/"):
            expected.append((sample["__key__"], content[0]))
    records, _ = records_of(files)
    assert [(r.name.rpartition(".")[0], data[r.offset :][: r.length]) for r in records] == expected
    assert [key for key, _ in expected] == ["./a.b/c", "x", "y", "d.e/z"]


@pytest.mark.parametrize(
    ("files", "label"),
    [
        ({"cat/a.jpg": b"", "cat/a.cls": b" 3\n", "cat/a.json": b'{"label": 4}'}, 3),
        ({"cat/a.jpg": b"", "cat/a.json": b'{"other": 1, "cls": 5, "target": 6}'}, 5),
        ({"a.json": b'{"label": true, "class": 2.0, "class_id": 3}', "a.jpg": b""}, 2),
        ({"a.jpg": b"", "a.json": b'{"label": null, "class_name": "dog"}'}, "dog"),
        ({"a.jpg": b"", "a.json": b'"cat"'}, "cat"),
        ({"train/cat/a.jpg": b"", "train/cat/a.json": b'{"caption": "x"}'}, "cat"),
        ({"a.jpg": b"", "a.txt": b"5"}, None),
        ({"caf\udce9/a.jpg": b""}, "caf\udce9"),
    ],
)
def test_the_label_is_that_of_the_first_source(files, label):
    assert [record.label for record in records_of(files)[0]] == [label]


def test_a_label_key_selects_the_samples_as_timm_does():
    files = {}
    for number, label in enumerate((4, -1, "dog")):
        files |= {f"{number}.jpg": b"", f"{number}.cls": b"1", f"{number}.json": json.dumps({"alt": label}).encode()}
    records, remarks = records_of(files, "alt")
    assert [(record.name, record.label) for record in records] == [("0.jpg", 4), ("2.jpg", "dog")]
    assert [count for count, _ in remarks.values()] == [1]
    assert "'other'" in error_of(files, "other")
    assert "'alt'" in error_of({"a.jpg": b"", "a.cls": b"1"}, "alt")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("cls", b"-1", "'-1'"),
        ("cls", "٣".encode(), "not a whole number"),
        ("json", b"9" * 5000, "not valid JSON"),
        ("json", b"[" * 100_000, "not valid JSON"),
        ("json", b'"' + b"a" * 256 + b'"', "at most 255"),
        ("json", b'"\\ud800"', "not the name of a class"),
        ("json", b" " * (1 << 20) + b"1", "1,048,576"),
    ],
)
def test_invalid_labels_are_named(name, content, problem):
    message = error_of({"b/a.jpg": b"", f"b/a.{name}": content})
    assert message.startswith(f"a.tar: sample 'b/a': .{name}") and problem in message


def test_samples_without_an_image_are_counted():
    files = {"a.txt": b"", "b.jpg": b"", "c.cls": b"1", "README": b"", "n.2020.jpg": b"", "d.jpg": b"", "d.png": b""}
    records, remarks = records_of(files)
    assert [record.name for record in records] == ["b.jpg", "d.jpg"]
    assert list(remarks.values()) == [(3, "'a.txt'")]


@pytest.mark.parametrize(
    ("names", "name"), [("a.jpg b.jpg a.cls", "'a'"), ("a.jpg a.JPG", "'a.JPG'"), ("a.jpg b.jpg a.jpg", "'a'")]
)
def test_repeated_samples_are_refused(names, name):
    assert name in error_of([(one, b"1") for one in names.split()])


def test_another_size_is_refused():
    data = tar_of(numbered(2))
    with pytest.raises(DamagedShard, match="10,240 bytes, not 10,241"):
        read_records([data], "a.tar", len(data) + 1)
