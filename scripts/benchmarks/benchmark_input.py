"""Compares the speed of reading images with timm's `create_loader`.

    python scripts/benchmarks/benchmark_input.py -json input.json

All contenders read the same files and apply the same transforms. `-timm_train PATH` adds the time from the command to
the first log line with a loss, beside timm's train.py, and to the end of an evaluation and of a prediction, beside its
validate.py and inference.py. See docs/benchmarks.md.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

import timm.data
import torch
from torch.utils.data import DataLoader

from configs.batch_plan import BatchPlan, EpochLayout, plan_batches
from configs.command_line import parse_command_line
from configs.schema import Config, Data, Train
from datasets.batch import PREFETCH_FACTOR
from datasets.decoding.decode import open_image
from datasets.decoding.partial_jpeg import Box
from datasets.loading.image_cache import cache_images
from datasets.loading.loader import TrainBatches, epoch_layout
from datasets.loading.sampler import TrainSampler
from datasets.registry import read_samples
from datasets.transforms.device import TrainTransform
from datasets.transforms.host import build_host_transform, random_crop_box, resize
from scripts.benchmarks.benchmark_train import MODEL, link_images, make_images
from scripts.benchmarks.programs import (
    add_timm_flag,
    build_program,
    check_comparable,
    first_step,
    group_cpu_seconds,
    run_to_end,
)
from scripts.benchmarks.turns import (
    PER_CPU,
    SPEED,
    Columns,
    Figures,
    compare,
    figures_table,
    median_and_range,
    ratio_table,
    seed_table,
    speed,
)
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import keep_freed_memory, synchronize
from utils.distributed import ProcessContext, single_process
from utils.errors import UserError
from utils.processes.entry import run_script

SCRIPT = "benchmarks/benchmark_input.py"
DEFAULTS = ["-batch_size=32", "-num_workers=2"]
FIRST_STEPS = {"main_single_gpu.py": "jpeg", "timm's train.py": "timm"}
PAIRS = [tuple(FIRST_STEPS), ("-eval", "validate.py"), ("-predict", "inference.py")]
ENDLESS_EPOCHS = 10**6
EPOCH = 20_000  # links of the loaders: long enough that pauses between epochs do not count
NUM_CLASSES = 1000
_LIMIT_CROPS = 4096
_CACHED = 1000  # images in memory

Streams = dict[str, Callable[[], Iterator[int]]]  # name -> starts a stream; its items are numbers of ready images
OURS, UINT8, TIMM, LIMIT = "ours", "ours, uint8", "timm create_loader", "decode and resize"
CACHED = "ours, uint8, second epoch"  # with DATA.CACHE
RATIOS = [(OURS, TIMM), (OURS, LIMIT), (UINT8, LIMIT), (CACHED, UINT8)]


def main(argv: list[str]) -> int:
    parser = flag_parser(SCRIPT, "Compares the speed of our loader with timm's.")
    add_flag(parser, "data", type=Path, metavar="FOLDER", help="class folders of JPEGs (default: made by the script)")
    add_timm_flag(parser)
    add_flag(parser, "images", type=positive, default=600, metavar="N", help="images of the programs (default: 600)")
    add_flag(parser, "rounds", type=positive, default=3, metavar="N", help="turns of each contender (default: 3)")
    add_flag(parser, "seconds", type=float, default=2.0, metavar="S", help="length of a turn (default: 2)")
    flags, rest = split_flags(parser, argv)
    rest = [*DEFAULTS, *rest]
    config = parse_command_line(rest).config.model_copy(update={"train": Train()})
    transform = build_host_transform(config.data, config.train, config.seed)
    if config.data.image_channels != 3 or transform.device_operations:
        raise UserError("DATA: the comparison has random crops and flips of RGB images only; remove AFFINE_* and gray")
    if not config.data.num_workers:
        raise UserError("-num_workers 0: the loaders need one worker or more")
    context = single_process()
    torch.set_num_threads(1)  # the workers occupy the cores
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        programs = {}
        images = flags.data or make_images(folder / "images")
        link_images(images, folder / "linked", EPOCH)
        linked = config.with_data(dataset="folder", data_path=str(folder / "linked"))
        link_images(images, folder / "few", _CACHED)
        few = config.with_data(dataset="folder", data_path=str(folder / "few"))
        streams: Streams = {
            TIMM: lambda: timm_batches(linked.data, context.device),
            OURS: lambda: our_batches(linked, context),
            UINT8: lambda: our_batches(linked, context, normalizes=False),
            CACHED: lambda: our_batches(few, context, normalizes=False, is_cached=True),
            LIMIT: lambda: limit_batches(linked, context),
        }
        if flags.timm_train:
            start = folder / "start"
            link_images(images, start / "data", flags.images, copies=True)
            classes = os.listdir(start / "data/train")
            argv_of_model = [*MODEL, *rest, "-opts", f"MODEL.NUM_CLASSES={len(classes)}"]
            model_config = parse_command_line(argv_of_model).config
            check_comparable(model_config)
            for label, name in FIRST_STEPS.items():
                programs[label] = build_program(name, argv_of_model, 1, start, flags.timm_train, "val")
            weights = start / "random.pth"
            torch.manual_seed(0)
            torch.save(timm.create_model(model_config.model.name, num_classes=len(classes)).state_dict(), weights)
            argv_of_model.append(f"-pretrained={weights}")
            for ours, timms in PAIRS[1:]:
                programs[ours] = build_program("jpeg", [*argv_of_model, ours, "-split=train"], 1, start)
                script = flags.timm_train.with_name(timms)
                programs[timms] = build_program("timm", argv_of_model, 1, start, script, "train")
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # all programs read stored bytecode
        prefetched = PREFETCH_FACTOR * config.data.num_workers
        size = config.data.batch_size

        def measure(name: str, _: int) -> dict[str, float]:
            if name in FIRST_STEPS:
                return first_step(programs[name])
            if name in programs:
                return run_to_end(programs[name].command)
            return measure_turn(streams[name], prefetched, flags.seconds, context.device)

        compare(SCRIPT, argv, size, [*streams, *programs], flags.rounds, measure, tables, flags.json, RATIOS)
    return 0


def tables(figures: Figures) -> list[str]:
    """A table of the streams, one of the programs, their ratios, and the top-1, which differs by rounding only."""
    programs = {name: figures[name] for pair in PAIRS for name in pair if name in figures}
    streams = {name: one for name, one in figures.items() if name not in programs}
    columns: Columns = {
        "images/s": speed,
        "cores per 1,000 images/s": lambda one: median_and_range([1000 / value for value in one[PER_CPU]], ".2f"),
    }
    texts = [figures_table(streams, columns)]
    texts.append(ratio_table(figures, RATIOS, PER_CPU, "of images per CPU second"))
    if programs:
        units = {"wall_seconds": "wall seconds", "cpu_seconds": "CPU seconds"}
        columns = {unit: partial(speed, figure=figure) for figure, unit in units.items()}
        texts.append(figures_table(programs, columns))
        texts += [ratio_table(programs, PAIRS, figure, f"of {unit}") for figure, unit in units.items()]
        texts.append(seed_table({name: figures[name] for name in PAIRS[1]}, "validate.py"))
    return texts


def measure_turn(
    start: Callable[[], Iterator[int]], prefetched: int, seconds: float, device: torch.device
) -> dict[str, float]:
    """Images/s, and images per CPU second of all processes, of a new stream over at least `seconds`.

    The turn ends with a whole batch. The first batch and the `prefetched` next ones are not timed.
    """
    with contextlib.closing(start()) as stream:
        sum(islice(stream, 1 + prefetched))
        cpu_before = group_cpu_seconds(os.getpgrp())
        started = time.perf_counter()
        images = 0
        while time.perf_counter() < started + seconds:
            images += next(stream)
        synchronize(device)
        elapsed, cpu_seconds = time.perf_counter() - started, group_cpu_seconds(os.getpgrp()) - cpu_before
        return {SPEED: images / elapsed, PER_CPU: images / max(cpu_seconds, 0.01)}


def our_batches(
    config: Config, context: ProcessContext, normalizes: bool = True, is_cached: bool = False
) -> Iterator[int]:
    (samples,) = read_samples(config.data, config.model.num_classes, context, "train")
    if is_cached:
        cache_images([samples], config.data, EPOCH * len(samples), context)
        for index in range(len(samples)):
            samples.open(index, config.data.image_channels)
    layout = epoch_layout(config, samples, plan_batches(config, context.world_size))
    transform = TrainTransform(config.data, config.train, NUM_CLASSES).to(context.device)
    for batch in TrainBatches(config, samples, context, layout).iterate(epoch=0, batch=0, num_epochs=ENDLESS_EPOCHS):
        if normalizes:
            transform(batch)
        yield len(batch.images)


def limit_batches(config: Config, context: ProcessContext) -> Iterator[int]:
    """The limit of our loader: as many processes decode and resize its own crops of files in memory, and drop them."""
    data = config.data
    files = {}
    crops = []
    (samples,) = read_samples(data, config.model.num_classes, context, "train")
    transform = build_host_transform(data, config.train, config.seed)
    batches = TrainSampler(EpochLayout(len(samples), BatchPlan(data.batch_size), config.seed), 1)
    for epoch, index, copy in islice(chain.from_iterable(batches), _LIMIT_CROPS):
        encoded = files.setdefault(os.path.realpath(samples.name(index)), samples.read_bytes(index))
        size = open_image(encoded, data.image_channels, lambda: "").size
        rng = transform.generator(epoch, index, copy)
        crops.append((encoded, random_crop_box(*size, data.random_crop_scale, data.random_crop_ratio, rng)))
    order, decode = cycle(range(len(crops))), partial(_decode, data)
    yield from DataLoader(crops, data.batch_size, sampler=order, num_workers=data.num_workers, collate_fn=decode)


def _decode(data: Data, crops: list[tuple[bytes, Box]]) -> int:
    for encoded, box in crops:
        image = open_image(encoded, data.image_channels, lambda: "")
        resize(image.crop(box), *data.input_size, data.interpolation)
    return len(crops)


def timm_batches(data: Data, device: torch.device) -> Iterator[int]:
    """The loader with the arguments of timm's train.py."""
    loader = timm.data.create_loader(
        timm.data.create_dataset("", root=data.data_path, split="train", is_training=True),
        input_size=(3, *data.input_size),
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


if __name__ == "__main__":
    keep_freed_memory()  # as the entry scripts do
    run_script(main)
