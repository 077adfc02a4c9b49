"""Reads the members of a tar archive once, from its first byte to its last.

`tarfile.TarFile` does not read the whole archive: it ends silently at an invalid header, and reads extension headers of
any size and depth. It reads the headers of one member. Formats: POSIX.1-1988 (ustar), POSIX.1-2001 (pax) and GNU tar,
without sparse files.
"""

import io
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import BinaryIO, NamedTuple

from configs.reading.yaml_io import shorten
from datasets.sources.samples import MAX_FILE_BYTES
from utils.errors import UserError

_BLOCK_BYTES = tarfile.BLOCKSIZE
_CHUNK_BYTES = 1 << 22
_MAX_EXTENSION_BYTES = 1 << 16
_EXTENSIONS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
_FIX = "copy or write the shard again"


class DamagedShard(UserError):
    """A shard that is damaged or has content that is refused; other shards may be read."""


class Member(NamedTuple):
    """A regular file in an archive: its path, the position of its first byte, its size in bytes."""

    name: str
    offset: int
    size: int


def chunks_of(file: BinaryIO) -> Iterator[bytes]:
    """The rest of the bytes of a file, which is then closed."""
    with file:
        yield from iter(partial(file.read, _CHUNK_BYTES), b"")


class Archive:
    """Iterates over the regular files of an archive, in its order. Directories are left out.

    `read` and `crc32` process the content of the current member. `position` is the number of bytes read so far; after
    the last member it is the size of the archive.

    Raises DamagedShard while iterating: the archive is damaged or cut short, lacks its end mark, or has data after it;
    a member is a link, a device, a pipe or a sparse file, is larger than `MAX_FILE_BYTES`, or has an absolute name or
    one with `..`.
    """

    def __init__(self, chunks: Iterable[bytes], origin: str) -> None:
        """`chunks` are the bytes of the archive, in pieces of any size; `origin` is its path or URL in errors."""
        self.origin, self.position = origin, 0
        self._chunks, self._rest = iter(chunks), memoryview(b"")
        self._end_of_content = 0

    def __iter__(self) -> Iterator[Member]:
        while header := self._read_headers():
            self._check_member(header)
            if header.isdir():
                continue
            self._end_of_content = self.position + header.size
            yield Member(header.name, self.position, header.size)
            end = self._end_of_content + -self._end_of_content % _BLOCK_BYTES
            for _ in self._parts(end - self.position):
                pass
            if self.position < end:
                raise self._cut_short(f"in the member {shorten(header.name)}")
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
            while not self._rest:
                if (chunk := next(self._chunks, None)) is None:
                    return
                self._rest = memoryview(chunk)
            part, self._rest = self._rest[:size], self._rest[size:]
            self.position += len(part)
            size -= len(part)
            yield part

    def _read(self, size: int) -> bytes:
        return b"".join(self._parts(size))

    def _read_headers(self) -> tarfile.TarInfo | None:
        """The headers of the next member, as one; None at the end mark, a block of zeros."""
        start, blocks = self.position, b""
        while True:
            header, block = self._read_header()
            if not header and not blocks:
                return None
            blocks += block
            if not header or header.type not in (*_EXTENSIONS, tarfile.XGLTYPE):
                break
            if not 0 <= header.size <= _MAX_EXTENSION_BYTES - len(blocks):
                size = f"more than {_MAX_EXTENSION_BYTES:,} bytes"
                raise self.error(f"has extension headers at byte {start:,} with {size}")
            content = self._read(header.size + -header.size % _BLOCK_BYTES)
            blocks = blocks[:-_BLOCK_BYTES] if header.type == tarfile.XGLTYPE else blocks + content
        if header and (len(blocks) == _BLOCK_BYTES or header.type == tarfile.GNUTYPE_SPARSE):
            return header  # `tarfile` would read the map of a sparse file in the blocks after it
        try:
            with tarfile.open(fileobj=io.BytesIO(blocks), mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
                header = tar.next()
        except Exception:  # of almost any type, for a damaged header
            header = None
        if not header:
            raise self.error(f"is damaged at byte {start:,} (no valid header)")
        return header

    def _read_header(self) -> tuple[tarfile.TarInfo | None, bytes]:
        """The next block and its content, a header; None for the end mark."""
        start = self.position
        block = self._read(_BLOCK_BYTES)
        if start == 0 and block.startswith(_COMPRESSED):
            raise self.error("is compressed", "unpack it: samples are read at their positions in the archive")
        if len(block) < _BLOCK_BYTES:
            raise self._cut_short("in a header" if block else "before the end mark of the archive")
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape"), block
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # not in typeshed
            return None, block
        except (tarfile.HeaderError, ValueError):
            problem = f"is damaged at byte {start:,} (no valid header)" if start else "is not a tar archive"
            raise self.error(problem) from None

    def _check_member(self, header: tarfile.TarInfo) -> None:
        problem, fix = None, _FIX
        if header.islnk() or header.issym():
            problem, fix = "is a link", "write the file itself (tar --dereference --hard-dereference)"
        elif header.isdev():
            problem, fix = "is a device or a pipe", "leave it out"
        elif header.issparse() or header.type == tarfile.GNUTYPE_SPARSE:
            problem, fix = "is a sparse file", "write the archive without --sparse"
        elif not (header.isreg() or header.isdir()):
            problem, fix = f"has the type {header.type!r}, which is no file", "leave it out"
        elif header.name.startswith("/") or ".." in header.name.split("/") or "\0" in header.name or not header.name:
            problem, fix = "is not a path inside the archive", "write relative paths without .."
        elif not 0 <= header.size <= MAX_FILE_BYTES:
            problem, fix = f"has {shorten(header.size)} bytes, more than {MAX_FILE_BYTES}", "leave it out"
        if problem:
            raise self.error(f"member {shorten(header.name)} {problem}", fix)

    def _check_end(self) -> None:
        """Reads the padding after the end mark."""
        start = self.position
        if any(part.tobytes().strip(b"\0") for part in self._parts(1 << 62)):
            fix = f"join archives with tar -A, not with cat; or {_FIX}"
            raise self.error(f"has data after its end at byte {start:,}", fix)
