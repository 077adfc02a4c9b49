"""Trains the same Vision Transformer with main_single_gpu.py and with timm's train.py, and compares the final top-1.

    python scripts/benchmarks/parity.py -timm_train ~/pytorch-image-models/train.py -json parity.json

The recipe is parity.yaml; an option that programs.py cannot translate is an error. See docs/benchmarks.md.
"""

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, variance

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from PIL import Image

from configs.command_line import parse_command_line
from configs.flags import positive
from datasets.sources.sets.in_memory import Digits
from engine.training.trial import build_state
from scripts.benchmarks.programs import (
    ENTRY,
    EXPLICIT_ATTENTION,
    add_timm_flag,
    check_recipe,
    run_to_end,
    timm_flags,
)
from scripts.benchmarks.turns import Figures, compare, figures_table
from scripts.flags import add_flag, flag_parser, split_flags
from utils.device import visible_gpus
from utils.distributed import single_process
from utils.errors import UserError
from utils.processes.entry import run_script
from utils.tables import read_rows

SCRIPT = "benchmarks/parity.py"
RECIPE = f"-cfg={Path(__file__).with_suffix('.yaml')}"
NO_LOG = 10**6  # steps between log lines


def main(argv: list[str]) -> int:
    parser = flag_parser(SCRIPT, "Compares the top-1 of the entry script and of timm's train.py on the same recipe.")
    add_timm_flag(parser, required=True)
    add_flag(parser, "seeds", type=positive, default=8, metavar="N", help="number of seeds: SEED 0 to N-1 (default: 8)")
    add_flag(parser, "output", type=Path, metavar="FOLDER", help="keep the runs in this folder (default: delete them)")
    flags, rest = split_flags(parser, argv)
    config = parse_command_line([RECIPE, *rest]).config
    check_recipe(config, parse_command_line([RECIPE]).config)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (flags.output or Path(temporary)).absolute()
        data = folder / "data"
        for split in ("train", "val"):  # 8-bit gray, in the split of -dataset=digits
            samples = Digits(config.data).read(split)
            for index, (image, target) in enumerate(zip(samples.images, samples.targets, strict=True)):
                path = data / split / samples.class_names[target] / f"{index:04d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image[0]).save(path)

        def train(name: str, seed: int) -> dict[str, float]:
            output = folder / f"{name}-seed{seed}"
            if name == "ours":
                words = [*rest, "-dataset=folder", f"-data_path={data}", f"-output={output}", "-opts", f"SEED={seed}"]
                command = [sys.executable, str(ENTRY), RECIPE, *words]
                return {"top1": final_top1(command, output, "metrics.csv", "val_top1")}
            command = timm_command(flags.timm_train, rest, seed, data, output)
            return {"top1": final_top1(command, output, "summary.csv", "eval_top1")}

        compare(config.data.batch_size, ("ours", "timm"), flags.seeds, train, tables, flags.json)
    return 0


def tables(figures: Figures) -> list[str]:
    columns = {"mean top-1": lambda one: f"{mean(one['top1']):.2f}"}
    texts = [figures_table(figures, columns)]
    ours, timms = (one.get("top1", []) for one in figures.values())
    if min(len(ours), len(timms)) > 1:
        error = math.sqrt(variance(ours) / len(ours) + variance(timms) / len(timms))
        texts.append(f"ours - timm: {mean(ours) - mean(timms):+.2f} points, standard error {error:.2f}")
    return texts


def final_top1(command: Sequence[str], output: Path, table: str, column: str) -> float:
    """Runs a training and returns the top-1 of its last epoch in percent, from a CSV file in a new folder of `output`.

    Raises UserError: the program failed, or the file has no such value.
    """
    run_to_end(command)
    paths = sorted(output.glob(f"*/{table}"), key=lambda path: path.stat().st_mtime)
    rows = read_rows(paths[-1]) if paths else []
    if not rows or not rows[-1].get(column):
        raise UserError(f"{paths[-1] if paths else output / '*' / table}: has no {column} of the last epoch")
    return float(rows[-1][column])


def timm_command(train_py: Path, rest: list[str], seed: int, data: Path, output: Path) -> list[str]:
    """The command; it loads our initial weights, which are written."""
    config = parse_command_line([RECIPE, *rest, "-opts", f"SEED={seed}"]).config
    weights = output.with_suffix(".pth")
    torch.save(build_state(config, single_process()).precision.weights.saved.state_dict(), weights)
    flags = timm_flags(config, data, output, interval=NO_LOG, val_split="val")
    explicit = [] if visible_gpus() else EXPLICIT_ATTENTION  # as ours on a CPU
    return [*explicit, sys.executable, str(train_py), *flags, "--initial-checkpoint", str(weights)]


if __name__ == "__main__":
    run_script(main)
