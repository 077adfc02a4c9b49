"""Archives of Python and GNU tar are read; damaged and hostile ones, some of which `tarfile` accepts, are named.
Samples of a shard are WebDataset's, with the labels of its files."""

import json
import re
import subprocess
import tarfile

import pytest
import webdataset
from tar_files import numbered, tar_of, with_header

from datasets.shards.records import Archive, DamagedShard, Record, read_records
from utils.notes import Counts

LONG = "a" * 90 + "/" + "b" * 90 + "/" + "ü" * 60 + ".jpg"
FILE = tar_of({"b": b"1"}, tarfile.USTAR_FORMAT)


def files_in(data: bytes) -> dict[str, bytes]:
    """The content of each file at its position. The archive is read to its end."""
    archive = Archive([data], "a.tar")
    files = {one.name: data[one.offset_data :][: one.size] for one in archive.members()}
    assert archive.position == len(data)
    return files


def error_of(data: bytes) -> str:
    with pytest.raises(DamagedShard) as error:
        files_in(data)
    message = str(error.value)
    assert message.startswith("a.tar: ")
    assert "\n" not in message
    return message


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    """A header with these records, of the next file (x) or of all that follow (g)."""
    header = with_header(tar_of({"a": records}, tarfile.USTAR_FORMAT), 0, type=kind)
    return header[: 512 + len(records) + -len(records) % 512]


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=posix", "-b", "1"]])
def test_archives_of_gnu_tar(tmp_path, options):
    names = ["1.jpg", "1.cls", "n" * 150 + ".jpg"]
    (tmp_path / "in" / "a").mkdir(parents=True)
    for name in names:
        (tmp_path / "in" / "a" / name).write_bytes(b"1" * 1000)
    path = tmp_path / "a.tar"
    other = tmp_path / "b.tar"
    subprocess.run(["tar", "-C", tmp_path / "in", *options, "-cf", path, "."], check=True)
    other.write_bytes(tar_of({"b/2.jpg": b"3"}))
    subprocess.run(["tar", "-Af", path, other], check=True)
    assert files_in(path.read_bytes()) == {f"./a/{name}": b"1" * 1000 for name in names} | {"b/2.jpg": b"3"}


def test_a_comment_in_a_global_header_does_not_count_and_a_size_in_a_pax_header_does():
    assert files_in(pax(b"21 comment=hello abc\n", b"g") + FILE) == {"b": b"1"}
    data = pax(b"12 size=700\n") + with_header(tar_of({"a": b"x" * 700}, tarfile.USTAR_FORMAT), 0, size=b"%011o" % 3)
    assert files_in(data) == {"a": b"x" * 700}


def test_a_cut_archive_is_named_wherever_it_is_cut():
    data = tar_of(numbered(4) | {LONG: b"1" * 700})
    content_end = len(data.rstrip(b"\0")) + 511 & -512
    for length in range(0, content_end + 1, 128):
        assert error_of(data[:length])
    for length in range(content_end + 512, len(data), 512):  # one block of zeros is enough
        assert files_in(data[:length]) == files_in(data)


def member(**fields: bytes) -> bytes:
    return with_header(tar_of({"a": b""}, tarfile.USTAR_FORMAT), 0, **fields)


NUMBERED = tar_of(numbered(20))
MIDDLE = NUMBERED.index(b"000009.jpg")
NO_FILE = "member '.*' is no regular file with a relative path"
REFUSED = [
    (NUMBERED[: MIDDLE + 100] + b"\xff" + NUMBERED[MIDDLE + 101 :], f"no valid header at byte {MIDDLE:,}"),
    (FILE + tar_of({"b.jpg": b"2"}), "after its end"),
    (member(type=b"2", linkname=b"b"), NO_FILE),
    (member(type=b"6"), NO_FILE),
    (member(name=b"b/../a\0"), NO_FILE),
    (member(type=b"5", name=b"/a/\0"), NO_FILE),
    (member(size=b"%011o" % 400_000_001), NO_FILE),
    (member(type=b"L", size=b"%011o" % 65_537), "headers at byte 0 with more than"),
    (member(type=b"L"), "no valid header at byte 0"),
    (member(type=b"S", prefix=bytes(137) + b"\1"), NO_FILE),  # sparse; 1: its map continues
    (pax(b"12 path=a\0b\n") + FILE, NO_FILE),
    (pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n") + FILE, "no valid header at byte 0"),
    (pax(b"31 size=9999999999999999999999\n") + FILE, NO_FILE),
    *((pax(record, b"g") + FILE, NO_FILE) for record in (b"9 path=a\n", b"9 size=0\n", b"21 GNU.sparse.name=b\n")),
    *((FILE[:1024] + 5000 * pax(b"9 a=bcde\n", kind) + FILE, "headers at byte 1,024") for kind in (b"x", b"g")),
    (b"<html>not found</html>" * 100, "no valid header at byte 0"),
    (b"\x1f\x8b\x08" + bytes(600), "no valid header at byte 0"),
]


@pytest.mark.parametrize("data, problem", REFUSED, ids=range(len(REFUSED)))
def test_damaged_and_hostile_archives(data, problem):
    assert re.search(problem, error_of(data))


def test_archives_that_look_like_damaged_ones():
    for data in (9 * pax(b"9 a=bcde\n") + FILE, FILE + bytes(100_001)):
        assert files_in(data) == {"b": b"1"}
    assert files_in(bytes(10_240)) == {}


def records_of(files, label_key: str = "") -> tuple[list[Record], Counts]:
    data = tar_of(files)
    return read_records([data[:700], data[700:]], "a.tar", label_key)


def error_of_files(files, label_key: str = "") -> str:
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
    "files, label",
    [
        ({"cat/a.jpg": b"", "cat/a.cls": b" 3\n", "cat/a.json": b'{"label": 4}'}, 3),
        ({"a.jpg": b"", "a.cls": b"3", "a.x.json": b"{}", "a.y.json": b"{}"}, 3),
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


def test_a_label_key_selects_the_label():
    files = {}
    for number, label in enumerate((4, "dog")):
        files |= {f"{number}.jpg": b"", f"{number}.cls": b"1", f"{number}.json": json.dumps({"alt": label}).encode()}
    records, _ = records_of(files, "alt")
    assert [(record.name, record.label) for record in records] == [("0.jpg", 4), ("1.jpg", "dog")]
    assert "'other'" in error_of_files(files, "other")
    assert "'alt'" in error_of_files({"a.jpg": b"", "a.cls": b"1"}, "alt")


@pytest.mark.parametrize(
    "name, content, problem",
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
    message = error_of_files({"b/a.jpg": b"", f"b/a.{name}": content})
    assert message.startswith(f"a.tar: sample 'b/a': .{name}")
    assert problem in message


def test_samples_without_an_image_are_counted():
    files = {"a.txt": b"", "b.jpg": b"", "c.cls": b"1", "README": b"", "n.2020.jpg": b"", "d.jpg": b"", "d.png": b""}
    records, remarks = records_of(files)
    assert [record.name for record in records] == ["b.jpg", "n.2020.jpg", "d.jpg"]
    assert list(remarks.found.values()) == [(2, "'a.txt'"), (1, "'d.png'")]


def test_the_last_part_of_an_extension_is_its_kind():
    """As webdataset decodes them."""
    files = {"0.image.png": b"i", "0.label.cls": b"3", "1.a.b.JPG": b"i", "1.x.json": b'{"label": 4}'}
    assert [(one.name, one.label) for one in records_of(files)[0]] == [("0.image.png", 3), ("1.a.b.JPG", 4)]
    files = {"2.jpg": b"", "2.mask.png": b"", "2.cls": b"5", "2.coarse.cls": b"1"}
    assert [(one.name, one.label) for one in records_of(files)[0]] == [("2.jpg", 5)]


@pytest.mark.parametrize(
    "names, name",
    [
        ("a.jpg b.jpg a.cls", "'a'"), ("a.jpg a.JPG", "'a.JPG'"), ("a.jpg b.jpg a.jpg", "'a'"),
        ("a.0.jpg a.1.png", "'a.0.jpg' and 'a.1.png'"), ("a.jpg a.x.cls a.y.cls", "'a.x.cls' and 'a.y.cls'"),
    ],
)  # fmt: skip
def test_repeated_samples_are_refused(names, name):
    assert name in error_of_files([(one, b"1") for one in names.split()])
