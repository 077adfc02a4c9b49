"""Train and validation splits of a data set that comes without them."""

import numpy as np

from configs.schema import Data
from datasets.sources.files.image_files import Listing

_DEFAULT_VAL_FRACTION = 0.1


def split_listing(listing: Listing, data: Data, split: str) -> Listing:
    """The 'train' or the 'val' part of a listing.

    Each class is split; images with several labels each are split as if they were of one class.
    """
    targets = listing.arrays["targets"]
    strata = targets if targets.ndim == 1 else np.zeros(len(targets), dtype=np.int64)
    indices, findings = split_indices(strata, data, split)
    listing.findings += findings
    return listing.select(indices)


def split_indices(targets: np.ndarray, data: Data, split: str) -> tuple[np.ndarray, list[str]]:
    """Sorted indices of the samples of the 'train' or the 'val' part, and an error message if none can be held out.

    DATA.VAL_FRACTION of each class (a tenth by default), rounded, is val; of two or more samples at least one is in
    each part; a single sample is in train. A pure function of the arguments, with the seed DATA.SPLIT_SEED.

    targets: the labels int64 (N,).
    """
    rng = np.random.Generator(np.random.PCG64(data.split_seed))
    is_val = np.zeros(len(targets), dtype=bool)
    by_label = np.argsort(targets, kind="stable")
    for members in np.split(by_label, np.flatnonzero(np.diff(targets[by_label])) + 1):
        wanted = round(len(members) * (data.val_fraction or _DEFAULT_VAL_FRACTION))
        num_val = min(max(wanted, 1), len(members) - 1)
        is_val[rng.permutation(members)[:num_val]] = True
    nothing = f"{data.data_path}: no class has two images, so no image can be held out; add a val split"
    return np.flatnonzero(~is_val if split == "train" else is_val), [] if is_val.any() else [nothing]
