"""The command in the header of each recipe starts a run without warnings."""

import re
import shlex
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT

from configs.batch_plan import EpochLayout, plan_batches
from configs.command_line import parse_command_line
from engine.training.describe import find_misfits

COMMANDS = {
    path.stem: command
    for path in sorted((ROOT / "configs").glob("*.yaml"))
    for command in re.findall(r"^#   python (main_(?:.*\\\n#)*.*)$", path.read_text(), re.M)
}
SAMPLES = {"imagenet2012": 1_281_167, "caltech101": 7809, "caltech256": 27_545, "cifar": 50_000, "digits": 1437}
FOLDER = 600  # images


@pytest.fixture
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def parsed(command: str, *more: str):
    program, *flags = shlex.split(command.replace("\\\n#", ""))
    config = parse_command_line([*flags, *more]).config
    devices = re.search(r"-ngpus=(\d+)", command)
    assert bool(devices) == (program == "main_multi_gpu.py"), "states its number of devices"
    return config, int(devices[1]) if devices else 1


@pytest.mark.parametrize("recipe", COMMANDS)
def test_no_warning(recipe, at_root):
    config, devices = parsed(COMMANDS[recipe])
    samples = next((count for name, count in SAMPLES.items() if config.data.dataset.startswith(name)), FOLDER)
    layout = EpochLayout(samples, plan_batches(config, devices), config.seed)
    gpu = SimpleNamespace(device=torch.device("cuda"))
    assert find_misfits(SimpleNamespace(config=config, layout=layout, context=gpu), is_new=True) == []


def test_all_recipes_have_a_command():
    common = {path.stem for path in (ROOT / "configs").glob("*_imagenet.yaml")}
    assert COMMANDS.keys() == {path.stem for path in (ROOT / "configs").glob("*.yaml")} - common


def test_a_rate_given_above_the_recipe_is_not_the_one_that_was_tuned(at_root):
    recipe = COMMANDS["vit_base_patch16_224"]
    assert parsed(recipe)[0].train.base_lr_batch_size == 4096
    assert parsed(recipe, "-opts", "TRAIN.BASE_LR=1e-4")[0].train.base_lr_batch_size is None
    own = parsed(recipe, "-opts", "TRAIN.BASE_LR=1e-4", "TRAIN.BASE_LR_BATCH_SIZE=256")[0].train
    assert own.base_lr_batch_size == 256
