"""DATA.FRACTION: a part of the training images."""

from dataclasses import replace

import numpy as np

from datasets.sources.rows import Rows
from datasets.sources.source import Wanted
from datasets.sources.split import hash_paths, most_frequent, places_in_classes
from utils.notes import Note


def take_share(rows: Rows, wanted: Wanted) -> Rows:
    """DATA.FRACTION of the training images of each class, at least one, by the hashes of their paths: a smaller share
    is inside.

    With DATA.GROUPS whole groups are taken, each counts in its most frequent class; of images with several labels, the
    share is one of all images. DATA.SPLIT_SEED is the seed.
    """
    fraction = wanted.data.fraction
    if fraction == 1 or "train" not in rows.splits:
        return rows
    seed = wanted.data.split_seed
    samples = rows.splits["train"]
    _, unit_of = np.unique(hash_paths(samples.groups or samples.paths, seed), return_inverse=True)
    is_multi_label = samples.targets.ndim == 2
    labels = np.zeros(len(samples), np.int64) if is_multi_label else samples.targets
    place, sizes = places_in_classes(most_frequent(labels, unit_of))
    is_taken = place < np.maximum(np.round(sizes * fraction), 1)
    share = samples.select(np.flatnonzero(is_taken[unit_of]))
    note = Note("log", f"DATA.FRACTION {fraction:g}: {len(share)} of {len(samples)} training images")
    return replace(rows, splits={**rows.splits, "train": share}).noted(note)
