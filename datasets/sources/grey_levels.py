"""Measures the values of 16-bit gray images in a fixed sample of a split: 12 bits use a sixteenth of the range."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from datasets.decoding.bad_images import BadImage
from datasets.decoding.decode import MAX_VALUE, read_grey_values, scale_to_8_bits
from datasets.sources.samples import EncodedImages, Samples
from utils.errors import UserError

_NUM_IMAGES, _NUM_THREADS = 256, 8
_OUTLIERS = 1e-4  # share of the pixels at each end, such as defective pixels of a detector
_FEW_LEVELS = 32


def notes_on_grey_levels(samples: Samples) -> list[str]:
    """A warning if 16-bit gray images use few of the 256 levels that the model receives."""
    if not isinstance(samples, EncodedImages) or not (histogram := _histogram(samples)).any():
        return []
    levels = scale_to_8_bits(np.arange(MAX_VALUE + 1), samples.grey_range)
    num_used = int((np.bincount(levels, histogram) > _OUTLIERS * histogram.sum()).sum())
    if num_used >= _FEW_LEVELS:
        return []
    share = np.cumsum(histogram)
    low, high = np.searchsorted(share, [_OUTLIERS * share[-1], (1 - _OUTLIERS) * share[-1]]).tolist()
    return [
        f"Warning: 16-bit gray images with values from {low} to {high} become {num_used} of 256 levels; "
        f"set DATA.GREY_RANGE=[{low}, {high}], or the range of the device"
    ]


def _histogram(samples: EncodedImages) -> np.ndarray:
    """The pixels of each value in the 16-bit gray images of the sample, int64 (65536,). Unusable images are ignored."""
    histogram = np.zeros(MAX_VALUE + 1, dtype=np.int64)
    rng = np.random.Generator(np.random.PCG64(0))
    indices = np.sort(rng.permutation(len(samples))[:_NUM_IMAGES])

    def count(index: int) -> np.ndarray | None:
        try:
            values = read_grey_values(samples.read_bytes(index), samples.name(index))
        except BadImage:
            return None
        return None if values is None else np.bincount(values.ravel(), minlength=MAX_VALUE + 1)

    pool = ThreadPoolExecutor(_NUM_THREADS)
    try:
        for counts in pool.map(count, indices.tolist()):
            if counts is not None:
                histogram += counts
    except UserError:  # a disk or a server fails: the error is reported when the images are used
        pass
    finally:
        pool.shutdown(cancel_futures=True)
    return histogram
