"""16-bit gray values -> 8 bits."""

import numpy as np

GreyRange = tuple[float, float]  # the values that become black and white

MAX_VALUE = 65535


def scale_to_8_bits(values: np.ndarray, grey_range: GreyRange | None) -> np.ndarray:
    """Integers in 0..65535 -> uint8; values outside of `grey_range` are clipped. None: the whole range."""
    if grey_range is None:
        values = values.astype(np.int32)
        values += 128
        values //= 257
        return values.astype(np.uint8)
    low, high = grey_range
    scaled = values.astype(np.float32)
    scaled -= low
    scaled *= 255 / (high - low)
    return np.rint(scaled, out=scaled).clip(0, 255, out=scaled).astype(np.uint8)
