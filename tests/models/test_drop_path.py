"""Drop-path without computation of dropped samples: rates, scaling, gradients, equality with timm's block."""

import pytest
import torch
from timm.models.vision_transformer import Block
from torch import nn

from models.vit import SampleDropBlock, add_residual, num_kept_samples

B, N, C = 16, 5, 8


@pytest.fixture
def block() -> SampleDropBlock:
    torch.manual_seed(0)
    return SampleDropBlock(C, num_heads=2, drop_path=0.5)


def test_number_of_kept_samples():
    assert [num_kept_samples(32, rate) for rate in (0.0, 0.05, 0.099, 0.1, 0.5)] == [None, None, None, 29, 16]
    assert [num_kept_samples(32, rate, on_gpu=True) for rate in (0.1, 0.199, 0.2, 0.5)] == [None, None, 26, 16]
    for batch_size in (1, 2, 3):
        assert all(num_kept_samples(batch_size, rate) in (None, 1) for rate in (0.1, 0.5, 0.7, 0.9, 1.0))


def test_evaluation_equals_timms_and_training_keeps_half(block):
    plain = Block(C, num_heads=2)
    plain.load_state_dict(block.state_dict())
    x = torch.randn(B, N, C)
    assert torch.equal(block.eval()(x), plain(x))
    changed = (block.train()(x) != x).flatten(1).any(1)
    assert B / 2 <= changed.sum() < B  # by one branch or both


def test_kept_samples_are_scaled():
    x = torch.zeros(B, N, C)
    for kept in (1, 4, 15):
        added = add_residual(x, lambda part: part + 1, kept)
        values = added.flatten(1).unique(dim=1)
        assert values.shape == (B, 1) and values.count_nonzero() == kept
        assert values.sum().item() == pytest.approx(B)


def test_only_kept_samples_have_gradients():
    torch.manual_seed(0)
    branch, x = nn.Linear(C, C), torch.randn(B, N, C, requires_grad=True)
    seen = []
    output = add_residual(x, lambda part: (seen.append(part), branch(part))[1], 6)
    chosen = [next(i for i in range(B) if torch.equal(x[i], part)) for part in seen[0]]
    output.sum().backward()
    with_branch = (x.grad != 1).flatten(1).any(1)
    assert sorted(chosen) == with_branch.nonzero().flatten().tolist() and len(chosen) == 6
    assert torch.allclose(branch.weight.grad[0], x[chosen].sum((0, 1)) * B / 6, atol=1e-5)


@pytest.mark.parametrize(("rate", "same"), [(0.0999, True), (0.1, False)])
def test_rates_below_0_1_use_timms_drop_path(rate, same):
    ours, timms = SampleDropBlock(C, num_heads=2, drop_path=rate), Block(C, num_heads=2, drop_path=rate)
    timms.load_state_dict(ours.state_dict())
    x, outputs = torch.randn(64, N, C), []
    for block in (ours, timms, ours):
        torch.manual_seed(0)
        outputs.append(block.train()(x))
    assert torch.equal(outputs[0], outputs[1]) == same and torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_dtype_of_the_sum(half):
    x = torch.randn(B, N, C)
    assert add_residual(x, lambda part: part.to(half), 8).dtype == torch.float32
    assert add_residual(x.to(half), lambda part: part.float(), 8).dtype == torch.float32
    assert add_residual(x.to(half), lambda part: part, 8).dtype == half
