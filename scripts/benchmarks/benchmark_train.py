"""Training through the real entry point, against a bare loop of the same model and against timm's train.py.

    python scripts/benchmarks/benchmark_train.py -timm_train ~/pytorch-image-models/train.py -json train.json

Without flags of main_single_gpu.py it trains configs/vit_tiny_patch16_224.yaml at batch 32 with -amp, and without the
recipe's dropout, which timm's train.py has none of by default. The programs:

- `jpeg`: main_single_gpu.py with its loader on JPEGs, made by the script or those of `-data FOLDER`;
- `ready`: main_single_gpu.py on noise in memory, uncropped (`-dataset=fake`);
- `bare`: forward, loss, backward, clipping and AdamW, on tensors that are ready (benchmark_loop.py);
- `timm`: timm's train.py on the same JPEGs with the same model, batch, workers, precision, optimizer and drop rates;
- `timm_explicit`: the same with TIMM_FUSED_ATTN=0, its best setting on a CPU.

Each is started once, in processes of its own, and they take turns, backwards in every second round: while one goes on
the others stand still (SIGSTOP), so that a machine's drift falls on all. Of a turn the first steps, up to a line in
the log, are not timed, nor are the first `-warmup` steps of all. The seconds of the next `-steps` are taken by the
clock here, between the arrivals of two lines of the program's log. What that log makes of the same steps stands
beside; timm's gives averages since its start, in few digits. A ratio is the median of those within the rounds.
"""

import argparse
import os
import re
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import parse_command_line
from configs.schema import Config
from engine.checkpoint.epoch_layout import EpochLayout
from engine.telemetry.reporter import peak_memory_bytes
from engine.training.trainer import build_train_state
from models.build import build_model
from scripts.benchmarks.benchmark_images import link_images, make_images
from scripts.benchmarks.benchmark_loop import bare_loop
from scripts.benchmarks.common import (
    add_flag,
    environment,
    environment_line,
    flag_parser,
    interleaved,
    markdown_table,
    positive,
    ready_batches,
    split_flags,
    spread,
    tell,
    timed,
    write_json,
)
from scripts.benchmarks.programs import Failed, OurLog, PlainLog, Program, TimmLog, Window
from utils.distributed import single_process, visible_gpus
from utils.errors import UserError, did_you_mean, run_and_report_errors
from utils.logger import RunLogger

SCRIPT = "benchmark_train.py"
NO_DROPOUT = ["-opts", "MODEL.DROPOUT=0.0", "MODEL.ATTENTION_DROPOUT=0.0"]
DEFAULTS = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-batch_size=32", "-num_workers=2", "-amp", *NO_DROPOUT]
PROGRAMS = ("jpeg", "ready", "bare", "timm", "timm_explicit")
RATIOS = (("jpeg", "timm"), ("jpeg", "timm_explicit"), ("ready", "bare"), ("jpeg", "ready"), ("bare", "timm"))
IMAGES = 256  # different ones
ENTRY = Path(__file__).parents[2] / "main_single_gpu.py"


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    config = parse_command_line([*DEFAULTS, *rest]).config
    if flags.worker:
        for line in run_bare_loop(config, flags.interval):
            print(line, flush=True)
    names = _checked_programs(flags, config)
    with TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        if {"jpeg", "timm", "timm_explicit"}.intersection(names):
            images = flags.data or Path(folder) / "images"
            if not flags.data:
                make_images(images, (500, 375), IMAGES, mean_bytes=106_000)
            link_images(images, data, entries=most_steps(flags) * config.data.batch_size)
        answers = measure({name: program(name, rest, config, flags, Path(folder)) for name in names}, config, flags)
    figures = {name: program_figures(windows, config.data.batch_size) for name, windows in answers.items()}
    ratios = speed_ratios(figures)
    found = environment(SCRIPT, argv, config)
    print(environment_line(found), *texts(figures, ratios, flags), sep="\n\n")
    write_json(flags.json, {"environment": found, "programs": figures, "ratios": ratios})
    return 0 if any("failed" not in one for one in figures.values()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Training through the entry point, against a bare loop and timm's train.py.")
    add_flag(parser, "timm_train", type=Path, metavar="PATH", help="train.py of a checkout of timm, to compare with")
    add_flag(parser, "data", type=Path, metavar="FOLDER", help="class folders of JPEGs (default: made by the script)")
    add_flag(parser, "programs", metavar="A,B", help=f"of {', '.join(PROGRAMS)} (default: all that can run here)")
    add_flag(parser, "rounds", type=positive, default=6, metavar="N", help="turns of each program (default: 6)")
    add_flag(parser, "warmup", type=positive, default=8, metavar="N", help="first steps, never timed (default: 8)")
    add_flag(parser, "steps", type=positive, default=12, metavar="N", help="steps timed in each turn (default: 12)")
    add_flag(parser, "interval", type=positive, default=4, metavar="N", help="steps between log lines (default: 4)")
    add_flag(parser, "limit", type=positive, default=600, metavar="S", help="seconds for one turn (default: 600)")
    add_flag(parser, "worker", action="store_true", help=argparse.SUPPRESS)  # be the bare loop
    return parser


def _checked_programs(flags: argparse.Namespace, config: Config) -> list[str]:
    """Those to run. Raises UserError for flags and options that make no comparison."""
    if flags.programs:
        names = list(dict.fromkeys(flags.programs.split(",")))
    else:
        timms = () if flags.timm_train is None else ("timm",) if visible_gpus() else ("timm", "timm_explicit")
        names = ["jpeg", "ready", "bare", *timms]
    for name in names:
        if name not in PROGRAMS:
            raise UserError(
                f"-programs: unknown program {name}{did_you_mean(name, PROGRAMS)} (known: {', '.join(PROGRAMS)})"
            )
        if name.startswith("timm"):
            if flags.timm_train is None:
                raise UserError(f"-programs {name}: needs -timm_train PATH, the train.py of a checkout of timm")
            _refuse_what_timm_has_not(config)
    if flags.timm_train and not flags.timm_train.is_file():
        raise UserError(f"-timm_train {flags.timm_train}: no such file; name the train.py of a checkout of timm")
    for name in ("warmup", "steps"):
        if getattr(flags, name) % flags.interval:
            raise UserError(f"-{name} {getattr(flags, name)}: must be a multiple of -interval {flags.interval}")
    train = config.train
    if train.accum_iter != 1 or train.model_ema or train.mixup_alpha or train.cutmix_alpha or config.amp.level != "O1":
        raise UserError("the bare loop has no ACCUM_ITER, MODEL_EMA, mixup, CutMix or O2; leave them out")
    return names


def _refuse_what_timm_has_not(config: Config) -> None:
    from timm import is_model

    if not is_model(config.model.name):
        raise UserError(f"MODEL.NAME {config.model.name}: timm has no model of that name to compare with")
    if config.model.freeze_backbone or config.train.layer_decay:
        raise UserError("FREEZE_BACKBONE, LAYER_DECAY: are not compared with timm's; leave them out")


def most_steps(flags: argparse.Namespace) -> int:
    """That a program may do in all its turns; an epoch holds as many, so that none ends in one."""
    return flags.warmup + flags.rounds * (flags.steps + 2 * flags.interval)


# The programs


def program(name: str, rest: list[str], config: Config, flags: argparse.Namespace, folder: Path) -> Program:
    # What is kept of a folder of images goes with it; what is measured once is measured once here.
    kept = {"AMPVIT_CACHE": os.environ.get("AMPVIT_CACHE", str(folder / "cache"))}
    if name == "bare":
        return Program([sys.executable, __file__, "-worker", f"-interval={flags.interval}", *rest], kept, PlainLog())
    if name.startswith("timm"):
        explicit = {"TIMM_FUSED_ATTN": "0"} if name == "timm_explicit" else {}
        command = [sys.executable, str(flags.timm_train), *timm_flags(config, flags, folder)]
        return Program(command, explicit, TimmLog(config.data.batch_size))
    command = [sys.executable, str(ENTRY), *DEFAULTS, *rest, f"-output={folder}/{name}", *_data_flags(name, folder)]
    options = [f"REPORT_FREQ={flags.interval}", "VALIDATE_FREQ=1000000", "SAVE_FREQ=1000000", "SAVE_FREQ_MINUTES=null"]
    if name == "ready":
        options += ["DATA.RANDOM_CROP_SCALE=[1.0, 1.0]", "DATA.RANDOM_CROP_RATIO=[1.0, 1.0]", "DATA.HFLIP_PROB=0.0"]
    return Program([*command, "-opts", *options], kept, OurLog(config.data.batch_size))


def _data_flags(name: str, folder: Path) -> list[str]:
    if name == "jpeg":
        return ["-dataset=folder", f"-data_path={folder}/data"]
    # A GPU's main process has enough to do; on a CPU a worker would take a core from the model.
    return ["-dataset=fake", *([] if visible_gpus() else ["-num_workers=0"])]


def timm_flags(config: Config, flags: argparse.Namespace, folder: Path) -> list[str]:
    """The same work on timm's command line: crop and flip only, no evaluation, nothing saved before an epoch's end."""
    data, model, train = config.data, config.model, config.train
    on_gpu = visible_gpus() > 0
    values = {
        "data-dir": folder / "data", "train-split": "train", "val-split": "", "output": folder / "timm",
        "model": model.name, "num-classes": model.num_classes, "img-size": data.image_size,
        "model-kwargs": [f"{name}_drop_rate={rate}" for name, rate in _drop_rates(config).items()],
        "drop-path": model.droppath, "device": "cuda" if on_gpu else "cpu",
        "batch-size": data.batch_size, "workers": data.num_workers,
        "opt": train.optimizer.name.lower(), "opt-eps": train.optimizer.eps, "opt-betas": train.optimizer.betas,
        "lr": train.base_lr, "weight-decay": train.weight_decay, "clip-grad": train.grad_clip or None,
        "sched": "cosine", "epochs": train.num_epochs, "warmup-epochs": int(train.warmup_epochs),
        "mean": data.imagenet_mean, "std": data.imagenet_std, "smoothing": train.smoothing,
        "scale": data.random_crop_scale, "ratio": data.random_crop_ratio, "hflip": data.hflip_prob,
        "color-jitter": 0, "train-interpolation": "bicubic", "log-interval": flags.interval, "seed": config.seed,
    }  # fmt: skip
    if config.amp.enabled:
        values["amp-dtype"] = config.amp.dtype or ("float16" if on_gpu else "bfloat16")
    switches = ["sched-on-updates", *(["amp"] if config.amp.enabled else []), *(["pin-mem"] if on_gpu else [])]
    if train.compile != "none":
        switches.append("torchcompile")
        values |= {"torchcompile-mode": "max-autotune"} if train.compile == "max" else {}
    return [f"--{name}" for name in switches] + [
        word for name, value in values.items() if value is not None for word in (f"--{name}", *_words(value))
    ]


def _drop_rates(config: Config) -> dict[str, float]:
    """By timm's names of a Vision Transformer; other models have other ones, and theirs stay as they are."""
    if config.model.type != "vit":
        return {}
    dropout = config.model.dropout
    return {"pos": dropout, "proj": dropout, "attn": config.model.attention_dropout}


def _words(value: Any) -> list[str]:
    return [str(part) for part in value] if isinstance(value, (list, tuple)) else [str(value)]


def run_bare_loop(config: Config, interval: int) -> Iterator[str]:
    """Goes on without end, in a process of its own, and says where it stands as often as the others do."""
    context = single_process()
    geometry = EpochLayout(10**6, config.data.batch_size, 1, config.seed)
    batches = ready_batches(config, context)
    loop = bare_loop(build_train_state(config, context, geometry, RunLogger(None, context)), batches)
    seconds = 0.0
    for steps in count(interval, interval):
        seconds += timed(lambda: loop(interval), context.device)
        yield PlainLog.line(steps, seconds, peak_memory_bytes(context.device))


# Measuring


def measure(
    programs: dict[str, Program], config: Config, flags: argparse.Namespace
) -> dict[str, list[Window] | Failed]:
    """By program what was found in its turns, or why it failed; then it has no more."""
    found: dict[str, list[Window] | Failed] = {name: [] for name in programs}
    with ExitStack() as running:
        for one in programs.values():
            running.enter_context(one)
        for number, name in interleaved(list(programs), flags.rounds):
            if isinstance(found[name], Failed):
                continue
            try:
                window = programs[name].turn(flags.warmup, flags.steps, flags.limit)
                if name.startswith("timm"):
                    check_parameters(programs[name].lines, config)
                found[name].append(window)
                told = f"{window.steps * config.data.batch_size / window.seconds:.1f} images/s"
            except Failed as error:
                found[name], told = error, f"failed: {error}"
            tell(f"round {number + 1} of {flags.rounds}, {name}: {told}")
    return found


def check_parameters(timm_lines: list[str], config: Config) -> None:
    """Raises Failed where timm's train.py has built a model that is not ours."""
    counts = [int(found[1]) for line in timm_lines if (found := re.search(r"param count: ?(\d+)", line))]
    model, _ = build_model(config.with_model(pretrained=None).model, config.data, torch.device("cpu"))
    ours = sum(parameter.numel() for parameter in model.parameters())
    if counts != [ours]:
        raise Failed(f"its model has {counts} parameters and ours {ours}; compare models of timm's own shapes")


def program_figures(windows: list[Window] | Failed, images_per_step: int) -> dict[str, Any]:
    """Round by round; or why it 'failed'."""
    if isinstance(windows, Failed):
        return {"failed": str(windows)}
    return {
        "images_per_second": [window.steps * images_per_step / window.seconds for window in windows],
        "images_per_second_in_its_log": [window.steps * images_per_step / window.own_seconds for window in windows],
        "data_wait_share": [window.wait_share for window in windows],
        "peak_memory_bytes": max(window.last.memory_bytes for window in windows) or None,
    }


def speed_ratios(figures: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """'one / other' -> round by round, of those pairs of which both were measured."""
    speeds = {name: one["images_per_second"] for name, one in figures.items() if "failed" not in one}
    return {
        f"{one} / {other}": [mine / its for mine, its in zip(speeds[one], speeds[other], strict=True)]
        for one, other in RATIOS
        if one in speeds and other in speeds
    }


def texts(figures: dict[str, dict[str, Any]], ratios: dict[str, list[float]], flags: argparse.Namespace) -> list[str]:
    rows = []
    for name, one in figures.items():
        if "failed" in one:
            rows.append([name, f"failed: {one['failed']}", "", "", ""])
            continue
        memory = one["peak_memory_bytes"]
        cells = [spread(one[key], ".1f") for key in ("images_per_second", "images_per_second_in_its_log")]
        wait = f"{statistics.median(one['data_wait_share']):.1%}"
        rows.append([name, *cells, wait, f"{memory / 1e9:.2f}" if memory else ""])
    header = ["program", "images/s", "images/s, its own log", "data wait", "peak memory (GB)"]
    return [
        f"{flags.rounds} turns of {flags.steps} steps each, after {flags.warmup} steps to warm up:",
        markdown_table(header, rows),
        markdown_table(["ratio", "of images/s"], [[name, spread(values, ".3f")] for name, values in ratios.items()]),
    ]


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
