"""Two published recipes of timm's train.py and their translations: the settings, and the first 100 steps.

timm's side is built from the flags as its train.py does. ResNet-50 A1: docs/recipes.md. DeiT-S: the defaults of
github.com/facebookresearch/deit, main.py, for 4 GPUs with 256 images, under timm's names.
"""

import copy
import re
from argparse import Namespace
from dataclasses import replace
from itertools import cycle, repeat

import numpy as np
import torch
from conftest import ROOT, config_for, seeded
from pytest import approx, fixture, mark
from test_program_rows import Timm, assert_same, groups_of, namespace
from timm import create_model
from timm.data.mixup import Mixup as TimmMixup
from timm.layers import DropPath
from timm.loss import BinaryCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2, optimizer_kwargs
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler_factory import scheduler_kwargs
from torch import Tensor, nn

from configs.batch_plan import BatchPlan, EpochLayout
from configs.schema import Config
from datasets.batch import Batch
from engine.training.optimizer import set_lr
from engine.training.step import TrainState, train_steps
from engine.training.trial import state_without_data

PAGE = (ROOT / "docs/recipes.md").read_text().partition("### A recipe of timm's, translated")[2]
A1, A1_YAML = re.search(r"```text\n.*?train\.py(.*?)```.*?```yaml\n(.*?)```", PAGE, re.S).groups()
DEIT = """
--model deit_small_patch16_224 --batch-size 256 --epochs 300 --opt adamw --opt-eps 1e-8 --lr 1e-3 --weight-decay 0.05
--sched cosine --sched-on-updates --warmup-epochs 5 --warmup-lr 1e-6 --min-lr 1e-5 --smoothing 0.1 --drop-path 0.1
--aa rand-m9-mstd0.5-inc1 --mixup 0.8 --cutmix 1.0 --reprob 0.25 --remode pixel --aug-repeats 3 --crop-pct 0.875
--train-interpolation bicubic --no-prefetcher --model-ema --model-ema-decay 0.99996
"""
IMAGES = 1_281_167
GPUS = 4
# of the 100 steps
CLASSES = 10
BATCH = 16
# 20 steps of warm-up
STEPS = 100
STEPS_PER_EPOCH = 4
# As MODEL.KWARGS
SMALL = {
    "resnet50": "layers: [1, 1, 1, 1], channels: [8, 8, 16, 16]",
    "deit_small_patch16_224": "embed_dim: 32, depth: 2, num_heads: 2",
}


def flags_of(command: str) -> Namespace:
    return namespace("timm", [flag.strip() for flag in re.split(r"(?:^|\s)--", command)[1:]])


@fixture(params=["A1", "DeiT-S"])
def recipe(request, tmp_path):
    """The flags, and the translation with more options."""
    flags = flags_of(A1)
    path = tmp_path / "a1.yaml"
    path.write_text(A1_YAML)
    if request.param == "DeiT-S":
        flags = flags_of(DEIT)
        path = ROOT / "configs/deit_small_patch16_224.yaml"
    return flags, lambda *options: config_for(f"-cfg={path}", "-opts", *options)


def timm_optimization(flags: Namespace, model: nn.Module, steps_per_epoch: int):
    optimizer = create_optimizer_v2(model, **optimizer_kwargs(flags))
    scheduler, epochs = create_scheduler_v2(optimizer, updates_per_epoch=steps_per_epoch, **scheduler_kwargs(flags))
    assert epochs == flags.epochs
    return optimizer, scheduler


def timm_mixup(flags: Namespace, smoothing: float) -> TimmMixup:
    return TimmMixup(flags.mixup, flags.cutmix, label_smoothing=smoothing, num_classes=CLASSES)


def build_state(config: Config, flags: Namespace, samples: int, cpu):
    """The training state with the layout of the published global batch."""
    layout = EpochLayout(samples, BatchPlan(flags.batch_size, ranks=GPUS), config.seed)
    return state_without_data(config, cpu, layout)


@mark.parametrize("kind", ["image", "augmentation", "mixing", "loss"])
def test_the_augmentation_and_the_loss_equal_timms(recipe, kind):
    flags = recipe[0]
    config = recipe[1]("MODEL.NUM_CLASSES=1000")
    assert_same(kind, getattr(Timm(), kind)(flags), config)
    assert config.data.interpolation == flags.train_interpolation
    assert config.data.repeated_augmentation == flags.aug_repeats  # the order of the samples: test_order.py


def test_the_model_and_its_optimization_equal_timms(recipe, cpu):
    """Of the published size: drop-path and weight decay of each layer, the learning rate of steps of the whole run."""
    flags = recipe[0]
    config = recipe[1]("MODEL.NUM_CLASSES=1000")
    state = build_state(config, flags, IMAGES, cpu)
    model = create_model(flags.model, drop_path_rate=flags.drop_path)
    ours = state.precision.weights.master
    total_steps = flags.epochs * state.layout.steps_per_epoch
    drops = [[one.drop_prob for one in net.modules() if isinstance(one, DropPath)] for net in (ours, model)]
    assert drops[0] == approx(drops[1])
    assert max(drops[0]) == approx(flags.drop_path)
    optimizer, scheduler = timm_optimization(flags, model, state.layout.steps_per_epoch)
    set_lr(optimizer, flags.lr)  # of the warm-up
    assert groups_of(ours, state.optimizer) == groups_of(model, optimizer)
    for step in (*range(STEPS), *range(STEPS, total_steps, 1999), total_steps - 1):
        scheduler.step_update(step)
        assert state.schedule.lr_at(step) == approx(optimizer.param_groups[0]["lr"], rel=1e-9), step
    decay = flags.model_ema_decay if flags.model_ema else None
    assert (state.average.decay, state.average.use_warmup) == (decay, False) if state.average else decay is None


@mark.slow
def test_the_first_100_steps_equal_timms(recipe, cpu):
    """A smaller model without drop-path, on batches that timm's mixup has mixed; each side smooths the targets.

    In float64, with the loss in fp32: in fp32 the ResNet multiplies a rounding error by 10^4 within 50 steps.
    """
    flags, translation = recipe
    model_options = f"MODEL.NUM_CLASSES={CLASSES}", f"MODEL.KWARGS={{{SMALL[flags.model]}}}", "MODEL.DROPPATH=0"
    data_options = "DATA.IMAGE_SIZE=32", f"DATA.BATCH_SIZE={BATCH}"
    config = translation(*model_options, *data_options, "TRAIN.MODEL_EMA=false", "EVAL_RAW=false")
    state = build_state(config, flags, STEPS_PER_EPOCH * flags.batch_size * GPUS, cpu)
    ours = state.precision.weights.master.double()
    model = copy.deepcopy(ours).train()
    initial = flatten(ours)

    optimizer, scheduler = timm_optimization(flags, model, STEPS_PER_EPOCH)
    criterion = (
        BinaryCrossEntropy(target_threshold=flags.bce_target_thresh) if flags.bce_loss else SoftTargetCrossEntropy()
    )
    losses = []
    batches = cycle(mixed_batches(flags, flags.smoothing))
    for step in range(STEPS):
        images, targets = next(batches)
        loss = criterion(model(images).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step_update(step + 1)
        losses.append(loss.item())
    assert our_losses(state, mixed_batches(flags, 0)) == approx(losses, rel=1e-5)
    assert losses[-1] < 0.8 * losses[0]
    final = flatten(ours)
    expected = flatten(model)
    assert (final - expected).norm() < 1e-4 * (expected - initial).norm()


def flatten(model: nn.Module) -> Tensor:
    """The parameters as one vector, also those in channels last."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def mixed_batches(flags: Namespace, smoothing: float) -> list[tuple[Tensor, Tensor]]:
    """Eight batches of noise; the images are the same for any smoothing."""
    np.random.seed(0)
    generator = seeded(0)
    mixup = timm_mixup(flags, smoothing)
    images = torch.randn(8, BATCH, 3, 32, 32, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (8, BATCH), generator=generator)
    return [mixup(*batch) for batch in zip(images, labels, strict=True)]


def our_losses(state: TrainState, mixed: list[tuple[Tensor, Tensor]]) -> list[float]:
    """The loss of each step of a training on mixed images and targets."""
    ready = cycle(mixed)
    losses = list[float]()
    state = replace(state)
    vars(state)["transform"] = lambda batch: next(ready)
    unused = repeat(Batch(torch.zeros(BATCH, 3, 32, 32), torch.zeros(BATCH, dtype=torch.int64), BATCH))

    def record(progress):
        of_this_epoch = losses[progress.epoch * STEPS_PER_EPOCH :]
        losses.append(progress.sums.totals()[0].item() / BATCH - sum(of_this_epoch))

    for epoch in range(STEPS // STEPS_PER_EPOCH):
        train_steps(state, unused, state.new_progress(epoch), STEPS_PER_EPOCH, record)
    return losses
