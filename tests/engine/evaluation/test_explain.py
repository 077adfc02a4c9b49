"""Heat maps: gradients against finite differences, and maps of a task whose decisive pixels are known."""

import pytest
import timm
import torch
from test_pictures import evaluator_for
from torch import nn

from engine.evaluation.pictures import explanation_file, heat_map, input_gradient


def test_the_gradient_is_that_of_finite_differences(cpu):
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.Tanh(), nn.Linear(9, 4)), torch.randn(1, 3, 8, 8)
    with torch.inference_mode():  # as in an evaluation
        found = input_gradient(model, images, evaluator_for(cpu))[0]
    exact, step = images.double(), 1e-5 * torch.eye(192, dtype=torch.double).view(-1, 3, 8, 8)
    model = model.double()
    best = model(exact).argmax()
    slopes = (model(exact + step)[:, best] - model(exact - step)[:, best]) / 2e-5
    expected = (slopes.view(3, 8, 8) * exact[0]).sum(0).abs()
    expected = (expected - expected.min()) / (expected.max() - expected.min())
    assert torch.allclose(found.double(), expected, atol=1e-4) and images.grad is None


@pytest.mark.parametrize(
    ("name", "options", "cells"),
    [
        ("swinv2_tiny_window8_256", {"img_size": 64, "window_size": 2, "embed_dim": 24, "depths": (1, 1, 1, 1)}, 14),
        ("deit_tiny_distilled_patch16_224", {"img_size": 32, "depth": 2}, 2),
    ],
)
def test_every_kind_of_model_has_maps(name, options, cells, cpu):
    model, size = timm.create_model(name, num_classes=5, **options).eval(), options.get("img_size", 32)
    nn.init.normal_(model.get_classifier()[0].weight if "dist" in name else model.get_classifier().weight)
    images = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        maps = heat_map(model, images, evaluator_for(cpu, ENABLED=True))
    assert maps.shape == (2, cells, cells) and maps.isfinite().all()
    assert maps.amax((1, 2)).tolist() == [1, 1] and maps.amin((1, 2)).tolist() == [0, 0]


def test_the_names_of_files_are_safe_and_unique():
    hostile = [
        "a/é.png",
        "b/é.jpg",
        "../../x.png",
        "=cmd|' /C'!A0.png",
        "y" * 300,
        "\n",
        "",
        "con\0.png",
        "tar:1/..png",
    ]
    files = [explanation_file(index, name) for index, name in enumerate(hostile)]
    assert len({file.partition("-")[0] for file in files}) == len(files)
    for file in files:
        folder, _, name = file.partition("/")
        assert folder == "explanations" and name.isascii() and len(name) < 100
        assert name.removesuffix(".png").replace("-", "").replace("_", "").isalnum()
