"""`images.csv.gz` of a run: which images it has read, with the SHA-256 of their content; and how others differ."""

import csv
import gzip
import io
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import repeat, zip_longest
from pathlib import Path
from typing import NamedTuple
from zlib import error as ZlibError

import numpy as np
import torch
import torch.distributed as dist

from configs.schema import Data
from datasets.sources.class_names import list_names, names_of_labels, new_names
from datasets.sources.samples import Samples, is_multi_hot
from engine.evaluation.results import name_of_target
from engine.run.facts import ImagesRead
from engine.run.log import RunLogger
from utils.distributed import ProcessContext, call_on_main
from utils.errors import UserError
from utils.files import open_atomically, open_regular_file
from utils.notes import Note

IMAGES = "images.csv.gz"
MAX_ROWS = 10**7  # of the file
_SORTED = 400_000  # lines in memory
_NAMED = 3
_BUFFER = 2**20  # bytes
_TRAIN, _OF_DIGEST = b"train,", slice(-65, -1)  # begin of a line, and the digits before its end
_BYTES = 32  # of a SHA-256
_UNREAD = bytes(_BYTES)
_DAMAGES = (OSError, EOFError, ValueError, TypeError, ZlibError, csv.Error)  # of a file, also of none


class ImageRow(NamedTuple):
    """An image. path: relative to the folder of the data. sha256: in hexadecimal digits, '' if it was not read."""

    split: str
    path: str
    label: str
    group: str
    sha256: str


def read_image_table(folder: Path) -> list[ImageRow]:
    """The rows of `images.csv.gz` in the folder of a run; none if there is no such file, or a damaged one."""
    with suppress(*_DAMAGES):
        return [*_rows_of(_lines(folder))]
    return []


def read_trained(folder: Path, digests: Container[bytes]) -> tuple[set[bytes], int, int]:
    """The `digests`, in hexadecimal digits, that training images of a run have; the number of its training
    images, and of those that it had read; nothing as of `read_image_table`.
    """
    found = set[bytes]()
    number = known = 0
    with suppress(*_DAMAGES):
        for line in _lines(folder):
            if line.startswith(_TRAIN):
                number += 1
                known += not line.endswith(b",\n")
                if (digest := line[_OF_DIGEST]) in digests:
                    found.add(digest)
        return found, number, known
    return set(), 0, 0


def _lines(folder: Path) -> Iterator[bytes]:
    """Yields the rows of the file as lines of CSV: to read a million of them as texts takes three times as long.

    Raises one of `_DAMAGES`, also after the last row.
    """
    with (
        open_regular_file(folder / IMAGES) as packed,
        io.BufferedReader(gzip.GzipFile(fileobj=packed), _BUFFER) as file,
    ):
        next(file, b"")  # the header
        for line in file:
            while b'"' in line and line.count(b'"') % 2:  # a line break in a cell
                more = file.readline()
                if not more:
                    raise EOFError
                line += more
            yield line


def _rows_of(lines: Iterable[bytes]) -> Iterator[ImageRow]:
    for cells in csv.reader(line.decode("utf-8", "surrogateescape") for line in lines):
        yield ImageRow(*cells)


@dataclass
class ImagesAtHand:
    """The images of some splits, and the SHA-256 of each, `_UNREAD` of one that was not read."""

    splits: Mapping[str, Samples]
    content: bytearray

    def rows(self) -> Iterator[ImageRow]:
        index = 0
        for split, samples in self.splits.items():
            names = names_of_labels(samples, len(samples.class_counts(0)))
            labels: Iterable[str] = (name_of_target(target, names) for target in samples.targets)
            if not is_multi_hot(samples.targets):
                labels = map(names.__getitem__, samples.targets.tolist())
            for path, label, group in zip(samples.paths, labels, samples.groups or repeat(""), strict=False):
                digest = self.content[index : index + _BYTES]
                yield ImageRow(split, path, label, group, "" if digest == _UNREAD else digest.hex())
                index += _BYTES

    def digest(self) -> str:
        """SHA-256 of the sorted lines 'sha256 split path label group'; 'partial: ...' if some have not been read."""
        number = len(self.content) // _BYTES
        known = np.count_nonzero(np.frombuffer(self.content, np.uint8).reshape(-1, _BYTES).any(1))
        if known < number:
            return f"partial: {known:,} of {number:,}"
        parts = 1 + number // _SORTED
        lines = sha256()
        separator = ""
        for part in range(parts):  # by their first byte, so that a part of them is in memory
            of_part = (row for row in self.rows() if int(row.sha256[:2], 16) * parts // 256 == part)
            for line in sorted(" ".join((row.sha256, *row[:-1])) for row in of_part):
                lines.update(f"{separator}{line}".encode("utf-8", "surrogateescape"))
                separator = "\n"
        return lines.hexdigest()

    def write(self, file: Path) -> None:
        """Raises OSError."""
        with (
            open_atomically(file, "wb") as opened,
            gzip.GzipFile("", "wb", 6, opened, mtime=0) as packed,
            io.TextIOWrapper(packed, encoding="utf-8", errors="surrogateescape", newline="") as text,
        ):
            rows = csv.writer(text, lineterminator="\n")
            rows.writerow(ImageRow._fields)
            rows.writerows(self.rows())


def write_images(
    splits: Mapping[str, Samples],
    folder: Path,
    weights: str | Path | None,
    is_same: bool,
    data: Data,
    context: ProcessContext,
    logger: RunLogger,
) -> None:
    """Writes `images.csv.gz` to the folder of a run, records its digest, and compares it; a collective call.

    weights: of this run or another one, whose folder may have such a file: images that were not read now have the hash
    of an earlier start of this run. Warnings name images that differ, if the run is evaluated or resumed (`is_same`),
    and images to evaluate that another run was trained on. Raises UserError: they do, with DATA.IMAGE_HASHES strict.
    """
    if data.image_hashes == "none":
        return
    hashes = [_gather(samples, context) for samples in splits.values()]

    def write() -> None:
        images = ImagesAtHand(splits, bytearray().join(rows.data for rows in hashes))
        source = Path(weights).parent if weights and Path(weights).exists() else folder  # timm's are in none
        try:
            found = compare_images(_lines(source), images, data.rename, fills=source == folder)
        except _DAMAGES:
            found = Differences()
            images = ImagesAtHand(splits, bytearray().join(rows.data for rows in hashes))
        problems = (found.texts() if is_same else []) + found.trained_on(images)
        for problem in problems:
            if data.image_hashes == "strict":
                raise UserError(f"{problem}: DATA.IMAGE_HASHES is strict; restore the images, or set it to warn")
            logger.note(Note("warning", problem, misleads=True))
        logger.note(ImagesRead(images.digest()))
        try:
            if len(images.content) <= MAX_ROWS * _BYTES:
                images.write(folder / IMAGES)
        except OSError as error:  # the run is more important
            logger.warn(f"{IMAGES} cannot be written: {error}")

    call_on_main(write, context)


def _gather(samples: Samples, context: ProcessContext) -> np.ndarray:
    """The hashes that all ranks have, uint8 (N, 32), complete on the main process; a collective call."""
    rows = np.zeros((len(samples), 32), np.uint8) if samples.hashes is None else samples.hashes.rows
    if context.world_size == 1:
        return rows
    tensor = torch.from_numpy(rows).to(context.device, copy=True)
    dist.reduce(tensor, 0, dist.ReduceOp.MAX)
    return tensor.cpu().numpy()


@dataclass
class Differences:
    """How the images at hand differ from the ones of an earlier run.

    number: of its images in their splits; common: those that are at hand. trained: contents of its training images
    that images of other splits have now.
    """

    number: int = 0
    common: int = 0
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    trained: set[str] = field(default_factory=set)

    def texts(self) -> list[str]:
        """What differs; nothing for other data, which have less than half of the paths."""
        found = {"changed": self.changed, "missing": self.missing, "new": self.new}
        texts = [f"{len(paths)} {kind} ({_named(paths)})" for kind, paths in found.items() if paths]
        is_other = 2 * self.common <= self.number
        return [] if is_other or not texts else [f"the figures are of other images than before: {', '.join(texts)}"]

    def trained_on(self, images: ImagesAtHand) -> list[str]:
        """Names the images outside the training split whose content a training image of the earlier run has."""
        if not self.trained:
            return []
        seen = [row.path for row in images.rows() if row.split != "train" and row.sha256 in self.trained]
        text = f"the figures are too high: the weights were trained on the content of {len(seen)} image(s) to evaluate"
        return [f"{text} ({_named(seen)})"]


def compare_images(
    before: Iterable[bytes], images: ImagesAtHand, renames: Mapping[str, str] | None = None, fills: bool = False
) -> Differences:
    """Both are read once, side by side: the rows that wait for the other side are few where the order is the same.

    before: lines of its file. renames: DATA.RENAME. fills: they are of this run: images that were not read now have the
    content that they had; else `trained` is found.
    """
    found = Differences()
    content = memoryview(images.content)  # whose size stays

    def match(old: ImageRow, new: ImageRow, index: int) -> None:
        found.common += 1
        label = old.label
        if renames:
            label = " | ".join(new_names(label.split(" | "), renames))
        if label != new.label or (old.sha256 and new.sha256 not in ("", old.sha256)):
            found.changed.append(new.path)
        if fills and not new.sha256:
            content[index * _BYTES : (index + 1) * _BYTES] = bytes.fromhex(old.sha256) or _UNREAD

    waiting = dict[tuple[str, ...], ImageRow]()
    to_come = dict[tuple[str, ...], tuple[ImageRow, int]]()
    rows = _rows_of_splits(before, images, found, fills)
    for index, (old, new) in enumerate(zip_longest(rows, images.rows())):
        if new:
            to_come[new[:2]] = (new, index)
            if earlier := waiting.pop(new[:2], None):
                match(earlier, *to_come.pop(new[:2]))
        if old:
            found.number += 1
            if later := to_come.pop(old[:2], None):
                match(old, *later)
            else:
                waiting[old[:2]] = old
    found.missing = [path for _, path in waiting]
    found.new = [path for _, path in to_come]
    return found


def _rows_of_splits(
    before: Iterable[bytes], images: ImagesAtHand, found: Differences, is_own: bool
) -> Iterator[ImageRow]:
    """The rows of the splits at hand. Unless they are of this run, `found` gets the contents that were trained on."""
    splits = {*images.splits}
    is_whole = splits == {"all"}
    begins = tuple(f"{split},".encode() for split in splits)
    evaluated = set[bytes]()
    if not is_own:
        evaluated = {row.sha256.encode() for row in images.rows() if row.split != "train" and row.sha256}

    def of_splits() -> Iterator[bytes]:
        for line in before:
            if line.startswith(_TRAIN) and line[_OF_DIGEST] in evaluated:
                found.trained.add(line[_OF_DIGEST].decode())
            if is_whole or line.startswith(begins):
                yield line

    for row in _rows_of(of_splits()):
        yield row._replace(split="all") if is_whole else row


def _named(paths: Iterable[str]) -> str:
    return list_names(sorted(paths), _NAMED)
