"""The warnings of a training: which options fit its size. The command of each recipe starts a run without any."""

import re
import shlex
from types import SimpleNamespace
from typing import Any

import torch
from conftest import ROOT, cells_of, config_for, each_value
from pytest import fixture, mark
from torch import nn

from configs.batch_plan import BatchPlan, EpochLayout, plan_batches
from configs.schema import Config, Parallel
from configs.yaml_io import parse_value
from datasets.loading.sampler import TrainSampler
from engine.training.describe import describe_on_screen, find_misfits, notes_on_batches, notes_on_one_process


def misfits(train: dict[str, Any], batch: int = 64, samples: int = 6400, **model: Any) -> list[str]:
    config = Config.model_validate({"TRAIN": train, "MODEL": model})
    return misfits_of(config, EpochLayout(samples, BatchPlan(batch), 0))


def misfits_of(config: Config, layout: EpochLayout) -> list[str]:
    gpu = SimpleNamespace(device=torch.device("cuda"))
    return [note.text for note in find_misfits(SimpleNamespace(config=config, layout=layout, context=gpu), is_new=True)]


LAYOUTS = """
samples | batch | max_steps | number | kind
80 | {micro_batch: 64} | | 16 | screen
1000 | {micro_batch: 16, ranks: 3} | | 40 | log
100 | {micro_batch: 8, accumulation: 4, whole_steps: true} | | 4 | log
96 | {micro_batch: 8, accumulation: 5} | | 0 |
100 | {micro_batch: 8} | 2 | 0 |
"""


@each_value(LAYOUTS)
def test_the_images_of_the_incomplete_last_batch_are_named(samples, batch, max_steps, number, kind):
    """As many as the sampler leaves out of each epoch."""
    layout = EpochLayout(samples, BatchPlan(**batch), 0, max_steps=max_steps)
    used = set()
    for rank in range(layout.batch.ranks):
        for batch in TrainSampler(layout, 1, rank):
            used |= {index for _, index, _ in batch}
    if layout.max_steps is None:
        assert layout.samples - len(used) == number
    notes = [note for note in notes_on_batches(layout) if note.text.startswith("Training")]
    assert [note.kind for note in notes] == [kind] * bool(number)
    assert all(f" {number} of {layout.samples:,} images" in note.text for note in notes)


ACCUMULATED = """
samples | size | line
1437 | 64 | 8 steps of 192 images (the last of 64)
35 | 8 | 2 steps of 24 images (the last of 8)
100 | 8 | 4 steps of 24 images
20 | 8 | 1 step of 16 images
"""


@each_value(ACCUMULATED)
def test_who_accumulates_gradients_reads_the_images_of_each_step(samples, size, line):
    layout = EpochLayout(samples, BatchPlan(size, accumulation=3), 0)
    parts = {"context": SimpleNamespace(world_size=1, device="cpu"), "precision": SimpleNamespace(short_name="float32")}
    state = SimpleNamespace(config=Config(), layout=layout, meta_model=nn.Identity(), **parts)
    images = SimpleNamespace(images="8 images")
    printed = describe_on_screen(state, SimpleNamespace(source=""), images, ["site_a", "site_b", "c", "d"], None)
    assert printed[0].startswith("Data: 8 images (") and printed[0].endswith(": 'site_a', 'site_b', 'c' and 1 more")
    assert printed[-1] == f"Training: 300 epochs of {line}; 1 process, cpu, float32"


# TRAIN, MODEL, a part of the warning
MISFITS = """
{NUM_EPOCHS: 6, WARMUP_EPOCHS: 4} | {} | WARMUP_EPOCHS 4
{BASE_LR: 0.0001, END_LR: 0.0002} | {} | END_LR 0.0002
{MODEL_EMA: true, MODEL_EMA_DECAY: 0.999, MODEL_EMA_WARMUP: false, \
  NUM_EPOCHS: 10, WARMUP_EPOCHS: 1} | {} | 37% initial
{MODEL_EMA: true, MODEL_EMA_DECAY: 0.999, MODEL_EMA_WARMUP: true, \
  NUM_EPOCHS: 10, WARMUP_EPOCHS: 1} | {} |
{BASE_LR: 0.4} | {} | BASE_LR 0.4 is a rate of SGD
{BASE_LR: 1e-05, OPTIMIZER: {NAME: SGD}} | {} | BASE_LR 1e-05 is a rate of AdamW
{BASE_LR: 0.4, OPTIMIZER: {NAME: nesterov}} | {} |
{} | {TUNE: head} | MODEL.TUNE  # of random weights
{} | {TUNE: head, PRETRAINED: weights.pth} |
"""


@mark.parametrize("train, model, part", cells_of(MISFITS))
def test_options_that_do_not_fit_the_run(train, model, part):
    found = misfits(parse_value(train), **parse_value(model))
    assert len(found) == bool(part)
    assert all(part in text for text in found)


@mark.parametrize("given", [{}, {"SYNC_BN": True, "BUCKET_MB": 10.0}, {"STRATEGY": "fsdp"}])
def test_what_one_process_does_not_use_is_named(given):
    text = "".join(note.text for note in notes_on_one_process(Parallel.model_validate(given)))
    assert re.findall(r"PARALLEL\.(\w+)", text) == [*given]


RATES = """
optimizer | lr
AdamW | 3e-4
SGD | 3e-5
nesterov | 3e-5
sgdw | 3e-5
"""


@each_value(RATES)
def test_the_warning_about_another_batch_size_has_the_fitting_rate(optimizer, lr):
    options = {"BASE_LR": 3e-3, "BASE_LR_BATCH_SIZE": 6400, "OPTIMIZER": {"NAME": optimizer}}
    (warning,) = misfits(options)
    assert all(part in warning for part in ("0.003", "6400", "64", f"TRAIN.BASE_LR={lr:g}"))
    for fitting in ({"LINEAR_SCALED_LR": 6400}, {"BASE_LR_BATCH_SIZE": None}, {"BASE_LR_BATCH_SIZE": 64}):
        assert misfits(options | fitting) == []


COMMANDS = {
    path.stem: command
    for path in sorted((ROOT / "configs").glob("*.yaml"))
    for command in re.findall(r"^#   python (main_(?:.*\\\n#)*.*)$", path.read_text(), re.M)
}
SAMPLES = {"imagenet2012": 1_281_167, "caltech101": 7809, "caltech256": 27_545, "cifar": 50_000, "digits": 1437}
FOLDER = 600  # images


@fixture
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def parsed(command: str, *more: str):
    program, *flags = shlex.split(command.replace("\\\n#", ""))
    config = config_for(*flags, *more)
    devices = re.search(r"-ngpus=(\d+)", command)
    assert bool(devices) == (program == "main_multi_gpu.py"), "states its number of devices"
    return config, int(devices[1]) if devices else 1


@mark.parametrize("recipe", COMMANDS)
def test_no_warning(recipe, at_root):
    config, devices = parsed(COMMANDS[recipe])
    samples = next((count for name, count in SAMPLES.items() if config.data.dataset.startswith(name)), FOLDER)
    assert misfits_of(config, EpochLayout(samples, plan_batches(config, devices), config.seed)) == []


def test_all_recipes_have_a_command():
    common = {path.stem for path in (ROOT / "configs").glob("*_imagenet.yaml")}
    assert COMMANDS.keys() == {path.stem for path in (ROOT / "configs").glob("*.yaml")} - common


def test_a_rate_given_above_the_recipe_is_not_the_one_that_was_tuned(at_root):
    recipe = COMMANDS["vit_base_patch16_224"]
    assert parsed(recipe)[0].train.base_lr_batch_size == 4096
    assert parsed(recipe, "-opts", "TRAIN.BASE_LR=1e-4")[0].train.base_lr_batch_size is None
    own = parsed(recipe, "-opts", "TRAIN.BASE_LR=1e-4", "TRAIN.BASE_LR_BATCH_SIZE=256")[0].train
    assert own.base_lr_batch_size == 256
