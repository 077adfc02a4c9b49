"""Train and validation splits of a data set that comes without them."""

from collections.abc import Sequence

import numpy as np

from configs.schema import Data
from datasets.sources.files.listing import Listing

_DEFAULT_VAL_FRACTION = 0.1


def split_listing(listing: Listing, data: Data, split: str) -> Listing:
    """The 'train' or the 'val' part of a listing, by DATA.VAL_FRACTION (a tenth by default) and DATA.SPLIT_SEED.

    Each class is split; images with several labels each are split as if they were of one class.
    """
    targets = listing.arrays["targets"]
    strata = targets if targets.ndim == 1 else np.zeros(len(targets), dtype=np.int64)
    indices, findings = split_indices(strata, data, split)
    listing.findings += findings
    return listing.select(indices)


def split_indices(targets: np.ndarray, data: Data, split: str) -> tuple[np.ndarray, list[str]]:
    """Sorted indices of the samples of the 'train' or the 'val' part, and an error message if none can be held out.

    targets: the labels int64 (N,).
    """
    train, val = split_stratified(targets, data.val_fraction or _DEFAULT_VAL_FRACTION, data.split_seed)
    nothing = f"{data.data_path}: no class has two images, so no image can be held out; add a val split"
    return train if split == "train" else val, [] if len(val) else [nothing]


def split_stratified(
    targets: Sequence[int] | np.ndarray, val_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sorted indices of train and val, a pure function of the arguments.

    `val_fraction` of each class, rounded, goes to val. A class with two or more samples has at least one in each
    split; a single sample goes to train.
    """
    targets = np.asarray(targets)
    rng = np.random.Generator(np.random.PCG64(seed))
    is_val = np.zeros(len(targets), dtype=bool)
    by_label = np.argsort(targets, kind="stable")
    for members in np.split(by_label, np.flatnonzero(np.diff(targets[by_label])) + 1):
        num_val = min(max(round(len(members) * val_fraction), 1), len(members) - 1)
        is_val[rng.permutation(members)[:num_val]] = True
    return np.flatnonzero(~is_val), np.flatnonzero(is_val)
