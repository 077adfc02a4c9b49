"""Compares training through the entry script with a bare loop of the same model and with timm's train.py.

    python scripts/benchmarks/benchmark_train.py -timm_train ~/pytorch-image-models/train.py -json train.json
    python scripts/benchmarks/benchmark_train.py -programs=ready -modes=fp32,O1-bf16 -cfg=RECIPE.yaml -json amp.json

Without -cfg, ViT-Tiny without dropout, as timm's train.py by default. The JPEGs have the file size of photographs.
See docs/benchmarks.md.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from configs.command_line import parse_command_line
from configs.flags import add_flag
from configs.schema import Config, Train
from datasets.transforms.device import Normalize
from engine.precision.policy import Precision
from engine.training.optimizer import build_optimizer, set_lr
from engine.training.trial import build_state, ready_batches
from scripts.benchmarks.programs import (
    MODES,
    PROGRAMS,
    add_number,
    benchmark_parser,
    build_command,
    check_comparable,
    parse_names,
    run_turn,
)
from scripts.benchmarks.turns import (
    CORES,
    SPEED,
    Figures,
    compare,
    figures_table,
    median_and_range,
    memory,
    speed,
    speed_ratios,
)
from scripts.flags import split_flags
from utils.device import peak_memory_bytes, synchronize, visible_gpus
from utils.distributed import single_process
from utils.errors import UserError
from utils.files import atomic_write
from utils.processes.entry import run_script
from utils.tables import markdown_table, table_text

CLASSES = 8
QUALITY = 90
_LIMIT_SECONDS = 600  # of a turn
_GRAIN = 16  # pixels between the random colors that a picture interpolates


def make_images(folder: Path, size: tuple[int, int] = (500, 375), count: int = 256, noise: float = 16.7) -> Path:
    """Writes different JPEGs, smooth colors with noise, to class folders in `folder`; returns it.

    size: width, height. noise: its standard deviation, on a scale of 255, which sets the size of the files: about 106
    KB by default.
    """
    rng = np.random.default_rng(0)
    shape = size[::-1]
    for number in range(count):
        parent = folder / f"class{number % CLASSES}"
        parent.mkdir(parents=True, exist_ok=True)
        colors = rng.integers(0, 256, (*(side // _GRAIN + 1 for side in shape), 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(colors).resize(size, Image.Resampling.BICUBIC))
        grain = noise * rng.standard_normal((*shape, 1), dtype=np.float32)  # of the brightness
        picture = Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))
        picture.save(parent / f"{number:08d}.jpg", quality=QUALITY)
    return folder


def link_images(images: Path, folder: Path, entries: int, copies: bool = False) -> None:
    """Makes a data set of `entries` training images from class folders of JPEGs, as links that repeat the images.

    With a long epoch the pauses of loaders between epochs do not count. The validation split has one image per class.

    images: has a folder per class. folder: gets `train` and `val`. copies: writes different files in place of links: a
    CPU's cache does not hold them, and no two are equal. Raises UserError if `images` has fewer than two class folders
    with JPEGs.
    """
    classes = {}
    for parent in sorted(images.glob("*/")):
        files = sorted(file for file in parent.resolve().rglob("*") if file.suffix.lower() in (".jpg", ".jpeg"))
        if files:
            classes[parent.name] = files
    if len(classes) < 2:
        raise UserError(f"{images}: has fewer than two folders of JPEGs; name a folder of class folders")
    first = [(name, files[0]) for name, files in classes.items()]
    others = [(name, file) for name, files in classes.items() for file in files[1:]]
    random.Random(0).shuffle(others)
    for split, count in (("train", entries), ("val", len(first))):
        for number, (name, image) in enumerate(islice(cycle(first + others), count)):
            entry = folder / split / name / f"{number:08d}.jpg"
            entry.parent.mkdir(parents=True, exist_ok=True)
            if copies:
                entry.write_bytes(image.read_bytes() + f"{split} {number}".encode())
            else:
                entry.symlink_to(image)


NO_DROPOUT = ["-opts", "MODEL.DROPOUT=0.0", "MODEL.ATTENTION_DROPOUT=0.0"]
MODEL = ["-cfg=configs/vit_tiny_patch16_224.yaml", *NO_DROPOUT]
DEFAULTS = [*MODEL, "-batch_size=32", "-num_workers=2", "-amp"]
OTHERS = {"bare", "timm", "timm_explicit"}  # not the entry scripts
RATIOS = (("jpeg", "timm"), ("jpeg", "timm_explicit"), ("ready", "bare"), ("jpeg", "ready"), ("bare", "timm"))
SUPPORTED = {"accum_iter": 1, "model_ema": False, "mixup_alpha": 0.0, "cutmix_alpha": 0.0}  # the only values


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    if not any(word.lstrip("-").startswith("cfg") for word in rest):
        rest = [*DEFAULTS, *rest]
    rest = [*rest, "-opts", "MODEL.PRETRAINED=null"]  # a step takes as long with random weights
    config = parse_command_line(rest).config
    if flags.worker:
        for line in run_bare_loop(config, flags.interval):
            print(line, flush=True)
    contenders = checked_contenders(flags, rest)
    if not isinstance(config.data.batch_size, int):
        raise UserError("-batch_size auto: the programs need equal batches; give a number")
    size = config.data.batch_size * config.train.accum_iter  # images of a step
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if not {"ready", "bare"}.issuperset(name for name, _ in contenders.values()):
            images = flags.data or make_images(folder / "images")
            steps = flags.warmup + flags.steps + 3 * flags.interval  # an epoch has the steps of a turn
            link_images(images, folder / "data", entries=steps * size)
        programs = {
            label: build_command(name, words, flags.interval, folder, flags.timm_train)
            for label, (name, words) in contenders.items()
        }

        def measure(label: str) -> dict[str, float]:
            return run_turn(programs[label], flags.warmup, flags.steps, _LIMIT_SECONDS, size)

        first, *others = contenders
        pairs = [(other, first) for other in others] if flags.modes else RATIOS
        figures = compare(size, contenders, flags.rounds, measure, partial(step_tables, size), flags.json, pairs)
    device = single_process().device
    precisions = (Precision(parse_command_line(words).config.amp, device) for _, words in contenders.values())
    for misfit in dict.fromkeys(text for precision in precisions for text in precision.misfits()):
        print(f"\n{misfit}")
    if flags.json:
        header, *rows = duration_rows(figures, size)
        atomic_write(flags.json.with_suffix(".csv"), table_text(header, rows))
    return 0


def step_tables(step_images: int, figures: Figures) -> list[str]:
    columns = {"images/s": speed, "CPU cores": lambda one: median_and_range(one[CORES], ".1f")}
    header, *rows = duration_rows(figures, step_images)
    return [figures_table(figures, columns | {"peak memory (GB)": memory}), markdown_table(header, rows)]


def duration_rows(figures: Figures, step_images: int) -> list[list[str]]:
    """The table of PaddleViT's page of AMP: a header, and a row for each contender that was measured.

    A speed-up is the median of the ratios of images/s to the first contender, of the same round.
    """
    first = next(iter(figures))
    rows = [["", "seconds per 100 iterations", "rounds", "speed-up", "peak memory (GB)"]]
    for name, one in figures.items():
        if "failed" in one:
            continue
        seconds = [100 * step_images / speed for speed in one[SPEED]]
        (ratios,) = speed_ratios(figures, [(name, first)]).values() or [[]]
        speedup = f"{median(ratios):.2f}" if ratios else ""
        rounds = ", ".join(f"{value:.3f}" for value in seconds)
        rows.append([name, f"{mean(seconds):.3f}", rounds, speedup, memory(one)])
    return rows


def _parser() -> argparse.ArgumentParser:
    about = "Compares training through the entry script with a bare loop and timm's train.py."
    parser = benchmark_parser("benchmark_train.py", about)
    programs = "; ".join(f"{name}: {text}" for name, text in PROGRAMS.items())
    add_flag(parser, "programs", metavar="A,B", help=f"{programs} (default: all that can run here)")
    modes = f"each program in these precisions, of {', '.join(MODES)} (default: the recipe's)"
    add_flag(parser, "modes", metavar="A,B", help=modes)
    add_number(parser, "rounds", 6, "turns of each")
    add_number(parser, "warmup", 8, "steps before")
    add_number(parser, "steps", 12, "timed steps")
    add_number(parser, "interval", 4, "steps between log lines")
    add_flag(parser, "worker", action="store_true", help=argparse.SUPPRESS)  # run the bare loop in this process
    return parser


def checked_contenders(flags: argparse.Namespace, rest: list[str]) -> dict[str, tuple[str, list[str]]]:
    """By label: the program, and its flags of main_single_gpu.py.

    Raises UserError for flags and options that cannot be compared.
    """
    names = ["jpeg", "ready", "bare"]
    if flags.programs:
        names = parse_names("programs", flags.programs, PROGRAMS)
    elif flags.timm_train is not None:
        names.append("timm")
        if not visible_gpus():
            names.append("timm_explicit")
    contenders = {name: (name, rest) for name in names}
    if flags.modes:
        modes = parse_names("modes", flags.modes, MODES)
        contenders = {f"{name}, {mode}": (name, [*rest, "-opts", *MODES[mode]]) for mode in modes for name in names}
    for name, words in contenders.values():
        config = parse_command_line(words).config
        if config.model.solves_head:
            raise UserError("MODEL.TUNE probe: solves for the head without steps; give a recipe that takes steps")
        if OTHERS.intersection(names):
            check_supported(config.train)
        if name.startswith("timm"):
            if flags.timm_train is None:
                raise UserError("-programs timm: needs -timm_train PATH, the train.py of a checkout of timm")
            check_comparable(config)
        if config.amp.enabled and config.amp.level != "O1" and name in OTHERS:
            raise UserError(
                f"AMP.LEVEL {config.amp.level}: {', '.join(OTHERS)} support O1 only; use -programs=jpeg,ready"
            )
    return contenders


def check_supported(train: Train) -> None:
    """Raises UserError for options that not all programs have, or that change their work per step."""
    others = {key: value for key, value in SUPPORTED.items() if getattr(train, key) != value}
    if others:
        fixes = " ".join(f"TRAIN.{key.upper()}={str(value).lower()}" for key, value in others.items())
        raise UserError(f"the comparison does not support this recipe; add -opts {fixes}")


def run_bare_loop(config: Config, interval: int) -> Iterator[str]:
    """A plain training loop without end on float32 batches that are normalized in advance.

    Yields a log line after every `interval` steps.
    """
    context = single_process()
    options = config.train
    state = build_state(config, context)
    precision = state.precision
    model = state.precision.weights.master.train()
    device = context.device
    optimizer = build_optimizer(model, options, state.schedule.peak_lr)
    scaler = torch.amp.GradScaler(device.type, enabled=precision.dtype == torch.float16)
    transform = Normalize(state.config.data).to(device)
    batches = [(transform(batch.images), batch.targets) for batch in ready_batches(config, context)]
    for step, (images, targets) in enumerate(cycle(batches)):
        set_lr(optimizer, state.schedule.lr_at(step))
        with precision.autocast():
            loss = F.cross_entropy(model(images), targets, label_smoothing=options.smoothing)
        scaler.scale(loss).backward()
        if options.grad_clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), options.grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % interval == 0:
            synchronize(device)
            yield f"bare loop, step {step}, {peak_memory_bytes(device) / 1e9:.3f}G"


if __name__ == "__main__":
    run_script(main)
