"""Tar archives for tests, written by the standard library."""

import io
import tarfile
from collections.abc import Iterable, Mapping


def tar_of(files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of these files: names, which may contain surrogates for invalid UTF-8, and contents."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format, encoding="utf-8", errors="surrogateescape") as tar:
        for name, content in files.items() if isinstance(files, Mapping) else files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def numbered(count: int, first: int = 0) -> dict[str, bytes]:
    """Samples 000000.jpg with a label in .cls; the "images" are texts of several sizes."""
    files = {}
    for number in range(first, first + count):
        files[f"{number:06d}.jpg"] = f"image {number} ".encode() * (1 + 37 * number % 200)
        files[f"{number:06d}.cls"] = str(number % 7).encode()
    return files


def with_header(archive: bytes, position: int, **fields: bytes) -> bytes:
    """The archive with other fields in the header at `position`, and a checksum that fits it."""
    places = {"name": 0, "size": 124, "type": 156, "linkname": 157, "magic": 257, "prefix": 345}
    header = bytearray(archive[position : position + 512])
    for field, value in fields.items():
        header[places[field] : places[field] + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return archive[:position] + bytes(header) + archive[position + 512 :]
