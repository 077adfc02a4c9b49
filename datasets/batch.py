"""The batch that loading workers produce and device transforms consume."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from datasets.decoding.bad_images import BadImage

PADDING = -1  # the target, and the sample index, of a position in a batch without a sample


class Batch(NamedTuple):
    """B images with C channels and S pixels on a side.

    images: uint8 (B, C, S, S), zeros for padding. On a CPU a loading worker may overwrite them when the rank asks for
        the batch after the next one, or iterates again: copy what is kept. In-place operations are allowed.
    targets: int64 (B,), `PADDING` if there is no sample; with DATA.MULTI_LABEL int8 (B, classes), 1 for each label, and
        a row of `PADDING` if there is no sample.
    samples: positions with a sample.
    drawn: random parameters of the device operations, by the operation's name.
    bad: the images that could not be used; their positions are padding.
    epoch: the epoch in training, counted from 0.
    copied: recorded after the copy to a GPU; None on a CPU.
    """

    images: torch.Tensor
    targets: torch.Tensor
    samples: int
    drawn: Mapping[str, tuple[torch.Tensor, ...]] = MappingProxyType({})
    bad: tuple[BadImage, ...] = ()
    epoch: int = 0
    copied: torch.cuda.Event | None = None
