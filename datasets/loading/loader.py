"""Batching, prefetch to the device."""

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset, get_worker_info

from configs.schema import Data
from datasets.decoding.bad_images import BadImage, BadImageList
from datasets.decoding.decode import Picture, centre_crop
from datasets.loading.sampler import PADDING, EvalSampler, Key, TrainSampler
from datasets.loading.workers import (
    POLL_SECONDS,
    SHARED_MEMORY_CURE,
    default_num_workers,
    exit_with_rank,
    iter_with_timeout,
    worker_context,
)
from datasets.sources.samples import Samples
from datasets.transforms.host import NO_AUGMENTATION, Augmentation, TrainTransform
from utils.distributed import ProcessContext
from utils.errors import UserError

_PATIENCE = 0.9  # share of TIMEOUT_SECONDS after which the rank speaks, before the others give it up


class Batch(NamedTuple):
    """images uint8 (B, C, S, S); targets int64 (B,), `PADDING` where there is no sample; what the device is to augment.

    `bad` are the images whose places are empty because they cannot be used; the host knows them without the device.
    """

    images: torch.Tensor
    targets: torch.Tensor
    augmentation: Augmentation = NO_AUGMENTATION
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
        channels, size = self.options.image_channels, self.options.image_size
        images, targets = _zeros((len(keys), channels, size, size)), torch.full((len(keys),), PADDING)
        generators: list[random.Random | None] = [None] * len(keys)
        bad = []
        for place, (epoch, index) in enumerate(keys):
            if index == PADDING:
                continue
            rng = self.transform.generator(epoch, index) if self.transform else None
            try:
                images[place] = self._image(self.samples.open(index, channels), rng)
            except BadImage as error:
                if self.options.on_bad_image == "error":
                    raise
                bad.append(error)
            else:
                targets[place] = int(self.samples.targets[index])
                generators[place] = rng
        augmentation = self.transform.draw(generators) if self.transform else NO_AUGMENTATION
        return Batch(images, targets, augmentation, tuple(bad))

    def _image(self, picture: Picture, rng: random.Random | None) -> torch.Tensor:
        if self.transform:
            return self.transform.crop(picture, rng)
        return centre_crop(picture.pixels, self.options.image_size, self.options.crop_pct)


def _zeros(shape: tuple[int, ...]) -> torch.Tensor:
    """torch.uint8; in a worker in the shared memory in which tensors travel, as torch's own collation allocates it.

    That there is none left can still be told here.
    """
    if not get_worker_info():
        return torch.zeros(shape, dtype=torch.uint8)
    try:
        storage = torch.UntypedStorage._new_shared(math.prod(shape))
    except RuntimeError as error:
        raise UserError(f"no shared memory is left for a batch ({error}); {SHARED_MEMORY_CURE}") from error
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


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
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.patience_seconds = _PATIENCE * timeout_seconds
        workers = num_workers(reader.samples, reader.options, context)
        self._batches = DataLoader(
            reader,
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=self.device.type == "cuda",
            timeout=min(POLL_SECONDS, self.patience_seconds) if workers else 0,
            persistent_workers=workers > 0,
            worker_init_fn=exit_with_rank,
            multiprocessing_context=worker_context() if workers else None,
        )

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        """Raises UserError where a sample cannot be read, or a worker does not answer."""
        has_workers = self._batches.num_workers > 0
        batches = iter_with_timeout(self._batches, self.patience_seconds) if has_workers else iter(self._batches)
        if self.device.type == "cpu":
            yield from map(self._to_device, batches)
            return
        current = torch.cuda.current_stream(self.device)
        for batch in batches:  # on a stream of its own, so that it travels while the one before it is being computed
            with torch.cuda.stream(self._stream):
                batch = self._to_device(batch)
            current.wait_stream(self._stream)
            tree_map_only(torch.Tensor, lambda tensor: tensor.record_stream(current), batch)
            yield batch

    def _to_device(self, batch: Batch | UserError) -> Batch:
        """The batch on the device."""
        if isinstance(batch, UserError):
            raise batch
        batch = tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device, non_blocking=True), batch)
        if self.bad_images:
            self.bad_images.add(batch.bad)
        return batch


def num_workers(samples: Samples, options: Data, context: ProcessContext) -> int:
    """Loading processes of this rank."""
    if options.num_workers is not None:
        return options.num_workers
    if samples.in_memory:
        return 0
    return default_num_workers(context.local_world_size)


def _as_it_is(batch: Batch) -> Batch:
    return batch
