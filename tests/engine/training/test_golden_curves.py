"""The losses of 40 steps of three recipes, of the first steps in the fast set, beside those of
tests/fixtures/golden_curves.json.

A change that is meant to change results writes the file anew, and its review shows the difference:
`python tests/engine/training/test_golden_curves.py`.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import timm
import torch
from conftest import cli
from pytest import importorskip, mark
from timm import create_model

sys.path.append(str(Path(__file__).parents[2]))  # as a program: pytest has it already

from conftest import ROOT, noise_folder, slow, train

FILE = ROOT / "tests/fixtures/golden_curves.json"
_TOLERANCE = 5e-3  # of a loss, relative; other kernels of a CPU differ by 1e-3
_STEPS = 40
_RECIPES = ("vit_digits", "folder_small", "finetune")


def losses_of(recipe: str, folder: Path, steps: int) -> list[float]:
    """The losses of the first steps of a recipe in fp32; its images and weights follow from fixed seeds."""
    flags = cli(f"-cfg={ROOT}/configs/{recipe}.yaml -output={folder / 'runs'} -num_workers=0")
    options = cli(f"TRAIN.MAX_STEPS={steps} TRAIN.NUM_EPOCHS=20 REPORT_FREQ=1")
    options += ["SAVE_FREQ=1000", "VALIDATE_FREQ=1000"]
    if recipe == "vit_digits":
        options += ["TRAIN.OPTIMIZER.NAME=AdamW"]
    else:
        flags += [f"-data_path={noise_folder(folder, 24, 4, (40, 40, 3))}", "-batch_size=8"]
    if recipe == "folder_small":
        options += ["TRAIN.BASE_LR=1e-4"]  # its own amplifies the rounding of batch norms of 8 images
    if recipe == "finetune":
        torch.manual_seed(0)
        torch.save(create_model("test_efficientnet").state_dict(), folder / "weights.pth")
        flags += cli(f"-model=test_efficientnet -pretrained={folder / 'weights.pth'} -image_size=32")
    run = train([*flags, "-opts", *options])
    reports = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in reports if row["kind"] == "report"]


@mark.parametrize("recipe, steps", [("vit_digits", 12), ("finetune", 12), *(slow(name, _STEPS) for name in _RECIPES)])
def test_losses_are_the_recorded_ones(tmp_path, recipe, steps):
    if recipe == "vit_digits":
        importorskip("sklearn")
    golden = json.loads(FILE.read_text())
    np.testing.assert_allclose(losses_of(recipe, tmp_path, steps), golden[recipe][:steps], rtol=_TOLERANCE)


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in pytest
    curves = {"torch": torch.__version__, "timm": timm.__version__}
    for name in _RECIPES:
        with tempfile.TemporaryDirectory() as temporary:
            curves[name] = losses_of(name, Path(temporary), _STEPS)
    FILE.write_text(json.dumps(curves, indent=1) + "\n")
