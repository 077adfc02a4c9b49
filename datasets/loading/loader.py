"""Batches on the device, read with or without worker processes: of a training, and of an evaluation."""

import copy
import csv
import logging
import math
import os
import secrets
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from configs.batch_plan import BatchPlan, EpochLayout
from configs.schema import Config, Data
from configs.schema.data import AUTO
from configs.yaml_io import Values
from datasets.batch import PADDING, PREFETCH_FACTOR, Batch, ImageSlots, is_padding, slots_shape
from datasets.decoding.decode import open_with_pillow
from datasets.decoding.images import BadImage
from datasets.loading.image_cache import SHARE, ImageCache, limit_bytes, open_cache
from datasets.loading.sampler import BalancedOrder, EvalSampler, Key, RandomOrder, ShardWindows, TrainSampler
from datasets.loading.workers import (
    POLL_SECONDS,
    default_num_workers,
    iter_with_timeout,
    start_worker,
    start_worker_server,
)
from datasets.sources.samples import ImageFiles, Samples, spread
from datasets.transforms.host import HostTransform, build_eval_host_transform, build_host_transform
from utils.device import IN_LOADING
from utils.distributed import ProcessContext, gather_objects
from utils.errors import Unavailable, UserError, to_single_line
from utils.files import own_file, unshared
from utils.notes import RANK_LOG, RUN_LOG, Note
from utils.tables import format_bytes, read_csv_rows, safe_cell
from utils.torch_compat import tree_map_only

warnings.filterwarnings("ignore", message="This DataLoader will create")  # the log compares workers and cores
_TARGET_TYPES = {1: torch.int64, 2: torch.int8}  # by the number of dimensions: one label, or one column per class
# Share of TIMEOUT_SECONDS after which a rank stops waiting for its workers: before the other ranks stop waiting for it.
_TIMEOUT_SHARE = 0.9
_MAX_WARNINGS = 10  # about images in the log of the run; more are in the log of the rank
_SOURCE_TIMEOUT_SHARE = 0.8  # after which a worker gives up a server: before its rank stops waiting for it
_SAMPLED = 128  # images of a split, whose headers give the size of all in a cache


class BadImageList:
    """One rank's `bad_images_{rank}.csv` in a run's folder: each image once, with the reason.

    The folder is opened before images are loaded. The file is created when the first bad image is added. A resumed run
    appends to the file of the original run.
    """

    def __init__(self, rank: int) -> None:
        self._name = f"bad_images_{rank}.csv"

    def open(self, folder: Path) -> "BadImageList":
        self.file = unshared(folder / self._name)
        self._listed = set[str]()
        with suppress(FileNotFoundError):
            self._listed = {row.get("path", "") for row in read_csv_rows(self.file)}
        return self

    def add(self, images: Iterable[BadImage]) -> None:
        rows = {safe_cell(image.path): safe_cell(image.reason) for image in images}
        new = [(path, reason) for path, reason in rows.items() if path not in self._listed]
        if not new:
            return
        with open(self.file, "a", newline="", encoding="utf-8", opener=own_file) as file:
            header = [] if file.tell() else [("path", "reason")]
            csv.writer(file).writerows(header + new)
        self._listed |= rows.keys()


@dataclass
class BatchReader(Dataset[Batch | UserError]):
    """Keys -> one `Batch`, read by a worker.

    timeout_seconds: TIMEOUT_SECONDS. lists_bad: an unusable image is listed in its batch, also with DATA.ON_BAD_IMAGE
    error: an evaluation names all of them in one error. slots: of a reader in a worker.
    """

    samples: Samples
    data: Data
    transform: HostTransform
    timeout_seconds: float = 600.0
    lists_bad: bool = False
    slots: ImageSlots | None = None

    def __getitems__(self, keys: list[Key]) -> Any:
        """Returns a UserError instead of raising it: torch would add the worker's traceback to its message."""
        try:
            if not self.slots:
                return self._read(keys, torch.empty((len(keys), *self.data.image_shape), dtype=torch.uint8))
            return self.slots.message(self._read(keys, self.slots.next()))
        except UserError as error:
            return error
        except MemoryError as error:  # of a decoder: with the name of the image
            return Unavailable(
                f"out of host memory{''.join(f' ({one})' for one in error.args)}; "
                "lower -num_workers or -batch_size; if one image is large, shrink it or lower DATA.MAX_PIXELS"
            )

    def _read(self, keys: list[Key], images: Tensor) -> Batch:
        """images: memory for the batch, uint8 (B or more, C, S, S)."""
        opened = self.samples.open_all([index for _, index, _ in keys if index != PADDING], self.data.image_channels)
        labels = self.samples.targets
        targets = torch.full((len(keys), *labels.shape[1:]), PADDING, dtype=_TARGET_TYPES[labels.ndim])
        drawn: list[list[Any] | None] = [None] * len(keys)
        bad = []
        loaded = []
        warned = []
        for position, (epoch, index, repeat) in enumerate(keys):
            if index == PADDING:
                continue
            try:
                image = next(opened)
                if isinstance(image, BadImage):
                    raise image
                images[position], drawn[position] = self.transform(image, epoch, index, repeat)
                if image.warning:
                    warned.append((self.samples.name(index), image.warning))
            except BadImage as error:
                if self.data.on_bad_image == "error" and not self.lists_bad:
                    raise error.with_hint() from error
                bad.append(error)
            else:
                loaded.append((position, index))
        positions, indices = np.array(loaded, np.int64).reshape(-1, 2).T
        targets[positions] = torch.from_numpy(labels[indices])
        if len(loaded) < len(keys):
            images[np.setdiff1d(np.arange(len(keys)), positions)] = 0
        more = self.transform.collate(drawn), tuple(bad), tuple(warned)
        return Batch(images, targets, len(loaded), *more, epoch=keys[0][0])


class Loader:
    """Batches of one rank on its device, in the sampler's order. Unusable images are added to `bad_images`.

    refuses_bad: whether such an image is an error (DATA.ON_BAD_IMAGE).
    """

    def __init__(
        self,
        reader: BatchReader,
        sampler: TrainSampler | EvalSampler,
        context: ProcessContext,
        bad_images: BadImageList | None,
    ) -> None:
        self.sampler = sampler
        self.samples = reader.samples
        self.device = context.device
        self.bad_images = bad_images
        self._local_ranks = context.local_world_size
        self._warned = set[str]()
        self._log = RUN_LOG if context.is_main else RANK_LOG
        self.timeout_seconds = _TIMEOUT_SHARE * reader.timeout_seconds
        is_cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if is_cuda else None
        workers, _ = num_workers(reader, context)
        if reader.data.num_workers is None:  # each has a batch; a single batch would wait for the start of a worker
            workers = min(workers, len(sampler)) if len(sampler) > 1 else 0
        self._reader = copy.copy(reader)  # with slots of this loader
        self.refuses_bad = reader.data.on_bad_image == "error"
        source_timeout = _SOURCE_TIMEOUT_SHARE * reader.timeout_seconds
        self._reader.samples, batch_sampler = reader.samples.for_loader(sampler, source_timeout)
        of_workers: Values = {}
        self._slots_shape: tuple[int, ...] = (0,)
        if workers:
            of_workers = {
                "num_workers": workers,
                "prefetch_factor": PREFETCH_FACTOR,
                "timeout": min(POLL_SECONDS, self.timeout_seconds),
                "persistent_workers": True,
                "worker_init_fn": start_worker,
                "multiprocessing_context": "forkserver",
            }
            self._slots_shape = slots_shape(workers, (sampler.batch_size, *reader.data.image_shape))
            start_worker_server()
        self._batches = DataLoader(
            self._reader, batch_sampler=batch_sampler, collate_fn=_identity, pin_memory=is_cuda, **of_workers
        )

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        """Starts the workers at once. Raises UserError if a sample cannot be read or a worker fails."""
        with _noted_errors():
            self.reserve()
            if self._batches.num_workers:
                batches = iter_with_timeout(self._batches, self.timeout_seconds)
            else:
                batches = iter(self._batches)
        return self._on_device(_with_noted_errors(batches))

    def reserve(self, *others: "Loader") -> None:
        """Reserves the shared memory for the batches of this loader, and of `others`.

        Raises UserError: shared memory is full; the line has the bytes that all of them need on this host.
        """
        loaders = (self, *others)
        try:
            for loader in loaders:
                if loader._batches.num_workers and not loader._reader.slots:
                    loader._reader.slots = ImageSlots(loader._slots_shape)
        except RuntimeError as error:
            needed = self._local_ranks * sum(math.prod(loader._slots_shape) for loader in loaders)
            size = format_bytes(needed)
            fix = f"docker run --shm-size={math.ceil(1 + 1.1 * needed / 2**30)}g"
            raise Unavailable(
                f"shared memory is full: batches need {size} in /dev/shm ({error}); enlarge it ({fix}), "
                "lower -num_workers or -batch_size, or use no workers: -num_workers=0"
            ) from error

    def _on_device(self, batches: Iterator[Batch | UserError]) -> Iterator[Batch]:
        """batches: in host memory, pinned if the device is a GPU."""
        if self._stream is None:
            yield from map(self._checked, batches)
            return
        current = torch.cuda.current_stream(self.device)
        for batch in map(self._checked, batches):
            copied = torch.cuda.Event(enable_timing=True)
            with torch.cuda.stream(self._stream):  # the copy overlaps the computation of the batch before
                batch = tree_map_only(Tensor, lambda one: one.to(self.device, non_blocking=True), batch)
                copied.record()
            current.wait_stream(self._stream)
            tree_map_only(Tensor, lambda tensor: tensor.record_stream(current), batch)
            yield batch._replace(copied=copied)

    def _checked(self, batch: Batch | UserError) -> Batch:
        """Raises the error of a worker; lists the unusable images, and logs the warnings of decoders."""
        if isinstance(batch, UserError):
            raise batch
        if self.bad_images:
            self.bad_images.add(batch.bad)
        for name, text in batch.warnings:
            if name not in self._warned:
                self._warned.add(name)
                log = self._log if len(self._warned) <= _MAX_WARNINGS else RANK_LOG
                logging.getLogger(log).warning(f"{name}: used, but its decoder warns: {to_single_line(text)}")
        return batch


def unreadable(targets: Tensor, keys: list[Key]) -> list[int]:
    """The indices of the samples of a batch that could not be read."""
    are_padding = is_padding(targets).tolist()
    return [index for (_, index, _), padded in zip(keys, are_padding, strict=True) if padded and index != PADDING]


@contextmanager
def _noted_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(IN_LOADING)
        raise


def _with_noted_errors(batches: Iterator[Batch | UserError]) -> Iterator[Batch | UserError]:
    with _noted_errors():
        yield from batches


def num_workers(reader: BatchReader, context: ProcessContext) -> tuple[int, str]:
    """Loading workers of this rank, and the reason for the number."""
    share = context.core_share
    given = reader.data.num_workers
    if given is not None:
        return given, f"DATA.NUM_WORKERS, for {share.source}"
    on_gpu = context.device.type == "cuda"
    if reader.samples.in_memory and not on_gpu:
        return 0, "the images are in memory, and take little time"
    return default_num_workers(share, on_gpu), share.source


def _identity(batch: Any) -> Any:
    return batch


class TrainBatches:
    """The training batches of one rank, on its device, as many as the steps of `layout` need.

    The order of samples is a pure function of (seed, epoch), on any number of ranks. Every rank has the same number of
    batches, and each batch is full: samples that do not fill a batch on every rank, or a step, are dropped.

    prefetched_batches: loaded ahead of the one in use. workers_note: the number of loading workers, for the log.
    """

    def __init__(self, config: Config, samples: Samples, context: ProcessContext, layout: EpochLayout) -> None:
        self._context = context
        self._layout = layout
        transform = build_host_transform(config.data, config.train, config.seed)
        self._reader = BatchReader(samples, config.data, transform, config.timeout_seconds)
        workers, reason = num_workers(self._reader, context)
        self.prefetched_batches = PREFETCH_FACTOR * workers
        self.workers_note = Note("log", f"{workers} loading workers per rank ({reason})")

    def iterate(
        self,
        epoch: int,
        batch: int,
        num_epochs: int,
        bad_images: BadImageList | None = None,
        *evaluations: Loader,
    ) -> Iterator[Batch]:
        """The batches from `batch` of `epoch` to the end of epoch `num_epochs` - 1; all count from 0.

        Unusable images are added to `bad_images`. evaluations: loaders whose memory is reserved, too.
        Raises UserError: a sample cannot be read, or a loading worker fails.
        """
        layout = self._layout
        samples = self._reader.samples
        first = epoch * layout.batches_per_epoch + batch
        order = order_of(samples, self._reader.data)
        sampler = TrainSampler(layout, num_epochs, self._context.rank, first, order)
        loader = Loader(self._reader, sampler, self._context, bad_images)
        loader.reserve(*evaluations)
        return iter(loader)


def order_of(samples: Samples, data: Data) -> RandomOrder | ShardWindows:
    """The order of the training samples: by DATA.BALANCED_SAMPLING, within windows of shards, or of all."""
    if data.balanced_sampling:
        return BalancedOrder(samples.targets)
    return samples.windows or RandomOrder()


def epoch_layout(config: Config, samples: Samples, batch: BatchPlan) -> EpochLayout:
    """The layout of the training samples."""
    order = order_of(samples, config.data)
    return EpochLayout(
        samples=len(samples),
        batch=batch,
        seed=config.seed,
        repeats=config.data.repeated_augmentation,
        shuffle_shards=order.size,
        shards_crc=order.crc,
        balanced=config.data.balanced_sampling,
        max_steps=config.train.epoch_steps,
    )


def build_eval_loader(
    config: Config,
    samples: Samples,
    context: ProcessContext,
    bad_images: BadImageList | None = None,
    first: int = 0,
) -> Loader:
    """The validation batches of this rank: each sample from `first` on once over all ranks.

    Unusable images are listed in the batches: `Evaluator.compute` raises their error.
    """
    data = config.data
    batch_size = min(data.eval_batch_size, len(samples))
    sampler = EvalSampler(len(samples), batch_size, context.rank, context.world_size, first)
    reader = BatchReader(samples, data, build_eval_host_transform(data), config.timeout_seconds, lists_bad=True)
    return Loader(reader, sampler, context, bad_images)


def cache_images(splits: Sequence[Samples], data: Data, reads: int, context: ProcessContext) -> Note | None:
    """Gives the splits of image files one cache per host, if DATA.CACHE asks for it; a line for the log.

    Every rank must call it. splits: the first one is the training's. reads: the training images of the run: with auto,
    a run that reads no image twice has no cache.
    """
    files = [one for one in splits if isinstance(one, ImageFiles) and one.windows is None]
    is_due = data.cache is True or (data.cache == AUTO and reads > len(splits[0]))
    if not (files and is_due):
        return None
    cache = None
    text = ""
    if context.local_rank == 0:
        cache, text = _make_cache(files, data)
    sources = gather_objects(cache and cache.source, context)
    for source in sources:
        if source and not cache:
            cache = open_cache(*source)
    start = 0
    for samples in files:
        samples.cache = cache
        samples.cache_start = start
        start += len(samples)
    return Note("log", f"DATA.CACHE {str(data.cache).lower()}: {text}")


def _make_cache(files: Sequence[ImageFiles], data: Data) -> tuple[ImageCache | None, str]:
    """A cache for as many images as fit, with auto for all of them or none; and a text for the log."""
    needed = sum(_estimate_bytes(one, data.image_channels) for one in files)
    limit = int(limit_bytes())
    sizes = f"about {format_bytes(needed)}, and {format_bytes(limit)} are {SHARE:.0%} of the free host memory"
    if needed > limit and data.cache == AUTO:
        return None, f"images are not kept in memory: they need {sizes}"
    images = sum(map(len, files))
    name = f"ampvit-{secrets.token_hex(8)}"
    try:
        file = os.memfd_create(name)
        os.ftruncate(file, limit)
        os.posix_fallocate(file, 0, 8 * (1 + images))
        cache = ImageCache(f"/proc/{os.getpid()}/fd/{file}", name, images, data.image_channels)
    except (AttributeError, OSError, ValueError) as error:
        return None, f"images are not kept in memory: this system has no memory for it ({error})"
    weakref.finalize(cache, os.close, file)
    return cache, f"decoded images are kept in memory: {sizes}"


def _estimate_bytes(samples: ImageFiles, channels: int) -> float:
    """The decoded images of a split, from the headers of a few; infinite if none can be read."""
    pixels = []
    for index in spread(len(samples), _SAMPLED):
        with suppress(Exception):  # Pillow raises many types on damaged files; reading them reports them
            pixels.append(math.prod(open_with_pillow(samples.read_bytes(index), str).size))
    return len(samples) * channels * sum(pixels) / len(pixels) if pixels else math.inf
