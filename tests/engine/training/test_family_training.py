"""Training of PaddleViT's families: precision, op lists, freezing, checkpointing, resuming, averages, layer decay.

The reduced models have no class token (Swin), convolutions (PVTv2, ConvNeXt), batch norm and two heads (LeViT), class
attention (CaiT).
"""

import numpy as np
import pytest
import torch
from conftest import ROOT, assert_same_state, only_run, read_result, rows, states, train
from PIL import Image

from configs.reading.command_line import parse_command_line
from engine.checkpoint.reader import load_checkpoint
from engine.commands.run import run
from engine.run.mfu.flops import forward_flops, training_flops
from engine.training.optimization.weight_average import WeightAverage
from models.attention import EXPLICIT, fused_kernels, use_attention
from models.build import build_model
from scripts.amp_report.report import inspect

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
    """8 training and 2 validation images of two classes, in the folder layout of ImageNet."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 2)):
        for number in range(count):
            folder = root / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return root


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


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_o1_and_o2_train_as_fp32(family, images, tmp_path, cpu):
    """The losses of an epoch and of its evaluation, with weights from PaddlePaddle; bf16 has 3 significant digits."""
    more = [*weights_of(family), "TRAIN.MIXUP_PROB=0", "TRAIN.NUM_EPOCHS=1"]
    losses = {}
    for name, amp in {"fp32": [], "O1": ["AMP.ENABLED=true"], "O2": ["AMP={ENABLED: true, LEVEL: O2}"]}.items():
        (row,) = rows(train(argv(family, images, tmp_path / name, *more, *amp), cpu))
        losses[name] = [float(row["train_loss"]), float(row["val_loss"])]
    assert losses["O1"] == pytest.approx(losses["fp32"], rel=0.03)
    assert losses["O2"] == pytest.approx(losses["fp32"], rel=0.03)


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


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_op_lists_apply(family, images, tmp_path, cpu):
    black = {"LeViT": "softmax, hardswish", "ConvNeXt": "gelu"}.get(family, "softmax, gelu")
    norm = "batch_norm" if family == "LeViT" else "layer_norm"
    listed = ["AMP.ENABLED=true", f"AMP.CUSTOM_BLACK_LIST=[{black}]", f"AMP.CUSTOM_WHITE_LIST=[{norm}]"]
    report = inspect(parse_command_line(argv(family, images, tmp_path, *listed)).config, cpu)
    types = {}
    for row in report["ops"]:
        types.setdefault(row["listed_as"], set()).add(row["type"])
    assert all(types[op] == {"float32"} for op in black.split(", ")) and types[norm] == {"bfloat16"}
    assert report["first_non_finite"] is None


@pytest.mark.parametrize("family", FAMILIES)
def test_flops_of_training_are_three_times_those_of_the_forward_pass(family):
    """Without the gradient of the images; a frozen backbone leaves the forward pass and the heads."""
    config = parse_command_line(options(family, "MODEL.GRAD_CHECKPOINTING=true")).config
    model, _ = build_model(config.model, config.data, CPU)
    forward, training = forward_flops(model, config.data), training_flops(model, config.data)
    assert 2.7 * forward < training < 3 * forward
    frozen, _ = build_model(config.model.model_copy(update={"freeze_backbone": True}), config.data, CPU)
    assert forward <= training_flops(frozen, config.data) < 1.1 * forward


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


def test_paddles_file_and_weights_are_evaluated(tmp_path, cpu):
    """The loss shows the family's normalization, which its file does not contain."""
    size, rng = 64, np.random.default_rng(0)
    pixels = rng.integers(0, 256, (7, size, size, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        for split in ("train", "val"):
            folder = tmp_path / "images" / split / f"class{number}"
            folder.mkdir(parents=True)
            Image.fromarray(image).save(folder / "image.png")
    family = FIXTURES / "PVTv2"
    flags = [f"-cfg={family / 'model.yaml'}", "-eval", f"-pretrained={family / 'weights.pdparams'}", "-dataset=folder"]
    paths = [f"-data_path={tmp_path / 'images'}", f"-output={tmp_path / 'out'}"]
    run(parse_command_line([*flags, *paths, "-opts", "DATA.CROP_PCT=1.0", "DATA.NUM_WORKERS=0"]), cpu)
    model, _ = built("PVTv2", *weights_of("PVTv2"), is_random=False)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    inputs = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model.eval()(inputs), torch.arange(7)).item()
    assert read_result(only_run(tmp_path / "out", "eval"))["loss"] == pytest.approx(loss, rel=1e-4)
