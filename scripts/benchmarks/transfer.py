"""Compares the ways to use a pretrained backbone for other classes; prints the Markdown table of docs/transfer.md.

    python scripts/benchmarks/transfer.py -jobs 2
    python scripts/benchmarks/transfer.py -jobs 2 -cfg configs/folder_small.yaml -images crops/train
    python scripts/benchmarks/transfer.py -jobs 2 -cfg configs/folder_small.yaml -images signs -pretrained RUN/best.pth

A model is trained on the first half of the classes (by default the digits 0 to 4) with the recipe of -cfg. Each method
then trains on N images of each class of the other half, with its recipe in configs/ and the preprocessing of -cfg; a
fifth of the images of each class is for validation only. No epoch is selected: the last one gives the top-1.
With -pretrained the weights of a run with that recipe are the backbone, and the methods use all classes.
"""

import argparse
import json
import os
import random
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.reading.command_line import parse_command_line
from configs.reading.yaml_io import read_yaml
from configs.weights import find_weights
from scripts.benchmarks.parity import write_image_folder
from scripts.benchmarks.programs import ENTRY, run_program
from scripts.benchmarks.turns import Columns, Figures, compare, figures_table
from scripts.flags import add_flag, flag_parser, positive
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

SCRIPT = "benchmarks/transfer.py"
RECIPES = ENTRY.parent / "configs"
BATCH_SIZE, MIN_IMAGES = 16, 126  # of a class: 100 for training, a fifth for validation
EPOCHS = {5: 100, 20: 50, 100: 25}  # by training images per class
Classes = dict[str, list[Path]]  # class -> images; every fifth is for validation


# The recipe in configs/ (None: of -cfg, without weights), its options, and the key of the top-1 in result.json.
METHODS: dict[str, tuple[str | None, tuple[str, ...], str]] = {
    "from scratch": (None, (), "top1"),
    "k-NN": ("probe", (), "knn_top1"),
    "probe": ("probe", (), "top1"),
    "LoRA": ("lora", ("TRAIN.BASE_LR=5e-3",), "top1"),
    "last:2": ("finetune", ("MODEL.TUNE=last:2", "TRAIN.BASE_LR=3e-3"), "top1"),
    "full": ("finetune", ("TRAIN.BASE_LR=1e-3",), "top1"),
}
COLUMNS: Columns = {
    "trained parameters": lambda one: f"{one['trained'][0]:,}",
    "seconds": lambda one: f"{statistics.median(one['seconds']):.1f}",
    "memory, GB": lambda one: f"{max(one['memory']) / 1e9:.2f}",
    **{f"{count} per class": lambda one, count=count: mean_and_spread(one[f"top1 at {count}"]) for count in EPOCHS},
}


def main(argv: list[str]) -> int:
    flags = _parser().parse_args(argv)
    data = parse_command_line([f"-cfg={flags.cfg}"]).config.data
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // flags.jobs)))
    with TemporaryDirectory() as temporary, ThreadPoolExecutor(flags.jobs) as pool:
        folder = Path(temporary)
        if not flags.images:
            write_image_folder(data, folder / "digits")
        classes = find_images(flags.images or folder / "digits", 2 if flags.pretrained else 4)
        names = sorted(classes)
        half = 0 if flags.pretrained else len(names) // 2
        first, others = ({name: classes[name] for name in part} for part in (names[:half], names[half:]))
        weights = flags.pretrained or train_backbone(flags.cfg, first, folder)
        runs: dict[Any, Future[dict[str, Any]]] = {}
        for seed, count in product(range(flags.seeds), EPOCHS):
            images = folder / f"{count}-seed{seed}"
            link(others, count, seed, images)
            for recipe, options, _ in METHODS.values():
                if (key := (recipe, options, count, seed)) not in runs:  # k-NN is in the result of the probe
                    words = [f"-data_path={images}", *command(recipe, flags.cfg, weights, count, seed), *options]
                    runs[key] = pool.submit(train, words, folder / f"run{len(runs)}")

        def measure(name: str, seed: int) -> dict[str, float]:
            recipe, options, top1 = METHODS[name]
            results = {count: runs[recipe, options, count, seed].result() for count in EPOCHS}
            last = results[max(EPOCHS)]
            trained = last["trainable_parameters"] if top1 == "top1" else 0
            cost = {"trained": trained, "seconds": last["train_seconds"], "memory": last["peak_memory_bytes"]}
            return cost | {f"top1 at {count}": result[top1] for count, result in results.items()}

        def texts(figures: Figures) -> list[str]:
            return [figures_table(figures, COLUMNS)]

        try:
            compare(SCRIPT, argv, BATCH_SIZE, METHODS, flags.seeds, measure, texts, flags.json)
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupted script starts no more runs
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Compares the ways to use a pretrained backbone for other classes.")
    add_flag(parser, "cfg", default=str(RECIPES / "vit_digits.yaml"), metavar="FILE", help="recipe of the backbone")
    images = f"class folders, each of at least {MIN_IMAGES} images (default: the digits)"
    add_flag(parser, "images", type=Path, metavar="DIR", help=images)
    weights = "weights of the backbone (default: it is trained on half of the classes)"
    add_flag(parser, "pretrained", type=find_weights, metavar="FILE", help=weights)
    add_flag(parser, "seeds", type=positive, default=4, metavar="N", help="SEED 0 to N-1 (default: 4)")
    add_flag(parser, "jobs", type=positive, default=1, metavar="N", help="runs side by side (default: 1)")
    return parser


def mean_and_spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.pstdev(values):.1f}"


def find_images(folder: Path, min_classes: int) -> Classes:
    """The images by the name of their folder, in a fixed random order."""
    classes: Classes = {}
    for path in sorted(path for path in folder.absolute().rglob("*") if path.is_file()):
        classes.setdefault(path.parent.name, []).append(path)
    for name, files in classes.items():
        if len(files) < MIN_IMAGES:
            raise UserError(f"-images {folder}: {name} has {len(files)} images; give {MIN_IMAGES} or more")
        random.Random(0).shuffle(files)
    if len(classes) < min_classes:
        raise UserError(f"-images {folder}: has {len(classes)} folders of images; give {min_classes} or more")
    return classes


def link(classes: Classes, count: int | None, seed: int, folder: Path) -> None:
    """Links the images to `folder/{train,val}/{class}`; of the training images `count`, which the seed selects."""
    for name, files in classes.items():
        train = [file for number, file in enumerate(files) if number % 5]
        train = random.Random(seed).sample(train, count) if count else train
        for split, chosen in (("train", train), ("val", files[::5])):
            (folder / split / name).mkdir(parents=True)
            for number, file in enumerate(chosen):
                (folder / split / name / f"{number}{file.suffix}").symlink_to(file)


def train_backbone(cfg: str, classes: Classes, folder: Path) -> str:
    """Trains with the recipe on all images; returns the path of the weights."""
    link(classes, None, 0, folder / "first")
    options = ["-opts", "DATA.DATASET=folder", "MODEL.NUM_CLASSES=null"]
    result = train([f"-cfg={cfg}", f"-data_path={folder / 'first'}", *options], folder / "pretrained")
    print(f"backbone, trained on {', '.join(classes)}: top-1 {result['top1']:.2f}%", file=sys.stderr, flush=True)
    return str(result["checkpoint"])


def command(recipe: str | None, backbone: str, weights: str | Path, count: int, seed: int) -> list[str]:
    """Flags of the entry script. backbone: the recipe of the weights; without `recipe` it is trained from scratch."""
    options = {f"DATA.{key}": value for key, value in read_yaml(Path(backbone))[0]["DATA"].items()}
    options |= {"DATA.DATASET": "folder", "DATA.BATCH_SIZE": BATCH_SIZE, "DATA.NUM_WORKERS": 0, "SEED": seed}
    options |= {"TRAIN.NUM_EPOCHS": EPOCHS[count], "MODEL.NUM_CLASSES": None, "VALIDATE_FREQ": 10**6}
    pretrained = [f"-cfg={RECIPES}/{recipe}.yaml", f"-model={Path(backbone).stem}", f"-pretrained={weights}"]
    flags = pretrained if recipe else [f"-cfg={backbone}"]
    return [*flags, "-opts", *(f"{key}={json.dumps(value)}" for key, value in options.items())]


def train(flags: Sequence[str], output: Path) -> dict[str, Any]:
    """The content of result.json. Raises UserError if the run fails."""
    run_program([sys.executable, str(ENTRY), f"-output={output}", *flags])
    (file,) = output.glob("*/result.json")
    return json.loads(file.read_text())


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
