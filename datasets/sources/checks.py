"""Checks samples before the first image is read: `findings` are errors that end a run, `notes` go to its log.

Digests of samples compare the data that the ranks read: each host may have files of its own.
"""

import zlib
from collections.abc import Sequence
from hashlib import sha256
from itertools import product

import numpy as np

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.decoding.decode import JPEG_DECODER, MAX_VALUE, read_grey_values, scale_to_8_bits
from datasets.decoding.images import BadImage
from datasets.sources.files.image_files import ImageFiles
from datasets.sources.samples import EncodedImages, Samples, names_of_labels
from utils.distributed import ProcessContext, broadcast_object, gather_objects
from utils.errors import Finding, UserError

_ADJECTIVES = {"train": "training", "test": "test"}
_FEW_IMAGES = 10  # per class
_FEW_VAL_IMAGES, _IMBALANCE = 5, 10  # per class; largest class / smallest class
_SHOWN_CLASSES = 5  # of the smallest, and of the largest
_FEW_LEVELS, _GREY_IMAGES = 32, 64
_OUTLIERS = 1e-4  # share of the pixels at each end, such as defective pixels of a detector


def find_invalid_labels(samples: Samples, split: str, num_classes: int, trains: bool = True) -> list[str]:
    """Finds labels for which the model has no class. trains: the model is new, so that its number can change."""
    labels = samples.targets
    if labels.ndim == 2:  # multi-hot (N, classes): the highest label of each image, -1 without labels
        highest = labels.shape[1] - 1 - labels[:, ::-1].argmax(axis=1)
        labels = np.where(labels.any(axis=1), highest, -1)
    indices = np.flatnonzero(labels >= num_classes)
    if not len(indices):
        return []
    first = indices[0]
    images = f"{len(indices)} {_ADJECTIVES.get(split, 'validation')} image(s)"
    fix = f"{'set it to' if trains else 'give weights of'} {labels.max() + 1} or more"
    return [
        f"{samples.location(first)}: label {labels[first]}, but MODEL.NUM_CLASSES is {num_classes} ({images} "
        f"have labels >= {num_classes}); {fix}, or correct the labels"
    ]


def find_problems(samples: Samples, split: str, data: Data, context: ProcessContext) -> list[Finding]:
    """Finds samples that can only be predicted: without any label, without files, or too few for a training."""
    findings: list[Finding] = []
    if isinstance(samples, ImageFiles) and samples.targets.ndim == 2 and not samples.targets.any():
        fix = "fill in the column target"  # the average precision is not defined
        findings.append(f"{samples.listing.file}: no image of the split {split} has a label; {fix}")
    if split == "train" and not samples.findings:
        findings += _find_too_few_samples(len(samples), data, context.world_size)
    if context.local_rank == 0:  # each host may have a disk of its own
        findings += samples.find_missing_files()
    return findings


def _find_too_few_samples(num_samples: int, data: Data, world_size: int) -> list[str]:
    """Finds training samples that do not fill one batch on every rank, or one global batch."""
    if data.global_batch_size:
        needed, key = data.global_batch_size, "DATA.GLOBAL_BATCH_SIZE"
    else:
        needed, key = data.micro_batch * world_size, "-batch_size"
    if num_samples >= needed:
        return []
    samples = f"{data.dataset}: {num_samples} training samples"
    return [f"{samples} do not fill one batch of {needed} on {world_size} device(s); lower {key}"]


def notes_on(train: Samples, val: Samples, test: Samples | None = None) -> list[str]:
    """Facts that may be intended: the notes of the splits, few images, few gray levels, images in two splits."""
    others = {"val": val} | ({"test": test} if test else {})
    notes = [note for samples in (train, *others.values()) for note in samples.notes]
    notes = list(dict.fromkeys(notes))  # two splits of one list have the same notes
    counts = train.class_counts(len(train.class_names))
    classes = max((samples.class_names for samples in (train, *others.values())), key=len)
    empty = np.flatnonzero(train.class_counts(len(classes)) == 0)
    if len(empty):
        example = classes[empty[-1]]  # of numbers, perhaps a typing error in another split
        notes.append(f"{len(empty)} of {len(classes)} classes have no training image, such as {shorten(example)}")
    if train.targets.ndim == 2 and (unlabelled := int((~train.targets.any(axis=1)).sum())):
        notes.append(f"{unlabelled} of {len(train)} training images have no label")
    notes += _notes_on_few_images(counts, train.class_names) + _notes_on_class_sizes(train, val)
    notes += _notes_on_grey_levels(train)
    for name, other in others.items():
        if isinstance(train, ImageFiles) and isinstance(other, ImageFiles) and train.listing.root == other.listing.root:
            shared = _paths_in_both(train, other)
            if shared:
                notes.append(f"{len(shared)} image(s) are in both train and {name}, such as {shorten(min(shared))}")
    if isinstance(train, EncodedImages):
        notes.append(f"whole JPEGs are decoded by {JPEG_DECODER}")
    return notes


def _notes_on_few_images(counts: np.ndarray, class_names: list[str]) -> list[str]:
    """`counts` int64 (classes,) are training images."""
    notes = []
    single = np.flatnonzero(counts == 1)
    if len(single):
        example = class_names[single[0]]
        notes.append(f"Warning: {len(single)} of {len(counts)} classes have one training image, such as {example!r}")
    typical = np.median(counts[counts > 0]) if counts.any() else 0
    if 0 < typical < _FEW_IMAGES:
        notes.append(
            f"Warning: {typical:g} training images per class (median); add images, or use pretrained weights and check "
            "the accuracy on more validation images"
        )
    return notes


def _notes_on_class_sizes(train: Samples, val: Samples) -> list[str]:
    """The smallest and the largest classes; warnings of classes that the validation or the training may lose."""
    names = max(train.class_names, val.class_names, key=len)  # of lists: the labels
    counts, val_counts = train.class_counts(len(names)), val.class_counts(len(names))
    order = [label for label in np.argsort(counts, kind="stable").tolist() if counts[label]]
    if len(order) < 2:
        return []
    sizes = [f"{shorten(names[label])} {counts[label]} + {val_counts[label]}" for label in order]
    if len(sizes) > 2 * _SHOWN_CLASSES:
        sizes = [*sizes[:_SHOWN_CLASSES], "...", *sizes[-_SHOWN_CLASSES:]]
    notes = [f"images per class, training + validation, the smallest first: {', '.join(sizes)}"]
    if few := [label for label in order if val_counts[label] < _FEW_VAL_IMAGES]:
        lowest = min(few, key=lambda label: val_counts[label])
        notes.append(
            f"Warning: {len(few)} of {len(order)} classes have fewer than {_FEW_VAL_IMAGES} validation images, such as "
            f"{shorten(names[lowest])} with {val_counts[lowest]}: the accuracy hardly shows whether they are "
            "recognized; add validation images, or set DATA.VAL_FRACTION"
        )
    smallest, largest = order[0], order[-1]
    if counts[largest] >= _IMBALANCE * counts[smallest]:
        fix = "DATA.BALANCED_SAMPLING=true or " if train.targets.ndim == 1 else ""
        notes.append(
            f"Warning: {shorten(names[largest])} has {counts[largest]} training images, {shorten(names[smallest])} "
            f"{counts[smallest]}: compare the macro F1, and consider {fix}LOSS.CLASS_WEIGHTS=balanced"
        )
    return notes


def _paths_in_both(train: ImageFiles, val: ImageFiles) -> set[str]:
    """Compares checksums first, and paths only where the checksums are equal."""
    one, other = train.listing, val.listing
    in_val = np.isin(one.arrays["paths_crcs"], other.arrays["paths_crcs"])
    in_train = np.isin(other.arrays["paths_crcs"], one.arrays["paths_crcs"][in_val])
    train_paths = (one.paths[index] for index in np.flatnonzero(in_val).tolist())
    return set(train_paths).intersection(other.paths[index] for index in np.flatnonzero(in_train).tolist())


def _notes_on_grey_levels(samples: Samples) -> list[str]:
    """A warning if 16-bit gray images use few of the 256 levels that the model receives: 12 bits use a sixteenth."""
    if not isinstance(samples, EncodedImages) or not (histogram := _grey_histogram(samples)).any():
        return []
    levels = scale_to_8_bits(np.arange(MAX_VALUE + 1), samples.decoding.grey_range)
    num_used = int((np.bincount(levels, histogram) > _OUTLIERS * histogram.sum()).sum())
    if num_used >= _FEW_LEVELS:
        return []
    share = np.cumsum(histogram)
    low, high = np.searchsorted(share, [_OUTLIERS * share[-1], (1 - _OUTLIERS) * share[-1]]).tolist()
    return [
        f"Warning: 16-bit gray images with values from {low} to {high} become {num_used} of 256 levels; "
        f"set DATA.GREY_RANGE=[{low}, {high}], or the range of the device"
    ]


def _grey_histogram(samples: EncodedImages) -> np.ndarray:
    """The pixels of each value in a few images, int64 (65536,), of 16-bit gray ones. Unusable images are ignored."""
    histogram = np.zeros(MAX_VALUE + 1, dtype=np.int64)
    for index in range(0, len(samples), -(-len(samples) // _GREY_IMAGES) or 1):
        try:
            values = read_grey_values(samples.read_bytes(index), samples.name(index), samples.decoding.max_pixels)
        except BadImage:
            continue
        except UserError:  # a disk or a server fails: the error is reported when the images are used
            break
        if values is not None:
            histogram += np.bincount(values.ravel(), minlength=MAX_VALUE + 1)
    return histogram


def check_same_data(splits: Sequence[Samples], context: ProcessContext) -> None:
    """Checks that all ranks have the same samples in the same order. A collective call.

    Raises:
        UserError: on all ranks; it names the first rank that differs from rank 0, its host and the first difference.
    """
    if context.world_size == 1:
        return
    digests = gather_objects([sha256(_fingerprints(samples).data).hexdigest() for samples in splits], context)
    for rank, (split, samples) in product(range(context.world_size), enumerate(splits)):
        if digests[rank][split] != digests[0][split]:
            own = _fingerprints(samples)
            other = broadcast_object(own, context)
            length = min(len(own), len(other))
            first = int(np.append(own[:length] != other[:length], True).argmax())
            first = gather_objects(first, context)[rank]
            texts = gather_objects(_describe(samples, first), context)
            raise UserError(
                f"{context.name(rank)} has other data than {context.name(0)}: {texts[rank]}, not {texts[0]}; copy the "
                "data of one host to the others, or use a folder that all hosts share"
            )


def digest_of(samples: Samples) -> str:
    """A digest of the labels, class names and checksums of samples in any order: 16 hexadecimal digits."""
    return sha256(np.sort(_fingerprints(samples)).data).hexdigest()[:16]


def _fingerprints(samples: Samples) -> np.ndarray:
    """A checksum of the classes of each sample and the checksum of its content: uint64 (N,)."""
    targets, classes = samples.targets, _classes(samples)
    numbers = np.array([zlib.crc32(name.encode(errors="surrogateescape")) for name in classes], np.uint64)
    if targets.ndim == 1:
        of_samples = numbers[targets]
    else:
        rows, labels = np.nonzero(targets)
        of_samples = np.zeros(len(targets), np.uint64)
        np.add.at(of_samples, rows, numbers[labels])
    return of_samples << np.uint64(32) | samples.checksums()


def _classes(samples: Samples) -> list[str]:
    """The label and the name of each class; the last one is of samples without a label, -1."""
    number = samples.targets.shape[1] if samples.targets.ndim == 2 else samples.targets.max(initial=-1) + 1
    return [*(f"{label} {name}" for label, name in enumerate(names_of_labels(samples, number))), "none"]


def _describe(samples: Samples, index: int) -> str:
    if index >= len(samples):
        return f"{len(samples)} images"
    target, classes = samples.targets[index], _classes(samples)
    named = ", ".join(classes[label] for label in (np.flatnonzero(target) if target.ndim else [target]))
    content = f"class {named}; checksum {samples.checksums()[index]:08x}"
    return f"image {index} of {len(samples)} is {samples.name(index)} ({content})"
