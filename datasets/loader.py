"""Batching, prefetch to the device."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from configs.schema import Data
from datasets.bad_images import BadImage, BadImageList
from datasets.decode import centre_crop
from datasets.sampler import PADDING, EvalSampler, Key, TrainSampler
from datasets.sources import Samples
from datasets.transforms import TrainTransform
from datasets.workers import (
    POLL_SECONDS,
    SHARED_MEMORY_CURE,
    default_num_workers,
    end_with_rank,
    received,
    worker_context,
)
from utils.distributed import ProcessContext
from utils.errors import UserError

_PATIENCE = 0.9  # share of TIMEOUT_SECONDS after which the rank speaks, before the others give it up


class Batch(NamedTuple):
    """images uint8 (B, C, S, S); targets int64 (B,), `PADDING` where there is no sample; affine (B, 2, 3) or None.

    `bad` are the images whose places are empty because they cannot be used; the host knows them without the device.
    """

    images: torch.Tensor
    targets: torch.Tensor
    affine: torch.Tensor | None = None
    bad: tuple[BadImage, ...] = ()


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
        except MemoryError:
            return UserError("host memory is short; lower -num_workers or -batch_size")

    def _read(self, keys: list[Key]) -> Batch:
        batch = self._empty_batch(len(keys))
        bad = []
        for place, (epoch, index) in enumerate(keys):
            if index == PADDING:
                continue
            try:
                image = self.samples.image(index, self.options.image_channels)
            except BadImage as error:
                if self.options.on_bad_image == "error":
                    raise
                bad.append(error)
            else:
                self._put(image, batch, place, epoch, index)
        return batch._replace(bad=tuple(bad))

    def _empty_batch(self, size: int) -> Batch:
        """In a worker it lies in shared memory from the start: that there is none left can still be told here."""
        options = self.options
        images = torch.zeros((size, options.image_channels, options.image_size, options.image_size), dtype=torch.uint8)
        affine = torch.zeros((size, 2, 3)) if self.transform and self.transform.draws_affine else None
        batch = Batch(images, torch.full((size,), PADDING), affine)
        if get_worker_info():
            try:
                for part in (batch.images, batch.targets, batch.affine):
                    if part is not None:
                        part.share_memory_()
            except RuntimeError as error:
                raise UserError(f"no shared memory is left for a batch ({error}); {SHARED_MEMORY_CURE}") from error
        return batch

    def _put(self, image: torch.Tensor, batch: Batch, place: int, epoch: int, index: int) -> None:
        size, transform = self.options.image_size, self.transform
        batch.targets[place] = int(self.samples.targets[index])
        if transform is None:
            batch.images[place] = centre_crop(image, size, self.options.crop_pct)
            return
        rng = transform.generator(epoch, index)
        batch.images[place] = transform.crop(image, rng)
        if batch.affine is not None:
            batch.affine[place] = torch.tensor(transform.affine(rng))


class Loader:
    """Batches of one rank on its device, in the sampler's order. Images that cannot be used go to `bad_images`."""

    def __init__(
        self,
        reader: BatchReader,
        sampler: TrainSampler | EvalSampler,
        context: ProcessContext,
        timeout_seconds: float,
        bad_images: BadImageList | None,
    ) -> None:
        self.sampler = sampler
        self.device = context.device
        self.bad_images = bad_images
        self.patience_seconds = _PATIENCE * timeout_seconds
        workers = _num_workers(reader, context)
        self._batches = DataLoader(
            reader,
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=self.device.type == "cuda",
            timeout=min(POLL_SECONDS, self.patience_seconds) if workers else 0,
            persistent_workers=workers > 0,
            worker_init_fn=end_with_rank,
            multiprocessing_context=worker_context() if workers else None,
        )

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        """Copies on a stream of its own, so that a batch travels while the one before it is being computed.

        Raises:
            UserError: a sample cannot be read, or a worker does not answer.
        """
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        has_workers = self._batches.num_workers > 0
        for batch in received(self._batches, self.patience_seconds) if has_workers else self._batches:
            if isinstance(batch, UserError):
                raise batch
            if self.bad_images:
                self.bad_images.add(batch.bad)
            yield batch if stream is None else _copied(batch, self.device, stream)


def _copied(batch: Batch, device: torch.device, stream: torch.cuda.Stream) -> Batch:
    parts = (batch.images, batch.targets, batch.affine)
    with torch.cuda.stream(stream):
        parts = [None if part is None else part.to(device, non_blocking=True) for part in parts]
    current = torch.cuda.current_stream(device)
    current.wait_stream(stream)
    for part in parts:
        if part is not None:
            part.record_stream(current)
    return Batch(*parts, batch.bad)


def _num_workers(reader: BatchReader, context: ProcessContext) -> int:
    if reader.options.num_workers is not None:
        return reader.options.num_workers
    if reader.samples.in_memory:
        return 0
    return default_num_workers(context.local_world_size)


def _as_it_is(batch: Batch) -> Batch:
    return batch
