"""Training of PaddleViT's families: precision, op lists, freezing, checkpointing, resuming, averages, layer decay.

The reduced models have no class token (Swin), convolutions (PVTv2, ConvNeXt), batch norm and two heads (LeViT), class
attention (CaiT).
"""

import pytest
import torch
from conftest import ROOT, assert_same_state, noise_folder, rows, states, train

from configs.reading.command_line import parse_command_line
from configs.schema import Amp
from engine.checkpoint.reader import load_checkpoint
from engine.precision.policy import Precision
from engine.training.optimization.weight_average import WeightAverage
from models.attention import EXPLICIT, fused_kernels, use_attention
from models.build import build_model

CPU = torch.device("cpu")
FIXTURES = ROOT / "tests" / "fixtures" / "families"
FAMILIES = ["SwinTransformer", "PVTv2", "LeViT", "ConvNeXt", "CaiT"]
# Two heads without a teacher; augmentation has tests of its own.
PLAIN = [
    "TRAIN.DISTILLATION_TYPE=none",
    "TRAIN.RAND_AUGMENT=false",
    "TRAIN.COLOR_JITTER=0",
    "TRAIN.LINEAR_SCALED_LR=null",
]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return noise_folder(tmp_path_factory.mktemp("images"), 8, 2, (32, 32, 3))


def options(family: str, *more: str) -> list[str]:
    distilled = ["MODEL.DISTILLED=true"] if family == "LeViT" else []
    return [f"-cfg={FIXTURES / family / 'model.yaml'}", "-opts", *PLAIN, *distilled, *more]


def argv(family: str, images, output, *more: str) -> list[str]:
    """Flags of a run of two epochs with two steps each."""
    run = ["-dataset=folder", f"-data_path={images}", "-batch_size=4", "-accum_iter=1", f"-output={output}"]
    config = [
        "MODEL.NUM_CLASSES=2",
        "TRAIN.NUM_EPOCHS=2",
        "TRAIN.WARMUP_EPOCHS=0.5",
        "DATA.NUM_WORKERS=0",
        "TRAIN.BASE_LR=1e-3",
        *more,
    ]
    return [*run, *options(family, *config)]


def weights_of(family: str) -> list[str]:
    return [f"MODEL.PRETRAINED={FIXTURES / family / 'weights.pdparams'}"]


def built(family: str, *more: str, is_random: bool = True) -> tuple[torch.nn.Module, torch.Tensor]:
    """The model of a fixture with random weights, and two images."""
    config = parse_command_line(options(family, *more)).config
    torch.manual_seed(0)
    model, _ = build_model(config.model, config.data, CPU)
    for layer in model.modules():
        if is_random and isinstance(layer, torch.nn.Linear):
            torch.nn.init.normal_(layer.weight, std=0.1)
    return model, torch.randn(2, 3, config.data.image_size, config.data.image_size)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_resume_is_bit_exact_with_all_random_operations_in_bf16(family, images, tmp_path, cpu):
    more = ["AMP.ENABLED=true", "MODEL.DROPPATH=0.2", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.5"]
    uninterrupted = train(argv(family, images, tmp_path / "one", *more), cpu)
    two = argv(family, images, tmp_path / "two", *more)
    stopped = train([*two, "TRAIN.MAX_STEPS=1"], cpu)
    train([f"-resume={stopped}", *two, "TRAIN.MAX_STEPS=null"], cpu)
    assert_same_state(states(stopped), states(uninterrupted))
    assert rows(stopped) == rows(uninterrupted)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_logits_in_bf16_are_close_to_fp32(family, level):
    """With weights from PaddlePaddle; bf16 has 3 significant digits."""
    model, images = built(family, *weights_of(family), is_random=False)
    precision = Precision(Amp.model_validate({"ENABLED": True, "LEVEL": level}), CPU)
    expected = model.eval()(images)
    with precision.autocast():
        logits = precision.compute_copy(model)(images)
    assert logits.dtype == torch.bfloat16 and (logits - expected).norm() < 0.03 * expected.norm()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_frozen_backbone_stays_and_all_heads_train(family, images, tmp_path, cpu):
    weights = [*weights_of(family), "TRAIN.MAX_STEPS=2"]
    more = [*weights, "MODEL.FREEZE_BACKBONE=true", "MODEL.DROPPATH=0.2"]
    after = load_checkpoint(train(argv(family, images, tmp_path, *more), cpu) / "last.pth")["model"]
    config = parse_command_line(argv(family, images, tmp_path, *weights)).config
    before = build_model(config.model, config.data, CPU)[0].state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    heads = {name for name in before if name.startswith("head") and name.endswith(("weight", "bias"))}
    assert not {name for name in changed if not name.startswith("head")}
    assert {name for name in heads if ".norm." not in name} <= changed
    assert ("head_dist.linear.weight" in changed) == (family == "LeViT")


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointed_gradients_and_statistics_are_identical(family):
    results = []
    for checkpointing in ("false", "true"):
        model, images = built(family, f"MODEL.GRAD_CHECKPOINTING={checkpointing}", "MODEL.DROPPATH=0.2")
        model.train()
        torch.manual_seed(1)
        model(images).square().sum().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        results.append(gradients | dict(model.named_buffers()))
    assert_same_state(*results)


@pytest.mark.parametrize("family", FAMILIES)
def test_explicit_attention_equals_fused_attention(family):
    model, images = built(family, "MODEL.ATTENTION=fused")
    assert bool(fused_kernels(model, images)) == (family not in ("LeViT", "ConvNeXt"))
    fused = model.eval()(images)
    use_attention(model, EXPLICIT)
    assert fused_kernels(model, images) == [] and torch.allclose(model(images), fused, atol=1e-4, rtol=1e-4)


def test_tensors_with_several_names_are_averaged_once():
    """CoaT has its position encodings under two names or more."""
    model, _ = built("CoaT")
    average = WeightAverage(model, 0.5)
    start = {name: value.clone() for name, value in average.module.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    average.update(torch.tensor(False))
    for name, parameter in average.module.named_parameters():
        assert torch.allclose(parameter, start[name] + 0.5, atol=1e-5), name
