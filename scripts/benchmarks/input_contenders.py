"""The contenders of benchmark_input.py: our loader, torchvision's references and timm's `create_loader`."""

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

import timm.data
import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms

from configs.schema import Config, Data
from datasets.loading.batches import build_train_batches
from datasets.registry import read_samples
from datasets.transforms.device import build_train_transform
from utils.distributed import ProcessContext

ENDLESS_EPOCHS = 10**6
NUM_CLASSES = 1000  # of mixed targets


class Contender(NamedTuple):
    """A way to read images.

    start: returns an endless stream of counts of ready images.
    ends_as: the form of its output, for the table.
    against: the name of the contender of ours with the same output.
    is_restarted: each turn is that of a new stream.
    """

    start: Callable[[], Iterator[int]]
    ends_as: str
    against: str = "ours"
    is_restarted: bool = False


def one_process_contenders(config: Config, context: ProcessContext) -> dict[str, Contender]:
    data = config.data
    in_this_process = config.model_copy(update={"data": data.model_copy(update={"num_workers": 0})})
    references = torchvision.datasets.ImageFolder(Path(data.data_path) / "train", reference_transform(data))
    return {
        "torchvision references (PIL)": Contender(lambda: one_by_one(references), "float32, normalized"),
        "timm create_transform": Contender(lambda: one_by_one(timm_images(data, False)), "float32, normalized"),
        "timm create_transform, uint8": Contender(lambda: one_by_one(timm_images(data, True)), "uint8", "ours, uint8"),
        "ours, uint8": Contender(
            lambda: our_batches(in_this_process, context, normalized=False), "uint8, in batches", "ours, uint8"
        ),
        "ours": Contender(lambda: our_batches(in_this_process, context), "float32, normalized, in batches"),
    }


def loader_contenders(config: Config, context: ProcessContext) -> dict[str, Contender]:
    data, device = config.data, context.device
    return {
        "torchvision references": Contender(
            lambda: reference_batches(data, device), "float32, normalized by the workers"
        ),
        "timm create_loader": Contender(
            lambda: timm_batches(data, device, use_prefetcher=True),
            "float32, normalized by the main process (as in train.py)",
        ),
        "timm create_loader, no prefetcher": Contender(
            lambda: timm_batches(data, device, use_prefetcher=False), "float32, normalized by the workers"
        ),
        "ours": Contender(lambda: our_batches(config, context), "float32, normalized on the device"),
    }


def one_by_one(images: Any) -> Iterator[int]:
    """Reads a map-style data set in a fixed random order, without end."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tolist()
    for index in chain.from_iterable(repeat(order)):
        images[index]
        yield 1


def our_batches(config: Config, context: ProcessContext, normalized: bool = True) -> Iterator[int]:
    (samples,) = read_samples(config.data, config.model.num_classes, context, "train")
    batches = build_train_batches(config.data, config.train, samples, config.seed, context, config.timeout_seconds)
    transform = build_train_transform(config.data, config.train, NUM_CLASSES).to(context.device)
    for batch in batches.iterate(epoch=0, batch=0, num_epochs=ENDLESS_EPOCHS):
        if normalized:
            transform(batch)
        yield len(batch.images)


def timm_images(data: Data, use_prefetcher: bool) -> timm.data.ImageDataset:
    """The data set with the transform of `create_loader`."""
    images = _timm_data_set(data)
    images.transform = timm.data.create_transform(
        data.image_size, is_training=True, use_prefetcher=use_prefetcher, **_timm_augmentation(data)
    )
    return images


def timm_batches(data: Data, device: torch.device, use_prefetcher: bool, **augmentation: Any) -> Iterator[int]:
    """The loader with the arguments of timm's train.py."""
    loader = timm.data.create_loader(
        _timm_data_set(data),
        input_size=(3, data.image_size, data.image_size),
        batch_size=data.batch_size,
        is_training=True,
        num_workers=data.num_workers,
        device=device,
        pin_memory=device.type == "cuda",
        use_prefetcher=use_prefetcher,
        **_timm_augmentation(data) | augmentation,
    )
    for images, targets in chain.from_iterable(repeat(loader)):
        images.to(device), targets.to(device)
        yield len(images)


def _timm_data_set(data: Data) -> timm.data.ImageDataset:
    return timm.data.create_dataset("", root=data.data_path, split="train", is_training=True)


def _timm_augmentation(data: Data) -> dict[str, Any]:
    return {
        "scale": data.random_crop_scale,
        "ratio": data.random_crop_ratio,
        "hflip": data.hflip_prob,
        "color_jitter": None,
        "interpolation": "bicubic",
        "mean": data.imagenet_mean,
        "std": data.imagenet_std,
    }


def reference_batches(data: Data, device: torch.device) -> Iterator[int]:
    """torchvision's references for classification, but with bicubic interpolation and persistent workers."""
    on_gpu = device.type == "cuda"
    loader = DataLoader(
        torchvision.datasets.ImageFolder(Path(data.data_path) / "train", reference_transform(data)),
        batch_size=data.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=data.num_workers,
        pin_memory=on_gpu,
        persistent_workers=True,
    )
    for images, targets in chain.from_iterable(repeat(loader)):
        images.to(device, non_blocking=on_gpu), targets.to(device, non_blocking=on_gpu)
        yield len(images)


def reference_transform(data: Data) -> transforms.Compose:
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(
                data.image_size,
                data.random_crop_scale,
                data.random_crop_ratio,
                interpolation=transforms.InterpolationMode.BICUBIC,
            ),
            transforms.RandomHorizontalFlip(data.hflip_prob),
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float32),
            transforms.Normalize(data.imagenet_mean, data.imagenet_std),
        ]
    )
