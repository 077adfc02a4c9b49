"""The contenders of benchmark_input.py: our loader and timm's `create_loader`."""

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple

import timm.data
import torch
from torchvision import transforms

from configs.schema import Config, Data
from datasets.loading.batches import build_train_batches
from datasets.registry import read_samples
from datasets.transforms.device import build_train_transform
from utils.distributed import ProcessContext

ENDLESS_EPOCHS = 10**6
NUM_CLASSES = 1000


class Contender(NamedTuple):
    """A way to read images.

    start: returns an endless stream; its items are numbers of ready images.
    against: the name of the contender that the speed is compared with.
    normalized_by: for the table.
    """

    start: Callable[[], Iterator[int]]
    against: str = "ours"
    normalized_by: str = "device"


def loader_contenders(config: Config, context: ProcessContext) -> dict[str, Contender]:
    data, device = config.data, context.device

    def timms(use_prefetcher: bool, normalized_by: str) -> Contender:
        return Contender(lambda: timm_batches(data, device, use_prefetcher), normalized_by=normalized_by)

    return {
        "timm create_loader": timms(True, "main process, as in train.py"),
        "timm create_loader, no prefetcher": timms(False, "workers"),
        "ours": Contender(lambda: our_batches(config, context)),
    }


def with_data(config: Config, **changed: Any) -> Config:
    """The configuration with other options of the data."""
    return config.model_copy(update={"data": config.data.model_copy(update=changed)})


def our_batches(config: Config, context: ProcessContext) -> Iterator[int]:
    (samples,) = read_samples(config.data, config.model.num_classes, context, "train")
    batches = build_train_batches(config.data, config.train, samples, config.seed, context, config.timeout_seconds)
    transform = build_train_transform(config.data, config.train, NUM_CLASSES).to(context.device)
    for batch in batches.iterate(epoch=0, batch=0, num_epochs=ENDLESS_EPOCHS):
        transform(batch)
        yield len(batch.images)


def timm_batches(data: Data, device: torch.device, use_prefetcher: bool) -> Iterator[int]:
    """The loader with the arguments of timm's train.py."""
    loader = timm.data.create_loader(
        timm.data.create_dataset("", root=data.data_path, split="train", is_training=True),
        input_size=(3, data.image_size, data.image_size),
        batch_size=data.batch_size,
        is_training=True,
        num_workers=data.num_workers,
        device=device,
        pin_memory=device.type == "cuda",
        use_prefetcher=use_prefetcher,
        scale=data.random_crop_scale,
        ratio=data.random_crop_ratio,
        hflip=data.hflip_prob,
        color_jitter=None,
        interpolation="bicubic",
        mean=data.imagenet_mean,
        std=data.imagenet_std,
    )
    for images, targets in chain.from_iterable(repeat(loader)):
        images.to(device), targets.to(device)
        yield len(images)


def reference_transform(data: Data) -> transforms.Compose:
    """The transform of torchvision's references for classification, but bicubic."""
    bicubic = transforms.InterpolationMode.BICUBIC
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(
                data.image_size, data.random_crop_scale, data.random_crop_ratio, interpolation=bicubic
            ),
            transforms.RandomHorizontalFlip(data.hflip_prob),
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float32),
            transforms.Normalize(data.imagenet_mean, data.imagenet_std),
        ]
    )
