"""Checks samples before the first step: `findings` are errors that end a run, `notes` go to its log.

Image files are checked by their first and last bytes. Files with unexpected bytes are decoded: the check refuses only
images that the run would refuse.

Digests of samples compare the data that the ranks read: each host may have files of its own.
"""

import hashlib
import os
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from itertools import chain
from typing import Literal

import numpy as np

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.decode import MAX_VALUE, is_affordable, read_deep_values, scale_to_8_bits
from datasets.decoding.images import (
    HEAD_BYTES,
    HOW_TO_SKIP,
    TAIL_BYTES,
    BadImage,
    has_frames,
    has_more_bands,
    kind_of,
    missing_decoder,
    size_if_whole,
)
from datasets.sources.class_names import names_of_labels
from datasets.sources.samples import UNKNOWN, EncodedImages, ImageFiles, Samples, label_pairs, spread
from utils.distributed import ProcessContext, call_on_main, gather_objects
from utils.errors import Finding, UserError, combine_findings
from utils.files import open_descriptor
from utils.notes import Note

_FEW_IMAGES = 10  # per class
# per class; largest class / smallest class
_FEW_VAL_IMAGES = 5
_IMBALANCE = 10
_FEW_LEVELS = 32
_GREY_IMAGES = 64
_OUTLIERS = 1e-4  # share of the pixels at each end, such as defective pixels of a detector
_MOST_CHECKED = 100_000  # images: of more, a part is checked
_MAX_SECONDS = 30.0  # of the check of image files
_NUM_THREADS = 16  # they wait for the disk
_MAX_COMPARE_SECONDS = 10.0  # of reading files of equal size and end as a whole
_decoding = threading.Semaphore(4)  # a large image takes 200 MB
_PART_BYTES = 2**16  # of a file
_CHUNK = 256  # images between two looks at the clock


def find_invalid_labels(samples: Samples, split: str, num_classes: int) -> list[str]:
    """Finds labels for which the model has no class."""
    indices, labels = label_pairs(samples.targets)
    wrong = np.flatnonzero(labels >= num_classes)
    if not len(wrong):
        return []
    text = f"{samples.location(indices[wrong[0]])}: label {labels[wrong[0]]}, but MODEL.NUM_CLASSES is {num_classes}"
    return [f"{text}; use a model of {labels.max() + 1} classes or more, or correct the labels of {split}"]


def find_problems(
    samples: Samples, split: str, data: Data, context: ProcessContext, trains: bool = True
) -> list[Finding]:
    """Finds samples that can only be predicted: without any label, without files, or too few for a training."""
    findings: list[Finding] = []
    is_multi_label = samples.targets.ndim == 2 and len(samples)  # no sample is another problem
    if isinstance(samples, ImageFiles) and is_multi_label and not (samples.targets > 0).any():
        # The average precision is not defined.
        findings.append(f"{samples.file}: no image of the split {split} has a label; fill in its labels")
    if trains and split == "train" and not samples.findings:
        findings += _find_short_batch(len(samples), data, context.world_size)
    if context.local_rank == 0:  # each host may have a disk of its own
        findings += samples.find_missing_files()
    return findings


def notes_on_unknown(samples: Samples, split: str, kind: Literal["screen", "log"]) -> list[Note]:
    """The number of images of which each label is unknown."""
    counts = np.count_nonzero(np.atleast_2d(samples.targets) == UNKNOWN, axis=0)
    names = names_of_labels(samples, len(counts))
    shown = [f"{shorten(names[label])} {counts[label]}" for label in np.flatnonzero(counts).tolist()]
    text = f"labels of {split} that are unknown, of {len(samples)} images, and count in no loss and figure"
    return [Note(kind, f"{text}: {', '.join(shown)}")] if shown else []


def _find_short_batch(number: int, data: Data, ranks: int) -> list[str]:
    """The error of fewer training images than one batch on every rank."""
    needed = data.global_batch_size or data.micro_batch * ranks
    if number >= needed:
        return []
    per_rank = number // ranks
    size = min(data.micro_batch, per_rank, max(per_rank // 10, 8))  # ten steps per epoch
    fix = f"use -batch_size={size}"
    if data.global_batch_size:
        fix += f" -opts DATA.GLOBAL_BATCH_SIZE={size * ranks}"
    if not size:
        fix = "use fewer devices, or add images"
    return [f"{data.dataset}: {number} training samples do not fill one batch of {needed} on {ranks} device(s); {fix}"]


def notes_on(train: Samples, val: Samples, test: Samples | None = None, is_weighted: bool = False) -> list[Note]:
    """Facts that may be intended: classes with few images or of unequal size, few gray levels.

    A class without validation or test images is not evaluated. is_weighted: whether rare classes count more already.
    """
    names = max((samples.class_names for samples in (train, val, test or val)), key=len)  # of lists: the labels
    counts = train.class_counts(len(names))
    order = [label for label in np.argsort(counts, kind="stable").tolist() if counts[label]]
    notes = _notes_on_training(train, names, counts)
    if len(order) > 1:
        notes += _notes_on_evaluated(val, "validation", _FEW_VAL_IMAGES, names, order)
        if test:
            notes += _notes_on_evaluated(test, "test", 1, names, order)
        largest = order[-1]
        smallest = order[0]
        if counts[largest] >= _IMBALANCE * counts[smallest]:
            sizes = f"{shorten(names[largest])} has {counts[largest]} training images, {shorten(names[smallest])} "
            fix = "compare the macro F1"
            if not is_weighted:
                fix += ", try LOSS.CLASS_WEIGHTS=balanced"
            notes.append(Note("warning", f"{sizes}{counts[smallest]}: {fix}"))
    return notes + _notes_on_grey_levels(train)


def _notes_on_training(train: Samples, names: Sequence[str], counts: np.ndarray) -> list[Note]:
    """Of classes without images, and of few images. counts: of the classes `names`, int64 (C,)."""
    notes = []
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        text = f"{len(empty)} of {len(names)} classes have no training image, such as {shorten(names[empty[-1]])}"
        is_meant = not train.has_class_names and len(names) == len(train.class_names)  # a part of ImageNet's numbers
        notes.append(Note("log" if is_meant else "warning", text))
    typical = np.median(counts[counts > 0]) if counts.any() else _FEW_IMAGES
    if typical < _FEW_IMAGES:
        fix = "add images or use pretrained weights, and validate on more images"
        notes.append(Note("warning", f"{typical:g} training images per class (median); {fix}"))
    return notes


def _notes_on_evaluated(
    samples: Samples, split: str, least: int, names: Sequence[str], order: Sequence[int]
) -> list[Note]:
    """A warning of classes of the training with fewer than `least` images."""
    counts = samples.class_counts(len(names))
    few = [label for label in order if counts[label] < least]
    if not few:
        return []
    lowest = sorted(few, key=counts.__getitem__)[:3]
    number = f"fewer than {least}" if least > 1 else "no"
    text = f"{len(few)} of {len(order)} classes have {number} {split} images"
    if samples.targets.ndim == 2 and split == "validation":
        text += ", so few that their thresholds are chance"
    example = ", ".join(f"{counts[label]} of {shorten(names[label])}" for label in lowest)
    return [Note("warning", f"{text} ({example}); add images")]


def _notes_on_unread_parts(splits: Sequence[ImageFiles], place: str) -> list[Note]:
    """The images of several frames or pages, or of further bands, among a few that are opened."""
    paths = [files.name(index) for files in splits for index in spread(len(files), 256)]
    notes = []
    for has_more, parts in ((has_frames, "frames or pages"), (has_more_bands, "bands after the colors")):
        found = [*filter(has_more, paths)]
        if found:
            text = f"{len(found)} of {len(paths)} images have further {parts}, which are not read in {place}"
            notes.append(Note("warning", f"{text}, such as {shorten(found[0])}"))
    return notes


def _notes_on_grey_levels(samples: Samples) -> list[Note]:
    """A warning if a few images of 16 bits use few of the 256 levels that the model receives: 12 bits use 16."""
    if not isinstance(samples, EncodedImages):
        return []
    histogram = np.zeros(MAX_VALUE + 1, dtype=np.int64)
    levels = np.zeros(256, dtype=np.int64)
    for index in spread(len(samples), _GREY_IMAGES):
        try:
            deep = read_deep_values(samples.read_bytes(index), samples.name(index), samples.decoding.max_pixels)
        except BadImage:
            continue
        except UserError:  # a disk or a server fails: the error is reported when the images are used
            break
        if deep:
            values, highest = deep
            histogram += np.bincount(values.ravel(), minlength=MAX_VALUE + 1)
            pixels = scale_to_8_bits(values, samples.decoding.grey_range or (0, highest))
            levels += np.bincount(pixels.ravel(), minlength=256)
    num_used = int((levels > _OUTLIERS * histogram.sum()).sum())
    if num_used >= _FEW_LEVELS or not histogram.any():
        return []
    share = np.cumsum(histogram)
    low, high = np.searchsorted(share, [_OUTLIERS * share[-1], (1 - _OUTLIERS) * share[-1]]).tolist()
    text = f"16-bit images become {num_used} of 256 levels, with values from {low} to {high}"
    return [Note("warning", f"{text}; set DATA.GREY_RANGE=[{low},{high}], or the range of the device")]


def check_same_data(splits: Mapping[str, Samples], context: ProcessContext) -> None:
    """Checks that all ranks have the same splits with the same samples in the same order. A collective call.

    Raises UserError: on all ranks; it names the first rank that differs from rank 0, its host, and the numbers of both.
    """
    if context.world_size == 1:
        return
    texts = {}
    for split, samples in splits.items():
        digest = sha256(_fingerprints(samples).data).hexdigest()[:16]
        texts[split] = f"{len(samples)} images in {len(samples.class_names)} classes, digest {digest}"
    of_ranks = gather_objects(texts, context)
    for rank, of_rank in enumerate(of_ranks):
        for split in of_ranks[0] | of_rank:
            one, first = (of.get(split, f"no split {split}") for of in (of_rank, of_ranks[0]))
            if one != first:
                raise UserError(
                    f"{context.name(rank)} has other data than {context.name(0)}: {one}, not {first}; "
                    "copy the data of one host to the others, or use a folder that all hosts share"
                )


def digest_of(samples: Samples) -> str:
    """A digest of the labels, class names and checksums of samples in any order: 16 hexadecimal digits."""
    return sha256(np.sort(_fingerprints(samples)).data).hexdigest()[:16]


def _fingerprints(samples: Samples) -> np.ndarray:
    """A checksum of the classes of each sample, 'none' of the label -1, and of its content: uint64 (N,)."""
    targets = samples.targets
    number = targets.shape[1] if targets.ndim == 2 else targets.max(initial=-1) + 1
    classes = [*(f"{label} {name}" for label, name in enumerate(names_of_labels(samples, number))), "none"]
    numbers = np.array([zlib.crc32(name.encode(errors="surrogateescape")) for name in classes], np.uint64)
    indices, labels = label_pairs(targets)
    of_samples = np.zeros(len(targets), np.uint64)
    np.add.at(of_samples, indices, numbers[labels])
    if targets.ndim == 2:
        indices, labels = np.nonzero(targets == UNKNOWN)
        np.add.at(of_samples, indices, 3 * numbers[labels])
    return of_samples << np.uint64(32) | samples.checksums()


def check_images(
    splits: Sequence[Samples], data: Data, context: ProcessContext, decode_seconds: float = 0.0
) -> list[Note]:
    """Checks the image files of all splits on the main process, or as many as it can in half a minute; of many a part.

    Returns notes there; with DATA.ON_BAD_IMAGE: skip, of the number of unusable images. Every rank must call it.
    decode_seconds: for which whole images are decoded, too.
    Raises UserError: all unusable images, in one error on every rank.
    """
    files = [samples for samples in splits if isinstance(samples, ImageFiles)]
    num_images = sum(map(len, files))

    def check() -> list[Note]:
        notes = []
        bad, fingerprints = check_files(files, data.image_channels, decode_seconds)
        if data.on_bad_image == "error" and bad:
            if not decode_seconds:  # the run ends in any case: one error names the images that only decoding finds, too
                bad, _ = check_files(files, data.image_channels, _MAX_SECONDS)
            raise error_of([*{image.path: image for image in bad}.values()], num_images)  # two splits may share images
        if num_images > _MOST_CHECKED:
            text = f"{_MOST_CHECKED:,} of {num_images:,} images are checked before the first step: all of some sizes"
            notes.append(Note("log", text))
        if bad:
            text = f"{len(bad)} image(s) cannot be read and are skipped (DATA.ON_BAD_IMAGE)"
            notes.append(Note("warning", f"{text}, such as {bad[0].path!r}: {bad[0].reason}"))
        if files:
            notes += _notes_on_equal_files(files, fingerprints)
            notes += _notes_on_unread_parts(files, data.data_path)
        return notes

    return call_on_main(check, context) or []


def error_of(bad: Sequence[BadImage], num_images: int = 0) -> UserError:
    """One error about unusable images; of all images, about the first one. num_images: of the run, if known."""
    if len(bad) == num_images:
        error = UserError(f"none of the {num_images} images can be read, such as {bad[0]}")
        error.status = bad[0].status
        return error
    problems = [bad[0].with_hint()] if len(bad) == 1 else bad
    return combine_findings(f"{len(bad)} images cannot be read; {HOW_TO_SKIP}", problems)


def decode_images(splits: Sequence[ImageFiles], channels: int) -> list[BadImage]:
    """Decodes all images, one after another, and returns the unusable ones, each once.

    Raises UserError: a disk or a server fails.
    """
    found = (_decoding_problem(samples, index, channels) for samples in splits for index in range(len(samples)))
    return list({problem.path: problem for problem in found if problem}.values())


def _decoding_problem(samples: ImageFiles, index: int, channels: int) -> BadImage | None:
    try:
        samples.open(index, channels).pixels  # noqa: B018  # decodes
    except BadImage as problem:
        if not samples.file:
            return problem
        return type(problem)(problem.path, f"{problem.reason} ({samples.location(index)})", problem.fix)
    return None


def check_files(
    splits: Sequence[ImageFiles], channels: int, decode_seconds: float = 0.0
) -> tuple[list[BadImage], np.ndarray]:
    """Checks as many images as it can in half a minute, and decodes whole ones for `decode_seconds`, see `_order`.

    Returns the unusable ones in order, and of each file of all splits its size and the CRC-32 of its end, uint64 (N,):
    size << 32 | CRC-32, 0 if not checked.
    """
    start = time.monotonic()
    fingerprints = np.zeros(sum(map(len, splits)), np.uint64)

    def check(places: np.ndarray) -> list[tuple[int, BadImage | None]]:
        found = list[tuple[int, BadImage | None]]()
        if time.monotonic() > start + _MAX_SECONDS:
            return found
        for place in places.tolist():
            samples, index = _find(splits, place)
            is_intact = _looks_intact(samples, index, fingerprints[place : place + 1])
            if not is_intact or time.monotonic() < start + decode_seconds:
                with _decoding:
                    found.append((place, _decoding_problem(samples, index, channels)))
        return found

    order = _order(splits)[:_MOST_CHECKED]
    chunks = (np.sort(order[first : first + _CHUNK]) for first in range(0, len(order), _CHUNK))
    with ThreadPoolExecutor(_NUM_THREADS) as pool:  # an error cancels the other chunks
        found = dict(chain.from_iterable(pool.map(check, chunks)))
    return [problem for _, problem in sorted(found.items()) if problem], fingerprints


def _find(splits: Sequence[ImageFiles], place: int) -> tuple[ImageFiles, int]:
    """The split of an image, and its index there. place: among the images of all splits."""
    for samples in splits:
        if place < len(samples):
            return samples, place
        place -= len(samples)
    raise IndexError(place)


def _order(splits: Sequence[ImageFiles]) -> np.ndarray:
    """A random order of the images of all splits, the same in each run, so that a part of them covers the data.

    Images in row groups follow their windows. Of many files, it has those to check: files of one size follow each
    other, since files with equal bytes have one size, and the empty and missing ones are first.
    """
    generator = np.random.default_rng(0)
    places = [np.argsort(one.windows.order(0, 0).numpy()) / len(one) for one in splits if one.windows]
    if places:
        return np.argsort(np.concatenate(places))
    number = sum(map(len, splits))
    if number <= _MOST_CHECKED:
        return generator.permutation(number)
    sizes, size_of = np.unique(np.concatenate([*map(_file_sizes, splits)]), return_inverse=True)
    keys = (generator.random(len(sizes)) * (sizes != 0))[size_of]
    first = np.flatnonzero(keys <= np.partition(keys, _MOST_CHECKED)[_MOST_CHECKED])  # sorting a million takes 0.4 s
    return first[np.lexsort((generator.random(len(first)), keys[first]))]


def _file_sizes(samples: ImageFiles) -> np.ndarray:
    """The size of each file, int64 (N,): 0 of a missing one, and another number of each for which the time ends."""
    sizes = -1 - np.arange(len(samples))
    try:
        root = os.open(samples.root, os.O_RDONLY)  # paths in it are found faster than longer ones
    except OSError:
        return np.zeros(len(samples), np.int64)
    deadline = time.monotonic() + _MAX_SECONDS / 2

    def find(first: int) -> None:
        if time.monotonic() > deadline:
            return
        for index, path in enumerate(samples.places.part(first, min(first + _CHUNK, len(samples))), first):
            try:
                sizes[index] = os.stat(path, dir_fd=root).st_size
            except OSError:
                sizes[index] = 0

    try:
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            pool.map(find, range(0, len(samples), _CHUNK))
    finally:
        os.close(root)
    return sizes


def _looks_intact(samples: ImageFiles, index: int, fingerprint: np.ndarray) -> bool:
    """Tells whether the file begins and ends as a common image that is not too large; False if it cannot be read.

    fingerprint: gets the one of the file, uint64 (1,).
    """
    try:
        descriptor, size = open_descriptor(samples.name(index))
        try:
            head = os.pread(descriptor, HEAD_BYTES, 0)
            tail = os.pread(descriptor, TAIL_BYTES, size - TAIL_BYTES) if size > HEAD_BYTES else head[-TAIL_BYTES:]
            fingerprint[:] = size << 32 | zlib.crc32(tail)
            kind = kind_of(head)
            sides = size_if_whole(descriptor, head, tail)
        finally:
            os.close(descriptor)
    except Exception:  # Pillow raises many types on damaged files
        return False
    if size > samples.max_file_bytes:
        return False
    if sides:
        return is_affordable(*sides, samples.decoding.max_pixels)
    # Others are decoded in the first epoch, or beside the first steps.
    return kind not in (None, "JPEG", "PNG") and not missing_decoder(kind)


def _sha256_of(path: str) -> bytes:
    """Of a file; `hashlib.file_digest` takes twice as long for a small one. Raises OSError."""
    digest = hashlib.sha256()
    descriptor, _ = open_descriptor(path)
    try:
        while part := os.read(descriptor, _PART_BYTES):
            digest.update(part)
    finally:
        os.close(descriptor)
    return digest.digest()


def _notes_on_equal_files(splits: Sequence[ImageFiles], fingerprints: np.ndarray) -> list[Note]:
    """Warnings about equal files with different labels or in two splits; they change neither the labels nor the splits.

    fingerprints: of all splits; files with equal ones are compared by SHA-256.
    """
    _, groups, sizes = np.unique(fingerprints, return_inverse=True, return_counts=True)
    suspected = np.flatnonzero((sizes[groups] > 1) & (fingerprints > 0))
    suspected = suspected[np.argsort(groups[suspected], kind="stable")]
    deadline = time.monotonic() + _MAX_COMPARE_SECONDS

    def digest_of_file(place: int) -> bytes:
        """SHA-256; empty for a file that cannot be read in time."""
        samples, index = _find(splits, place)
        if time.monotonic() < deadline:
            with suppress(OSError):
                return _sha256_of(samples.name(index))
        return b""

    parts = (suspected[first : first + _CHUNK].tolist() for first in range(0, len(suspected), _CHUNK))
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        digests = [*chain.from_iterable(pool.map(lambda part: [*map(digest_of_file, part)], parts))]
    equal = defaultdict(list)
    for place, digest in zip(suspected.tolist(), digests, strict=True):
        samples, index = _find(splits, place)
        equal[digest].append((samples, samples.targets[index].tobytes(), samples.name(index)))
    unread = len(equal.pop(b"", ()))
    notes = []
    if unread:
        number = f"{len(digests) - unread} of {len(digests)} files of equal size and end"
        text = f"{number} were compared in {_MAX_COMPARE_SECONDS:g} s"
        notes.append(Note("warning", f"{text}: others may be in two splits, too"))
    for fact, effect, problem in (
        (1, "some labels are wrong", "have different labels; remove all but one"),
        (0, "the figures are too high", "are in two splits; remove one of each"),
    ):
        found = [files for files in equal.values() if len({one[fact] for one in files}) > 1]
        if found:
            first, *others = found[0]
            other = next(one for one in others if one[fact] != first[fact])
            pair = f"{shorten(first[2])} and {shorten(other[2])}"
            text = f"{effect}: {sum(map(len, found))} files with equal bytes {problem}: {pair}"
            notes.append(Note("warning", text))
    return notes
