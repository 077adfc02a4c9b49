"""The samples of a shard, by WebDataset's rule: consecutive files that differ in their extension only are one sample.

The key of a file is its path up to the first dot of its basename; the rest is its extension, in lower case.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from configs.reading.yaml_io import shorten
from datasets.shards.indexing.archive import Archive, Member
from datasets.shards.indexing.labels import LEFT_OUT, MAX_LABEL_BYTES, Label, find_label
from datasets.sources.files.found_files import IMAGE_EXTENSIONS, PHOTO_EXTENSIONS

_EXTENSIONS = [extension.removeprefix(".") for extension in (*IMAGE_EXTENSIONS, *PHOTO_EXTENSIONS)]
_NO_IMAGE = f"have no image (.{', .'.join(_EXTENSIONS)})"


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
    chunks: Iterable[bytes], origin: str, num_bytes: int, label_key: str = ""
) -> tuple[list[Record], Remarks]:
    """The samples of a shard that have an image, in its order, and remarks. `find_label` gives their labels.

    The image is the file with the first of `IMAGE_EXTENSIONS`. Files are ignored if their basename has no extension,
    or begins with a dot, or begins and ends with two underscores.

    Args:
        chunks: the bytes of the shard, in pieces of any size.
        origin: its path or URL.
        num_bytes: its size.

    Raises:
        DamagedShard: see `Archive`; or a label is invalid, a file or a key occurs twice, or the size differs.
    """
    archive, records, remarks, keys = Archive(chunks, origin), [], Remarks(), set()
    for key, group in groupby(_files(archive), attrgetter("key")):
        files: dict[str, _File] = {}
        for file in group:
            if file.extension in files:
                raise archive.error(f"member {shorten(file.member.name)} occurs twice", "leave one out, or rename it")
            files[file.extension] = file
        if key in keys:
            raise archive.error(
                f"the files of the sample {shorten(key)} do not follow one another, or it occurs twice",
                "sort the files (tar --sort=name), or rename some",
            )
        keys.add(key)
        images = [files[extension] for extension in _EXTENSIONS if extension in files]
        if not images:
            remarks.count(_NO_IMAGE, shorten(next(iter(files.values())).member.name))
            continue
        name, offset, length = images[0].member
        try:
            label = find_label({extension: file.content for extension, file in files.items()}, key, label_key)
        except ValueError as error:
            raise archive.error(f"sample {shorten(key)}: {error}", "correct the shard") from None
        if label == LEFT_OUT:
            remarks.count(f"are left out: their label {shorten(label_key)} is -1", shorten(name))
        else:
            records.append(Record(offset, length, images[0].crc, label, name))
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
