"""Distillation: losses, the images of the teacher, distilled heads, precisions, exact resume, errors."""

import re
import shutil
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from conftest import (
    CPU,
    GREY,
    TINY_VIT,
    assert_same_state,
    cells_of,
    cli,
    line_of,
    model_for,
    of_module,
    refused,
    run_here,
    states,
    train,
)
from PIL import Image
from pytest import approx, mark
from timm.models.deit import VisionTransformerDistilled
from timm.models.levit import LevitDistilled
from torch import Tensor, nn
from torch.testing import assert_close

from configs.command_line import to_yaml
from configs.schema import Amp, Config, Data
from datasets.transforms.device import Normalize
from engine.checkpoint.weights_record import describe_data
from engine.precision.policy import Precision
from engine.training.loss import Teacher, build_step_loss, build_teacher, class_logits

TINY_TEACHER = {"EMBED_DIM": 32, "DEPTH": 1, "NUM_HEADS": 2, "PATCH_SIZE": 4}
STUDENT = Data.model_validate({"IMAGE_SIZE": 8, "IMAGENET_MEAN": [0.5] * 3, "IMAGENET_STD": [0.5] * 3})
OWN = {"IMAGE_SIZE": 12, "IMAGENET_MEAN": [0.48, 0.46, 0.41], "IMAGENET_STD": [0.23, 0.22, 0.225]}
RANDOM = cli("MODEL.DROPOUT=0.1 TRAIN.MIXUP_ALPHA=0.8 TRAIN.CUTMIX_ALPHA=1.0 TRAIN.RANDOM_ERASE_PROB=0.5")


def fp32() -> Precision:
    return Precision(Amp(), CPU.device)


def options_of(kind: str, data: Data = STUDENT, classes: int = 5, **keys) -> Config:
    """The options of a student."""
    values = {"TRAIN": {"DISTILLATION_TYPE": kind} | keys, "MODEL": {"NUM_CLASSES": classes}}
    return Config.model_validate(values).model_copy(update={"data": data})


def write_teacher(path: Path, classes: int = 5, data: dict = OWN, **model) -> Path:
    """A checkpoint of this program with random weights."""
    values = {"MODEL": {"NAME": "tiny_teacher", "NUM_CLASSES": classes} | TINY_TEACHER | model, "DATA": data}
    config = Config.model_validate(values)
    torch.manual_seed(7)
    built, _ = model_for(config)
    nn.init.normal_(built.head.weight)
    torch.save({"model": built.state_dict(), "options": to_yaml(config)}, path)
    return path


@of_module
def tiny_teacher(tmp_path_factory) -> Path:
    return write_teacher(tmp_path_factory.mktemp("teacher") / "best.pth")


def build(file: Path, precision: Precision | None = None, classes: int = 5) -> Teacher:
    return build_teacher(options_of("soft", classes=classes, TEACHER_WEIGHTS=str(file)), precision or fp32())


# Losses


def by_formula(kind: str, student: Tensor, teacher: Tensor, tau: float) -> float:
    """tau^2 x sum of p log(p / q), or the cross-entropy with the teacher's most probable class."""
    if kind == "hard":
        return F.cross_entropy(student, teacher.argmax(-1), reduction="sum").item()
    q = (student / tau).softmax(-1)
    p = (teacher / tau).softmax(-1)
    return tau**2 * (p * (p / q).log()).sum().item()


@mark.parametrize("kind", ["soft", "hard"])
@mark.parametrize("targets", ["labels", "mixed", "padding"])
@mark.parametrize("heads", [1, 2])
def test_the_loss_equals_its_formula(tiny_teacher, kind, targets, heads):
    """With smoothing; both parts leave padding out."""
    alpha = 0.3
    tau = 2.5
    smoothing = 0.1
    keys = {"DISTILLATION_ALPHA": alpha, "DISTILLATION_TAU": tau, "SMOOTHING": smoothing}
    options = options_of(kind, TEACHER_WEIGHTS=str(tiny_teacher), **keys)
    torch.manual_seed(0)
    images = torch.randn(4, 3, 8, 8)
    head, distilled = torch.randn(2, 4, 5).requires_grad_()
    outputs = (head, distilled)
    if heads == 1:
        outputs = distilled = head
    labels = {
        "labels": torch.tensor([0, 3, 2, 1]),
        "padding": torch.tensor([0, -1, 2, -1]),
        "mixed": torch.softmax(torch.randn(4, 5), -1),
    }[targets]
    loss, _ = build_step_loss(options, nn.Identity(), fp32(), None, None)
    teacher = build(tiny_teacher)
    counted = [0, 2] if targets == "padding" else [0, 1, 2, 3]
    base = F.cross_entropy(head[counted], labels[counted], reduction="sum", label_smoothing=smoothing).item()
    taught = by_formula(kind, distilled[counted], teacher(images)[counted], tau)
    expected = (1 - alpha) * base + alpha * taught
    actual = loss(outputs, labels, images)
    assert actual.item() == approx(expected, rel=1e-5)
    (gradient,) = torch.autograd.grad(actual, distilled)
    assert gradient[counted].abs().min() > 0
    assert targets != "padding" or gradient[[1, 3]].abs().max() == 0


# The images of the teacher


def test_the_teacher_gets_its_own_normalization_and_size(tiny_teacher, tmp_path):
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    teacher = build(tiny_teacher)
    received = []
    teacher.model.register_forward_pre_hook(lambda module, inputs: received.append(inputs[0]))
    logits = teacher(Normalize(STUDENT)(pixels))
    own = Normalize(Data.model_validate(OWN))(pixels)
    for channel, plane in zip(received[0].flatten(0, 1), own.flatten(0, 1), strict=True):
        resized = Image.fromarray(plane.numpy()).resize((12, 12), Image.Resampling.BICUBIC)
        np.testing.assert_allclose(channel, np.asarray(resized), atol=1e-5)
    assert not logits.requires_grad
    equal = build(write_teacher(tmp_path / "a.pth", data={"IMAGE_SIZE": 8}))
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(equal.preprocess(images), images)


@mark.parametrize("level", ["O1", "O2", "O3"])
def test_the_teacher_computes_in_the_precision_of_the_run(tiny_teacher, level):
    images = torch.randn(16, 3, 8, 8)
    exact = build(tiny_teacher)
    half = build(tiny_teacher, Precision(Amp(ENABLED=True, LEVEL=level), CPU.device))
    dtypes = []
    half.model.blocks[0].mlp.fc1.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    error = (half(images) - exact(images)).norm() / exact(images).norm()
    assert dtypes == [torch.bfloat16]
    assert half(images).dtype == torch.float32
    assert 1e-4 < error < 0.05


# Distilled heads

SMALL = {"img_size": 16, "num_classes": 5}
DISTILLED = {
    "deit": lambda: VisionTransformerDistilled(patch_size=8, embed_dim=16, depth=1, num_heads=2, **SMALL),
    "levit": lambda: LevitDistilled(embed_dim=(16,), key_dim=8, depth=(1,), num_heads=(2,), **SMALL),
}


@mark.parametrize("family, level, weight", [("deit", None, "weight"), ("levit", "O2", "linear.weight")])
def test_the_teacher_trains_the_distillation_head(tiny_teacher, family, level, weight):
    """Also of the copy that computes in half precision. In evaluation the model returns the mean of the heads."""
    data = STUDENT.model_copy(update={"image_size": 16})
    options = options_of("hard", data, TEACHER_WEIGHTS=str(tiny_teacher), DISTILLATION_ALPHA=1.0)
    precision = Precision(Amp(ENABLED=True, LEVEL=level) if level else Amp(), CPU.device)
    torch.manual_seed(0)
    model = DISTILLED[family]()
    loss, _ = build_step_loss(options, model, precision, None, None)
    compute = precision.compute_copy(model).train()
    images = torch.randn(4, 3, 16, 16)
    targets = torch.tensor([0, 1, 2, 3])
    with precision.autocast():
        outputs = compute(images)
    loss(outputs, targets, images).backward()
    head, distilled = (one.get_parameter(weight).grad for one in compute.get_classifier())
    assert not head.any()
    assert distilled.any()  # ALPHA 1: the labels do not count
    assert not torch.equal(*outputs)
    assert_close(class_logits(outputs), (outputs[0] + outputs[1]) / 2)
    with torch.no_grad(), precision.autocast():
        assert compute.eval()(images).shape == (4, 5)


# Runs on the digits


@of_module
def digits_teacher(tmp_path_factory) -> Path:
    """The last checkpoint of a short run; the teacher is wider than the students and sees 12 x 12 pixels."""
    options = [*TINY_VIT, *GREY, "MODEL.EMBED_DIM=32", "DATA.IMAGE_SIZE=12", "DATA.IMAGENET_MEAN=[0.3]"]
    argv = [*cli(f"-dataset=digits -batch_size=64 -output={tmp_path_factory.mktemp('teacher')} -opts"), *options]
    return train([*argv, "TRAIN.MAX_STEPS=8", "TRAIN.BASE_LR=1e-2"]) / "last.pth"


def student(output: Path, teacher: Path, *options: str, kind: str = "soft", model: list[str] = TINY_VIT) -> list[str]:
    flags = cli(f"-dataset=digits -batch_size=64 -output={output} -teacher_model_path={teacher} -opts")
    return [*flags, *model, *GREY, f"TRAIN.DISTILLATION_TYPE={kind}", *options]


def test_alpha_0_trains_as_without_a_teacher(digits_teacher, tmp_path):
    """The teacher draws no random numbers, and its gradient has no part in the step."""
    options = [*RANDOM, "TRAIN.MAX_STEPS=4"]
    with_teacher = train(student(tmp_path / "a", digits_teacher, *options, "TRAIN.DISTILLATION_ALPHA=0"))
    alone = [*options, "TRAIN.TEACHER_WEIGHTS=null"]
    without = train(student(tmp_path / "b", digits_teacher, *alone, kind="none"))
    assert_same_state(states(with_teacher)["model"], states(without)["model"])


def test_an_evaluation_needs_no_teacher_and_a_dry_run_does(digits_teacher, tmp_path):
    teacher = shutil.copy(digits_teacher, tmp_path / "teacher.pth")
    argv = student(tmp_path / "out", teacher, "TRAIN.MAX_STEPS=2")
    assert run_here("-dry_run", *argv) == 0
    folder = train(argv)
    teacher.unlink()
    assert run_here(f"-resume={folder}", "-eval") == 0
    assert run_here(f"-pretrained={folder / 'last.pth'}", "-eval") == 0
    with refused(r"TRAIN.TEACHER_WEIGHTS: .*teacher.pth"):
        run_here("-dry_run", *argv)


# Errors


# Words of TRAIN, and the part that the error names. DIR: a folder
MISFITS = r"""
TEACHER_WEIGHTS=null | ^TRAIN.TEACHER_WEIGHTS:
TEACHER_WEIGHTS=no/x.pth | TRAIN.TEACHER_WEIGHTS: no/x.pth
TEACHER_MODEL=regnety_161 | ^TRAIN.TEACHER_MODEL regnety_161, .*did you mean reg
TEACHER_WEIGHTS=DIR/seven.pth | TRAIN.TEACHER_WEIGHTS: .* 7 classes .* 10
TEACHER_MODEL=vit_digits | ^TRAIN.TEACHER_MODEL vit_digits, TRAIN.TEACHER_WEIGHTS: .*last.pth:
TEACHER_WEIGHTS=DIR/rgb.pth | ^TRAIN.TEACHER_MODEL tiny_teacher, .* 3 channels
TEACHER_WEIGHTS=timm TEACHER_MODEL=vit_digits | TRAIN.TEACHER_WEIGHTS: vit_digits is no model of timm's
TEACHER_WEIGHTS=timm | regnety_160.deit_in1k, .* 1000 .* 10
TEACHER_WEIGHTS=timm TEACHER_MODEL=vit_small_patch14_dinov2 | has no classes .* 10
"""


def test_a_teacher_that_does_not_fit_is_one_line(digits_teacher, tmp_path):
    grey = {"IMAGE_CHANNELS": 1, "IMAGENET_MEAN": [0.5], "IMAGENET_STD": [0.5]}
    write_teacher(tmp_path / "seven.pth", classes=7, data=grey)
    write_teacher(tmp_path / "rgb.pth", classes=10)
    for words, named in cells_of(MISFITS.replace("DIR", str(tmp_path))):
        options = [f"TRAIN.{word}" for word in words.split()]
        error = line_of(run_here, "-dry_run", *student(tmp_path / "out", digits_teacher, *options))
        assert re.search(named, error), error


def test_the_outputs_of_a_teacher_follow_the_class_names(tiny_teacher):
    """Of the checkpoint; else of DATA.CLASSES, if the order of the names of the data is not clear."""
    named = tiny_teacher.with_name("named.pth")
    description = describe_data(Data.model_validate(OWN), list("abcde"))
    torch.save(torch.load(tiny_teacher) | description, named)
    options = options_of("soft", TEACHER_WEIGHTS=str(named))
    images = torch.randn(2, 3, 8, 8)
    logits = [build_teacher(options, fp32(), list(names))(images) for names in ("abcde", "badce")]
    assert torch.equal(logits[1], logits[0][:, [1, 0, 3, 2, 4]])
    with refused("'x' is no class of the teacher"):
        build_teacher(options, fp32(), list("abcxe"))
    options = options_of("soft", TEACHER_WEIGHTS=str(tiny_teacher))
    names = ["1", "10", "2", "3", "4"]
    with refused(r"timm and torchvision .*; set DATA\.CLASSES"):
        build_teacher(options, fp32(), names)
    given = options.with_data(classes="bytes")
    assert torch.equal(build_teacher(given, fp32(), names)(images), logits[0])
