"""FastDropout: probability, scale, independence, gradients and torch's generator."""

import pytest
import torch
from torch import nn

from models.kernels import FastDropout, use_fast_dropout

SHAPE = (1001, 333)  # not a multiple of the four elements per draw


@pytest.mark.parametrize("p", [0.1, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probability_and_scale(p, dtype):
    torch.manual_seed(0)
    output = FastDropout(p)(torch.ones(SHAPE, dtype=dtype))
    assert output.dtype == dtype and output.unique().tolist() == pytest.approx([0, 1 / (1 - p)], rel=1e-2)
    deviation = (p * (1 - p) / output.numel()) ** 0.5
    for part in (output, output.flatten()[::4], output.flatten()[3::4]):  # different bits of a draw
        assert (part == 0).float().mean().item() == pytest.approx(p, abs=8 * deviation)


def test_neighboring_elements_are_independent():
    torch.manual_seed(0)
    dropped = (FastDropout(0.5)(torch.ones(SHAPE)).flatten() == 0).float()
    for distance in (1, 2, 3, 4, 5):
        together = (dropped[distance:] * dropped[:-distance]).mean().item()
        assert together == pytest.approx(0.25, abs=0.005)


def test_gradient_uses_the_same_mask_and_the_seed_is_torchs():
    x = torch.randn(SHAPE, requires_grad=True)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(FastDropout(0.3)(x))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
    outputs[0].backward(torch.ones(SHAPE))
    assert torch.allclose(x.grad * x, outputs[0])


def test_evaluation_and_rates_0_and_1():
    x = torch.randn(4, 4)
    assert torch.equal(FastDropout(0.5).eval()(x), x)
    assert torch.equal(FastDropout(0.0)(x), x)
    assert not FastDropout(1.0)(x).any()
    assert FastDropout(0.5)(torch.empty(3, 5, device="meta")).shape == (3, 5)


def test_every_nn_dropout_is_replaced():
    model = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.2)), nn.Dropout1d(0.3))
    names = list(model.state_dict())
    use_fast_dropout(model)
    kinds = [type(module) for module in model.modules() if isinstance(module, nn.Dropout | nn.Dropout1d)]
    assert kinds == [FastDropout, FastDropout, nn.Dropout1d]
    assert (model[0].p, model[1][1].p, list(model.state_dict())) == (0.1, 0.2, names)
