"""The time from the command to the first log line with a loss: main_single_gpu.py and timm's train.py, in turns."""

import argparse
import sys
from pathlib import Path

from configs.reading.command_line import parse_command_line
from scripts.benchmarks.images import link_images
from scripts.benchmarks.programs import TIMM, Program, entry_program, first_step
from scripts.benchmarks.timm_command import check_comparable, timm_flags
from scripts.benchmarks.turns import Figures, figures_table, median_and_range, ratio_table, speed_ratios, take_turns

_MODEL = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", "MODEL.DROPOUT=0.0", "MODEL.ATTENTION_DROPOUT=0.0"]
_ENTRIES = 3000  # images of the folder that the programs scan
_LIMIT_SECONDS = 600
_OURS, _TIMM = "main_single_gpu.py", "timm's train.py"


def first_steps(images: Path, folder: Path, argv: list[str], flags: argparse.Namespace) -> tuple[Figures, list[str]]:
    """The figures and the texts to print; none without -timm_train. folder: gets links to the images, and the runs."""
    if not flags.timm_train:
        return {}, []
    argv = [*_MODEL, *argv]
    config = parse_command_line(argv).config
    check_comparable(config)
    link_images(images, folder / "start", _ENTRIES, copies=True)
    words = timm_flags(config, folder / "start", folder / "timm", interval=1, val_split="val")
    programs = {
        _OURS: entry_program(argv, 1, folder / "ours", ["-dataset=folder", f"-data_path={folder / 'start'}"]),
        _TIMM: Program([sys.executable, str(flags.timm_train), *words], TIMM),
    }
    figures = take_turns(list(programs), flags.rounds, lambda name, _: first_step(programs[name], _LIMIT_SECONDS))
    columns = {
        "first step, wall (s)": lambda one: median_and_range(one["wall_seconds"], ".1f"),
        "CPU (s)": lambda one: median_and_range(one["cpu_seconds"], ".1f"),
    }
    texts = [figures_table(figures, columns)]
    if not any("failed" in one for one in figures.values()):
        wall, cpu = (speed_ratios(figures, [(_OURS, _TIMM)], key) for key in ("wall_seconds", "cpu_seconds"))
        texts += [ratio_table(wall, "of wall seconds"), ratio_table(cpu, "of CPU seconds")]
    return figures, texts
