"""A step on a GPU: the host does not wait for the device; budgets of its memory traffic, which `pytest -s` prints.

The traffic of ViT-B/16 at 224 pixels, 256 images: ops and bytes besides the matrix products, counted without a GPU.
"""

from collections import Counter
from itertools import cycle, repeat
from typing import Any

import torch
from conftest import cells_of, cli, config_for, model_for, slow
from dispatch import DispatchMode, op_name, returns_view
from fake_gpu import CONTEXT, GPU, fake_gpu, training_loop
from pytest import MonkeyPatch, mark, raises
from torch import Tensor, nn

from configs.command_line import to_yaml
from configs.schema import Config, Data, Model
from datasets.batch import Batch
from engine.precision.policy import LossScaler
from engine.training import loss as losses_teacher
from engine.training.trial import build_state, ready_batches
from models.build import build_model
from models.weights.fit import Fitted
from utils.torch_compat import tree_leaves

VIT = cli(
    "MODEL.EMBED_DIM=64 MODEL.DEPTH=2 MODEL.NUM_HEADS=2 MODEL.NUM_CLASSES=10 "
    "DATA.IMAGE_SIZE=32 DATA.BATCH_SIZE=4 TRAIN.GRAD_CLIP=1.0 TRAIN.MODEL_EMA=true "
    "TRAIN.MODEL_EMA_WARMUP=true"
)
AUGMENTATION = cli(
    "TRAIN.MIXUP_ALPHA=0.8 TRAIN.CUTMIX_ALPHA=1.0 TRAIN.ACCUM_ITER=2 MODEL.DROPOUT=0.1 "
    "MODEL.DROPPATH=0.5 AMP.DECR_EVERY_N_NAN_OR_INF=2"
)
DRAWN = ["TRAIN.RANDOM_ERASE_PROB=1.0", "DATA.AFFINE_DEGREES=10"]  # by the loading workers


def half(level: str, dtype: str = "bfloat16") -> list[str]:
    return cli(f"AMP.ENABLED=true AMP.LEVEL={level} AMP.DTYPE={dtype}")


def config_of(*options: str) -> Config:
    return config_for("-dataset=fake", "-opts", *options)


def without_weights(model: Model, *rest: Any, **options: Any) -> tuple[nn.Module, Fitted]:
    """The check of weights reads their values."""
    return build_model(model.model_copy(update={"pretrained": None}), *rest)[0], Fitted("weights")


def black_images(data: Data, drawn: dict[str, Any] | None = None) -> Batch:
    images = torch.zeros(data.batch_size, 3, data.image_size, data.image_size, dtype=torch.uint8, device=GPU)
    return Batch(images, torch.zeros(data.batch_size, dtype=torch.int64, device=GPU), data.batch_size, drawn or {})


def train_on_fake_gpu(*options: str):
    """A fake tensor has no values: any op that would read one raises an exception."""
    config = config_of(*VIT, *options)
    with fake_gpu(), MonkeyPatch.context() as patch:
        # It reads a copy in host memory, after an event: see test_scaler.py.
        patch.setattr(LossScaler, "skipped_too_often", lambda self: False)
        patch.setattr(losses_teacher, "build_model", without_weights)
        patch.setattr(torch, "randint", lambda *size, real=torch.randint, **at: real(*size, **at) if at else 7)
        boxes = torch.zeros(2, 1, 4, dtype=torch.int64, device=GPU)
        drawn = {"affine": (torch.zeros(4, 2, 3, device=GPU),), "erase": (torch.tensor([0, 2]).to(GPU), boxes)}
        training_loop(build_state(config, CONTEXT), repeat(black_images(config.data, drawn)), CONTEXT)(3)


@mark.parametrize(
    "options",
    [slow([]), half("O1", "float16"), slow(half("O3", "float16")), half("O2")],
    ids=["fp32", "O1", "O3", "O2"],
)
def test_the_host_never_waits_with_a_fused_optimizer(options):
    train_on_fake_gpu(*options, *AUGMENTATION, *DRAWN)


@mark.parametrize("kind", ["soft", slow("hard")])
def test_the_host_never_waits_for_a_teacher(kind, tmp_path):
    """The teacher renormalizes and resizes the images."""
    teacher = config_of("MODEL.EMBED_DIM=32", "MODEL.DEPTH=1", "MODEL.NUM_HEADS=2", "MODEL.NUM_CLASSES=10")
    teacher = teacher.model_copy(update={"data": Data(IMAGE_SIZE=48, IMAGENET_MEAN=(0.4,) * 3)})
    model, _ = model_for(teacher)
    torch.save({"model": model.state_dict(), "options": to_yaml(teacher)}, tmp_path / "teacher.pth")
    distillation = [f"TRAIN.DISTILLATION_TYPE={kind}", f"TRAIN.TEACHER_WEIGHTS={tmp_path / 'teacher.pth'}"]
    train_on_fake_gpu(*half("O2"), *AUGMENTATION, *DRAWN, *distillation)


def test_a_wait_would_be_noticed():
    """An optimizer that is not fused skips on the host."""
    with raises(RuntimeError, match="_local_scalar_dense"):
        train_on_fake_gpu("TRAIN.OPTIMIZER.NAME=lamb")


@mark.gpu
@mark.parametrize(
    "options", [[], [*half("O1"), *AUGMENTATION], half("O2"), half("O3"), ["AMP=true", "TRAIN.COMPILE=max"]]
)
def test_the_host_does_not_wait_in_a_step_on_a_gpu(gpu, options):
    config = config_of(*VIT, *options)
    train = training_loop(build_state(config, gpu), cycle(ready_batches(config, gpu)), gpu)
    train(20)
    torch.cuda.set_sync_debug_mode("error")
    try:
        train(5)
    finally:
        torch.cuda.set_sync_debug_mode("default")


_PRODUCTS = ("mm", "addmm", "bmm", "convolution", "convolution_backward")
_FREE = ("device", "empty", "new_empty", "_unsafe_view", "_record_function", "lift_fresh")
_OVERWRITES = ("copy_", "_foreach_copy_", "fill_", "zero_", "random_", "uniform_", "normal_")


class TrafficCounter(DispatchMode):
    """The ops inside the context that are neither matrix products nor views, and the bytes that they move, by op.

    An op reads its inputs once and writes its outputs once. The fused attention kernels count, too.
    """

    def __init__(self, device):
        super().__init__()
        self.device = device
        self.ops = Counter()
        self.num_bytes = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = op(*args, **kwargs)
        name = op_name(op)
        if not (returns_view(op) or name.startswith(_FREE) or name in _PRODUCTS):
            moved = sum(map(self._bytes_of, tree_leaves(_moved(op, name, args, kwargs, result))))
            self.ops[name] += bool(moved)
            self.num_bytes[name] += moved
        return result

    def _bytes_of(self, value):
        """The bytes of the distinct elements of a tensor on the device."""
        if not isinstance(value, Tensor) or value.device.type != self.device.type:
            return 0
        sizes = [size for size, stride in zip(value.shape, value.stride(), strict=True) if stride]
        return torch.Size(sizes).numel() * value.itemsize


def _moved(op: Any, name: str, args: tuple, kwargs: dict, result: Any) -> list[Any]:
    arguments = op._schema.arguments
    values = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    is_written = {argument.name: bool(argument.alias_info and argument.alias_info.is_write) for argument in arguments}
    if name == "_fused_sgd_" and values.get("grad_scale") is None:
        is_written["grads"] = False  # the kernel stores them if it unscales them
    written = [value for name, value in values.items() if is_written[name]] or result
    read = [value for key, value in values.items() if not (is_written[key] and name in _OVERWRITES)]
    return [read, written]


def traffic_of_step(*options: str) -> TrafficCounter:
    """The second optimizer step of a run with these `options`."""
    config = config_of(*options)
    with fake_gpu():
        train = training_loop(build_state(config, CONTEXT), repeat(black_images(config.data)), CONTEXT)
        train(1)  # creates the state of the optimizer
        with TrafficCounter(GPU) as counter:
            train(1)
    return counter


VIT_B = cli(
    "MODEL.EMBED_DIM=768 MODEL.DEPTH=12 MODEL.NUM_HEADS=12 MODEL.PATCH_SIZE=16 "
    "MODEL.NUM_CLASSES=1000 DATA.IMAGE_SIZE=224 DATA.BATCH_SIZE=256 TRAIN.GRAD_CLIP=1.0 "
    "TRAIN.MIXUP_ALPHA=0 TRAIN.CUTMIX_ALPHA=0"
)
BF16 = "AMP.ENABLED=true AMP.DTYPE=bfloat16"
DROPOUT = "MODEL.DROPOUT=0.1 MODEL.ATTENTION_DROPOUT=0.1"  # of configs/vit_imagenet.yaml
# The variant, its options, ops, GB
BUDGETS = f"""
fp32 | | 256 | 144.5
O1 | {BF16} | 534 | 111.6
O2 | {BF16} AMP.LEVEL=O2 | 261 | 75.2
O3 | {BF16} AMP.LEVEL=O3 | 264 | 77.8
O1, dropout | {BF16} {DROPOUT} | 608 | 140.2
O2, dropout | {BF16} {DROPOUT} AMP.LEVEL=O2 | 335 | 103.5
O1, drop-path 0.2 | {BF16} MODEL.DROPPATH=0.2 | 630 | 119.9
O2, drop-path 0.2 | {BF16} MODEL.DROPPATH=0.2 AMP.LEVEL=O2 | 355 | 82.0
O1, bf16_stream | AMP.PRESET=bf16_stream | 564 | 76.0
O1, EMA | {BF16} TRAIN.MODEL_EMA=true | 536 | 112.6
"""
VARIANTS = [row if "stream" in row[0] else slow(*row) for row in cells_of(BUDGETS)]


@mark.parametrize("variant, options, ops, gigabytes", VARIANTS)
def test_the_traffic_of_a_step_stays_within_its_budget(variant, options, ops, gigabytes):
    traffic = traffic_of_step(*VIT_B, *cli(options))
    found = traffic.num_bytes.total() / 1e9
    print(f"\n| {variant} | {traffic.ops.total()} | {found:.1f} |", end="")
    assert traffic.ops.total() <= int(ops)
    assert found <= float(gigabytes) + 0.05
