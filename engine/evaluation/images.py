"""`images.csv.gz` of a run: which images it has read, with the SHA-256 of their content; and how others differ."""

import csv
import gzip
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice, repeat, zip_longest
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
from utils.distributed import ProcessContext, find_on_main
from utils.errors import UserError
from utils.files import open_atomically, open_regular_file
from utils.notes import Note

IMAGES = "images.csv.gz"
MAX_ROWS = 10**7  # of the file
_SORTED = 200_000  # lines in memory
_NAMED = 3
_BUFFER = 2**20  # bytes
_CHUNK = 4096  # rows
_LINE = re.compile(rb'(?:[^"\n]++|"[^"]*+")++')  # of CSV
_DIGITS = 64  # of a SHA-256
_UNREAD = "0" * _DIGITS
_DAMAGES = (OSError, EOFError, ValueError, TypeError, ZlibError, csv.Error)  # of a file, also of none


class ImageRow(NamedTuple):
    """An image. path: relative to the folder of the data. sha256: in hexadecimal digits, '' if it was not read."""

    split: str
    path: str
    label: str
    group: str
    sha256: str


def read_trained(folder: Path, digests: set[bytes]) -> tuple[set[bytes], int, int]:
    """The `digests`, in hexadecimal digits, that training images of a run have; the number of its training
    images, and of those that it had read; nothing if `images.csv.gz` is missing or damaged.
    """
    found = set[bytes]()
    number = known = 0
    with suppress(*_DAMAGES):
        for lines in _lines(folder):
            trained = _trained_in(lines)
            found |= digests.intersection(trained)
            number += len(trained)
            known += sum(b"," not in digest for digest in trained)
        return found, number, known
    return set(), 0, 0


def _lines(folder: Path) -> Iterator[list[bytes]]:
    """Yields the rows of the file as lines of CSV, many at a time: texts of a million rows take three times as long.

    Raises one of `_DAMAGES`, also after the last row.
    """
    with open_regular_file(folder / IMAGES) as packed, gzip.GzipFile(fileobj=packed) as file:
        file.readline()  # the header
        while text := file.read(_BUFFER):
            parts = [text]
            num_quotes = text.count(b'"')
            for line in file:  # up to the end of a row: a cell may have line breaks
                parts.append(line)
                num_quotes += line.count(b'"')
                if num_quotes % 2 == 0:
                    break
            text = b"".join(parts)
            yield _LINE.findall(text) if num_quotes else text.rstrip(b"\n").split(b"\n")


def _trained_in(lines: Iterable[bytes]) -> list[bytes]:
    """The digests of the training images among the rows; with a comma of an image that was not read."""
    return [line[-_DIGITS:] for line in lines if line.startswith(b"train,")]


@dataclass
class ImagesAtHand:
    """The images of some splits, and the SHA-256 of each: uint8 (N, 32), zeros for one that was not read."""

    splits: Mapping[str, Samples]
    content: np.ndarray

    @property
    def known(self) -> int:
        """The number of images that were read."""
        return int(np.count_nonzero(self.content.any(1)))

    def rows(self) -> Iterator[ImageRow]:
        return self._rows(self._names())

    def _names(self) -> dict[str, list[str]]:
        """Of the labels of each split. A part of the images may lack the last labels, and so the second of a name."""
        return {split: names_of_labels(samples, len(samples.class_counts(0))) for split, samples in self.splits.items()}

    def _rows(self, names_of: Mapping[str, list[str]]) -> Iterator[ImageRow]:
        digests = self._digests()
        for split, samples in self.splits.items():
            names = names_of[split]
            labels: Iterable[str] = (name_of_target(target, names) for target in samples.targets)
            if not is_multi_hot(samples.targets):
                labels = map(names.__getitem__, samples.targets.tolist())
            cells = zip(repeat(split), samples.paths, labels, samples.groups or repeat(""), digests, strict=False)
            yield from map(ImageRow._make, cells)

    def _digests(self) -> Iterator[str]:
        """In hexadecimal digits, '' of an image that was not read."""
        for first in range(0, len(self.content), _CHUNK):
            digits = self.content[first : first + _CHUNK].tobytes().hex()
            for start in range(0, len(digits), _DIGITS):
                digest = digits[start : start + _DIGITS]
                yield "" if digest == _UNREAD else digest

    def _select(self, is_selected: np.ndarray) -> "ImagesAtHand":
        """is_selected: bool (N,)."""
        splits = dict[str, Samples]()
        first = 0
        for split, samples in self.splits.items():
            splits[split] = samples.select(np.flatnonzero(is_selected[first : first + len(samples)]))
            first += len(samples)
        return ImagesAtHand(splits, self.content[is_selected])

    def digest(self) -> str:
        """SHA-256 of the sorted lines 'sha256 split path label group'; 'partial: ...' if some have not been read."""
        number = len(self.content)
        if (known := self.known) < number:
            return f"partial: {known:,} of {number:,}"
        parts = 1 + number // _SORTED
        part_of = self.content[:, 0].astype(np.int64) * parts // 256  # so that a part of the lines is in memory
        digest = sha256()
        separator = b""
        names = self._names()
        for part in range(parts):
            rows = self._select(part_of == part)._rows(names)
            lines = sorted(
                f"{row_digest} {split} {path} {label} {group}" for split, path, label, group, row_digest in rows
            )
            if lines:
                digest.update(separator + "\n".join(lines).encode("utf-8", "surrogateescape"))
                separator = b"\n"
        return digest.hexdigest()

    def write(self, file: Path) -> None:
        """Raises OSError."""
        rows = self.rows()
        part = [ImageRow(*ImageRow._fields)]
        with open_atomically(file, "wb") as opened, gzip.GzipFile("", "wb", 1, opened, mtime=0) as packed:
            while part:
                packed.write(_csv_of(part).encode("utf-8", "surrogateescape"))
                part = [*islice(rows, _CHUNK)]


def _csv_of(rows: Sequence[ImageRow]) -> str:
    """The writer of `csv`, which takes six times as long, quotes cells with one of its characters."""
    text = "\n".join([",".join(row) for row in rows]) + "\n"
    separators = len(rows) * (len(ImageRow._fields) - 1)
    if text.count(",") == separators and text.count("\n") == len(rows) and '"' not in text and "\r" not in text:
        return text
    quoted = io.StringIO(newline="")
    csv.writer(quoted, lineterminator="\n").writerows(rows)
    return quoted.getvalue()


def write_images(
    splits: Mapping[str, Samples],
    folder: Path,
    weights: str | Path | None,
    is_same: bool,
    data: Data,
    context: ProcessContext,
    logger: RunLogger,
    written: int = -1,
) -> int:
    """Writes `images.csv.gz` to the folder of a run, records its digest, and compares it; a collective call.

    weights: of this run or another one, whose folder may have such a file: images that were not read now have the hash
    of an earlier start of this run. Warnings name images that differ, if the run is evaluated or resumed (`is_same`),
    and images to evaluate that another run was trained on. Raises UserError: they do, with DATA.IMAGE_HASHES strict.
    Returns the number of images that this start has read; nothing is done if it is `written`, of an earlier call.
    """
    if data.image_hashes == "none":
        return 0
    hashes = [_gather(samples, context) for samples in splits.values()]

    def write() -> int:
        images = ImagesAtHand(splits, np.concatenate(hashes))
        read = images.known
        if read == written:
            return read
        source = Path(weights).parent if weights and Path(weights).exists() else folder  # timm's are in none
        try:
            found = compare_images(_lines(source), images, data.rename, fills=source == folder)
        except _DAMAGES:
            found = Differences()
            images = ImagesAtHand(splits, np.concatenate(hashes))
        problems = (found.texts() if is_same else []) + found.trained_on(images)
        for problem in problems:
            if data.image_hashes == "strict":
                raise UserError(f"{problem}: DATA.IMAGE_HASHES is strict; restore the images, or set it to warn")
            logger.note(Note("warning", problem, misleads=True))
        logger.note(ImagesRead(images.digest()))
        try:
            if len(images.content) <= MAX_ROWS:
                images.write(folder / IMAGES)
        except OSError as error:  # the run is more important
            logger.warn(f"{IMAGES} cannot be written: {error}")
            return 0
        return read

    return find_on_main(write, context)


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

    number: of its images in their splits; common: those that are at hand. trained: contents of its training images,
    in hexadecimal digits, that images of other splits have now.
    """

    number: int = 0
    common: int = 0
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    trained: set[bytes] = field(default_factory=set)

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
        seen = [row.path for row in images.rows() if row.split != "train" and row.sha256.encode() in self.trained]
        text = f"the figures are too high: the weights were trained on the content of {len(seen)} image(s) to evaluate"
        return [f"{text} ({_named(seen)})"]


def compare_images(
    before: Iterable[list[bytes]], images: ImagesAtHand, renames: Mapping[str, str] | None = None, fills: bool = False
) -> Differences:
    """Both are read once, side by side: the rows that wait for the other side are few where the order is the same.

    before: lines of its file, many at a time. renames: DATA.RENAME. fills: they are of this run: images that were not
    read now have the content that they had; else `trained` is found.
    """
    found = Differences()

    def match(old: ImageRow, new: ImageRow, index: int) -> None:
        found.common += 1
        label = old.label
        if renames:
            label = " | ".join(new_names(label.split(" | "), renames))
        if label != new.label or (old.sha256 and new.sha256 not in ("", old.sha256)):
            found.changed.append(new.path)
        if fills and old.sha256 and not new.sha256:
            images.content[index] = np.frombuffer(bytes.fromhex(old.sha256), np.uint8)

    waiting = dict[tuple[str, ...], ImageRow]()
    to_come = dict[tuple[str, ...], tuple[ImageRow, int]]()
    rows = _rows_of_splits(before, images, found, fills)
    for index, (old, new) in enumerate(zip_longest(rows, images.rows())):
        if old == new and not renames:  # nearly all of a resumed run
            found.number += 1
            found.common += 1
            continue
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
    before: Iterable[list[bytes]], images: ImagesAtHand, found: Differences, is_own: bool
) -> Iterator[ImageRow]:
    """The rows of the splits at hand. Unless they are of this run, `found` gets the contents that were trained on."""
    is_whole = {*images.splits} == {"all"}
    begins = b"" if is_whole else tuple(f"{split},".encode() for split in images.splits)
    evaluated = set[bytes]()
    if not is_own:
        evaluated = {row.sha256.encode() for row in images.rows() if row.split != "train" and row.sha256}
    for lines in before:
        if evaluated:
            found.trained |= evaluated.intersection(_trained_in(lines))
        wanted = [line for line in lines if line.startswith(begins)]
        texts = [line.decode("utf-8", "surrogateescape") for line in wanted]
        is_quoted = any('"' in text for text in texts)
        cells = csv.reader(texts) if is_quoted else (text.split(",") for text in texts)
        rows = map(ImageRow._make, cells)
        yield from (row._replace(split="all") for row in rows) if is_whole else rows


def _named(paths: Iterable[str]) -> str:
    return list_names(sorted(paths), _NAMED)
