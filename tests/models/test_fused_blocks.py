"""Triton's interpreter runs the kernels on a CPU. It truncates float32 to bfloat16: the numbers are of float16."""

import copy
import importlib.util
import math
import sys

import pytest
import timm
import torch
from torch import nn

from models.kernels import select_attention

pytest.importorskip("triton")


def with_interpreter():
    """A copy of the module whose kernels run in Python; Triton decides that when it is imported."""
    compiled = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "triton"}
    sys.modules |= {name: module for name, module in compiled.items() if name.startswith("triton._C")}
    spec = importlib.util.find_spec("models.fused_blocks")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spec.loader.exec_module(module)
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        del sys.modules[name]
    sys.modules |= compiled
    return module


fused = with_interpreter()
BATCH, TOKENS, WIDTH = 3, 5, 24


def make_blocks(**options):
    torch.manual_seed(0)
    arguments = {"img_size": 32, "num_classes": 0, "depth": 2, "num_heads": 3, "embed_dim": WIDTH} | options
    model = timm.create_model("vit_tiny_patch16_224", **arguments)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    select_attention(model, "fused", torch.device("cpu"))
    return model.train().blocks


def gradients(run, blocks, dtype):
    """The output of a pass, and the gradients of its input and of all weights."""
    torch.manual_seed(1)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64).to(dtype).requires_grad_()
    weights = torch.randn(x.shape, dtype=torch.float64)
    blocks.zero_grad()
    out = run(blocks, x)
    (out * weights).sum().backward()
    return [out.detach(), x.grad, *(parameter.grad.clone() for parameter in blocks.parameters())]


def distance(results, exact):
    """The largest of the relative errors."""
    pairs = zip(results, exact, strict=True)
    return max(((one.double() - other).norm() / other.norm()).item() for one, other in pairs)


def with_autocast(blocks, x):
    with torch.autocast("cpu", torch.float16):
        return blocks(x)


@pytest.mark.parametrize("stream", [torch.float32, torch.float16])
def test_fused_blocks_are_as_exact_as_autocast(stream):
    blocks = make_blocks()
    exact = gradients(lambda model, x: model(x), copy.deepcopy(blocks).double(), torch.float64)

    def run_fused(model, x):
        with torch.autocast("cpu", torch.float16):
            return fused.run_fused(model, x, torch.float16)

    results = gradients(run_fused, blocks, stream)
    assert distance(results, exact) < 1.1 * distance(gradients(with_autocast, blocks, stream), exact)


def test_fused_half_weights():
    """O2 and O3: all weights in half, without autocast."""
    blocks = make_blocks()
    exact = gradients(lambda model, x: model(x), copy.deepcopy(blocks).double(), torch.float64)
    half = blocks.half()
    assert distance(gradients(lambda m, x: fused.run_fused(m, x, x.dtype), half, torch.float16), exact) < 4e-3


def test_dropout_and_drop_path_have_the_gradients_of_their_masks():
    """With equal seeds, central differences equal the gradient."""
    blocks = make_blocks(proj_drop_rate=0.3, drop_path_rate=0.4)
    x = torch.randn(BATCH, TOKENS, WIDTH)
    bias = blocks[0].attn.proj.bias

    def run(seed):
        torch.manual_seed(seed)
        return fused.run_fused(blocks, x, torch.float32).double().square().sum()

    first, again, other = run(3), run(3), run(4)
    assert first == again != other
    first.backward()
    found = bias.grad[7].item()
    with torch.no_grad():
        bias[7] += (step := 1e-2)
        above = run(3)
        bias[7] -= 2 * step
        assert found == pytest.approx(((above - run(3)) / (2 * step)).item(), rel=1e-3)


def test_masks_are_independent_bernoulli_draws():
    rate, shape = 0.1, (64, 512)

    def kept(seed):
        torch.manual_seed(seed)
        h, y = torch.full(shape, 3.0), torch.empty(shape)
        mask = fused._mask(nn.Dropout(rate))
        fused._gelu[(h.numel() // 2048,)](h, y, h.numel(), *mask, DROPS=True, BLOCK=2048, num_warps=4)
        assert torch.allclose(y[y != 0], torch.tensor(3.0 * 0.99865 / (1 - rate)), rtol=1e-4)
        return (y != 0).double() - (1 - rate)

    one, other = kept(0), kept(1)
    scale = rate * (1 - rate)
    for product in (
        one / math.sqrt(scale),
        one * other / scale,
        one[1:] * one[:-1] / scale,
        one[:, 1:] * one[:, :-1] / scale,
    ):
        assert abs(product.sum()) < 4 * math.sqrt(product.numel())


def test_gelu_is_within_one_rounding_of_half():
    v = torch.linspace(-6, 6, 2**14).half()
    exact = v.double() * 0.5 * torch.erfc(-v.double() / math.sqrt(2))
    y = torch.empty_like(v)
    fused._gelu[(8,)](v, y, v.numel(), *fused._mask(None), DROPS=False, BLOCK=2048, num_warps=4)
    spacing = torch.finfo(torch.float16).eps * exact.abs().clamp(min=2**-14)
    assert ((y.double() - exact).abs() / spacing).max() < 1.2


OTHERS = [
    {"init_values": 1e-5},
    {"qk_norm": True},
    {"qkv_bias": False},
    {"act_layer": "quick_gelu"},
]


@pytest.mark.parametrize("options", OTHERS)
def test_other_blocks_are_not_fused(options):
    assert all(fused.is_plain(block) for block in make_blocks())
    assert not any(fused.is_plain(block) for block in make_blocks(**options))


def test_a_frozen_weight_or_explicit_attention_is_not_fused():
    (block, other) = make_blocks()
    block.mlp.fc1.weight.requires_grad_(False)
    other.attn.fused_attn = False
    assert not fused.is_plain(block) and not fused.is_plain(other)


def test_evaluation_and_hooks_run_the_blocks_themselves():
    model = nn.Module()
    model.blocks = make_blocks()
    x = torch.randn(BATCH, TOKENS, WIDTH)
    expected = model.blocks.eval()(x)
    names = list(model.state_dict())
    assert fused.fuse_blocks(model) == 2
    assert list(model.state_dict()) == names
    assert torch.equal(model.blocks(x), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_base_patch16_224", "vit_large_patch16_224"])
def test_fused_blocks_on_a_gpu(name, half):
    from models.fused_blocks import fuse_blocks  # compiled

    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, depth=3).cuda().train()
    x = torch.randn(8, 197, model.embed_dim, device="cuda")

    def run(blocks):
        blocks.zero_grad()
        with torch.autocast("cuda", half):
            out = blocks(x)
        out.square().mean().backward()
        return [out.detach(), *(parameter.grad.clone() for parameter in blocks.parameters())]

    exact = copy.deepcopy(model).double().blocks
    out = exact(x.double())
    out.square().mean().backward()
    exact = [out.detach(), *(parameter.grad for parameter in exact.parameters())]
    plain = run(model.blocks)
    assert fuse_blocks(model) == 3
    assert distance(run(model.blocks), exact) < 1.2 * distance(plain, exact)
