"""Workers, batching, prefetch to the device."""

import atexit
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from configs.schema import Data
from datasets.decode import centre_crop
from datasets.sampler import PADDING, EvalSampler, Key, TrainSampler
from datasets.sources import Samples
from datasets.transforms import TrainTransform
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.signals import ENDING, end_children

_MOST_WORKERS = 16


class Batch(NamedTuple):
    """images uint8 (B, C, S, S); targets int64 (B,), `PADDING` where there is no sample; affine (B, 2, 3) or None."""

    images: torch.Tensor
    targets: torch.Tensor
    affine: torch.Tensor | None = None


class BatchReader(Dataset):
    """Keys -> one `Batch`. With a `TrainTransform` as training sees it, without as evaluation does."""

    def __init__(self, samples: Samples, options: Data, transform: TrainTransform | None) -> None:
        self.samples = samples
        self.options = options
        self.transform = transform

    def __getitems__(self, keys: list[Key]) -> Batch | UserError:
        """An unreadable image is returned as its error: raised here, a worker's traceback would come with it."""
        try:
            return self._read(keys)
        except UserError as error:
            return error

    def _read(self, keys: list[Key]) -> Batch:
        size, channels, transform = self.options.image_size, self.options.image_channels, self.transform
        images = torch.zeros((len(keys), channels, size, size), dtype=torch.uint8)
        targets = torch.full((len(keys),), PADDING)
        affine = torch.empty((len(keys), 2, 3)) if transform and transform.draws_affine else None
        for place, (epoch, index) in enumerate(keys):
            if index == PADDING:
                continue
            targets[place] = int(self.samples.targets[index])
            image = self.samples.image(index, channels)
            if transform is None:
                images[place] = centre_crop(image, size, self.options.crop_pct)
                continue
            rng = transform.generator(epoch, index)
            images[place] = transform.crop(image, rng)
            if affine is not None:
                affine[place] = torch.tensor(transform.affine(rng))
        return Batch(images, targets, affine)


class Loader:
    """Batches of one rank on its device, in the sampler's order."""

    def __init__(self, reader: BatchReader, sampler: TrainSampler | EvalSampler, context: ProcessContext) -> None:
        self.sampler = sampler
        self.device = context.device
        workers = _num_workers(reader, context)
        self._batches = DataLoader(
            reader,
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=self.device.type == "cuda",
            persistent_workers=workers > 0,
            worker_init_fn=_ignore_signals,
            multiprocessing_context=_worker_context() if workers else None,
        )

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        """Copies on a stream of its own, so that a batch travels while the one before it is being computed.

        Raises:
            UserError: a sample cannot be read.
        """
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        for batch in self._batches:
            if isinstance(batch, UserError):
                raise batch
            yield batch if stream is None else _copied(batch, self.device, stream)


def _copied(batch: Batch, device: torch.device, stream: torch.cuda.Stream) -> Batch:
    with torch.cuda.stream(stream):
        copy = Batch(*(None if part is None else part.to(device, non_blocking=True) for part in batch))
    current = torch.cuda.current_stream(device)
    current.wait_stream(stream)
    for part in copy:
        if part is not None:
            part.record_stream(current)
    return copy


def _num_workers(reader: BatchReader, context: ProcessContext) -> int:
    if reader.options.num_workers is not None:
        return reader.options.num_workers
    if reader.samples.in_memory:
        return 0
    return max(1, min(_MOST_WORKERS, len(os.sched_getaffinity(0)) // context.local_world_size))


def _worker_context() -> multiprocessing.context.BaseContext:
    """Workers from a server process without threads: a fork of a process that has some can hang for ever.

    It inherits that it ignores the signals by which a run is ended: launchers send them to all processes, and the rank
    still needs its batches to come to the step at which it saves.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    forkserver.ensure_running()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    atexit.register(end_children)
    return context


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _ignore_signals(worker: int) -> None:
    """As the server does: torch has given the worker an answer of its own. At exit it must be killed."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
