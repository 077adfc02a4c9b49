"""Listed ops and modules compute in the listed dtype, forward and backward; gradients are compared with fp64."""

import copy
import math
from contextlib import nullcontext

import pytest
import timm
import torch
from conftest import assert_same_state
from torch import nn

from configs.schema import Amp
from engine.precision.policy import Precision
from utils.errors import UserError

CPU = torch.device("cpu")


def vit(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=48, num_classes=5)
    for block in model.blocks:
        block.attn.fused_attn = False
    return model.to(dtype)


def policy(black: tuple = (), white: tuple = (), level: str = "O1", dtype: str = "bfloat16") -> Precision:
    lists = {"CUSTOM_BLACK_LIST": black, "CUSTOM_WHITE_LIST": white}
    return Precision(Amp.model_validate({"ENABLED": True, "DTYPE": dtype, "LEVEL": level, **lists}), CPU)


def gradients(model: nn.Module, policy: Precision | None, forward=None) -> dict[str, torch.Tensor]:
    """policy: None for the exact gradients of a model in fp64."""
    torch.manual_seed(1)
    images = torch.randn(8, 3, 32, 32).to(torch.float32 if policy else torch.float64)
    with policy.autocast() if policy else nullcontext():
        logits = (model if forward is None else forward)(images)
    nn.functional.cross_entropy(logits.double(), torch.arange(8) % 5).backward()
    found = {name: parameter.grad.double() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def error(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """Returns the relative error of all gradients together."""
    difference = math.sqrt(sum((found[name] - exact[name]).square().sum().item() for name in exact))
    return difference / math.sqrt(sum(value.square().sum().item() for value in exact.values()))


ALL_OPS = ("linear", "matmul", "softmax", "gelu", "layer_norm", "conv2d", "add", "elementwise_mul")


def test_all_ops_in_fp32_give_fp32_gradients():
    exact = gradients(vit(torch.float64), None)
    model = vit()
    plain = policy()
    assert error(gradients(model, plain), exact) > 1e-3
    listed = policy(black=ALL_OPS)
    listed.apply_op_lists(model)
    assert error(gradients(model, listed), exact) < 1e-5


@pytest.mark.parametrize(
    "lists", [{"black": ("softmax", "gelu")}, {"black": ("blocks.1.*",), "white": ("layer_norm",)}]
)
@pytest.mark.parametrize("compiled", ["whole", "blocks"])
def test_compiled_equals_eager(lists, compiled):
    model, listed = vit(), policy(**lists)
    listed.apply_op_lists(model)
    expected = gradients(model, listed)
    torch._dynamo.reset()
    if compiled == "whole":
        found = gradients(model, listed, torch.compile(model, backend="aot_eager", fullgraph=True))
    else:
        for block in model.blocks:
            block.compile(backend="aot_eager", fullgraph=True)
        found = gradients(model, listed)
    assert_same_state(found, expected)


def output_dtypes(model: nn.Module, policy: Precision) -> dict[str, torch.dtype]:
    seen = {}
    model = policy.compute_copy(model)
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: output.dtype}))
    with policy.autocast():
        model(torch.randn(2, 3, 32, 32))
    return seen


HALF, FULL = torch.bfloat16, torch.float32
LISTS = {  # black list, white list, module -> dtype of its output
    "a pattern": (("blocks.1.*",), (), {"blocks.1.attn.qkv": FULL, "blocks.1.mlp.act": FULL, "blocks.0.mlp.fc1": HALF}),
    "an op and a module": ((), ("norm",), {"norm": HALF, "blocks.0.norm1": FULL}),
    "black over white": (
        ("gelu", "blocks.1.mlp"),
        ("blocks.*",),
        {"blocks.0.mlp.act": FULL, "blocks.0.norm1": HALF, "blocks.1.attn": HALF, "blocks.1.mlp.fc2": FULL},
    ),
}


PADDLE_WHITE = ("conv2d", "conv2d_transpose", "depthwise_conv2d", "matmul", "matmul_v2")
PADDLE_BLACK = (
    "exp", "square", "log", "mean", "sum", "cos_sim", "softmax", "softmax_with_cross_entropy",
    "sigmoid_cross_entropy_with_logits", "cross_entropy", "cross_entropy2",
)  # fmt: skip


def test_paddles_default_lists_are_accepted():
    """All names but `mul`. The loss is computed in fp32 in any case."""
    model, listed = vit(), policy(PADDLE_BLACK, PADDLE_WHITE)
    listed.apply_op_lists(model)
    dtypes = model.casting_mode.dtypes
    black, white = (torch.square, torch.softmax, nn.functional.cosine_similarity), (nn.functional.conv_transpose2d,)
    assert {dtypes[op] for op in black} == {FULL} and {dtypes[op] for op in (*white, torch.matmul)} == {HALF}
    assert nn.functional.cross_entropy not in dtypes
    with pytest.raises(UserError, match=r"AMP\.CUSTOM_WHITE_LIST: cross_entropy is neither"):
        policy(white=("cross_entropy",)).apply_op_lists(vit())


@pytest.mark.parametrize("lists", [{"black": ("mul",)}, {"white": ("mul",)}])
def test_mul_is_refused_with_both_meanings(lists):
    with pytest.raises(UserError, match=r"LIST: mul is a matrix product in Paddle.* write linear or elementwise_mul$"):
        policy(**lists).apply_op_lists(vit())
    model = vit()
    policy(black=("elementwise_mul",)).apply_op_lists(model)
    assert model.casting_mode.dtypes.keys() >= {torch.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__}


@pytest.mark.parametrize(("black", "white", "expected"), LISTS.values(), ids=LISTS.keys())
def test_listed_ops_and_modules_have_their_dtype(black, white, expected):
    model, listed = vit(), policy(black, white)
    listed.apply_op_lists(model)
    assert output_dtypes(copy.deepcopy(model), listed).items() >= expected.items()
    assert list(model.state_dict()) == list(vit().state_dict())


def test_black_listed_op_returns_half_in_o3():
    model, listed = vit(), policy(black=("softmax", "linear"), level="O3")
    listed.apply_op_lists(model)
    assert set(output_dtypes(model, listed).values()) == {HALF}


def test_black_list_prevents_an_fp16_overflow():
    """Attention logits above 65504 become inf in fp16; the gradients become NaN."""
    model = vit()
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight.mul_(2000)
    assert not all(value.isfinite().all() for value in gradients(model, policy(dtype="float16")).values())
    listed = policy(black=("blocks.0.attn",), dtype="float16")
    listed.apply_op_lists(model)
    assert all(value.isfinite().all() for value in gradients(model, listed).values())


def test_listed_batch_norm_updates_its_running_statistics():
    plain, listed = (timm.create_model("test_resnet", num_classes=5) for _ in range(2))
    listed.load_state_dict(plain.state_dict())
    white = policy(white=("batch_norm",))
    white.apply_op_lists(listed)
    images = torch.randn(4, 3, 32, 32)
    for model in (plain, listed):
        with white.autocast():
            model.train()(images)
    assert torch.allclose(plain.bn1.running_mean, listed.bn1.running_mean, atol=1e-2)
    assert listed.bn1.running_mean.any()


@pytest.mark.gpu
def test_white_list_overrides_autocast_on_a_gpu():
    gpu, white = torch.device("cuda:0"), {"ENABLED": True, "CUSTOM_WHITE_LIST": ("layer_norm",)}
    model, listed = vit().to(gpu), Precision(Amp.model_validate(white), gpu)
    seen = []
    model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    for prepare in (lambda model: None, listed.apply_op_lists):
        prepare(model)
        with listed.autocast():
            model(torch.randn(2, 3, 32, 32, device=gpu))
    assert seen == [torch.float32, torch.float16]


@pytest.mark.parametrize(
    ("entry", "hint"), [("sofmax", "softmax"), ("block.1.mlp", "blocks.1.mlp"), ("blocks.7.*", "blocks.")]
)
def test_unknown_name_suggests_the_nearest_name(entry, hint):
    with pytest.raises(UserError, match=rf"AMP\.CUSTOM_WHITE_LIST: .*did you mean {hint}"):
        policy(white=(entry,)).apply_op_lists(vit())
