"""The patch embedding as a linear layer: the values of the convolution, its names, and where it is used."""

import pytest
import torch
from fake_gpu import CONTEXT, fake_gpu
from timm.layers import PatchEmbed

from configs.reading.command_line import parse_command_line
from engine.training.batch_size import build_state
from models.vit import PatchLinear, use_linear_patches


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"patch_size": (4, 8)}])
def test_the_values_and_gradients_are_those_of_the_convolution(options, any_device):
    torch.manual_seed(0)
    device, tolerance = any_device.device, 1e-4 if any_device.device.type == "cpu" else 1e-2  # TF32
    arguments = {"img_size": 16, "patch_size": 4, "embed_dim": 24} | options
    convolution, linear = (PatchEmbed(**arguments).to(device) for _ in range(2))
    linear.load_state_dict(convolution.state_dict())
    use_linear_patches(linear)
    assert type(linear.proj) is PatchLinear and list(linear.state_dict()) == list(convolution.state_dict())
    images, results = torch.randn(2, 3, 16, 16, device=device), []
    for module in (convolution, linear):
        features = module(images)
        results.append((features, *torch.autograd.grad(features.square().sum(), list(module.parameters()))))
    for expected, found in zip(*results, strict=True):
        assert torch.allclose(found, expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())


@pytest.mark.parametrize(("options", "expected"), [([], True), (["AMP.CUSTOM_BLACK_LIST=[conv2d]"], False)])
def test_a_gpu_without_op_lists_uses_it(options, expected):
    argv = ["-dataset=fake", "-amp", "-opts", "MODEL.DEPTH=1", *options]
    with fake_gpu():
        state = build_state(parse_command_line(argv).config, CONTEXT)
    assert isinstance(state.wrapped.patch_embed.proj, PatchLinear) == expected


def test_incomplete_patches_are_ignored_as_before():
    convolution = torch.nn.Conv2d(3, 8, 4, 4)
    images = torch.randn(2, 3, 10, 9)
    expected = convolution(images)
    convolution.__class__ = PatchLinear
    assert torch.equal(convolution(images), expected)
