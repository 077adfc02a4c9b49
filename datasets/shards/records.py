"""The samples of a shard with their labels, by WebDataset's rule.

Consecutive files that differ in their extension only are one sample. The key of a file is its path up to the first dot
of its basename; the rest is its extension, in lower case.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from configs.reading.yaml_io import shorten
from datasets.decoding.images import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS
from datasets.shards.archive import Archive, Member
from datasets.sources.files.rows import LABEL_DIGITS

Label = int | str | None

MAX_LABEL_BYTES = 1 << 20  # of a file .cls or .json
LEFT_OUT = -1  # timm's mark of a sample that is not part of a selection of classes
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_JSON_KEYS = ("label", "cls", "target", "class", "class_id", "class_name")
_EXTENSIONS = [extension.removeprefix(".") for extension in (*IMAGE_EXTENSIONS, *PHOTO_EXTENSIONS)]
_NO_IMAGE = f"have no image (.{', .'.join(_EXTENSIONS)})"


class Record(NamedTuple):
    """An image in a shard: the position, size and CRC-32 of its bytes, its label, the path of its file, its group."""

    offset: int
    length: int
    crc: int
    label: Label
    name: str
    group: str = ""


class Remarks(dict[str, tuple[int, str]]):
    """Facts about samples that may be intended: a text, the number of samples, the name of one."""

    def count(self, text: str, example: str, number: int = 1) -> None:
        total, first = self.get(text, (0, example))
        self[text] = (total + number, first)

    def add(self, others: "Remarks") -> None:
        for text, (number, example) in others.items():
            self.count(text, example, number)

    def notes(self) -> list[str]:
        return [f"{number:,} samples {text}, such as {example}" for text, (number, example) in self.items()]


class _File(NamedTuple):
    """A file of a sample. crc: of an image; content: the first bytes of a .cls or .json file."""

    key: str
    extension: str
    member: Member
    crc: int
    content: bytes


def read_records(
    chunks: Iterable[bytes], origin: str, num_bytes: int, label_key: str = "", group_key: str = ""
) -> tuple[list[Record], Remarks]:
    """The samples of a shard that have an image, in its order, and remarks. `find_label` gives their labels.

    group_key: of their groups in .json; '' for none.

    The image is the file with the first of `IMAGE_EXTENSIONS`. Files are ignored if their basename has no extension,
    or begins with a dot, or begins and ends with two underscores.

    chunks, origin: as of `Archive`. num_bytes: the size of the shard.

    Raises DamagedShard: see `Archive`; or a label is invalid, a file or a key occurs twice, or the size differs.
    """
    archive, records, remarks, keys = Archive(chunks, origin), [], Remarks(), set()
    for key, group in groupby(_files(archive), attrgetter("key")):
        files: dict[str, _File] = {}
        for file in group:
            if file.extension in files:
                raise archive.error(f"member {shorten(file.member.name)} occurs twice", "leave one out, or rename it")
            files[file.extension] = file
        if key in keys:
            problem = f"the files of the sample {shorten(key)} do not follow one another, or it occurs twice"
            raise archive.error(problem, "sort the files (tar --sort=name), or rename some")
        keys.add(key)
        images = [files[extension] for extension in _EXTENSIONS if extension in files]
        if not images:
            remarks.count(_NO_IMAGE, shorten(next(iter(files.values())).member.name))
            continue
        name, offset, length = images[0].member
        try:
            contents = {extension: file.content for extension, file in files.items()}
            label, group_name = find_label(contents, key, label_key), _find_group(contents, group_key)
        except ValueError as error:
            raise archive.error(f"sample {shorten(key)}: {error}", "correct the shard") from None
        if label == LEFT_OUT:
            remarks.count(f"are left out: their label {shorten(label_key)} is -1", shorten(name))
        else:
            records.append(Record(offset, length, images[0].crc, label, name, group_name))
    if archive.position != num_bytes:
        raise archive.error(f"has {archive.position:,} bytes, not {num_bytes:,}", "start again when it is complete")
    return records, remarks


def _files(archive: Archive) -> Iterator[_File]:
    for member in archive:
        folder, slash, name = member.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        if not stem or not dot or (stem.startswith("__") and stem.endswith("__")):
            continue
        extension = extension.lower()
        content = archive.read(MAX_LABEL_BYTES + 1) if extension in ("cls", "json") else b""
        crc = archive.crc32() if extension in _EXTENSIONS else 0
        yield _File(f"{folder}{slash}{stem}", extension, member, crc, content)


def find_label(files: Mapping[str, bytes], key: str, label_key: str) -> Label:
    """The first of these that exists.

    - With a `label_key`, its value in .json, and nothing else; `LEFT_OUT` if it is -1.
    - The number in .cls.
    - A number or a text in .json: alone, or as the value of label, cls, target, class, class_id or class_name.
    - The name of the folder of the image in the archive.

    files: the contents of .cls and .json, of each at least the first `MAX_LABEL_BYTES` + 1 bytes. key: the path of the
    sample's files without their extension.

    Raises ValueError: the label is no number from 0 with at most `LABEL_DIGITS` digits, and no name of a class.
    """
    value: Any = _parse_json(files["json"]) if "json" in files and (label_key or "cls" not in files) else None
    if label_key:
        label: Any = value.get(label_key) if isinstance(value, dict) else None
        if not _is_label(label):
            raise ValueError(f".json has no label {shorten(label_key)}")
        return LEFT_OUT if label == LEFT_OUT else _checked(label, ".json")
    if "cls" in files:
        text = files["cls"][:100].decode("latin-1").strip()
        is_number = text.isascii() and text.isdecimal() and len(text) <= LABEL_DIGITS and len(files["cls"]) <= 100
        return _checked(int(text) if is_number else text, ".cls", names=False)
    if isinstance(value, dict):
        value = next((value[name] for name in _JSON_KEYS if _is_label(value.get(name))), None)
    if _is_label(value):
        return _checked(value, ".json")
    folder = key.rpartition("/")[0].rpartition("/")[2]
    return None if folder in ("", ".") else _checked(folder, "folder")


def _find_group(files: Mapping[str, bytes], group_key: str) -> str:
    """The text or number under `group_key` in .json; '' for none. Raises ValueError as `find_label`."""
    value = _parse_json(files["json"]) if group_key and "json" in files else None
    group: Any = value.get(group_key) if isinstance(value, dict) else None
    return "" if not _is_label(group) else group if isinstance(group, str) else str(int(group))


def _parse_json(data: bytes) -> Any:
    if len(data) > MAX_LABEL_BYTES:
        raise ValueError(f".json has more than {MAX_LABEL_BYTES:,} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(".json is not valid JSON") from None


def _is_label(value: Any) -> bool:
    """Whole numbers may be written as 3.0, as by tools that store them in columns of floats."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number or (isinstance(value, float) and value.is_integer()) or (isinstance(value, str) and value != "")


def _checked(value: int | float | str, place: str, names: bool = True) -> int | str:
    if isinstance(value, str) and names:
        if not is_class_name(value):
            raise ValueError(f"{place}: {shorten(value)} is not the name of a class, at most 255 characters")
        return value
    if isinstance(value, str) or not 0 <= value < 10**LABEL_DIGITS:
        raise ValueError(f"{place}: the label {shorten(value)} is not a whole number from 0 to {10**LABEL_DIGITS - 1}")
    return int(value)


def is_class_name(value: object) -> bool:
    """Tells whether a value from a JSON file is a short text. Of surrogates, only those for invalid UTF-8 are valid."""
    return isinstance(value, str) and len(value) <= 255 and not _SURROGATE.search(value)
