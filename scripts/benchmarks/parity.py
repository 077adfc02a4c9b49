"""Trains the same Vision Transformer with main_single_gpu.py and with timm's train.py, and compares the final top-1.

    python scripts/benchmarks/parity.py -timm_train ~/pytorch-image-models/train.py -jobs 2 -json parity.json

The data are scikit-learn's digits as PNGs in class folders, in the split of `-dataset=digits` (DATA.SPLIT_SEED). The
recipe is parity.yaml; flags and -opts of main_single_gpu.py change it. timm_command.py translates it for train.py; an
option without a translation is an error. Each program trains once per seed, in turn; `-jobs` runs several at a time and
divides the threads among them. Both start from the same weights, which main_single_gpu.py draws for the seed. The
result is the top-1 of the last epoch, from metrics.csv of our run and summary.csv of timm's. Speed is not compared.

Equal in both: batches (the incomplete batch of an epoch is dropped), the learning rate of every step, loss, AdamW,
clipping, no weight decay on biases, norms, class token and position embedding, normalization, evaluation crop, autocast
in evaluation, and explicit attention on a CPU. The differences that remain:

- random numbers: same distributions, other draws of the order of samples, crops, dropout and drop-path;
- drop-path from a rate of 0.1 on: ours drops a fixed number of samples, timm's each sample with that probability;
- resampling: torch's kernel for uint8 tensors instead of Pillow's; values differ by 0.002 of 255 levels on average;
- mixup and CutMix (off by default): the draws;
- a step with non-finite gradients: ours skips it, timm's does not;
- rounding: fused instead of foreach AdamW; other formulas of normalization and clipping.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from PIL import Image

from configs.reading.command_line import parse_command_line
from configs.schema import Config, Data
from datasets.sources.arrays.in_memory import digits
from scripts.benchmarks.common import ENTRY, environment, interleaved, last_error, print_progress, print_result
from scripts.benchmarks.seeds import Runs, percent, seed_figures, seed_table, seed_verdicts
from scripts.benchmarks.timm_command import check_recipe, timm_flags
from scripts.benchmarks.training_parts import build_state
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import visible_gpus
from utils.distributed import single_process
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors
from utils.tables import read_rows

SCRIPT = "benchmarks/parity.py"
PROGRAMS = ("ours", "timm")
RESULTS = {"ours": ("metrics.csv", "val_top1", 0), "timm": ("summary.csv", "eval_top1", -1)}  # timm counts from 0
RECIPE = f"-cfg={Path(__file__).with_suffix('.yaml')}"
NO_LOG = 10**6  # steps between log lines


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    if not flags.timm_train.is_file():
        raise UserError(f"-timm_train {flags.timm_train}: no such file; name the train.py of a checkout of timm")
    config = parse_command_line([RECIPE, *rest]).config
    check_recipe(config, parse_command_line([RECIPE]).config)
    torch.set_num_threads(max(1, torch.get_num_threads() // flags.jobs))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (flags.output or Path(temporary)).absolute()
        write_image_folder(config.data, folder / "data")
        runs, commands = train_all(rest, flags, folder)
    figures = seed_figures(runs, baseline="timm")
    texts = [seed_table(figures), seed_verdicts(figures, baseline="timm")]
    texts += [f"{name}, seed 0: `{commands[name]}`" for name in PROGRAMS]
    result = {"commands": commands, "programs": figures}
    print_result(environment(SCRIPT, argv, config), texts, flags.json, result)
    if all(one["mean"] is None for one in figures.values()):
        raise UserError(f"all runs failed; ours: {runs['ours'][0]['failed']}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Compares the top-1 of the entry script and of timm's train.py on the same recipe.")
    path = "train.py of a checkout of timm"
    add_flag(parser, "timm_train", type=Path, metavar="PATH", required=True, help=path)
    add_flag(parser, "seeds", type=positive, default=8, metavar="N", help="number of seeds: SEED 0 to N-1 (default: 8)")
    add_flag(parser, "jobs", type=positive, default=1, metavar="N", help="runs at a time (default: 1)")
    add_flag(parser, "output", type=Path, metavar="FOLDER", help="keep the runs in this folder (default: delete them)")
    return parser


# Inputs of the runs


def write_image_folder(data: Data, folder: Path) -> None:
    """Writes the digits as `folder/{train,val}/{class}/{index}.png`, 8-bit gray, in the split of `-dataset=digits`."""
    for split in ("train", "val"):
        samples = digits(data, split)
        for index, (image, target) in enumerate(zip(samples.images, samples.targets, strict=True)):
            path = folder / split / samples.class_names[target] / f"{index:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0]).save(path)


def write_initial_weights(config: Config, path: Path) -> None:
    """Writes the weights that a run of this configuration starts from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(build_state(config, single_process()).precision.weights.saved.state_dict(), path)


def our_command(rest: list[str], seed: int, folder: Path) -> list[str]:
    data = ["-dataset=folder", f"-data_path={folder / 'data'}", f"-output={folder / f'ours-seed{seed}'}"]
    return [sys.executable, str(ENTRY), RECIPE, *rest, *data, "-opts", f"SEED={seed}"]


def timm_command(train_py: Path, rest: list[str], seed: int, folder: Path) -> list[str]:
    """The command; writes the initial weights that it loads."""
    config = parse_command_line([RECIPE, *rest, "-opts", f"SEED={seed}"]).config
    weights = folder / f"initial-seed{seed}.pth"
    write_initial_weights(config, weights)
    flags = timm_flags(config, folder / "data", folder / f"timm-seed{seed}", interval=NO_LOG, val_split="val")
    return [sys.executable, str(train_py), *flags, "--initial-checkpoint", str(weights)]


# Runs


def train_all(rest: list[str], flags: argparse.Namespace, folder: Path) -> tuple[Runs, dict[str, str]]:
    """All runs, and the command of each program for seed 0."""
    commands = {}
    for seed in range(flags.seeds):
        commands["ours", seed] = our_command(rest, seed, folder)
        commands["timm", seed] = timm_command(flags.timm_train, rest, seed, folder)
    num_epochs = parse_command_line([RECIPE, *rest]).config.train.num_epochs

    def run(turn: tuple[int, str]) -> dict[str, Any]:
        seed, name = turn
        found = train(name, commands[name, seed], folder / f"{name}-seed{seed}", num_epochs)
        print_progress(f"seed {seed}, {name}: {found.get('failed') or percent(found['top1'])}")
        return found

    turns = list(interleaved(PROGRAMS, flags.seeds))
    with ThreadPoolExecutor(flags.jobs) as jobs:
        found = dict(zip(turns, jobs.map(run, turns), strict=True))
    runs = {name: [found[seed, name] for seed in range(flags.seeds)] for name in PROGRAMS}
    return runs, {name: shlex.join(commands[name, 0]) for name in PROGRAMS}


def train(name: str, command: list[str], output: Path, num_epochs: int) -> dict[str, Any]:
    """Top-1 of the last epoch in percent, or the reason under 'failed'."""
    variables = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    if not visible_gpus():
        variables["TIMM_FUSED_ATTN"] = "0"  # explicit attention, as ours on a CPU
    process = subprocess.run(command, capture_output=True, text=True, errors="replace", env=os.environ | variables)
    if process.returncode:
        return {"failed": last_error(process)}
    file, column, last_epoch = RESULTS[name]
    return final_top1(output, file, column, num_epochs + last_epoch)


def final_top1(output: Path, file: str, column: str, last_epoch: int) -> dict[str, Any]:
    """Top-1 of the last epoch in percent, from the newest run in `output`, or the reason under 'failed'."""
    paths = sorted(output.glob(f"*/{file}"), key=lambda path: path.stat().st_mtime)
    rows = read_rows(paths[-1]) if paths else []
    if not rows or rows[-1]["epoch"] != str(last_epoch) or not rows[-1].get(column):
        return {"failed": f"{paths[-1] if paths else output / '*' / file}: has no {column} of epoch {last_epoch}"}
    return {"top1": float(rows[-1][column])}


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
