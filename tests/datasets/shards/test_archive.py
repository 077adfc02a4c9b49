"""Archives of Python and GNU tar are read; damaged and hostile ones, some of which `tarfile` accepts, are named.
Samples of a shard are WebDataset's, with the labels of its files."""

import re
import subprocess
import tarfile
from ast import literal_eval

import webdataset
from conftest import each_row, line_of
from pytest import mark
from tar_files import numbered, tar_of, with_header

from datasets.shards.records import Archive, Record, read_records
from utils.notes import Counts

LONG = "a" * 90 + "/" + "b" * 90 + "/" + "ü" * 60 + ".jpg"
FILE = tar_of({"b": b"1"}, tarfile.USTAR_FORMAT)


def files_in(data: bytes) -> dict[str, bytes]:
    """The content of each file at its position. The archive is read to its end."""
    archive = Archive(iter([data]), "a.tar")
    files = {one.name: data[one.offset_data :][: one.size] for one in archive.members()}
    assert archive.position == len(data)
    return files


def error_of(data: bytes) -> str:
    message = line_of(files_in, data)
    assert message.startswith("a.tar: ")
    return message


def octal(number: int) -> bytes:
    return b"%011o" % number


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    """A header with these records, of the next file (x) or of all that follow (g)."""
    header = with_header(tar_of({"a": records}, tarfile.USTAR_FORMAT), 0, type=kind)
    return header[: 512 + len(records) + -len(records) % 512]


@mark.parametrize("options", ["--format=gnu", "--format=posix -b1"])
def test_archives_of_gnu_tar(tmp_path, options):
    names = ["1.jpg", "1.cls", "n" * 150 + ".jpg"]
    (tmp_path / "in/a").mkdir(parents=True)
    for name in names:
        (tmp_path / "in/a" / name).write_bytes(b"1" * 1000)
    (tmp_path / "b.tar").write_bytes(tar_of({"b/2.jpg": b"3"}))
    for command in (f"tar -C in {options} -cf a.tar .", "tar -Af a.tar b.tar"):
        subprocess.run(command.split(), cwd=tmp_path, check=True)
    expected = {f"./a/{name}": b"1" * 1000 for name in names}
    assert files_in((tmp_path / "a.tar").read_bytes()) == expected | {"b/2.jpg": b"3"}


def test_a_comment_in_a_global_header_does_not_count_and_a_size_in_a_pax_header_does():
    assert files_in(pax(b"21 comment=hello abc\n", b"g") + FILE) == {"b": b"1"}
    large = tar_of({"a": b"x" * 700}, tarfile.USTAR_FORMAT)
    data = pax(b"12 size=700\n") + with_header(large, 0, size=octal(3))
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
REFUSED = [
    (NUMBERED[: MIDDLE + 100] + b"\xff" + NUMBERED[MIDDLE + 101 :], f"no valid header at byte {MIDDLE:,}"),
    (FILE + tar_of({"b.jpg": b"2"}), "after its end"),
    (member(type=b"L", size=octal(65_537)), "headers at byte 0 with more than"),
    (member(type=b"L"), "no valid header at byte 0"),
    (pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n") + FILE, "no valid header at byte 0"),
    *((FILE[:1024] + 5000 * pax(b"9 a=bcde\n", kind) + FILE, "headers at byte 1,024") for kind in (b"x", b"g")),
    (member(type=b"S", prefix=bytes(137) + b"\1"), "'a' is sparse; .*tar -S"),  # 1: its map continues
    (b"<html>not found</html>" * 100, "no valid header at byte 0"),
    (b"\x1f\x8b\x08" + bytes(600), "no valid header at byte 0"),
]
NO_FILES = [
    member(type=b"2", linkname=b"b"),
    member(type=b"6"),
    member(name=b"b/../a\0"),
    member(type=b"5", name=b"/a/\0"),
    member(size=octal(400_000_001)),
    pax(b"12 path=a\0b\n") + FILE,
    pax(b"31 size=9999999999999999999999\n") + FILE,
    *(pax(record, b"g") + FILE for record in (b"9 path=a\n", b"9 size=0\n", b"21 GNU.sparse.name=b\n")),
]


@mark.parametrize("data, problem", REFUSED, ids=range(len(REFUSED)))
def test_damaged_and_hostile_archives(data, problem):
    assert re.search(problem, error_of(data))


@mark.parametrize("data", NO_FILES, ids=range(len(NO_FILES)))
def test_members_that_are_no_regular_files_with_a_relative_path(data):
    assert re.search("member '.*' is no regular file with a relative path", error_of(data))


def test_archives_that_look_like_damaged_ones():
    for data in (9 * pax(b"9 a=bcde\n") + FILE, FILE + bytes(100_001)):
        assert files_in(data) == {"b": b"1"}
    assert files_in(bytes(10_240)) == {}


def records_of(files, label_key: str = "") -> tuple[list[Record], Counts]:
    data = tar_of(files)
    return read_records([data[:700], data[700:]], "a.tar", label_key)


def files_of(names: str) -> list[tuple[str, bytes]]:
    """The files of words NAME or NAME=TEXT."""
    words = names.encode().decode("unicode_escape").split(" ")
    return [(name, text.encode()) for name, _, text in (word.partition("=") for word in words)]


def test_keys_and_extensions_are_those_of_webdataset(tmp_path):
    files = files_of(
        "./a.b/c.JPG=1 ./a.b/c.cls=1 x.seg.png=2 x.png=3 y.JPEG=4 d.e/z.webp=5 no_extension=6 __meta__=7 "
        ".hidden.jpg=8 ._x.jpg=9"
    )
    (tmp_path / "shard.tar").write_bytes(data := tar_of(files))
    source = [{"url": str(tmp_path / "shard.tar")}]
    theirs = {}
    for sample in webdataset.tariterators.tarfile_samples(source, handler=webdataset.reraise_exception):
        theirs |= {(sample["__key__"], ending): content for ending, content in sample.items()}
    ours = {}
    for record in records_of(files)[0]:
        key, _, ending = record.name.rpartition(".")
        ours[key, ending.lower()] = data[record.offset :][: record.length]
    assert [key for key, _ in ours] == ["./a.b/c", "x", "y", "d.e/z"]
    assert ours.items() <= theirs.items()


# The files, DATA.LABELS, the file that is the image, its label
LABELS = r"""
names | key | image | label
cat/a.jpg cat/a.cls=\t3\n cat/a.json={"label":4} | | cat/a.jpg | 3
a.jpg a.cls=3 a.x.json={} a.y.json={} | | a.jpg | 3
cat/a.jpg cat/a.json={"other":1,"cls":5,"target":6} | | cat/a.jpg | 5
a.json={"label":true,"class":2.0,"class_id":3} a.jpg | | a.jpg | 2
a.jpg a.json={"label":null,"class_name":"dog"} | | a.jpg | 'dog'
a.jpg a.json="cat" | | a.jpg | 'cat'
train/cat/a.jpg train/cat/a.json={"caption":"x"} | | train/cat/a.jpg | 'cat'
a.jpg a.txt=5 | | a.jpg | None
caf\udce9/a.jpg | | caf\udce9/a.jpg | 'caf\udce9'
a.image.png a.label.cls=3 | | a.image.png | 3              # the last part of an extension is its kind, as in webdataset
a.x.b.JPG a.x.json={"label":4} | | a.x.b.JPG | 4
a.jpg a.mask.png a.cls=5 a.coarse.cls=1 | | a.jpg | 5
a.jpg a.cls=1 a.json={"alt":4} | alt | a.jpg | 4
a.jpg a.json={"alt":"dog"} | alt | a.jpg | 'dog'
a.jpg a.json={"alt":[0,1,2]} | alt | a.jpg | '\x000\x001\x002'
a.jpg a.json={"alt":[0,1]} | alt | a.jpg | '\x000\x001'
"""


@each_row(LABELS)
def test_the_label_is_that_of_the_first_source(names, key, image, label):
    (record,), _ = records_of(files_of(names), key)
    assert [record.name, record.label] == literal_eval(f"['{image}', {label}]")


INVALID = {  # an ending and the content of the file: a part of the error
    ("cls", b"-1"): "'-1'",
    ("cls", "٣".encode()): "not a whole number",
    ("json", b"9" * 5000): "not valid JSON",
    ("json", b"[" * 100_000): "not valid JSON",
    ("json", b'"' + b"a" * 256 + b'"'): "at most 255",
    ("json", b'"\\ud800"'): "not the name of a class",
    ("json", b" " * (1 << 20) + b"1"): "1,048,576",
}


@mark.parametrize("name, content", INVALID, ids=INVALID.values())
def test_invalid_labels_are_named(name, content):
    message = line_of(records_of, {"b/a.jpg": b"", f"b/a.{name}": content})
    assert message.startswith(f"a.tar: sample 'b/a': .{name}")
    assert INVALID[name, content] in message


def test_samples_without_an_image_are_counted():
    records, remarks = records_of(files_of("a.txt b.jpg c.cls=1 README n.2020.jpg d.jpg d.png"))
    assert [record.name for record in records] == ["b.jpg", "n.2020.jpg", "d.jpg"]
    assert list(remarks.found.values()) == [(2, "'a.txt'"), (1, "'d.png'")]


REPEATED = """
names | key | problem
a.jpg=1 b.jpg=1 a.cls=1 | | 'a'
a.jpg=1 a.JPG=1 | | 'a.JPG'
a.jpg=1 b.jpg=1 a.jpg=1 | | 'a'
a.0.jpg=1 a.1.png=1 | | 'a.0.jpg' and 'a.1.png'
a.jpg=1 a.x.cls=1 a.y.cls=1 | | 'a.x.cls' and 'a.y.cls'
a.jpg a.json={"alt":4} | other | 'other'
a.jpg a.cls=1 | alt | 'alt'
a.jpg a.json={"alt":[0,1,0.0]} | alt | a number per class
"""


@each_row(REPEATED)
def test_repeated_samples_and_unclear_labels_are_refused(names, key, problem):
    assert problem in line_of(records_of, files_of(names), key)
