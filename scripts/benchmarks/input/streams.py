"""Endless streams of images for benchmark_input.py, and their speed: our loader, its limit, timm's, WebDataset."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, cycle, repeat
from pathlib import Path

import timm.data
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from configs.schema import Config, Data
from datasets.decoding.decode import open_image
from datasets.decoding.partial_jpeg import Box
from datasets.loading.batches import build_train_batches
from datasets.loading.sampler import TrainSampler
from datasets.registry import read_samples
from datasets.transforms.crops import random_crop_box, resize
from datasets.transforms.device import build_train_transform
from datasets.transforms.host import build_host_transform
from scripts.benchmarks.programs import group_cpu_seconds
from scripts.benchmarks.turns import PER_CPU, SPEED
from utils.device import timed
from utils.distributed import ProcessContext

ENDLESS_EPOCHS = 10**6
NUM_CLASSES = 1000
_LIMIT_CROPS = 4096
_SHUFFLE = 1000  # WebDataset's buffer, samples

Streams = dict[str, Callable[[], Iterator[int]]]  # name -> starts a stream; its items are numbers of ready images


def measure_turn(
    start: Callable[[], Iterator[int]], prefetched: int, seconds: float, device: torch.device
) -> dict[str, float]:
    """Images/s, and images per CPU second of all processes, of a new stream over at least `seconds`.

    The turn ends with a whole batch. The first batch and the `prefetched` next ones are not timed.
    """
    with closing(start()) as stream:
        for _ in range(1 + prefetched):
            next(stream)
        images = 0

        def read() -> None:
            nonlocal images
            ends = time.perf_counter() + seconds
            while time.perf_counter() < ends:
                images += next(stream)

        cpu_before = group_cpu_seconds(os.getpgrp())
        elapsed = timed(read, device)
        cpu_seconds = group_cpu_seconds(os.getpgrp()) - cpu_before
        return {SPEED: images / elapsed, PER_CPU: images / max(cpu_seconds, 0.01)}


def our_batches(config: Config, context: ProcessContext, normalizes: bool = True) -> Iterator[int]:
    (samples,) = read_samples(config.data, config.model.num_classes, context, "train")
    batches = build_train_batches(config.data, config.train, samples, config.seed, context, config.timeout_seconds)
    transform = build_train_transform(config.data, config.train, NUM_CLASSES).to(context.device)
    for batch in batches.iterate(epoch=0, batch=0, num_epochs=ENDLESS_EPOCHS):
        if normalizes:
            transform(batch)
        yield len(batch.images)


def limit_batches(config: Config, context: ProcessContext) -> Iterator[int]:
    """The limit of our loader: as many processes decode and resize its own crops of files in memory, and drop them."""
    data, files, crops = config.data, dict[str, bytes](), []
    (samples,) = read_samples(data, config.model.num_classes, context, "train")
    transform = build_host_transform(data, config.train, config.seed)
    for epoch, index, copy in chain.from_iterable(TrainSampler(len(samples), data.batch_size, 1, config.seed)):
        encoded = files.setdefault(os.path.realpath(samples.name(index)), samples.read_bytes(index))
        size = open_image(encoded, data.image_channels, lambda: "").size
        rng = transform.generator(epoch, index, copy)
        crops.append((encoded, random_crop_box(*size, data.random_crop_scale, data.random_crop_ratio, rng)))
        if len(crops) == _LIMIT_CROPS:
            break
    order, decode = cycle(range(len(crops))), partial(_decode, data)
    yield from DataLoader(crops, data.batch_size, sampler=order, num_workers=data.num_workers, collate_fn=decode)


def _decode(data: Data, crops: list[tuple[bytes, Box]]) -> int:
    for encoded, box in crops:
        image = open_image(encoded, data.image_channels, lambda: "")
        resize(image.crop(box), data.image_size, data.image_size, data.interpolation)
    return len(crops)


def timm_batches(data: Data, device: torch.device) -> Iterator[int]:
    """The loader with the arguments of timm's train.py."""
    loader = timm.data.create_loader(
        timm.data.create_dataset("", root=data.data_path, split="train", is_training=True),
        input_size=(3, data.image_size, data.image_size),
        batch_size=data.batch_size,
        is_training=True,
        num_workers=data.num_workers,
        device=device,
        pin_memory=device.type == "cuda",
        scale=data.random_crop_scale,
        ratio=data.random_crop_ratio,
        hflip=data.hflip_prob,
        color_jitter=None,
        interpolation=data.interpolation,
        mean=data.imagenet_mean,
        std=data.imagenet_std,
    )
    for images, targets in chain.from_iterable(repeat(loader)):
        images.to(device), targets.to(device)
        yield len(images)


def webdataset_batches(shards: list[Path], data: Data, device: torch.device) -> Iterator[int]:
    """WebDataset, as its documentation recommends: batches are made by the workers, which share out the shards."""
    import webdataset

    on_gpu = device.type == "cuda"
    samples = (
        webdataset.WebDataset(list(map(str, shards)), shardshuffle=len(shards), nodesplitter=webdataset.split_by_node)
        .repeat()
        .shuffle(_SHUFFLE)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(reference_transform(data), int)
        .batched(data.batch_size)
    )
    for images, targets in DataLoader(samples, batch_size=None, num_workers=data.num_workers, pin_memory=on_gpu):
        images.to(device, non_blocking=on_gpu), torch.as_tensor(targets).to(device, non_blocking=on_gpu)
        yield len(images)


def reference_transform(data: Data) -> transforms.Compose:
    """The transform of torchvision's references for classification."""
    interpolation = transforms.InterpolationMode(data.interpolation)
    return transforms.Compose([
        transforms.RandomResizedCrop(data.image_size, data.random_crop_scale, data.random_crop_ratio, interpolation),
        transforms.RandomHorizontalFlip(data.hflip_prob),
        transforms.PILToTensor(),
        transforms.ConvertImageDtype(torch.float32),
        transforms.Normalize(data.imagenet_mean, data.imagenet_std),
    ])  # fmt: skip
