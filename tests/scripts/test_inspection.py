"""Counts, peaks and underflow of the AMP report, compared with the known structure of a model."""

from collections import Counter

import pytest
import timm
import torch
from torch import nn

from engine.precision.op_lists import OPS
from scripts.amp_report.inspection import OpRecorder, activation_peaks, block_of, gradient_underflow, listed_name


def vit() -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=48, num_classes=5)
    for block in model.blocks:
        block.attn.fused_attn = False
    return model


def run_pass(model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.randn(4, 3, 32, 32))
    nn.functional.cross_entropy(logits.float(), torch.arange(4)).backward()


def recorded(model: nn.Module, compiled: bool) -> OpRecorder:
    recorder = OpRecorder(model)
    if compiled:
        torch._dynamo.reset()
        model.compile(backend=recorder.backend)
        run_pass(model)
    else:
        with recorder:
            run_pass(model)
    return recorder


@pytest.mark.parametrize("compiled", [False, True])
def test_ops_are_counted_by_module_dtype_and_pass(compiled):
    recorder = recorded(vit(), compiled)
    found = Counter()
    for run, count in recorder.counts.items():
        if listed_name(run.op) in ("linear", "softmax", "layer_norm", "gelu", "conv2d", "matmul"):
            found[listed_name(run.op), run.module, run.dtype, run.backward] += count
    expected = Counter()
    for backward in (False, True):
        expected["conv2d", "patch_embed.proj", "bfloat16", backward] = 1
        for block in ("blocks.0", "blocks.1"):
            for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
                expected["linear", f"{block}.{name}", "bfloat16", backward] = 1 + backward  # input and weight
            expected["matmul", f"{block}.attn", "bfloat16", backward] = 2 + 2 * backward
            expected["softmax", f"{block}.attn", "bfloat16", backward] = 1
            expected["gelu", f"{block}.mlp.act", "bfloat16", backward] = 1
            for name in ("norm1", "norm2"):
                expected["layer_norm", f"{block}.{name}", "float32", backward] = 1
        expected["layer_norm", "norm", "float32", backward] = 1
        expected["linear", "head", "bfloat16", backward] = 1 + backward
    assert found == expected


def test_all_hooks_are_removed():
    model = vit()
    recorded(model, compiled=False)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_largest_activation_may_be_inside_a_module():
    """No module outputs the attention logits."""
    model = vit()
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight.mul_(300)
    recorder = OpRecorder(model)
    with recorder:
        model(torch.randn(4, 3, 32, 32))
    peaks = activation_peaks(recorder.peaks)
    assert (peaks["blocks.1"].op, peaks["blocks.1"].module) == ("bmm", "blocks.1.attn")
    assert peaks["blocks.1"].value > 100 * peaks["blocks.0"].value
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    with recorder:
        model(torch.randn(4, 3, 32, 32))
    assert torch.tensor(activation_peaks(recorder.peaks)["head"].value).isnan()


@pytest.mark.parametrize("scale", [1.0, 1024.0, 65536.0])
def test_underflow_equals_that_of_a_cast_to_float16(scale):
    model = vit()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 1e-7
    model.head.weight.grad = torch.zeros_like(model.head.weight)
    model.head.bias.grad = None
    found = gradient_underflow(model, scale)
    for block in ("patch_embed", "blocks.0", "blocks.1", "norm", "pos_embed"):
        gradients = [p.grad.flatten() for name, p in model.named_parameters() if block_of(name) == block]
        gradients = torch.cat(gradients)
        for value, share in ((gradients, found[block].unscaled), (gradients * scale, found[block].scaled)):
            assert share == pytest.approx((value.half() == 0).double().mean().item(), abs=1e-9)
    assert "head" not in found  # all its gradients are 0


def test_names_in_the_op_lists():
    assert block_of("blocks.11.mlp.fc1.weight") == "blocks.11" and block_of("layer1.0.conv1") == "layer1.0"
    for op, name in {
        "_softmax_backward_data": "softmax", "native_layer_norm_backward": "layer_norm", "addmm": "linear",
        "convolution_backward": "conv2d", "gelu_backward": "gelu", "native_batch_norm": "batch_norm",
        "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention_for_cpu_backward": "scaled_dot_product_attention",
        "_scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
        "_scaled_dot_product_efficient_attention_backward": "scaled_dot_product_attention",
    }.items():  # fmt: skip
        assert listed_name(op) == name and name in OPS
