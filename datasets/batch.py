"""The batch that loading workers produce and device transforms consume, and the shared memory of its images.

The workers pass the images to their rank in this memory: no page is mapped twice. Each worker writes its batches to its
own slots in turn. torch's DataLoader gives batch n to worker n mod W, and asks for batch n + W * P when the rank
receives batch n. A slot that is reused after P + ceil(H / W) batches of its worker therefore keeps the last H batches
that the rank has received.

Legend: W workers, P batches that each loads ahead, H batches that the rank may hold.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from configs.yaml_io import Values
from datasets.decoding.images import BadImage
from utils.torch_compat import shared_zeros

Drawn = tuple[Tensor, ...]  # the random parameters of a device operation for a batch
PADDING = -1  # the target, and the sample index, of a position in a batch without a sample


class Batch(NamedTuple):
    """B images with C channels and S pixels on a side.

    images: uint8 (B, C, S, S), zeros for padding. On a CPU a loading worker may overwrite them when the rank asks for
        the batch after the next one, or iterates again: copy what is kept. In-place operations are allowed.
    targets: int64 (B,), `PADDING` if there is no sample; with DATA.MULTI_LABEL int8 (B, classes), 1 for each label,
        `UNKNOWN` or else 0, and a row of `PADDING` if there is no sample.
    samples: positions with a sample.
    drawn: random parameters of the device operations, by the operation's name.
    bad: the images that could not be used; their positions are padding.
    warnings: of decoders: the name of the image, and the text.
    epoch: the epoch in training, counted from 0.
    copied: recorded after the copy to a GPU; None on a CPU.
    """

    images: Tensor
    targets: Tensor
    samples: int
    drawn: Mapping[str, Drawn] = MappingProxyType({})
    bad: tuple[BadImage, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    epoch: int = 0
    copied: torch.cuda.Event | None = None


def is_padding(targets: Any) -> Any:
    """Whether each position of a tensor or an array of targets has no sample, bool (B,)."""
    return (targets if targets.ndim == 1 else targets[:, 0]) == PADDING


PREFETCH_FACTOR = 2  # P
_HELD_BATCHES = 2  # H: the batch in use, and the one before
_of_rank = WeakValueDictionary[bytes, "ImageSlots"]()  # by key


def slots_shape(workers: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the slots for batches of `shape`, uint8: workers, slots of each, ..."""
    return workers, PREFETCH_FACTOR + -(-_HELD_BATCHES // workers), *shape


class ImageSlots:
    """The slots of one loader's workers, each with room for a batch. The rank makes them for its workers.

    shape: see `slots_shape`. Raises RuntimeError: shared memory is full.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.images = shared_zeros(shape)
        self._key = os.urandom(16)
        self._number = -1
        _of_rank[self._key] = self

    def next(self) -> Tensor:
        """The next slot of this worker, with the images of an earlier batch."""
        worker = get_worker_info()
        self._number = (self._number + 1) % self.images.shape[1]
        assert worker
        self._place = worker.id, self._number
        return self.images[self._place]

    def message(self, batch: Batch) -> "_Message":
        """Stands for a batch, whose images are in the latest slot: the rank receives the batch."""
        drawn = {name: tuple(map(_without_file, tensors)) for name, tensors in batch.drawn.items()}
        arrays: Values = {"images": None, "targets": batch.targets.numpy(), "drawn": drawn}
        return _Message(self._key, self._place, batch._replace(**arrays))


class _Message:
    """Is unpickled as the batch."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, self._parts


def _without_file(tensor: Tensor) -> Any:
    """An array: torch opens a file for each tensor that it sends. numpy has no bfloat16."""
    return tensor if tensor.dtype == torch.bfloat16 else tensor.detach().numpy()


def _receive(key: bytes, place: tuple[int, int], batch: Any) -> Batch:
    images = _of_rank[key].images[place][: len(batch.targets)]
    drawn = {name: tuple(map(torch.as_tensor, arrays)) for name, arrays in batch.drawn.items()}
    received: Batch = batch._replace(images=images, targets=torch.from_numpy(batch.targets), drawn=drawn)
    return received
