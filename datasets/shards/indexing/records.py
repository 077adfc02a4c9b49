"""The samples of a shard, by WebDataset's rule: consecutive files that differ in their extension only are one sample.

The key of a file is its path up to the first dot of its basename; the rest is its extension, in lower case.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from configs.reading.yaml_io import shorten
from datasets.shards.indexing.archive import Archive, Member
from datasets.shards.indexing.labels import LEFT_OUT, MAX_LABEL_BYTES, Label, find_label
from datasets.sources.files.class_folders import IMAGE_EXTENSIONS

_EXTENSIONS = [extension.removeprefix(".") for extension in IMAGE_EXTENSIONS]
_NO_IMAGE = f"have no image (.{', .'.join(_EXTENSIONS)})"
_SEVERAL_IMAGES = "have several images, of which one is used"


class Record(NamedTuple):
    """An image in a shard: the position, size and CRC-32 of its bytes, its label, the path of its file."""

    offset: int
    length: int
    crc: int
    label: Label
    name: str


class Remarks(dict[str, tuple[int, str]]):
    """Facts about samples that may be intended: a text, the number of samples, the name of one."""

    def count(self, text: str, example: str, number: int = 1) -> None:
        total, first = self.get(text, (0, example))
        self[text] = (total + number, first)

    def notes(self) -> list[str]:
        return [f"{number:,} samples {text}, such as {example}" for text, (number, example) in self.items()]


@dataclass
class ShardRecords:
    records: list[Record] = field(default_factory=list)
    remarks: Remarks = field(default_factory=Remarks)


class _Sample:
    """The files of a sample that the archive has shown so far."""

    def __init__(self, key: str, name: str) -> None:
        self.key, self.name = key, name
        self.extensions: set[str] = set()
        self.num_images = 0
        self.image: tuple[int, Member, int] | None = None  # preference of the extension, member, CRC-32
        self.label_files: dict[str, bytes] = {}

    def add(self, member: Member, extension: str, archive: Archive) -> None:
        if extension in self.extensions:
            raise archive.error(f"member {shorten(member.name)} occurs twice", "leave one out, or rename it")
        self.extensions.add(extension)
        if extension in _EXTENSIONS:
            self.num_images += 1
            rank = _EXTENSIONS.index(extension)
            if self.image is None or rank < self.image[0]:
                self.image = rank, member, archive.crc32()
        elif extension in ("cls", "json"):
            self.label_files[extension] = archive.read(MAX_LABEL_BYTES + 1)


def read_records(chunks: Iterable[bytes], origin: str, num_bytes: int, label_key: str = "") -> ShardRecords:
    """The samples of a shard that have an image, in its order. `find_label` gives their labels.

    The image is the file with the first of `IMAGE_EXTENSIONS`. Files whose basename begins with a dot, or begins and
    ends with two underscores, are ignored.

    Args:
        chunks: the bytes of the shard, in pieces of any size.
        origin: its path or URL.
        num_bytes: its size.

    Raises:
        DamagedShard: see `Archive`; or a label is invalid, a file or a key occurs twice, or the size differs.
    """
    archive, result = Archive(chunks, origin), ShardRecords()
    keys: set[str] = set()
    sample: _Sample | None = None
    for member in archive:
        folder, slash, name = member.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        if not stem or (stem.startswith("__") and stem.endswith("__")):
            continue
        if not dot:
            result.remarks.count(_NO_IMAGE, shorten(member.name))
            continue
        key = f"{folder}{slash}{stem}"
        if sample is None or key != sample.key:
            if sample:
                _add_record(sample, archive, label_key, result)
            if key in keys:
                raise archive.error(
                    f"the files of the sample {shorten(key)} do not follow one another, or it occurs twice",
                    "sort the files (tar --sort=name), or rename some",
                )
            keys.add(key)
            sample = _Sample(key, member.name)
        sample.add(member, extension.lower(), archive)
    if sample:
        _add_record(sample, archive, label_key, result)
    if archive.position != num_bytes:
        raise archive.error(f"has {archive.position:,} bytes, not {num_bytes:,}", "start again when it is complete")
    return result


def _add_record(sample: _Sample, archive: Archive, label_key: str, result: ShardRecords) -> None:
    if sample.image is None:
        result.remarks.count(_NO_IMAGE, shorten(sample.name))
        return
    _, member, crc = sample.image
    if sample.num_images > 1:
        result.remarks.count(_SEVERAL_IMAGES, shorten(member.name))
    try:
        label = find_label(sample.label_files, sample.key, label_key)
    except ValueError as error:
        raise archive.error(f"sample {shorten(sample.key)}: {error}", "correct the shard") from None
    if label == LEFT_OUT:
        result.remarks.count(f"are left out: their label {shorten(label_key)} is -1", shorten(member.name))
    else:
        result.records.append(Record(member.offset, member.size, crc, label, member.name))
