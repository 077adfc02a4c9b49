"""Reading and augmenting images: ours against torchvision's references and timm's `create_loader`, in images/s.

    python scripts/benchmarks/benchmark_input.py -json input.json

makes JPEGs of 500x375 (about 106 KB, as ImageNet's) and of 2000x1500 (about 500 KB, as the web has them, and 1 MB, as
cameras write them), or takes those of `-data FOLDER`, and reads them in three ways, each with a random resized crop
(bicubic), a flip and nothing else:

- one process on one thread: decode, crop, resize, flip, image after image;
- loaders with `-num_workers` processes, to batches on the device, normalized float32 at the end of all of them. Their
  workers have started, and what they had read in advance is thrown away, before a turn is timed;
- the fidelity of our crops: the mean absolute difference, of 255, from Pillow's antialiased bicubic resampling of the
  same boxes. Above 0.5 the script ends with status 1.

All read the same files, and all compute with one thread: where workers have the cores, a second one would take more
from them than it gives, by waiting busily. They take turns of a few seconds, backwards in every second round, so that a
machine's drift falls on all; a ratio is the median of those within the rounds.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import timm.data
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import parse_command_line
from configs.schema import Config, Data
from datasets.loading.batches import build_train_batches
from datasets.loading.sampler import TrainSampler
from datasets.registry import read_samples
from datasets.transforms.crops import random_crop_box
from datasets.transforms.device import build_eval_transform
from datasets.transforms.host import build_host_transform
from scripts.benchmarks.benchmark_images import link_images, make_images, mean_kilobytes
from scripts.benchmarks.common import (
    add_flag,
    environment,
    environment_line,
    flag_parser,
    interleaved,
    markdown_table,
    positive,
    split_flags,
    spread,
    tell,
    timed,
    write_json,
)
from utils.device import keep_freed_memory
from utils.distributed import ProcessContext, single_process
from utils.errors import UserError, run_and_report_errors

SCRIPT = "benchmark_input.py"
DEFAULTS = ["-batch_size=32", "-num_workers=2"]
EPOCH = 20_000  # entries: so long that the pause between two epochs does not count
LARGEST_DIFFERENCE = 0.5  # of 255


class Size(NamedTuple):
    """Images to make. Of large ones there are fewer, and fewer in a batch."""

    width: int
    height: int
    mean_bytes: int
    share: float


SIZES = (Size(500, 375, 106_000, 1), Size(2000, 1500, 500_000, 1 / 4), Size(2000, 1500, 1_000_000, 1 / 4))


class Contender(NamedTuple):
    """`start` begins to read: an endless stream of counts of images that are ready.

    `ends_as` is for the table. It is compared with the contender named `against`, which is ours.
    """

    start: Callable[[], Iterator[int]]
    ends_as: str
    against: str = "ours"


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    argv_given = [*DEFAULTS, *rest]
    config = parse_command_line(argv_given).config
    _refuse_more_than_crop_and_flip(config)
    context = single_process()
    sections = []
    with TemporaryDirectory() as folder:
        for name, images, share in _image_folders(flags, Path(folder)):
            different = link_images(images, Path(folder) / f"{name}-linked", EPOCH)
            tell(f"{name}: {len(different)} JPEGs of {mean_kilobytes(different):.0f} KB")
            batch_size = max(1, round(config.data.batch_size * share))
            data = ["-dataset=folder", f"-data_path={folder}/{name}-linked", f"-batch_size={batch_size}"]
            sized = parse_command_line([*argv_given, *data]).config
            sections.append(measured_section(name, sized, context, different, flags))
    found = environment(SCRIPT, argv, config) | {"model": f"{config.data.num_workers} workers"}
    print(environment_line(found))
    for section in sections:
        print("", *section_texts(section, config.data), sep="\n\n")
    write_json(flags.json, {"environment": found, "sections": sections})
    return 0 if all(section["fidelity"]["largest"] <= LARGEST_DIFFERENCE for section in sections) else 1


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Images/s of decoding and of whole loaders, against torchvision's and timm's.")
    add_flag(parser, "data", type=Path, metavar="FOLDER", help="class folders of JPEGs (default: made by the script)")
    add_flag(parser, "images", type=positive, default=256, metavar="N", help="different images to make (default: 256)")
    add_flag(parser, "rounds", type=positive, default=3, metavar="N", help="turns of each (default: 3)")
    add_flag(parser, "seconds", type=float, default=2.0, metavar="S", help="of a turn (default: 2)")
    return parser


def _refuse_more_than_crop_and_flip(config: Config) -> None:
    if (
        config.data.image_channels != 3
        or build_host_transform(config.data, config.train, config.seed).device_operations
    ):
        raise UserError("DATA: only the random crop and flip of RGB images are compared; leave AFFINE_* and grey out")
    if not config.data.num_workers:
        raise UserError("-num_workers: loaders are compared with one worker or more")


def _image_folders(flags: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path, float]]:
    """(name, folder of class folders, share of the batch size)"""
    if flags.data:
        yield flags.data.name, flags.data, 1
        return
    for size in SIZES:
        name = f"{size.width}x{size.height}-{size.mean_bytes // 1000}KB"
        make_images(
            folder / name, (size.width, size.height), max(16, round(flags.images * size.share)), size.mean_bytes
        )
        yield name, folder / name, size.share


# Measuring


def measured_section(
    name: str, config: Config, context: ProcessContext, images: list[Path], flags: argparse.Namespace
) -> dict[str, Any]:
    one_process = one_process_contenders(config, context)
    loaders = loader_contenders(config, context)
    in_flight = 2 * config.data.num_workers  # batches that torch's loaders have their workers read in advance
    with one_thread():
        return {
            "name": name,
            "images": len(images),
            "mean_kilobytes": mean_kilobytes(images),
            "batch_size": config.data.batch_size,
            "one_process": measured(one_process, flags.rounds, flags.seconds, context.device, in_advance=0),
            "loaders": measured(loaders, flags.rounds, flags.seconds, context.device, in_advance=in_flight),
            "fidelity": fidelity(config, context, len(images)),
        }


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measured(
    contenders: dict[str, Contender], rounds: int, seconds: float, device: torch.device, in_advance: int
) -> dict[str, dict[str, Any]]:
    """By contender: seconds until its first batch was there, and the images/s of each of its turns.

    After its turn a loader is left alone until its workers have read `in_advance` batches, and stand still.
    """
    found: dict[str, dict[str, Any]] = {}
    streams = {}
    for name, contender in contenders.items():
        started = time.perf_counter()
        streams[name] = contender.start()
        next(streams[name])
        found[name] = {"first_batch_seconds": time.perf_counter() - started, "images_per_second": []}
        found[name] |= {"ends_as": contender.ends_as, "against": contender.against}
        _let_rest(streams[name], in_advance, seconds)
    for _, name in interleaved(list(contenders), rounds):
        for _ in range(in_advance + in_advance // 2):  # until the workers no longer work in step
            next(streams[name])
        speed = turn(streams[name], seconds, device)
        found[name]["images_per_second"].append(speed)
        tell(f"{name}: {speed:.0f} images/s")
        _let_rest(streams[name], in_advance, seconds)
    return with_ratios(found)


def with_ratios(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Adds to each, round by round, how many times its speed ours has that it is compared with."""
    for one in found.values():
        pairs = zip(found[one["against"]]["images_per_second"], one["images_per_second"], strict=True)
        one["ratios"] = [ours / its for ours, its in pairs]
    return found


def turn(stream: Iterator[int], seconds: float, device: torch.device) -> float:
    """Images/s over so many seconds, and the batch that ends them."""
    images = 0

    def read() -> None:
        nonlocal images
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            images += next(stream)

    taken = timed(read, device)
    return images / taken


def _let_rest(stream: Iterator[int], in_advance: int, most_seconds: float) -> None:
    """Until the workers have surely read the batches that they read in advance."""
    if not in_advance:
        return
    started = time.perf_counter()
    next(stream)  # waits for a batch that was asked for some batches ago
    time.sleep(min(most_seconds, 0.2 + in_advance * (time.perf_counter() - started)))


# What is compared


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
    return {
        "torchvision references": Contender(
            lambda: reference_batches(config.data, context.device), "float32, normalized by the workers"
        ),
        "timm create_loader": Contender(
            lambda: timm_batches(config.data, context.device, use_prefetcher=True),
            "float32, normalized by the main process (as in train.py)",
        ),
        "timm create_loader, no prefetcher": Contender(
            lambda: timm_batches(config.data, context.device, use_prefetcher=False),
            "float32, normalized by the workers",
        ),
        "ours": Contender(lambda: our_batches(config, context), "float32, normalized on the device"),
    }


def one_by_one(images: Any) -> Iterator[int]:
    """Of a map-style data set, in a random order that is always the same."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tolist()
    for index in chain.from_iterable(repeat(order)):
        images[index]
        yield 1


def our_batches(config: Config, context: ProcessContext, normalized: bool = True) -> Iterator[int]:
    (samples,) = read_samples(config.data, config.model.num_classes, context, "train")
    batches = build_train_batches(config.data, config.train, samples, config.seed, context, config.timeout_seconds)
    transform = build_eval_transform(config.data).to(context.device)
    for batch in batches.iterate(epoch=0, batch=0, num_epochs=10**6):
        if normalized:
            transform(batch.images)
        yield len(batch.images)


def timm_images(data: Data, use_prefetcher: bool) -> timm.data.ImageDataset:
    """As `create_loader` has them."""
    images = timm_data_set(data)
    images.transform = timm.data.create_transform(
        data.image_size, is_training=True, use_prefetcher=use_prefetcher, **_timm_augmentation(data)
    )
    return images


def timm_batches(data: Data, device: torch.device, use_prefetcher: bool) -> Iterator[int]:
    """With the arguments that timm's train.py gives."""
    loader = timm.data.create_loader(
        timm_data_set(data),
        input_size=(3, data.image_size, data.image_size),
        batch_size=data.batch_size,
        is_training=True,
        num_workers=data.num_workers,
        device=device,
        pin_memory=device.type == "cuda",
        use_prefetcher=use_prefetcher,
        **_timm_augmentation(data),
    )
    for images, targets in chain.from_iterable(repeat(loader)):
        images.to(device), targets.to(device)
        yield len(images)


def timm_data_set(data: Data) -> timm.data.ImageDataset:
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
    """As in torchvision's references for classification, but bicubic, and with workers that outlive an epoch."""
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


# Fidelity


def fidelity(config: Config, context: ProcessContext, count: int) -> dict[str, Any]:
    """The mean absolute difference of so many of our crops from Pillow's: the mean and the largest of them, of 255."""
    data = config.data.model_copy(update={"num_workers": 0, "hflip_prob": 0.0})
    config = config.model_copy(update={"data": data})
    (samples,) = read_samples(data, config.model.num_classes, context, "train")
    sampler = TrainSampler(len(samples), data.batch_size, 1, config.seed)
    batches = build_train_batches(data, config.train, samples, config.seed, context, config.timeout_seconds)
    transform = build_host_transform(data, config.train, config.seed)
    differences = []
    for keys, batch in islice(zip(sampler, batches.iterate(0, 0, 1), strict=False), -(-count // data.batch_size)):
        for (epoch, index), crop in zip(keys, batch.images.cpu(), strict=True):
            theirs = pillow_crop(Path(samples.location(index)), data, transform.generator(epoch, index))
            differences.append(np.abs(crop.permute(1, 2, 0).numpy().astype(int) - theirs).mean())
    return {"crops": len(differences), "mean": float(np.mean(differences)), "largest": float(np.max(differences))}


def pillow_crop(path: Path, data: Data, rng: Any) -> np.ndarray:
    """`build_host_transform` draws the box first from `rng`; Pillow resamples it: integers (S, S, 3)."""
    with Image.open(path) as image:
        top, left, height, width = random_crop_box(
            image.height, image.width, data.random_crop_scale, data.random_crop_ratio, rng
        )
        crop = image.convert("RGB").crop((left, top, left + width, top + height))
    return np.asarray(crop.resize((data.image_size, data.image_size), Image.Resampling.BICUBIC)).astype(int)


# Telling


def section_texts(section: dict[str, Any], data: Data) -> list[str]:
    exact = section["fidelity"]
    within = "within" if exact["largest"] <= LARGEST_DIFFERENCE else "NOT within"
    return [
        f"## {section['name']}: {section['images']} JPEGs of {section['mean_kilobytes']:.0f} KB, "
        f"to {data.image_size}x{data.image_size}",
        "One process, one thread:",
        contender_table(section["one_process"]),
        f"Loaders with {data.num_workers} workers, batch size {section['batch_size']}:",
        contender_table(section["loaders"]),
        f"Our crops differ from Pillow's antialiased bicubic by {exact['mean']:.3f} of 255 on average, and by "
        f"{exact['largest']:.3f} at most ({exact['crops']} crops): {within} {LARGEST_DIFFERENCE}.",
    ]


def contender_table(found: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, one in found.items():
        ratio = "" if name == one["against"] else spread(one["ratios"], ".2f")
        speed = spread(one["images_per_second"], ".0f")
        rows.append([name, speed, ratio, f"{one['first_batch_seconds']:.2f}", one["ends_as"]])
    return markdown_table(["", "images/s", "ours / it", "to the first (s)", "ends as"], rows)


if __name__ == "__main__":
    keep_freed_memory()  # as a run does
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
