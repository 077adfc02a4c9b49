"""ImageNet-A, -R, -V2 and ReaL labels: the figures of `-eval` against a direct computation with timm and torch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import only_run, read_result
from PIL import Image
from timm.data import ImageNetInfo, RealLabelsImagenet
from torch.nn.functional import cross_entropy

from configs.reading.command_line import parse_command_line
from engine.commands.run import run
from models.build import build_model

IDS = ImageNetInfo().label_names()
OPTIONS = [
    "MODEL.NUM_CLASSES=1000", "MODEL.EMBED_DIM=16", "MODEL.DEPTH=1", "MODEL.NUM_HEADS=2", "MODEL.PATCH_SIZE=4",
    "DATA.IMAGE_SIZE=8", "DATA.CROP_PCT=1.0",
]  # fmt: skip
IN_A = {6: "n01498041", 11: "n01531178", 13: "n01534433", 15: "n01558993"}  # labels in imagenet_a_indices.txt
IN_R = {1: "n01443537", 2: "n01484850", 4: "n01494475", 6: "n01498041"}


@pytest.fixture(scope="module")
def weights(tmp_path_factory, cpu) -> Path:
    torch.manual_seed(0)
    config = parse_command_line(["-dataset=fake", "-opts", *OPTIONS]).config
    model, _ = build_model(config.model, config.data, cpu.device, needs_head=True)
    torch.nn.init.normal_(model.head.weight)
    path = tmp_path_factory.mktemp("weights") / "vit.pth"
    torch.save(model.state_dict(), path)
    return path


def write_images(root: Path, names: list[str]) -> np.ndarray:
    """One image of noise per name; returns their pixels (N, 8, 8, 3)."""
    pixels = np.random.default_rng(0).integers(256, size=(len(names), 8, 8, 3), dtype=np.uint8)
    for name, values in zip(names, pixels, strict=True):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(root / name)
    return pixels


def flags(dataset: str, root: Path, weights: Path, output: Path, *options: str) -> list[str]:
    data = [f"-dataset={dataset}", f"-data_path={root}", "-batch_size_eval=3", "-num_workers=0"]
    return [*data, f"-pretrained={weights}", f"-output={output}", "-opts", *OPTIONS, *options]


def logits_of(weights: Path, pixels: np.ndarray, cpu) -> torch.Tensor:
    config = parse_command_line(["-dataset=fake", "-opts", *OPTIONS]).config
    model, _ = build_model(config.model, config.data, cpu.device, needs_head=True)
    model.load_state_dict(torch.load(weights))
    with torch.inference_mode():
        return model.eval()((torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5)


def figures(logits: torch.Tensor, targets: torch.Tensor) -> list[float]:
    ranked = logits.topk(5).indices
    hits = [100 * (ranked[:, :k] == targets[:, None]).any(1).double().mean().item() for k in (1, 5)]
    return [*hits, cross_entropy(logits, targets).item()]


def evaluate(dataset: str, root: Path, weights: Path, output: Path, cpu, *options: str) -> list[float]:
    run(parse_command_line(["-eval", *flags(dataset, root, weights, output, *options)]), cpu)
    result = read_result(only_run(output, "eval"))
    return [result[key] for key in ("top1", "top5", "loss")]


@pytest.mark.parametrize(("dataset", "classes"), [("imagenet-a", IN_A), ("imagenet-r", IN_R)])
def test_only_the_classes_of_a_set_compete(dataset, classes, weights, tmp_path, cpu):
    """Also the classes of the set whose folders are missing compete."""
    names = [f"{classes[label]}/{number}.png" for label in classes for number in range(10)]
    logits = logits_of(weights, write_images(tmp_path / "data", names), cpu)
    targets = torch.tensor([label for label in classes for _ in range(10)])
    indices = Path(__import__("timm").data.__file__).parent / "_info" / f"{dataset.replace('-', '_')}_indices.txt"
    masked = torch.full_like(logits, -torch.inf)
    subset = [int(line) for line in indices.read_text().split()]
    masked[:, subset] = logits[:, subset]
    found = evaluate(dataset, tmp_path / "data", weights, tmp_path / "out", cpu)
    assert found == pytest.approx(figures(masked, targets), abs=1e-4)
    assert found[2] < figures(logits, targets)[2]


def test_numbers_are_labels(weights, tmp_path, cpu):
    """V2's folder 10 comes before 2 in the order of names, and after it in the order of labels."""
    labels = [0, 2, 10, 999]
    logits = logits_of(
        weights, write_images(tmp_path / "data", [f"{label}/a.png" for label in sorted(map(str, labels))]), cpu
    )
    targets = torch.tensor(sorted(labels, key=str))
    assert evaluate("imagenet-v2", tmp_path / "data", weights, tmp_path / "out", cpu) == pytest.approx(
        figures(logits, targets), abs=1e-4
    )


def test_any_real_label_is_right(weights, tmp_path, cpu):
    names = [f"ILSVRC2012_val_{number + 1:08d}.JPEG" for number in range(40)]
    rng = np.random.default_rng(1)
    pixels = write_images(tmp_path / "data/val", names)
    pixels = np.stack([np.asarray(Image.open(tmp_path / "data/val" / name)) for name in names])  # as JPEG stores them
    logits = logits_of(weights, pixels, cpu)
    ranked = logits.argsort(descending=True)
    picked = [ranked[row, rng.integers(0, 9, size=rng.integers(0, 4))].tolist() for row in range(40)]
    (tmp_path / "data/real.json").write_text(json.dumps(picked))
    real = RealLabelsImagenet(names, tmp_path / "data/real.json")
    real.add_result(logits)
    top1, top5, loss = evaluate("imagenet-real", tmp_path / "data", weights, tmp_path / "out", cpu)
    assert (top1, top5) == pytest.approx((real.get_accuracy(1), real.get_accuracy(5))) and 0 < top1 < top5 < 100
    log_probabilities = logits.log_softmax(-1)
    losses = [-log_probabilities[row, labels].max().item() for row, labels in enumerate(picked) if labels]
    assert loss == pytest.approx(np.mean(losses), abs=1e-4)
    assert read_result(only_run(tmp_path / "out", "eval"))["samples"] == len(losses) < 40
