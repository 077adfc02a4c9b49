"""Compares the speed of reading images with timm's `create_loader`.

    python scripts/benchmarks/benchmark_input.py -json input.json

All contenders read the same files and apply the same transforms. `-timm_train PATH` adds the time from the command to
the first log line with a loss, beside timm's train.py, and to the end of an evaluation and of a prediction, beside its
validate.py and inference.py. See docs/benchmarks.md.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

import timm.data
import torch

from configs.batch_plan import plan_batches
from configs.command_line import parse_command_line
from configs.schema import Config, Data, Train
from configs.schema.section import without
from datasets.batch import PREFETCH_FACTOR
from datasets.loading.loader import TrainBatches, epoch_layout
from datasets.reading import read_data
from datasets.sources.source import Wanted
from datasets.transforms.device import TrainTransform
from scripts.benchmarks.benchmark_train import MODEL, link_images, make_images
from scripts.benchmarks.programs import (
    add_number,
    benchmark_parser,
    build_command,
    check_comparable,
    first_step,
    group_cpu_seconds,
    run_to_end,
)
from scripts.benchmarks.turns import PER_CPU, SPEED, Figures, compare, figures_table, ratio_table, speed, speed_ratios
from scripts.flags import split_flags
from utils.device import keep_freed_memory, synchronize
from utils.distributed import ProcessContext, single_process
from utils.processes.entry import run_script

DEFAULTS = ["-batch_size=32", "-num_workers=2"]
FIRST_STEPS = {"main_single_gpu.py": "jpeg", "timm's train.py": "timm"}
PAIRS = [tuple(FIRST_STEPS), ("-eval", "validate.py"), ("-predict", "inference.py")]
ENDLESS_EPOCHS = 10**6
EPOCH = 20_000  # links of the loaders: long enough that pauses between epochs do not count
NUM_CLASSES = 1000
OURS = "ours"
TIMM = "timm create_loader"
LOADERS = [(OURS, TIMM)]


def main(argv: list[str]) -> int:
    parser = benchmark_parser("benchmark_input.py", "Compares the speed of our loader with timm's.")
    add_number(parser, "images", 600, "images of the programs")
    add_number(parser, "rounds", 3, "turns of each contender")
    add_number(parser, "seconds", 2.0, "length of a turn", float)
    flags, rest = split_flags(parser, argv)
    rest = [*DEFAULTS, *rest]
    config = parse_command_line(rest).config.changed(train=Train())
    data = config.data
    context = single_process()
    torch.set_num_threads(1)  # the workers occupy the cores
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        images = flags.data or make_images(folder / "images")
        link_images(images, folder / "linked", EPOCH)
        linked = config.with_data(dataset="folder", data_path=str(folder / "linked"))
        loaders = {
            OURS: partial(our_batches, linked, context),
            TIMM: partial(timm_batches, linked.data, context.device),
        }
        programs = build_programs(flags, rest, images, folder / "start") if flags.timm_train else {}

        def measure(name: str) -> dict[str, float]:
            if name in FIRST_STEPS:
                return first_step(programs[name])
            if name in programs:
                return run_to_end(programs[name])
            return measure_turn(loaders[name], PREFETCH_FACTOR * data.num_workers, flags.seconds, context.device)

        names = [*loaders, *programs]
        compare(data.batch_size, names, flags.rounds, measure, input_tables, flags.json, LOADERS)
    return 0


def build_programs(flags: Namespace, rest: list[str], images: Path, folder: Path) -> dict[str, list[str]]:
    """The programs of PAIRS, on `flags.images` of the images, with the same random weights for the last two pairs."""
    link_images(images, folder / "data", flags.images, copies=True)
    classes = os.listdir(folder / "data/train")
    argv = [*MODEL, *rest, "-opts", f"MODEL.NUM_CLASSES={len(classes)}"]
    config = parse_command_line(argv).config
    check_comparable(config)
    programs = {
        label: build_command(name, argv, 1, folder, flags.timm_train, "val") for label, name in FIRST_STEPS.items()
    }
    weights = folder / "random.pth"
    torch.manual_seed(0)
    torch.save(timm.create_model(config.model.name, num_classes=len(classes)).state_dict(), weights)
    argv.append(f"-pretrained={weights}")
    for ours, timms in PAIRS[1:]:
        programs[ours] = build_command("jpeg", [*argv, ours, "-split=train"], 1, folder)
        programs[timms] = build_command("timm", argv, 1, folder, flags.timm_train.with_name(timms), "train")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # all programs read stored bytecode
    return programs


def input_tables(figures: Figures) -> list[str]:
    """A table of the loaders, one of the programs, whose top-1 differs by rounding only, and their ratios."""
    loaders = {name: figures[name] for name in (OURS, TIMM)}
    programs = without(figures, loaders)
    columns = {"images/s": speed, "images per CPU second": partial(speed, figure=PER_CPU)}
    texts = [
        figures_table(loaders, columns),
        ratio_table(speed_ratios(loaders, LOADERS, PER_CPU), "of images per CPU second"),
    ]
    if programs:
        units = {"wall_seconds": "wall seconds", "cpu_seconds": "CPU seconds"}
        columns = {unit: partial(speed, figure=figure) for figure, unit in units.items()}
        texts.append(figures_table(programs, columns | {"top-1": partial(speed, figure="top1")}))
        texts += [ratio_table(speed_ratios(programs, PAIRS, figure), f"of {unit}") for figure, unit in units.items()]
    return texts


def measure_turn(
    start: Callable[[], Iterator[int]], prefetched: int, seconds: float, device: torch.device
) -> dict[str, float]:
    """Images/s, and images per CPU second of all processes, of a new stream over at least `seconds`.

    The turn ends with a whole batch. The first batch and the `prefetched` next ones are not timed.
    """
    with closing(start()) as stream:
        sum(islice(stream, 1 + prefetched))
        cpu_before = group_cpu_seconds(os.getpgrp())
        started = time.perf_counter()
        images = 0
        while time.perf_counter() < started + seconds:
            images += next(stream)
        synchronize(device)
        elapsed = time.perf_counter() - started
        cpu_seconds = group_cpu_seconds(os.getpgrp()) - cpu_before
        return {SPEED: images / elapsed, PER_CPU: images / max(cpu_seconds, 0.01)}


def our_batches(config: Config, context: ProcessContext) -> Iterator[int]:
    wanted = Wanted(config.data, ("train",), num_classes=config.model.num_classes)
    samples = read_data(wanted, context).splits["train"]
    layout = epoch_layout(config, samples, plan_batches(config, context.world_size))
    transform = TrainTransform(config.data, config.train, NUM_CLASSES, config.train.horizon).to(context.device)
    for batch in TrainBatches(config, samples, context, layout).iterate(epoch=0, batch=0, num_epochs=ENDLESS_EPOCHS):
        transform(batch)
        yield len(batch.images)


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
