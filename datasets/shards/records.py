"""The samples of a tar shard with their labels, read once from its first byte to its last.

Samples as in WebDataset: consecutive files that differ in their extension only. The key of a file is its path up
to the first dot of its basename; the rest is its extension, in lower case, whose last part is its kind.
"""

import json
import re
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, BinaryIO, NamedTuple

from configs.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS
from datasets.sources.samples import MAX_FILE_BYTES
from datasets.sources.tables.cells import UNKNOWN_MARK
from datasets.sources.tables.files import LABEL_DIGITS
from utils.errors import UserError
from utils.notes import Counts, Reason

Label = int | str | None

MAX_LABEL_BYTES = 1 << 20  # of a file .cls or .json
LABELS_KEY = "labels"  # in the .json of a sample with several labels, written by make_shards.py
UNKNOWN_SUFFIX = "_unknown"  # after the key of labels: labels that an image may have or not
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_LABELS = ("cls", "json")
_IGNORED = re.compile("|(?=__).*(?<=__)", re.DOTALL)  # no name, or one between underscores
_NUMBER = re.compile(rf"\s*(\d{{1,{LABEL_DIGITS}}})\s*".encode())
_JSON_KEYS = ("label", "cls", "target", "class", "class_id", "class_name")
_IMAGES = [extension.removeprefix(".") for extension in (*IMAGE_EXTENSIONS, *PHOTO_EXTENSIONS)]
_FURTHER = Reason("further images of samples are not read", "KEY.jpg goes before KEY.png and KEY.name.jpg")

_CHUNK_BYTES = 1 << 22
_MAX_HEADER_BYTES = 1 << 14  # of a member, with its extension headers: `tarfile` takes quadratic time for some
_FIX = "copy or write the shard again"


def join_labels(labels: Iterable[int | str], unknown: Iterable[int | str] = ()) -> str:
    """The label of an image with no, one or several labels: a text that no class has as its name.

    unknown: the labels that the image may have.
    """
    return "\0" + "\0".join(sorted({*map(str, labels)} | {f"{UNKNOWN_MARK}{label}" for label in unknown}))


def labels_in(label: str) -> list[str]:
    """The labels in a result of `join_labels`, after `UNKNOWN_MARK` unknown ones; another label as it is."""
    return list(filter(None, label.split("\0")))


class DamagedShard(UserError):
    """A shard that is damaged or has content that is refused; other shards may be read."""


def chunks_of(file: BinaryIO) -> Iterator[bytes]:
    """The rest of the bytes of a file, which is then closed."""
    with file:
        yield from iter(partial(file.read, _CHUNK_BYTES), b"")


@dataclass
class Archive:
    """A tar archive, read once from its start to its end: the file that `tarfile` reads, and its members.

    Formats: POSIX.1-1988 (ustar), POSIX.1-2001 (pax) and GNU tar. `tarfile` alone ends silently at an invalid header,
    and reads headers of any size.

    chunks: the bytes of the archive, in pieces of any size. origin: its path or URL in errors. position: the number of
    bytes read so far. _start, _last, _is_cut: position, last part and end of the present headers.
    """

    chunks: Iterator[bytes]
    origin: str
    position: int = 0
    _rest: memoryview = field(default_factory=lambda: memoryview(b""))
    _start: int = 0
    _last: bytes = b""
    _is_cut: bool = False

    def members(self) -> Iterator[tarfile.TarInfo]:
        """The regular files, without directories. `parts` reads the content of the current one, in full or in part.

        Raises DamagedShard: the archive is damaged or cut short, lacks its end mark, or has data after it; a member is
        a link, a device, a pipe or a sparse file, is larger than `MAX_FILE_BYTES`, or has an absolute name or one with
        `..`; a global header has a name or a size.
        """
        file: Any = self  # has the methods that `tarfile` calls
        try:
            with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
                for header in archive:
                    self._check_member(header, archive.pax_headers)
                    if header.isreg():
                        yield header
                        self.seek(archive.offset)
                        if self.position < archive.offset:
                            raise self.error(f"is cut short after {self.position:,} bytes")
                    self._start = archive.offset
                    # Members would need more memory than the content of small files
                    archive.members.clear()  # type: ignore[attr-defined]
                    archive.pax_headers.clear()  # type: ignore[attr-defined]
        except (UserError, OSError):
            raise
        except Exception:  # of almost any type, for a damaged header
            raise self._header_error() from None
        if self._is_cut or self._last.strip(b"\0"):
            raise self._header_error()
        end = self.position
        if any(part.tobytes().strip(b"\0") for part in self.parts(1 << 62)):
            raise self.error(
                f"has data after its end at byte {end:,}", f"join archives with tar -A, not with cat; or {_FIX}"
            )

    def parts(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, or fewer at the end of the archive, without a copy."""
        while size > 0:
            while not self._rest:
                if (chunk := next(self.chunks, None)) is None:
                    return
                self._rest = memoryview(chunk)
            part = self._rest[:size]
            self._rest = self._rest[size:]
            self.position += len(part)
            size -= len(part)
            yield part

    def read(self, size: int) -> bytes:
        """For `tarfile`: the next bytes of the headers of a member. Raises DamagedShard: they are too long."""
        if not 0 <= size <= self._start + _MAX_HEADER_BYTES - self.position:
            raise self.error(f"has headers at byte {self._start:,} with more than {_MAX_HEADER_BYTES:,} bytes")
        self._last = b"".join(self.parts(size))
        self._is_cut = len(self._last) < size
        return self._last

    def seek(self, position: int) -> None:
        for _ in self.parts(position - self.position):
            pass

    def tell(self) -> int:
        return self.position

    def error(self, problem: str, fix: str = _FIX) -> DamagedShard:
        return DamagedShard(f"{self.origin}: {problem}; {fix}")

    def _header_error(self) -> DamagedShard:
        return self.error(f"has no valid header at byte {self._start:,}: is damaged, cut short, compressed or no tar")

    def _check_member(self, header: tarfile.TarInfo, global_headers: Iterable[str]) -> None:
        if header.issparse():
            raise self.error(f"member {shorten(header.name)} is sparse", "write the archive without tar -S (--sparse)")
        path = header.name.split("/")
        checks = [
            header.isreg() != header.isdir(),  # no link, device or pipe
            path[0] != "",
            ".." not in path,
            "\0" not in header.name,
            0 <= header.size <= MAX_FILE_BYTES,
            not any(key.startswith(("path", "size", "GNU.sparse.")) for key in global_headers),
        ]
        if not all(checks):
            raise self.error(
                f"member {shorten(header.name)} is no regular file with a relative path, of at most "
                f"{MAX_FILE_BYTES:,} bytes",
                "write it as one (tar --dereference --hard-dereference), or leave it out",
            )


class Record(NamedTuple):
    """An image in a shard: the position, size and CRC-32 of its bytes, its label, the path of its file, its group."""

    offset: int
    length: int
    crc: int
    label: Label
    name: str
    group: str = ""


def read_records(
    chunks: Iterable[bytes], origin: str, label_key: str = "", group_key: str = ""
) -> tuple[list[Record], Counts]:
    """The samples of a shard that have an image, in its order, and counts of others. `find_label` gives their labels.

    The image is the file of the first of `IMAGE_EXTENSIONS`, see `_file_of`. Files are ignored if their basename has no
    extension, or begins with a dot, or begins and ends with two underscores.

    chunks, origin: as of `Archive`. group_key: of the groups in .json; '' for none.

    Raises DamagedShard: as `Archive.members`; or a label is invalid, a file or a key occurs twice, or a sample
    has images of several names (see `_file_of`).
    """
    archive = Archive(iter(chunks), origin)
    records = list[Record]()
    others = Counts()
    keys = set[str]()
    for key, group in groupby(_files(archive), attrgetter("key")):
        files = {}
        for file in group:
            if file.extension in files:
                raise archive.error(f"member {shorten(file.name)} occurs twice", "leave one out, or rename it")
            files[file.extension] = file
        if key in keys:
            raise archive.error(
                f"the files of the sample {shorten(key)} do not follow one another, or it occurs twice",
                "sort the files (tar --sort=name), or rename some",
            )
        keys.add(key)
        try:
            image = _file_of(files, _IMAGES)
            if not image:
                first = next(iter(files.values()))
                others.add(Reason(f"samples have no image (.{', .'.join(_IMAGES)})", kind="log"), shorten(first.name))
                continue
            cls = _file_of(files, ["cls"])
            about = None
            if label_key or group_key or not cls:  # several .json beside a .cls are about other things
                about = _parse_json(_file_of(files, ["json"]))
            label = find_label(cls and cls.content, about, key, label_key)
            group_name = _group_in(about, group_key)
        except ValueError as error:
            raise archive.error(f"sample {shorten(key)}: {error}", "correct the shard") from None
        further = [file.name for file in files.values() if file.kind in _IMAGES]
        further.remove(image.name)
        if further:
            others.add(_FURTHER, shorten(further[0]), len(further))
        records.append(Record(image.offset, image.size, image.crc, label, image.name, group_name))
    return records, others


class _File(NamedTuple):
    """A file of a sample. crc: of an image; content: the first bytes of a .cls or .json file."""

    key: str
    extension: str
    kind: str
    name: str
    offset: int
    size: int
    crc: int
    content: bytes


def _group_in(about: Any, group_key: str) -> str:
    """The group that the .json of a sample names; '' if there is none."""
    named = _value_of(about, group_key)
    if not (group_key and _is_label(named)):
        return ""
    return named if isinstance(named, str) else str(int(named))


def _value_of(about: Any, key: str) -> Any:
    """The value of a key in .json; None if there is none."""
    return about.get(key) if isinstance(about, dict) else None


def _file_of(files: Mapping[str, _File], kinds: Sequence[str]) -> _File | None:
    """The file KEY.kind of the first of these kinds, else KEY.name.kind; None if there is none.

    files: by extension. Raises ValueError: there are several names, and none of these kinds without a name.
    """
    by_name = defaultdict[str, dict[str, _File]](dict)
    for extension, file in files.items():
        if file.kind in kinds:
            by_name[extension.removesuffix(file.kind)][file.kind] = file
    found = by_name.get("") or next(iter(by_name.values()), {})
    if "" not in by_name and len(by_name) > 1:
        pair = " and ".join(shorten(next(iter(one.values())).name) for one in islice(by_name.values(), 2))
        raise ValueError(f"{pair} have one key, which the first dot of a name ends; replace other dots, or remove one")
    return next((found[kind] for kind in kinds if kind in found), None)


def _files(archive: Archive) -> Iterator[_File]:
    for member in archive.members():
        folder, slash, name = member.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        if not dot or _IGNORED.fullmatch(stem):
            continue
        extension = extension.lower()
        kind = extension.rpartition(".")[2]
        is_label = kind in _LABELS
        is_image = kind in _IMAGES
        content = b"".join(archive.parts(min(member.size, MAX_LABEL_BYTES + 1))) if is_label else b""
        crc = reduce(lambda crc, part: zlib.crc32(part, crc), archive.parts(member.size), 0) if is_image else 0
        key = f"{folder}{slash}{stem}"
        yield _File(key, extension, kind, member.name, member.offset_data, member.size, crc, content)


def find_label(cls: bytes | None, about: Any, key: str, label_key: str) -> Label:
    """The first of these that exists.

    - With a `label_key`, its value in .json, and nothing else; `join_labels` of a list.
    - The number in .cls.
    - A number or a text in .json: alone, or as the value of label, cls, target, class, class_id or class_name.
    - The name of the folder of the image in the archive.

    cls, about: the content of .cls, and what .json says, or None. key: the path of the sample's files without their
    extension.

    Raises ValueError: the label is no number from 0 with at most `LABEL_DIGITS` digits, and no name of a class.
    """
    if label_key:
        return _label_of_key(about, label_key)
    if cls is not None:
        number = _NUMBER.fullmatch(cls)
        if not number:
            text = shorten(cls[:100].decode("latin-1"))
            raise ValueError(f".cls: the label {text} is not a whole number from 0 to {10**LABEL_DIGITS - 1}")
        return int(number[1])
    values: Iterable[Any] = map(about.get, _JSON_KEYS) if isinstance(about, dict) else [about]
    for value in values:
        if _is_label(value):
            return _checked(value, ".json")
    folder = key.rpartition("/")[0].rpartition("/")[2]
    return None if folder in ("", ".") else _checked(folder, "folder")


def _label_of_key(about: Any, label_key: str) -> Label:
    label = _value_of(about, label_key)
    unknown = _value_of(about, f"{label_key}{UNKNOWN_SUFFIX}")
    if isinstance(label, list) and all(map(_is_label, label)):
        if len(label) > 2 and {0, 1}.issuperset(label):
            raise ValueError(f".json: {shorten(label)} has a number per class; write the numbers of the labels")
        lists = (label, unknown if isinstance(unknown, list) else [])
        return join_labels(*([_checked(one, ".json") for one in labels] for labels in lists))
    if not _is_label(label):
        raise ValueError(f".json has no label {shorten(label_key)}")
    return _checked(label, ".json")


def _parse_json(file: _File | None) -> Any:
    if file is None:
        return None
    if len(file.content) > MAX_LABEL_BYTES:
        raise ValueError(f".json has more than {MAX_LABEL_BYTES:,} bytes")
    try:
        return json.loads(file.content)
    except (ValueError, RecursionError):
        raise ValueError(".json is not valid JSON") from None


def _is_label(value: Any) -> bool:
    """Whole numbers may be written as 3.0, as by tools that store them in columns of floats."""
    if type(value) is float:
        return value.is_integer()
    return type(value) in (int, str) and value != ""


def _checked(value: int | float | str, place: str) -> int | str:
    if isinstance(value, str):
        if not is_class_name(value):
            raise ValueError(f"{place}: {shorten(value)} is not the name of a class, at most 255 characters")
        return value
    if not 0 <= value < 10**LABEL_DIGITS:
        raise ValueError(f"{place}: the label {shorten(value)} is not a whole number from 0 to {10**LABEL_DIGITS - 1}")
    return int(value)


def is_class_name(value: object) -> bool:
    """Tells whether a value from a JSON file is a short text. Of surrogates, only those for invalid UTF-8 are valid."""
    is_text = isinstance(value, str) and not _SURROGATE.search(value)
    return is_text and all(len(one) <= 255 for one in labels_in(str(value)))
