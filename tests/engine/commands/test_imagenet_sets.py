"""ImageNet-A, -R, -V2 and ReaL labels: the figures of `-eval` against a direct computation with timm and torch."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import timm
import torch
from conftest import cells_of, cli, config_for, line_of, model_for, of_module, only_run, read_result, run_here
from conftest import evaluate as run_evaluation
from numpy.random import default_rng
from PIL import Image
from pytest import approx, mark
from test_class_outputs import logits_of, write_noise
from timm.data import RealLabelsImagenet
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models.weights.choose import EVALUATE

OPTIONS = cli(
    "MODEL.NUM_CLASSES=1000 MODEL.EMBED_DIM=16 MODEL.DEPTH=1 MODEL.NUM_HEADS=2 "
    "MODEL.PATCH_SIZE=4 DATA.IMAGE_SIZE=8 DATA.CROP_PCT=1.0"
)
IN_A = {6: "n01498041", 11: "n01531178", 13: "n01534433", 15: "n01558993"}  # labels in imagenet_a_indices.txt
IN_R = {1: "n01443537", 2: "n01484850", 4: "n01494475", 6: "n01498041"}


@of_module
def model() -> nn.Module:
    torch.manual_seed(0)
    model, _ = model_for(config_for("-dataset=fake", "-opts", *OPTIONS), purpose=EVALUATE)
    nn.init.normal_(model.head.weight)
    return model.eval()


@of_module
def weights(model, tmp_path_factory) -> Path:
    torch.save(model.state_dict(), path := tmp_path_factory.mktemp("weights") / "vit.pth")
    return path


def flags(dataset: str, root: Path, weights: Path, output: Path, *options: str) -> list[str]:
    data = cli(f"-dataset={dataset} -data_path={root} -batch_size_eval=3 -num_workers=0")
    return [*data, f"-pretrained={weights}", f"-output={output}", "-opts", *OPTIONS, *options]


def figures(logits: Tensor, targets: Tensor) -> list[float]:
    ranked = logits.topk(5).indices
    hits = [100 * (ranked[:, :k] == targets[:, None]).any(1).double().mean().item() for k in (1, 5)]
    return [*hits, cross_entropy(logits, targets).item()]


def evaluate(dataset: str, root: Path, weights: Path, output: Path, *options: str) -> list[float]:
    result = read_result(run_evaluation(output, *flags(dataset, root, weights, output, *options)))
    return [result[key] for key in ("top1", "top5", "loss")]


def write_set(root: Path, classes: dict[int, str], model: nn.Module) -> tuple[Tensor, Tensor]:
    """Ten images in a folder of each class, in the order of the folders; returns their logits and labels."""
    pixels = write_noise(root, [f"{name}/{number}.png" for name in classes.values() for number in range(10)], size=8)
    return logits_of(model, pixels), torch.tensor([label for label in classes for _ in range(10)])


@mark.parametrize("dataset, classes", [("imagenet-a", IN_A), ("imagenet-r", IN_R)])
def test_only_the_classes_of_a_set_compete(dataset, classes, model, weights, tmp_path):
    """Also those whose folders are missing."""
    logits, targets = write_set(tmp_path / "data", classes, model)
    indices = (files(timm.data) / f"_info/{dataset.replace('-', '_')}_indices.txt").read_text()
    subset = [int(line) for line in indices.split()]
    masked = torch.full_like(logits, -torch.inf)
    masked[:, subset] = logits[:, subset]
    found = evaluate(dataset, tmp_path / "data", weights, tmp_path / "out")
    assert found == approx(figures(masked, targets), abs=1e-4)
    assert found[2] < figures(logits, targets)[2]


def test_numbers_and_wordnet_ids_are_labels(model, weights, tmp_path):
    """V2's folder 10 comes before 2 in the order of names. Folders that are no set compete with all classes, too."""
    numbers = {label: str(label) for label in (0, 10, 2, 999)}
    for number, (dataset, classes) in enumerate([("imagenet-v2", numbers), ("imagenet-v2", IN_A), ("folder", IN_A)]):
        logits, targets = write_set(root := tmp_path / str(number), classes, model)
        found = evaluate(dataset, root, weights, tmp_path / dataset / str(number))
        assert found == approx(figures(logits, targets), abs=1e-4)


def test_any_real_label_is_right(model, weights, tmp_path):
    names = [f"ILSVRC2012_val_{number + 1:08d}.JPEG" for number in range(40)]
    rng = default_rng(1)
    root = tmp_path / "data"
    write_noise(root, [f"val/{name}" for name in names], size=8)
    logits = logits_of(model, np.stack([Image.open(root / "val" / name) for name in names]))
    ranked = logits.argsort(descending=True)
    picked = [ranked[row, rng.integers(0, 9, size=rng.integers(0, 4))].tolist() for row in range(40)]
    (root / "real.json").write_text(json.dumps(picked))
    real = RealLabelsImagenet(names, root / "real.json")
    real.add_result(logits)
    of_class = -logits.log_softmax(-1)
    losses = [of_class[row, labels].min().item() for row, labels in enumerate(picked) if labels]
    top1, top5, loss = evaluate("imagenet-real", root, weights, tmp_path / "out")
    assert (top1, top5) == approx((real.get_accuracy(1), real.get_accuracy(5)))
    assert 0 < top1 < top5 < 100
    assert loss == approx(np.mean(losses), abs=1e-4)
    assert read_result(only_run(tmp_path / "out", "eval"))["samples"] == len(losses) < 40


# Data set, image, real.json, classes of the model, a part of the line
WRONG_SETS = """
imagenet-r | cat/0.png | | 1000 | data: 'cat': not a class of imagenet-r
imagenet-v2 | 7/0.png | | 10 | -dataset=imagenet-v2:
imagenet-real | val/ILSVRC2012_val_00000001.JPEG | | 1000 | timm: ReaL labels of other images than the 1 of
imagenet-real | a.png | [[1]] | 1000 | real.json: ReaL labels of other images
imagenet-real | ILSVRC2012_val_00000001.JPEG | [[1000]] | 1000 | real.json: is not a list of lists of labels
"""


@mark.parametrize("dataset, image, labels, classes, line", cells_of(WRONG_SETS))
def test_wrong_sets_are_one_line(dataset, image, labels, classes, line, weights, tmp_path):
    root = tmp_path / "data"
    write_noise(root, [image], size=8)
    if labels:
        (root / "real.json").write_text(labels)
    assert line in line_of(evaluate, dataset, root, weights, tmp_path / "out", f"MODEL.NUM_CLASSES={classes}")


@mark.parametrize("dataset", ["imagenet-a", "imagenet-r"])
def test_a_training_on_a_set_for_evaluation_is_refused(dataset, weights, tmp_path):
    write_noise(tmp_path / "data", [f"{IN_A[6]}/0.png"], size=8)
    line = line_of(run_here, *flags(dataset, tmp_path / "data", weights, tmp_path / "out"))
    assert f"{dataset} has no split train; it is for -eval and -predict" in line
