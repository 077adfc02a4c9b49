"""Listed ops and modules compute in the listed dtype, forward and backward; gradients are compared with fp64."""

import copy
from contextlib import nullcontext

import torch
from conftest import assert_same_state, cli, each_value, refused
from precision_cases import BF16, FP32, policy, vit
from pytest import mark
from timm import create_model
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from engine.precision.policy import Precision


def listed_vit(**options) -> tuple[nn.Module, Precision]:
    """A model with the lists of its policy."""
    model = vit()
    listed = policy(**options)
    listed.apply_op_lists(model)
    return model, listed


def gradients(model: nn.Module, precision: Precision | None, forward=None) -> dict[str, Tensor]:
    """precision: None for the exact gradients of a model in fp64."""
    torch.manual_seed(1)
    images = torch.randn(8, 3, 32, 32).to(FP32 if precision else torch.float64)
    with precision.autocast() if precision else nullcontext():
        logits = (model if forward is None else forward)(images)
    nn.functional.cross_entropy(logits.double(), torch.arange(8) % 5).backward()
    found = {name: parameter.grad.double() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def error(found: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """Returns the relative error of all gradients together."""
    differences = [found[name] - exact[name] for name in exact]
    return (get_total_norm(differences) / get_total_norm(exact.values())).item()


def test_all_ops_in_fp32_give_fp32_gradients():
    all_ops = cli("linear matmul softmax gelu layer_norm conv2d add elementwise_mul")
    exact = gradients(vit().double(), None)
    assert error(gradients(vit(), policy()), exact) > 1e-3
    assert error(gradients(*listed_vit(black=all_ops)), exact) < 1e-5


@mark.slow
@mark.parametrize(
    "compiled, lists",
    [("whole", {"black": ("softmax", "gelu")}), ("blocks", {"black": ("blocks.1.*",), "white": ("layer_norm",)})],
)
def test_compiled_equals_eager(compiled, lists):
    model, listed = listed_vit(**lists)
    expected = gradients(model, listed)
    torch._dynamo.reset()
    if compiled == "whole":
        found = gradients(model, listed, torch.compile(model, backend="aot_eager", fullgraph=True))
    else:
        for block in model.blocks:
            block.compile(backend="aot_eager", fullgraph=True)
        found = gradients(model, listed)
    assert_same_state(found, expected)


def output_dtypes(model: nn.Module, precision: Precision) -> dict[str, str]:
    seen = {}
    model = precision.compute_copy(model)
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: str(output.dtype)[6:]}))
    with precision.autocast():
        model(torch.randn(2, 3, 32, 32))
    return seen


# expected: module -> dtype of its output
LISTS = """
level | black | white | expected
O1 | ["blocks.1.*"] | [] | {blocks.1.attn.qkv: float32, blocks.1.mlp.act: float32, blocks.0.mlp.fc1: bfloat16}
O1 | [gelu, blocks.1.mlp] | ["blocks.*"] | {blocks.0.mlp.act: float32, blocks.1.norm1: bfloat16, \
    blocks.1.attn: bfloat16, blocks.1.mlp.fc2: float32}
O3 | [softmax, linear] | [] | {blocks.1.attn: bfloat16, blocks.0.mlp.fc1: bfloat16, head: bfloat16}
"""
PADDLE_WHITE = cli("conv2d conv2d_transpose depthwise_conv2d matmul matmul_v2")
PADDLE_BLACK = cli("""
exp square log mean sum cos_sim softmax softmax_with_cross_entropy sigmoid_cross_entropy_with_logits cross_entropy
cross_entropy2
""")


def test_paddles_default_lists_are_accepted():
    """All names but `mul`. The loss is computed in fp32 in any case."""
    model, _ = listed_vit(black=PADDLE_BLACK, white=PADDLE_WHITE)
    dtypes = model.casting_mode.dtypes
    black = (torch.square, torch.softmax, nn.functional.cosine_similarity)
    white = (nn.functional.conv_transpose2d,)
    assert {dtypes[op] for op in black} == {FP32}
    assert {dtypes[op] for op in (*white, torch.matmul)} == {BF16}
    assert nn.functional.cross_entropy not in dtypes
    with refused(r"AMP\.CUSTOM_WHITE_LIST: cross_entropy is neither"):
        listed_vit(white=("cross_entropy",))


def test_mul_which_is_a_matrix_product_in_paddle_is_refused():
    with refused(r"LIST: mul is neither .* linear .*\("):
        listed_vit(black=("mul",))
    model, _ = listed_vit(black=("elementwise_mul",))
    assert model.casting_mode.dtypes.keys() >= {torch.mul, Tensor.__mul__, Tensor.__rmul__}


@each_value(LISTS)
def test_listed_ops_and_modules_have_their_dtype(level, black, white, expected):
    model, listed = listed_vit(level=level, black=black, white=white)
    assert output_dtypes(copy.deepcopy(model), listed).items() >= expected.items()
    assert list(model.state_dict()) == list(vit().state_dict())


def test_listed_batch_norm_updates_its_running_statistics():
    plain, listed = (create_model("test_resnet", num_classes=5) for _ in range(2))
    listed.load_state_dict(plain.state_dict())
    white = policy(white=("batch_norm",))
    white.apply_op_lists(listed)
    images = torch.randn(4, 3, 32, 32)
    for model in (plain, listed):
        with white.autocast():
            model.train()(images)
    assert torch.allclose(plain.bn1.running_mean, listed.bn1.running_mean, atol=1e-2)
    assert listed.bn1.running_mean.any()


@mark.parametrize("entry, hint", [("sofmax", "softmax"), ("block.1.mlp", "blocks.1.mlp"), ("blocks.7.*", "blocks.")])
def test_unknown_name_suggests_the_nearest_name(entry, hint):
    with refused(rf"AMP\.CUSTOM_WHITE_LIST: .*did you mean {hint}"):
        listed_vit(white=(entry,))
