"""The attention kernels: the option, equal results, and the kernels that torch chooses."""

import pytest
import timm
import torch
from conftest import train
from timm.layers import Attention
from torch import nn

from configs.reading.command_line import parse_command_line
from models.build import build_model
from models.kernels import (
    AUTO,
    CUDNN,
    EXPLICIT,
    FUSED,
    UnbindAttention,
    allow_kernels,
    fused_kernels,
    select_attention,
    use_attention,
)
from utils.errors import UserError

CPU = torch.device("cpu")
GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def all_kernels_after_test():
    yield
    allow_kernels(FUSED, CPU)


@pytest.mark.parametrize(
    ("option", "device", "fused"),
    [("auto", "cpu", False), ("auto", "meta", True), ("fused", "cpu", True), ("explicit", "meta", False)],
)
@pytest.mark.parametrize("model", [["MODEL.DEPTH=2"], ["MODEL.TYPE=timm", "MODEL.NAME=test_vit"]])
def test_attention_is_explicit_on_a_cpu_unless_an_option_is_set(model, option, device, fused):
    config = parse_command_line(["-image_size=160", "-opts", *model, f"MODEL.ATTENTION={option}"]).config
    with torch.device(device):
        built, _ = build_model(config.model, config.data, torch.device(device))
    assert {block.attn.fused_attn for block in built.blocks} == {fused}


@pytest.mark.parametrize("options", [{}, {"qkv_bias": True, "qk_norm": True, "scale_norm": True, "attn_head_dim": 8}])
@pytest.mark.parametrize("call", [{}, {"is_causal": True}, {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()}])
def test_splitting_before_the_transposition_has_the_bits_of_timm(options, call):
    torch.manual_seed(0)
    attention = Attention(16, num_heads=4, attn_drop=0.3, norm_layer=nn.LayerNorm, **options)
    attention.fused_attn = True
    results = []
    for changed in (False, True):
        if changed:
            select_attention(attention, FUSED, CPU)
        torch.manual_seed(1)
        x = torch.randn(2, 5, 16, requires_grad=True)
        y = attention(x, **call)
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *attention.parameters()])))
    assert type(attention) is UnbindAttention
    assert all(map(torch.equal, *results))


def test_fused_kernels_are_named():
    model, images = timm.create_model("test_vit"), torch.zeros(2, 3, 160, 160)
    use_attention(model, FUSED)
    assert fused_kernels(model, images) == ["flash_attention"] and model.training
    torch.backends.cuda.enable_flash_sdp(False)
    assert fused_kernels(model, images) == ["math"]
    use_attention(model, EXPLICIT)
    assert fused_kernels(model, images) == []


def test_the_kernel_is_the_one_for_the_dtype_of_autocast():
    """The norms of queries and keys return float32, which autocast casts to the dtype of the values."""
    model = timm.create_model("vit_medium_patch16_rope_reg1_gap_256", depth=1, qk_norm=True, img_size=64)
    use_attention(model, FUSED)
    with torch.autocast("cpu", torch.bfloat16):
        assert fused_kernels(model, torch.zeros(2, 3, 64, 64)) == ["flash_attention"]


def test_the_kernel_depends_on_the_dropout_of_training():
    """On a CPU the flash kernel has no dropout."""
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, attn_drop_rate=0.1)
    use_attention(model, FUSED)
    for is_training, kernel in ((False, "flash_attention"), (True, "math")):
        assert fused_kernels(model.train(is_training), torch.zeros(2, 3, 32, 32)) == [kernel]
        assert model.training == is_training


def test_cudnn_needs_a_gpu(digits_argv, cpu):
    with pytest.raises(UserError, match=r"^MODEL\.ATTENTION cudnn: "):
        train([*digits_argv, "MODEL.ATTENTION=cudnn"], cpu)


def test_cudnn_allows_no_other_kernel():
    """A CPU stands for a GPU on which cuDNN has no kernel for the model."""
    model = timm.create_model("test_vit")
    use_attention(model, CUDNN)
    allow_kernels(CUDNN, GPU)
    with pytest.raises(UserError, match=r"^MODEL\.ATTENTION: .* in float32"):
        fused_kernels(model, torch.zeros(2, 3, 160, 160))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "kernel"), [(torch.bfloat16, "cudnn"), (torch.float32, "efficient")])
def test_hopper_uses_cudnn_where_it_has_a_kernel(dtype, kernel):
    if torch.cuda.get_device_capability() != (9, 0) or torch.__version__ < "2.11":
        pytest.skip("needs compute capability 9.0 and torch 2.11")
    model = timm.create_model("vit_tiny_patch16_224", depth=1).to(GPU)
    allow_kernels(AUTO, GPU)
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32), torch.no_grad():
        assert fused_kernels(model, torch.zeros(2, 3, 224, 224, device=GPU)) == [f"{kernel}_attention"]


def test_the_log_names_the_kernel(digits_argv, cpu):
    folder = train([*digits_argv, "MODEL.ATTENTION=fused", "TRAIN.MAX_STEPS=1"], cpu)
    assert "----- Attention: flash_attention\n" in (folder / "log.txt").read_text()
