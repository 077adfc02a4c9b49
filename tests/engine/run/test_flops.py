"""FLOPs of a model equal closed-form expressions; datasheet peaks by device name; TFLOP/s and MFU."""

import pytest
import timm
import torch

from configs.command_line import parse_command_line
from configs.schema import Data
from engine.run.cost import describe_model, flops_per_image, peak_flops_per_second
from engine.run.facts import Model
from models.build import build_model
from utils.distributed import ProcessContext

CPU = torch.device("cpu")


def config(*argv: str):
    return parse_command_line(list(argv)).config


def vit_forward_flops(
    embed_dim: int, depth: int, image_size: int, patch_size: int, channels: int, classes: int
) -> tuple[int, int]:
    """FLOPs of the whole model, and of its patch embedding; a multiply-add counts as two."""
    patches = (image_size // patch_size) ** 2
    tokens = patches + 1
    embedding = 2 * patches * channels * patch_size**2 * embed_dim
    # Linear layers of attention and MLP; then q k^T and its product with v.
    block = 2 * tokens * 12 * embed_dim**2 + 2 * 2 * tokens**2 * embed_dim
    return embedding + depth * block + 2 * embed_dim * classes, embedding


def test_flops_of_a_vit_equal_the_closed_form():
    options = config("-cfg=configs/vit_tiny_patch16_224.yaml")
    model, _ = build_model(options.model, options.data, torch.device("meta"))
    forward, embedding = vit_forward_flops(192, 12, 224, 16, 3, 1000)
    assert flops_per_image(model, options.data, trains=False) == forward
    assert flops_per_image(model, options.data) == 3 * forward - embedding  # images have no gradient
    assert model.patch_embed.proj.weight.grad is None
    for block in model.blocks:
        block.attn.fused_attn = not block.attn.fused_attn
    assert flops_per_image(model, options.data) == 3 * forward - embedding


def test_frozen_backbone_counts_its_forward_pass_only():
    options = config("-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", "MODEL.TUNE=head")
    model, _ = build_model(options.model, options.data, CPU)
    forward, _ = vit_forward_flops(192, 12, 224, 16, 3, 1000)
    assert flops_per_image(model, options.data) == forward + 2 * 192 * 1000


def test_grouped_convolutions_are_counted_per_group():
    """The backward pass costs twice the forward pass; the stem computes no gradient of the images."""
    options = config("-opts", "MODEL.TYPE=timm", "MODEL.NAME=efficientnet_b0", "DATA.IMAGE_SIZE=64")
    model = timm.create_model("efficientnet_b0")
    stem = 2 * 32**2 * 3 * 3**2 * 32
    assert flops_per_image(model, options.data) == 3 * flops_per_image(model, options.data, trains=False) - stem


def test_a_view_of_the_class_token_that_is_passed_to_a_module_is_counted():
    options = config("-cfg=tests/fixtures/families/CaiT/model.yaml")
    model, _ = build_model(options.model, options.data, CPU)
    assert 2.7 * flops_per_image(model, options.data, trains=False) < flops_per_image(model, options.data)


FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("name", "dtype", "tf32", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", BF16, False, 312),
        ("NVIDIA A100-SXM4-80GB", FP32, False, 19.5),
        ("NVIDIA A100-SXM4-80GB", FP32, True, 156),
        ("Tesla T4", FP16, True, 65),
        ("Tesla T4", BF16, False, None),  # no bfloat16 tensor cores
    ],
)
def test_peak_by_device_name_and_dtype(name, dtype, tf32, tflops):
    assert peak_flops_per_second(name, dtype, tf32) == (tflops and pytest.approx(1e12 * tflops))


SIMILAR = (
    "NVIDIA GeForce RTX 3080 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA A10-24Q", "NVIDIA H100 80GB HBM2e",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA L40", "Tesla V100-SXM3-32GB", "AMD Instinct MI300X",
)  # fmt: skip


def test_similar_devices_have_no_peak():
    assert not any(peak_flops_per_second(name, FP16, True) for name in SIMILAR)


DATA = Data(IMAGE_SIZE=8)


def classifier() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))


PARAMETERS = 3 * 8 * 8 * 10 + 10
FLOPS = 2 * 2 * 3 * 8 * 8 * 10  # forward pass and weight gradient


def test_a_cpu_has_no_mfu(cpu):
    model = describe_model(classifier(), DATA, torch.bfloat16, False, cpu)
    assert model == Model(PARAMETERS, FLOPS, None, PARAMETERS)
    assert model.tflops_per_second(1e9) == pytest.approx(FLOPS / 1e3) and model.utilization(1e9) is None
    assert model.rates(1e9) == ["TFLOP/s: 7.68"]


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA H200", 4 * 989.4e12), ("NVIDIA H300", None)])
def test_peak_is_the_sum_over_all_gpus(monkeypatch, name, peak):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    context = ProcessContext(1, 1, 4, 4, torch.device("cuda", 1))
    model = describe_model(classifier(), DATA, torch.bfloat16, False, context)
    assert model == Model(PARAMETERS, FLOPS, peak, PARAMETERS)
    assert model.utilization(1e9) == (peak and pytest.approx(1e9 * FLOPS / peak))


def test_model_without_flop_count_has_no_rates(cpu):
    class ReadsValues(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images * images.sum().item()

    model = describe_model(ReadsValues(), DATA, torch.float32, False, cpu)
    assert model == Model(0, None, None, 0) and model.utilization(10) is None and model.rates(10) == []
    assert "cannot be counted" in str(model)
