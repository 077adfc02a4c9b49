"""Reads the members of a tar archive once, from its first byte to its last.

`tarfile.TarInfo.frombuf` reads each header. `tarfile.TarFile` is not used: it ends silently at an invalid header, and
reads extension headers of any size and depth. Formats: POSIX.1-1988 (ustar), POSIX.1-2001 (pax) and GNU tar, without
sparse files.
"""

import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from configs.reading.yaml_io import shorten
from datasets.sources.samples import MAX_FILE_BYTES
from utils.errors import UserError

_BLOCK_BYTES = 512
_MAX_EXTENSION_BYTES = 1 << 16
_LONG_NAME, _LONG_LINK = b"L", b"K"  # GNU tar's names of more than 100 bytes
_PAX = (b"x", b"X")  # of the next member
_GLOBAL_PAX = b"g"  # of all later members
_FILES, _LINKS, _DIRECTORY, _SPARSE = (b"0", b"\0", b"7"), (b"1", b"2"), b"5", b"S"
_DEVICES = (b"3", b"4", b"6")
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
_FIX = "copy or write the shard again"


class DamagedShard(UserError):
    """A shard that is damaged or has content that is refused; other shards may be read."""


class Member(NamedTuple):
    """A regular file in an archive: its path, the position of its first byte, its size in bytes."""

    name: str
    offset: int
    size: int


class Archive:
    """Iterates over the regular files of an archive, in its order. Directories are left out.

    `read` and `crc32` process the content of the current member. `position` is the number of bytes read so far; after
    the last member it is the size of the archive.

    Raises:
        DamagedShard: while iterating: the archive is damaged or cut short, lacks its end mark, or has data after it; a
            member is a link, a device, a pipe or a sparse file, is larger than `MAX_FILE_BYTES`, or has an absolute
            name or one with `..`.
    """

    def __init__(self, chunks: Iterable[bytes], origin: str) -> None:
        """`chunks` are the bytes of the archive, in pieces of any size; `origin` is its path or URL in errors."""
        self.origin, self.position = origin, 0
        self._chunks, self._rest = iter(chunks), memoryview(b"")
        self._end_of_content = 0

    def __iter__(self) -> Iterator[Member]:
        extension: dict[str, str] = {}
        while header := self._read_header():
            if header.type in (_LONG_NAME, _LONG_LINK, _GLOBAL_PAX, *_PAX):
                extension |= self._read_extension(header)
                continue
            member = self._check_member(header, extension)
            extension = {}
            if header.type == _DIRECTORY:
                continue
            self._end_of_content = self.position + member.size
            yield member
            end = self._end_of_content + -self._end_of_content % _BLOCK_BYTES
            for _ in self._parts(end - self.position):
                pass
            if self.position < end:
                raise self._cut_short(f"in the member {shorten(member.name)}")
        if extension:
            raise self.error(f"is damaged (no member follows the header at byte {self.position - _BLOCK_BYTES:,})")
        self._check_end()

    def read(self, max_bytes: int) -> bytes:
        """The rest of the content of the current member, at most `max_bytes` of it."""
        return self._read(min(self._end_of_content - self.position, max_bytes))

    def crc32(self) -> int:
        """CRC-32 of the rest of the content of the current member."""
        crc = 0
        for part in self._parts(self._end_of_content - self.position):
            crc = zlib.crc32(part, crc)
        return crc

    def error(self, problem: str, fix: str = _FIX) -> DamagedShard:
        return DamagedShard(f"{self.origin}: {problem}; {fix}")

    def _cut_short(self, place: str) -> DamagedShard:
        return self.error(f"is cut short after {self.position:,} bytes, {place}")

    def _parts(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, or fewer at the end of the archive, without a copy."""
        while size > 0:
            if not self._rest:
                chunk = next(self._chunks, None)
                if chunk is None:
                    return
                self._rest = memoryview(chunk)
                continue
            part, self._rest = self._rest[:size], self._rest[size:]
            self.position += len(part)
            size -= len(part)
            yield part

    def _read(self, size: int) -> bytes:
        return b"".join(self._parts(size))

    def _read_header(self) -> tarfile.TarInfo | None:
        """The next header; None at the end mark, a block of zeros."""
        start = self.position
        block = self._read(_BLOCK_BYTES)
        if start == 0 and block.startswith(_COMPRESSED):
            raise self.error("is compressed", "unpack it: samples are read at their positions in the archive")
        if not block:
            raise self._cut_short("before the end mark of the archive")
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # not in typeshed
            return None
        except tarfile.TruncatedHeaderError:  # type: ignore[attr-defined]  # not in typeshed
            raise self._cut_short("in a header") from None
        except (tarfile.HeaderError, ValueError):
            problem = f"is damaged at byte {start:,} (no valid tar header)" if start else "is not a tar archive"
            raise self.error(problem) from None

    def _read_extension(self, header: tarfile.TarInfo) -> dict[str, str]:
        """'path' and 'size' of the next member, as far as this header of GNU tar or pax states them."""
        start = self.position - _BLOCK_BYTES
        if not 0 <= header.size <= _MAX_EXTENSION_BYTES:
            raise self.error(
                f"its extension header at byte {start:,} has {header.size:,} bytes, more than {_MAX_EXTENSION_BYTES:,}"
            )
        content = self._read(header.size + -header.size % _BLOCK_BYTES)
        if len(content) < header.size:
            raise self._cut_short("in a header")
        content = content[: header.size]
        if header.type == _LONG_LINK:
            return {}
        if header.type == _LONG_NAME:
            return {"long_name": content.partition(b"\0")[0].decode("utf-8", "surrogateescape")}
        try:
            records = _pax_records(content)
        except ValueError:
            raise self.error(f"is damaged at byte {start:,} (no valid pax header)") from None
        if any(keyword.startswith(b"GNU.sparse.") for keyword in records):
            raise self.error(f"has a sparse file at byte {start:,}", "write the archive without --sparse")
        found = {
            keyword: records[keyword.encode()].decode("utf-8", "surrogateescape")
            for keyword in ("path", "size")
            if keyword.encode() in records
        }
        if found and header.type == _GLOBAL_PAX:
            raise self.error(f"its header at byte {start:,} gives all members one {min(found)}")
        return found

    def _check_member(self, header: tarfile.TarInfo, extension: dict[str, str]) -> Member:
        name = extension.get("path", extension.get("long_name", header.name))
        size = extension.get("size", str(header.size))
        problem, fix = None, _FIX
        if header.type in _LINKS:
            problem, fix = "is a link", "write the file itself (tar --dereference --hard-dereference)"
        elif header.type in _DEVICES:
            problem, fix = "is a device or a pipe", "leave it out"
        elif header.type == _SPARSE:
            problem, fix = "is a sparse file", "write the archive without --sparse"
        elif header.type not in (*_FILES, _DIRECTORY):
            problem, fix = f"has the type {header.type!r}, which is no file", "leave it out"
        elif name.startswith("/") or ".." in name.split("/") or "\0" in name or not name:
            problem, fix = "is not a path inside the archive", "write relative paths without .."
        elif not (size.isascii() and size.isdecimal()):
            problem = f"has the size {shorten(size)}"
        elif len(size) > 18 or int(size) > MAX_FILE_BYTES:
            problem, fix = f"has {size[:20]} bytes, more than {MAX_FILE_BYTES}", "leave it out, or make it smaller"
        if problem:
            raise self.error(f"member {shorten(name)} {problem}", fix)
        return Member(name, self.position, int(size))

    def _check_end(self) -> None:
        """Reads the padding after the end mark."""
        start = self.position
        for part in self._parts(1 << 62):
            if part.tobytes().strip(b"\0"):
                raise self.error(
                    f"has data after its end at byte {start:,}", "join archives with tar -A, not with cat; or " + _FIX
                )


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """Records such as b"20 path=directory/a\\n", whose number is their length; raises ValueError."""
    records, start = {}, 0
    while start < len(content):
        length, _, _ = content[start : start + 20].partition(b" ")
        if not length.isdigit():
            raise ValueError("no length")
        end = start + int(length)
        record = content[start + len(length) + 1 : end]
        keyword, equals, value = record[:-1].partition(b"=")
        if end > len(content) or not record.endswith(b"\n") or not equals:
            raise ValueError("no record")
        records[keyword] = value
        start = end
    return records
