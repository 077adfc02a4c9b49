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


def files_in(data: bytes, chunk_bytes: int = 1 << 20) -> dict[str, bytes]:
    """The content of each file at its position. The archive is read to its end."""
    archive = Archive([data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)], "a.tar")
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
@pytest.mark.parametrize("chunk_bytes", [1, 511, 512, 10_000])
def test_files_of_three_formats(tar_format, chunk_bytes):
    names = [LONG, "caf\udce9.jpg"] if tar_format != tarfile.USTAR_FORMAT else ["a" * 90 + "/" + "b" * 90]
    files = {"empty": b"", "./a.jpg": b"x" * 512, "b/c.d.e": b"y" * 513} | dict.fromkeys(names, b"zz")
    assert files_in(tar_of(files, tar_format), chunk_bytes) == files


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
    for name in names:
        (tmp_path / "in" / "a").mkdir(parents=True, exist_ok=True)
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


def test_an_invalid_header_in_the_middle_is_no_end():
    data = tar_of(numbered(20))
    position = data.index(b"000009.jpg")
    assert f"damaged at byte {position:,}" in error_of(data[: position + 100] + b"\xff" + data[position + 101 :])


def test_data_after_the_end_is_not_lost_silently():
    for data in (FILE + tar_of({"b.jpg": b"2"}), FILE + b"x"):
        assert "after its end" in error_of(data)
    assert files_in(FILE + bytes(100_001)) == {"b": b"1"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": b"2", "linkname": b"b"}, "link"),
        ({"type": b"6"}, "pipe"),
        ({"type": b"V"}, "no file"),
        ({"name": b"b/../a\0"}, "not a path inside"),
        ({"prefix": b"/etc\0", "magic": b"ustar\x0000"}, "not a path inside"),
        ({"type": b"5", "name": b"/a/\0"}, "not a path inside"),
        ({"size": b"%011o" % 400_000_001}, "400000001 bytes"),
        ({"type": b"L", "size": b"%011o" % 65_537}, "headers at byte 0 with more than"),
        ({"type": b"L"}, "damaged at byte 0"),
        ({"type": b"S", "prefix": bytes(137) + b"\1"}, "is a sparse file"),  # 1: its map continues
    ],
)
def test_hostile_members(fields, problem):
    assert problem in error_of(with_header(tar_of({"a": b""}, tarfile.USTAR_FORMAT), 0, **fields))


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        (b"12 path=a\0b\n", "not a path inside"),
        (b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n", "damaged at byte 0"),
        (b"31 size=9999999999999999999999\n", "400000000"),
        (b"0 path=a\n", "damaged at byte 0"),
    ],
)
def test_hostile_pax_headers(records, problem):
    assert problem in error_of(pax(records) + tar_of({"b": b""}, tarfile.USTAR_FORMAT))


def test_headers_without_end_and_global_names():
    assert files_in(9 * pax(b"9 a=bcde\n") + FILE) == {"b": b"1"}
    for kind in (b"x", b"g"):
        assert "headers at byte 1,024 with more than" in error_of(FILE[:1024] + 5000 * pax(b"9 a=bcde\n", kind) + FILE)
    for records in (b"9 path=a\n", b"9 size=0\n", b"21 GNU.sparse.name=b\n"):
        assert "in a global header" in error_of(pax(records, b"g") + FILE)


def test_other_files_than_archives():
    assert "not a tar" in error_of(b"<html>not found</html>" * 100) and "cut short" in error_of(b"<html>")
    assert "compressed" in error_of(b"\x1f\x8b\x08" + bytes(600))
    assert files_in(bytes(10_240)) == {}
