"""Triton's interpreter runs the kernels on a CPU. It truncates float32 to bfloat16: the numbers are of float16."""

import copy
import importlib
import math
import sys

import torch
from conftest import config_for
from fake_gpu import CONTEXT
from pytest import MonkeyPatch, approx, importorskip, mark
from timm import create_model
from torch import Tensor, nn
from torch.testing import assert_close

from configs.schema import Amp
from configs.schema.model import Lora
from engine.precision.op_lists import cast_listed_ops
from engine.precision.policy import use_fused_blocks as fuse_by_policy
from models.blocks import add_mixin
from models.kernels import select_attention
from models.recompute import Recomputed
from models.tuning import add_adapters
from models.vit import build_vit

importorskip("triton")


def with_interpreter():
    """Copies of the modules whose kernels run in Python; Triton decides that when it is imported."""
    names = ["models.fused_kernels", "models.fused_functions", "models.fused_blocks", "models.fused_proof"]
    before = dict(sys.modules)
    for name in before:
        if name in names or (name.partition(".")[0] == "triton" and not name.startswith("triton._C")):
            del sys.modules[name]
    with MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        modules = [importlib.import_module(name) for name in names]
    for name in sys.modules.keys() - before.keys():
        if name in names or name.startswith("triton"):
            del sys.modules[name]
    for name in names:
        delattr(sys.modules["models"], name.partition(".")[2])
        if name in before:
            setattr(sys.modules["models"], name.partition(".")[2], before[name])
    sys.modules |= before
    return modules


kernels, functions, fused, proof = with_interpreter()
BATCH = 3
TOKENS = 5
WIDTH = 24
CPU = torch.device("cpu")


def few_programs(patch):
    """Programs of more rows than on a GPU: the interpreter takes as long for one row. They stride over rows, too."""
    patch.setattr(kernels, "ADD_NORM", {4: (4, 4), 2: (4, 2)})
    patch.setattr(kernels, "ADD_NORM_BACK", (4, 2, 2))
    patch.setattr(kernels, "PACK", (4, 4, 2))


def make_model(**options):
    torch.manual_seed(0)
    arguments = {"img_size": 32, "num_classes": 0, "depth": 2, "num_heads": 3, "embed_dim": WIDTH} | options
    model = create_model("vit_tiny_patch16_224", **arguments)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    select_attention(model, "fused", CPU)
    return model.train()


def make_blocks(**options):
    return make_model(**options).blocks


def gradients(run, blocks, dtype, batch=BATCH):
    """The output of a pass, and the gradients of its input and of all weights.

    The channels of the input are not side by side, as the ones of patches without a class token.
    """
    torch.manual_seed(1)
    x = torch.randn(batch, WIDTH, TOKENS, dtype=torch.float64).to(dtype).transpose(1, 2).requires_grad_()
    weights = torch.randn(x.shape, dtype=torch.float64)
    blocks.zero_grad()
    out = run(blocks, x)
    (out * weights).sum().backward()
    return [out.detach(), x.grad, *gradients_of(blocks)]


def gradients_of(blocks):
    return [parameter.grad.clone() for parameter in blocks.parameters() if parameter.requires_grad]


def distance(results, exact):
    """The largest of the relative errors."""
    pairs = zip(results, exact, strict=True)
    return max(((one.double() - other).norm() / other.norm()).item() for one, other in pairs)


def with_autocast(blocks, x):
    with torch.autocast("cpu", torch.float16):
        return blocks(x)


def with_kernels(blocks, x):
    with torch.autocast("cpu", torch.float16):
        return fused.run_fused(blocks, x, torch.float16)


@mark.parametrize("has_adapters, stream, batch", [(False, torch.float32, BATCH), (True, torch.float16, 1)])
def test_fused_blocks_are_as_exact_as_autocast(has_adapters, stream, batch):
    model = make_model()
    if has_adapters:
        add_adapters(model, Lora(RANK=2, TARGETS=["qkv", "proj"]), "vit")
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.data.normal_()
    blocks = model.blocks
    exact = gradients(lambda model, x: model(x), copy.deepcopy(blocks).double(), torch.float64, batch)
    plain, stored = (gradients(run, blocks, stream, batch) for run in (with_autocast, with_kernels))
    assert distance(stored, exact) < 1.1 * distance(plain, exact)


def test_dropout_and_drop_path_have_the_gradients_of_their_masks(monkeypatch):
    """With equal seeds, central differences equal the gradient."""
    few_programs(monkeypatch)
    blocks = make_blocks(proj_drop_rate=0.3, drop_path_rate=0.4)
    x = torch.randn(BATCH, TOKENS, WIDTH)
    bias = blocks[0].attn.proj.bias

    def run(seed):
        torch.manual_seed(seed)
        return fused.run_fused(blocks, x, torch.float32).double().square().sum()

    first = run(3)
    again = run(3)
    other = run(4)
    assert first == again != other
    first.backward()
    found = bias.grad[7].item()
    with torch.no_grad():
        bias[7] += (step := 1e-2)
        above = run(3)
        bias[7] -= 2 * step
        assert found == approx(((above - run(3)) / (2 * step)).item(), rel=1e-3)


def test_masks_are_independent_bernoulli_draws():
    rate = 0.1
    shape = (16, 512)

    def kept(seed):
        torch.manual_seed(seed)
        h = torch.full(shape, 3.0)
        y = torch.empty(shape)
        mask = functions.mask_of(nn.Dropout(rate))
        kernels.activate[(h.numel() // 2048,)](h, y, h.numel(), **mask, BLOCK=2048, num_warps=4)
        assert torch.allclose(y[y != 0], torch.tensor(3.0 * 0.99865 / (1 - rate)), rtol=1e-4)
        return (y != 0).double() - (1 - rate)

    one = kept(0) / math.sqrt(rate * (1 - rate))
    other = kept(1) / math.sqrt(rate * (1 - rate))
    for product in (one, one * other, one[1:] * one[:-1], one[:, 1:] * one[:, :-1]):
        assert abs(product.sum()) < 4 * math.sqrt(product.numel())


def exact_gelu(v):
    return v * 0.5 * torch.erfc(-v / math.sqrt(2))


def test_gelu_is_within_one_rounding_of_half():
    v = torch.linspace(-6, 6, 2**14).half()
    exact = exact_gelu(v.double())
    y = functions.Activate.apply(v, v, functions.mask_of(None))
    spacing = torch.finfo(torch.float16).eps * exact.abs().clamp(min=2**-14)
    assert ((y.double() - exact).abs() / spacing).max() < 1.2


def test_gradients_of_gelu_in_many_programs():
    h = torch.randn(300, 300, requires_grad=True)
    weights = torch.randn(h.shape)
    bias = torch.zeros(300, requires_grad=True)
    (functions.Activate.apply(h, bias, functions.mask_of(None)) * weights).sum().backward()
    (expected,) = torch.autograd.grad((exact_gelu(h.double()) * weights).sum(), h)
    assert_close(h.grad, expected.float(), rtol=1e-5, atol=1e-5)
    assert_close(bias.grad, h.grad.sum(0), rtol=1e-5, atol=1e-4)


CHANGES = {
    "norms of q and k": lambda block: block.attn.add_module("q_norm", nn.LayerNorm(8)),
    "no bias": lambda block: setattr(block.attn.qkv, "bias", None),
    "SiLU": lambda block: setattr(block.mlp, "act", nn.SiLU()),
    "approximate GELU": lambda block: setattr(block.mlp, "act", nn.GELU("tanh")),
    "another dropout": lambda block: setattr(block.mlp, "drop2", nn.Dropout1d(0.1)),
    "layer scale": lambda block: setattr(block, "ls1", nn.Linear(WIDTH, WIDTH)),
    "explicit attention": lambda block: setattr(block.attn, "fused_attn", False),
    "frozen": lambda block: block.requires_grad_(False),
    "recomputed": lambda block: add_mixin(block, Recomputed),
}


@mark.parametrize("change", CHANGES)
def test_a_model_with_another_block_is_not_fused(change):
    model = make_model()
    assert not fused.why_not_fused(model)
    CHANGES[change](model.blocks[1])
    assert fused.why_not_fused(model)


def test_only_models_that_call_their_blocks_as_a_sequence_are_fused():
    options = {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 3}
    other = create_model("naflexvit_so400m_patch16_radio_v4", **options)
    assert fuse_by_policy(other, Amp.model_validate({"ENABLED": True}), CONTEXT) == (0, "")


class OnGPU(Tensor):
    """A tensor that says so."""

    is_cuda = True


def test_the_stream_of_fused_blocks_is_in_half_if_it_is_wanted(monkeypatch):
    """Also of blocks whose additions, and norms, are listed."""
    monkeypatch.setattr("torch.is_autocast_enabled", lambda kind: True)
    monkeypatch.setattr(fused, "run_fused", lambda blocks, x, half: x)
    x = torch.zeros(BATCH, TOKENS, WIDTH).as_subclass(OnGPU)
    for half_stream in (False, True):
        model = make_model()
        cast_listed_ops(model, ["add", "layer_norm"] * half_stream, [], torch.float16, CPU, None)
        fused.fuse_blocks(model, half_stream)
        assert model.blocks(x).dtype == (torch.float16 if half_stream else torch.float32)


HOOKS = ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")


def test_only_passes_of_training_in_half_without_hooks_are_fused(monkeypatch):
    options = f"MODEL.EMBED_DIM={WIDTH}", "MODEL.NUM_HEADS=3", "MODEL.DROPPATH=0.5"
    config = config_for("-image_size=32", "-opts", *options)
    model = build_vit(config.model, config.data)
    select_attention(model, "fused", CPU)
    calls = []
    names = list(model.state_dict())
    fused.fuse_blocks(model, False)
    assert list(model.state_dict()) == names
    monkeypatch.setattr(fused, "run_fused", lambda blocks, x, half: calls.append(len(blocks)) or x)

    def is_fused(dtype=torch.float16):
        calls.clear()
        model.to(dtype).blocks(torch.zeros(BATCH, TOKENS, WIDTH, dtype=dtype).as_subclass(OnGPU))
        return calls == [12]

    assert is_fused()
    assert not is_fused(torch.float32)
    for module in (model.blocks[1], model.blocks[1].attn, model.blocks[1].norm2):
        for kind in HOOKS:
            handle = getattr(module, f"register_{kind}")(lambda *_: None)
            assert not is_fused(), kind
            handle.remove()
    with torch.no_grad():
        assert not is_fused()
    assert is_fused()
    model.eval()
    assert not is_fused()


@mark.gpu
@mark.parametrize("half, half_stream", [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, False)])
@mark.parametrize("size", ["tiny", "base", "large"])
def test_fused_blocks_on_a_gpu(size, half, half_stream):
    from models.fused_blocks import fuse_blocks, why_not_fused  # compiled

    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    model = create_model(f"vit_{size}_patch16_224", num_classes=0, depth=3).to(device).train()
    x = torch.randn(8, 197, model.embed_dim, device=device)

    def run(blocks, x=x, is_half=True):
        blocks.zero_grad()
        with torch.autocast("cuda", half, enabled=is_half):
            out = blocks(x)
        out.square().mean().backward()
        return [out.detach(), *gradients_of(blocks)]

    exact = run(copy.deepcopy(model).double().blocks, x.double(), is_half=False)
    cast_listed_ops(model, ["add"] * half_stream, [], half, device, None)
    plain = run(model.blocks)
    assert not why_not_fused(model)
    fuse_blocks(model, half_stream)
    stored = run(model.blocks)
    assert distance(stored, exact) < 1.2 * distance(plain, exact)
