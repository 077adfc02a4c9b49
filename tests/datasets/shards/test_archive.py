"""Archives of Python and GNU tar are read; damaged and hostile ones, some of which `tarfile` accepts, are named."""

import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tar_files import numbered, tar_of, with_header

from datasets.shards.records import Archive, DamagedShard

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
    assert message.startswith("a.tar: ") and "\n" not in message and "; " in message
    return message


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    """A header with these records, of the next file (x) or of all that follow (g)."""
    header = with_header(tar_of({"a": records}, tarfile.USTAR_FORMAT), 0, type=kind)
    return header[: 512 + len(records) + -len(records) % 512]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_files_of_three_formats(tar_format):
    names = [LONG, "caf\udce9.jpg"] if tar_format != tarfile.USTAR_FORMAT else ["a" * 90 + "/" + "b" * 90]
    files = {"empty": b"", "./a.jpg": b"x" * 512, "b/c.d.e": b"y" * 513} | dict.fromkeys(names, b"zz")
    assert files_in(tar_of(files, tar_format)) == files


@given(sizes=st.lists(st.integers(0, 2000), max_size=8), chunk_bytes=st.integers(1, 3000), part=st.integers(0, 2000))
def test_the_content_is_read_in_full_in_part_or_not_at_all(sizes, chunk_bytes, part):
    contents = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    data = tar_of([(f"{number}", content) for number, content in enumerate(contents)])
    archive = Archive([data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)], "a.tar")
    for number, member in enumerate(archive.members()):
        wanted = (member.size, min(part, member.size), 0)[number % 3]
        assert b"".join(archive.parts(wanted)) == contents[int(member.name)][:wanted]
    assert archive.position == len(data)


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=posix", "-b", "1"]])
def test_archives_of_gnu_tar(tmp_path, options):
    names = ["1.jpg", "1.cls", "n" * 150 + ".jpg"]
    (tmp_path / "in" / "a").mkdir(parents=True)
    for name in names:
        (tmp_path / "in" / "a" / name).write_bytes(b"1" * 1000)
    path, other = tmp_path / "a.tar", tmp_path / "b.tar"
    subprocess.run(["tar", "-C", tmp_path / "in", *options, "-cf", path, "."], check=True)
    other.write_bytes(tar_of({"b/2.jpg": b"3"}))
    subprocess.run(["tar", "-Af", path, other], check=True)
    assert files_in(path.read_bytes()) == {f"./a/{name}": b"1" * 1000 for name in names} | {"b/2.jpg": b"3"}


def test_a_comment_in_a_global_header_does_not_count_and_a_size_in_a_pax_header_does():
    assert files_in(pax(b"20 comment=hello abc\n", b"g") + FILE) == {"b": b"1"}
    data = pax(b"12 size=700\n") + with_header(tar_of({"a": b"x" * 700}, tarfile.USTAR_FORMAT), 0, size=b"%011o" % 3)
    assert files_in(data) == {"a": b"x" * 700}


def test_a_cut_archive_is_named_wherever_it_is_cut():
    data = tar_of(numbered(4) | {LONG: b"1" * 700})
    content_end = len(data.rstrip(b"\0")) + 511 & -512
    for length in range(0, content_end + 1, 128):
        assert error_of(data[:length])
    assert "1,024 bytes" in error_of(data[:1024])
    for length in range(content_end + 512, len(data), 512):  # one block of zeros is enough
        assert files_in(data[:length]) == files_in(data)


def member(**fields: bytes) -> bytes:
    return with_header(tar_of({"a": b""}, tarfile.USTAR_FORMAT), 0, **fields)


NUMBERED = tar_of(numbered(20))
MIDDLE = NUMBERED.index(b"000009.jpg")
REFUSED = [
    (NUMBERED[: MIDDLE + 100] + b"\xff" + NUMBERED[MIDDLE + 101 :], f"damaged at byte {MIDDLE:,}"),
    (FILE + tar_of({"b.jpg": b"2"}), "after its end"),
    (member(type=b"2", linkname=b"b"), "link"),
    (member(type=b"6"), "pipe"),
    (member(name=b"b/../a\0"), "not a path inside"),
    (member(type=b"5", name=b"/a/\0"), "not a path inside"),
    (member(size=b"%011o" % 400_000_001), "400000001 bytes"),
    (member(type=b"L", size=b"%011o" % 65_537), "headers at byte 0 with more than"),
    (member(type=b"L"), "damaged at byte 0"),
    (member(type=b"S", prefix=bytes(137) + b"\1"), "is a sparse file"),  # 1: its map continues
    (pax(b"12 path=a\0b\n") + FILE, "not a path inside"),
    (pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n") + FILE, "damaged at byte 0"),
    (pax(b"31 size=9999999999999999999999\n") + FILE, "400000000"),
    *((pax(record, b"g") + FILE, "global") for record in (b"9 path=a\n", b"9 size=0\n", b"21 GNU.sparse.name=b\n")),
    *((FILE[:1024] + 5000 * pax(b"9 a=bcde\n", kind) + FILE, "headers at byte 1,024") for kind in (b"x", b"g")),
    (b"<html>not found</html>" * 100, "not a tar"),
    (b"\x1f\x8b\x08" + bytes(600), "compressed"),
]


@pytest.mark.parametrize(("data", "problem"), REFUSED, ids=range(len(REFUSED)))
def test_damaged_and_hostile_archives(data, problem):
    assert problem in error_of(data)


def test_archives_that_look_like_damaged_ones():
    for data in (9 * pax(b"9 a=bcde\n") + FILE, FILE + bytes(100_001)):
        assert files_in(data) == {"b": b"1"}
    assert files_in(bytes(10_240)) == {}
