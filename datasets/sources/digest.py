"""Digests of samples, and the comparison of the data that the ranks read: each host may have files of its own."""

import zlib
from collections.abc import Sequence
from hashlib import sha256
from itertools import product

import numpy as np

from datasets.sources.class_names import names_of_labels
from datasets.sources.samples import Samples
from utils.distributed import ProcessContext, broadcast_object, gather_objects
from utils.errors import UserError


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
