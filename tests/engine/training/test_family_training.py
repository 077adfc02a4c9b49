"""Training of PaddleViT's families: checkpointing, averages.

The reduced models have no class token (Swin), convolutions (PVTv2), batch norm and two heads (LeViT), class
attention (CaiT).
"""

import pytest
import torch
from conftest import ROOT, assert_same_state

from configs.reading.command_line import parse_command_line
from engine.training.optimization.weight_average import WeightAverage
from models.build import build_model

CPU = torch.device("cpu")
FIXTURES = ROOT / "tests" / "fixtures" / "families"
FAMILIES = ["SwinTransformer", "PVTv2", "LeViT", "CaiT"]


def built(family: str, *more: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """The model of a fixture with random weights, and two images."""
    options = ["MODEL.DISTILLED=true"] if family == "LeViT" else ["SEED=0"]
    config = parse_command_line([f"-cfg={FIXTURES / family / 'model.yaml'}", "-opts", *options, *more]).config
    torch.manual_seed(0)
    model, _ = build_model(config.model, config.data, CPU)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.normal_(layer.weight, std=0.1)
    return model, torch.randn(2, 3, config.data.image_size, config.data.image_size)


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointed_gradients_and_statistics_are_identical(family):
    results = []
    for checkpointing in ("false", "true"):
        model, images = built(family, f"MODEL.GRAD_CHECKPOINTING={checkpointing}", "MODEL.DROPPATH=0.2")
        model.train()
        torch.manual_seed(1)
        model(images).square().sum().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        results.append(gradients | dict(model.named_buffers()))
    assert_same_state(*results)


def test_tensors_with_several_names_are_averaged_once():
    """CoaT has its position encodings under two names or more."""
    model, _ = built("CoaT")
    average = WeightAverage(model, 0.5)
    start = {name: value.clone() for name, value in average.module.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    average.update(torch.tensor(False))
    for name, parameter in average.module.named_parameters():
        assert torch.allclose(parameter, start[name] + 0.5, atol=1e-5), name
