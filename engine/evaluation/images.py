"""`images.csv.gz` of a run: which images it has read, with the SHA-256 of their content; and how others differ."""

import csv
import gzip
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import repeat
from pathlib import Path
from typing import NamedTuple
from zlib import error as ZlibError

import numpy as np
import torch
import torch.distributed as dist

from configs.schema import Data
from datasets.sources.class_names import list_names, names_of_labels, new_names
from datasets.sources.samples import Samples
from engine.evaluation.results import name_of_target
from engine.run.facts import ImagesRead
from engine.run.log import RunLogger
from utils.distributed import ProcessContext, call_on_main
from utils.errors import UserError
from utils.files import atomic_write, open_regular_file
from utils.notes import Note
from utils.tables import table_text

IMAGES = "images.csv.gz"
MAX_ROWS = 10**7  # of the file
_NAMED = 3


class Row(NamedTuple):
    """An image. path: relative to the folder of the data. sha256: in hexadecimal digits, '' if it was not read."""

    split: str
    path: str
    label: str
    group: str
    sha256: str


def read_images(folder: Path) -> list[Row]:
    """The rows of `images.csv.gz` in the folder of a run; none if there is no such file, or a damaged one."""
    with (
        suppress(OSError, EOFError, ValueError, TypeError, ZlibError, csv.Error),
        open_regular_file(folder / IMAGES) as packed,
        gzip.open(packed, "rt", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        return [Row(*cells) for cells in csv.reader(file)][1:]
    return []


def digest_of_rows(rows: Sequence[Row]) -> str:
    """SHA-256 of the sorted lines 'sha256 split path label group'; 'partial: ...' if some have not been read."""
    known = sum(bool(row.sha256) for row in rows)
    if known < len(rows):
        return f"partial: {known:,} of {len(rows):,}"
    lines = sorted(" ".join((row.sha256, *row[:-1])) for row in rows)
    return sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


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
        source = Path(weights).parent if weights and Path(weights).exists() else folder  # timm's are in none
        before = [
            row._replace(label=" | ".join(new_names(row.label.split(" | "), data.rename)))
            for row in read_images(source)
        ]
        known: dict[tuple[str, ...], str] = {row[:2]: row.sha256 for row in before if source == folder}
        rows = list[Row]()
        for (split, samples), of_split in zip(splits.items(), hashes, strict=True):
            names = names_of_labels(samples, len(samples.class_counts(0)))
            groups = samples.groups or repeat("")
            for path, target, group, content in zip(samples.paths, samples.targets, groups, of_split, strict=False):
                digest = content.tobytes().hex() if content.any() else known.get((split, path), "")
                rows.append(Row(split, path, name_of_target(target, names), group, digest))
        problems = differences(before, rows) if is_same else []
        if not known:
            problems += trained_on(before, rows)
        for problem in problems:
            if data.image_hashes == "strict":
                raise UserError(f"{problem}: DATA.IMAGE_HASHES is strict; restore the images, or set it to warn")
            logger.note(Note("warning", problem, misleads=True))
        logger.note(ImagesRead(digest_of_rows(rows)))
        try:
            if len(rows) <= MAX_ROWS:
                text = table_text(Row._fields, rows).encode("utf-8", "surrogateescape")
                atomic_write(folder / IMAGES, gzip.compress(text, mtime=0))
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


def differences(before: Sequence[Row], now: Sequence[Row]) -> list[str]:
    """What differs in the splits of `now`; nothing for other data, which have less than half of the paths."""
    splits = {row.split for row in now}
    if splits == {"all"}:
        before = [row._replace(split="all") for row in before]
    old = {row[:2]: row for row in before if row.split in splits}
    new = {row[:2]: row for row in now}
    common = old.keys() & new.keys()
    changed = [key for key in common if _differ(old[key], new[key])]
    found = {"changed": changed, "missing": old.keys() - common, "new": new.keys() - common}
    texts = [f"{len(keys)} {kind} ({_named(keys)})" for kind, keys in found.items() if keys]
    is_other = 2 * len(common) <= len(old)
    return [] if is_other or not texts else [f"the figures are of other images than before: {', '.join(texts)}"]


def _differ(one: Row, other: Row) -> bool:
    """Whether the label differs, or the content, if both are known."""
    return one.label != other.label or len({one.sha256, other.sha256} - {""}) > 1


def trained_on(before: Sequence[Row], now: Sequence[Row]) -> list[str]:
    """Names the images outside the training split whose content a training image of `before` has."""
    trained = {row.sha256 for row in before if row.split == "train"} - {""}
    seen = [row[:2] for row in now if row.split != "train" and row.sha256 in trained]
    text = f"the figures are too high: the weights were trained on the content of {len(seen)} image(s) to evaluate"
    return [f"{text} ({_named(seen)})"] if seen else []


def _named(keys: Iterable[tuple[str, ...]]) -> str:
    return list_names(sorted(path for _, path in keys), _NAMED)
