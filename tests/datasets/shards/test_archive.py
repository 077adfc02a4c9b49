"""Archives are read as `tarfile` and GNU tar write them; damaged and hostile ones are named."""

import io
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tar_files import numbered, tar_of, with_header

from datasets.shards.records import Archive, DamagedShard

LONG = "a" * 90 + "/" + "b" * 90 + "/" + "ü" * 60 + ".jpg"
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def chunks_of(data: bytes, size: int = 1 << 20):
    return [data[start : start + size] for start in range(0, len(data), size)]


def place(member: tarfile.TarInfo) -> tuple[str, int, int]:
    return member.name, member.offset_data, member.size


def members_of(data: bytes, chunk_bytes: int = 1 << 20) -> list[tuple[str, int, int]]:
    return list(map(place, Archive(chunks_of(data, chunk_bytes), "a.tar").members()))


def by_tarfile(data: bytes) -> list[tuple[str, int, int]]:
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape") as tar:
        return [place(member) for member in tar if member.isreg()]


def error_of(data: bytes) -> str:
    with pytest.raises(DamagedShard) as error:
        members_of(data)
    message = str(error.value)
    assert message.startswith("a.tar: ") and "\n" not in message and "; " in message
    return message


@pytest.mark.parametrize("tar_format", FORMATS)
@pytest.mark.parametrize("chunk_bytes", [1, 511, 512, 10_000])
def test_members_are_those_of_tarfile(tar_format, chunk_bytes):
    names = [LONG, "caf\udce9.jpg"] if tar_format != "ustar" else ["a" * 90 + "/" + "b" * 90]
    files = {"empty": b"", "./a.jpg": b"x" * 512, "b/c.d.e": b"y" * 513} | dict.fromkeys(names, b"zz")
    data = tar_of(files, FORMATS[tar_format])
    members = members_of(data, chunk_bytes)
    assert members == by_tarfile(data)
    assert {name: data[offset:][:size] for name, offset, size in members} == files


@given(sizes=st.lists(st.integers(0, 2000), max_size=8), chunk_bytes=st.integers(1, 3000), part=st.integers(0, 2000))
def test_the_content_is_read_in_full_in_part_or_not_at_all(sizes, chunk_bytes, part):
    contents = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    data = tar_of([(f"{number}", content) for number, content in enumerate(contents)])
    archive = Archive(chunks_of(data, chunk_bytes), "a.tar")
    for number, member in enumerate(archive.members()):
        content = contents[int(member.name)]
        if number % 3 < 2:
            wanted = member.size if number % 3 == 0 else min(part, member.size)
            assert b"".join(archive.parts(wanted)) == content[:wanted]
    assert archive.position == len(data)


@pytest.mark.parametrize("options", [["--format=v7"], ["--format=gnu"], ["--format=posix"], ["-b", "1"]])
def test_archives_of_gnu_tar(tmp_path, options):
    (tmp_path / "in" / "a").mkdir(parents=True)
    names = ["1.jpg", "1.cls"] if options == ["--format=v7"] else ["1.jpg", "1.cls", "n" * 150 + ".jpg"]
    for name in names:
        (tmp_path / "in" / "a" / name).write_bytes(b"1" * 1000)
    path, other = tmp_path / "a.tar", tmp_path / "b.tar"
    subprocess.run(["tar", "-C", tmp_path / "in", *options, "-cf", path, "."], check=True)
    other.write_bytes(tar_of({"b/2.jpg": b"3"}))
    assert members_of(path.read_bytes()) == by_tarfile(path.read_bytes())
    assert {name for name, *_ in members_of(path.read_bytes())} == {f"./a/{name}" for name in names}
    subprocess.run(["tar", "-Af", path, other], check=True)
    assert [name for name, *_ in members_of(path.read_bytes())][len(names) :] == ["b/2.jpg"]


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    """A header with these records, of the next file (x) or of all that follow (g)."""
    header = with_header(tar_of({"a": records}, tarfile.USTAR_FORMAT), 0, type=kind)
    return header[: 512 + len(records) + -len(records) % 512]


def test_a_comment_in_a_global_header_does_not_count_and_a_size_in_a_pax_header_does():
    data = pax(b"20 comment=hello abc\n", b"g") + tar_of({"a": b"1"})
    assert members_of(data) == by_tarfile(data) == [("a", 1536, 1)]
    data = tar_of({LONG: b"x" * 700})  # a pax header, its content, the header of the file
    records = data[512:1024].rstrip(b"\0") + b"12 size=700\n"
    forged = with_header(data, 0, size=b"%011o" % len(records))
    forged = with_header(forged[:512] + records.ljust(512, b"\0") + forged[1024:], 1024, size=b"%011o" % 3)
    assert members_of(forged) == by_tarfile(forged) == [(LONG, 1536, 700)]


def test_a_cut_archive_is_named_wherever_it_is_cut():
    data = tar_of(numbered(4) | {LONG: b"1" * 700})
    content_end = len(data.rstrip(b"\0")) + 511 & -512
    for length in range(0, content_end + 1, 128):
        assert error_of(data[:length])
    assert "1,024 bytes" in error_of(data[:1024])
    for length in range(content_end + 512, len(data), 512):  # one block of zeros is enough
        assert members_of(data[:length]) == members_of(data)


def test_an_invalid_header_in_the_middle_is_no_end():
    data = tar_of(numbered(20))
    position = members_of(data)[9][1] - 512
    damaged = data[: position + 100] + b"\xff" + data[position + 101 :]
    assert len(by_tarfile(damaged)) == 9  # tarfile says nothing
    assert f"{position:,}" in error_of(damaged)


def test_data_after_the_end_is_not_lost_silently():
    one, two = tar_of({"a.jpg": b"1"}), tar_of({"b.jpg": b"2"})
    assert len(by_tarfile(one + two)) == 1
    for data in (one + two, one + b"x"):
        assert "after its end" in error_of(data)
    assert members_of(one + bytes(100_001)) == members_of(one)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": b"2", "linkname": b"b"}, "link"),
        ({"type": b"6"}, "pipe"),
        ({"type": b"V"}, "no file"),
        ({"name": b"b/../a\0"}, "not a path inside"),
        ({"prefix": b"/etc\0", "magic": b"ustar\x0000"}, "not a path inside"),
        ({"type": b"5", "name": b"/a/\0"}, "not a path inside"),
        ({"size": b"\xff" * 11 + b"\x00"}, "-256 bytes"),
        ({"size": b"%011o" % 400_000_001}, "400000001 bytes"),
        ({"type": b"L", "size": b"%011o" % 65_537}, "headers at byte 0 with more than"),
        ({"type": b"x", "size": b"\x80" + b"\xff" * 11}, "headers at byte 0 with more than"),
        ({"type": b"L"}, "damaged at byte 0"),
    ],
)
def test_hostile_members(fields, problem):
    assert problem in error_of(with_header(tar_of({"a": b""}, tarfile.USTAR_FORMAT), 0, **fields))


def test_a_sparse_file_with_a_long_name_and_many_holes():
    name = with_header(tar_of({"././@LongLink": b"a" * 511 + b"\0"})[:1024], 0, type=b"L")
    sparse = with_header(tar_of({"a.jpg": b""})[:512], 0, type=b"S", prefix=bytes(137) + b"\1")  # 1: the map continues
    assert "is a sparse file" in error_of(name + sparse + bytes(2048))


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
    file = tar_of({"b": b"1"}, tarfile.USTAR_FORMAT)
    assert members_of(9 * pax(b"9 a=bcde\n") + file) == by_tarfile(9 * pax(b"9 a=bcde\n") + file)
    for kind in (b"x", b"g"):
        assert "headers at byte 1,024 with more than" in error_of(file[:1024] + 5000 * pax(b"9 a=bcde\n", kind) + file)
    for records in (b"9 path=a\n", b"9 size=0\n", b"21 GNU.sparse.name=b\n"):
        assert "in a global header" in error_of(pax(records, b"g") + file)


def test_other_files_than_archives():
    assert "not a tar" in error_of(b"<html>not found</html>" * 100) and "cut short" in error_of(b"<html>")
    assert "compressed" in error_of(b"\x1f\x8b\x08" + bytes(600))
    assert members_of(bytes(10_240)) == []
