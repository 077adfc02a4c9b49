"""The work of a step besides the passes and the optimizer: ops, and waits of the host for a GPU."""

import importlib
from itertools import cycle
from typing import Any

import fake_gpu  # noqa: F401  # with torch's fused SGD on the meta device, which has none
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from configs.reading.command_line import parse_command_line, to_yaml
from configs.schema import Config, Data
from datasets.batch import Batch
from engine.precision import policy
from engine.precision.loss_scaler import LossScaler
from engine.precision.policy import Precision
from models.build import build_model
from scripts.benchmarks.training_parts import build_state, training_loop
from utils.distributed import ProcessContext


def half(level: str, dtype: str = "bfloat16") -> list[str]:
    return ["AMP.ENABLED=true", f"AMP.LEVEL={level}", f"AMP.DTYPE={dtype}"]


VIT = [
    "MODEL.EMBED_DIM=32", "MODEL.DEPTH=12", "MODEL.NUM_HEADS=2", "MODEL.NUM_CLASSES=10", "DATA.IMAGE_SIZE=32",
    "DATA.BATCH_SIZE=4", "TRAIN.GRAD_CLIP=1.0",
]  # fmt: skip
CPU = ProcessContext(0, 0, 1, 1, torch.device("cpu"))
META = ProcessContext(0, 0, 1, 1, torch.device("meta"))


def config_of(*options: str) -> Config:
    return parse_command_line(["-dataset=fake", "-opts", *options]).config


# Waits of the host. A tensor on the meta device has no values, so any op that would read one raises an exception.


class MetaAutocast(TorchFunctionMode):
    """Stands for autocast, which the meta device does not have: casts inputs to the dtype of the weights."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if function in (F.linear, torch.conv2d, F.layer_norm):
            weight = kwargs["weight"] if "weight" in kwargs else args[1]
            args = (args[0].to(weight.dtype), *args[1:])
        return function(*args, **kwargs)


@pytest.fixture
def on_meta_device(monkeypatch) -> None:
    generator_class = torch.Generator

    monkeypatch.setattr(Precision, "autocast", lambda self: MetaAutocast())
    monkeypatch.setattr(policy, "set_norm_dtypes", lambda *arguments: None)  # it uses autocast, too
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": generator_class())
    optimizers = importlib.import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: ["meta"])
    # On a GPU it reads a copy in host memory, after an event: see test_scaler.py.
    monkeypatch.setattr(LossScaler, "skipped_too_often", lambda self: False)


def train_on_meta(*options: str) -> None:
    config = config_of(*VIT, *options)
    boxes = torch.zeros(2, 1, 4, dtype=torch.int64, device=META.device)
    drawn = {
        "affine": (torch.zeros(4, 2, 3, device=META.device),),
        "erase": (torch.tensor([0, 2], device=META.device), boxes),
    }
    images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8, device=META.device)
    batch = Batch(images, torch.zeros(4, dtype=torch.int64, device=META.device), 4, drawn)
    training_loop(build_state(config, META), cycle([batch]), META)(3)


AUGMENTATION = [
    "TRAIN.MIXUP_ALPHA=0.8", "TRAIN.CUTMIX_ALPHA=1.0", "TRAIN.RANDOM_ERASE_PROB=1.0", "DATA.AFFINE_DEGREES=10",
    "TRAIN.MODEL_EMA=true", "TRAIN.ACCUM_ITER=2", "MODEL.DROPOUT=0.1", "MODEL.DROPPATH=0.5",
]  # fmt: skip


@pytest.mark.usefixtures("on_meta_device")
@pytest.mark.parametrize(
    "options",
    [[], half("O1", "float16"), half("O3", "float16"), pytest.param(half("O2"), marks=pytest.mark.slow)],
    ids=["fp32", "O1", "O3", "O2"],
)
def test_the_host_never_waits_with_a_fused_optimizer(options):
    train_on_meta(*options, "AMP.DECR_EVERY_N_NAN_OR_INF=2", *AUGMENTATION)


@pytest.mark.usefixtures("on_meta_device")
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_the_host_never_waits_for_a_teacher(kind, tmp_path):
    """The teacher renormalizes and resizes the images."""
    teacher = config_of("MODEL.EMBED_DIM=32", "MODEL.DEPTH=1", "MODEL.NUM_HEADS=2", "MODEL.NUM_CLASSES=10")
    teacher = teacher.model_copy(update={"data": Data(IMAGE_SIZE=48, IMAGENET_MEAN=(0.4,) * 3)})
    model, _ = build_model(teacher.model, teacher.data, CPU.device)
    torch.save({"model": model.state_dict(), "options": to_yaml(teacher)}, tmp_path / "teacher.pth")
    distillation = [f"TRAIN.DISTILLATION_TYPE={kind}", f"TRAIN.TEACHER_WEIGHTS={tmp_path / 'teacher.pth'}"]
    train_on_meta(*half("O2"), *AUGMENTATION, *distillation)


@pytest.mark.usefixtures("on_meta_device")
def test_a_wait_would_be_noticed():
    """An optimizer that is not fused skips on the host."""
    with pytest.raises(RuntimeError, match="meta"):
        train_on_meta("TRAIN.OPTIMIZER.NAME=lamb")
