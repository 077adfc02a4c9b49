"""Rows of docs/flags.md that change numbers: the typed words, against timm's objects of the flag in a Namespace."""

import shlex
from argparse import Namespace
from ast import literal_eval

import pytest
import timm
import torch
from conftest import ROOT, config_for, each_row
from test_optimizer import by_parameter
from timm.layers import DropPath
from timm.optim import create_optimizer_v2, optimizer_kwargs
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler_factory import scheduler_kwargs
from torch import nn

from configs.programs import describe_flags, programs
from configs.schema import Config
from engine.training.optimizer import build_optimizer, build_schedule
from models.build import build_on_meta

RECIPE = f"-cfg={ROOT}/configs/programs/timm.yaml"
# The defaults of the parser of train.py in timm's repository at 1.0.29.dev0, compared by hand
DEFAULTS = {
    "opt": "sgd", "lr": 0.05, "weight_decay": 2e-5, "momentum": 0.9, "opt_eps": None, "opt_betas": None,
    "layer_decay": None, "layer_decay_min_scale": 0, "layer_decay_no_opt_scale": None, "opt_kwargs": {},
    "sched": "cosine", "epochs": 300, "warmup_lr": 1e-5, "warmup_epochs": 5, "warmup_prefix": False, "min_lr": 0,
    "decay_rate": 0.1, "decay_epochs": 90, "cooldown_epochs": 0, "patience_epochs": 10, "decay_milestones": [90],
}  # fmt: skip


def typed(line: str) -> Config:
    """The config of the words that the row of each flag has, beside timm's recipe."""
    given = [(f"--{name}", values.split()) for name, _, values in (one.partition(" ") for one in line.split("; "))]
    rows = describe_flags(programs()["timm"], given, {}).partition(". Here: ")[2].partition(". For the rest")[0]
    words = " ".join(row.partition(": ")[2] for row in rows.split("; "))
    return config_for(RECIPE, *shlex.split(words))


def flags(line: str, **values) -> Namespace:
    given = {one.partition(" ")[0].replace("-", "_"): one.partition(" ")[2] for one in line.split("; ")}
    return Namespace(**DEFAULTS | {name: values.get(name, text) for name, text in given.items()})


OPTIMIZERS = """
line | values
momentum 0.7 | {"momentum": 0.7}
momentum 0.8 | {"momentum": 0.8}
weight-decay 0.05 | {"weight_decay": 0.05}
weight-decay 0 | {"weight_decay": 0.0}
opt sgd | {}
opt SGD | {}
opt momentum | {}
opt AdamW | {}
opt lamb | {}
opt adamw; opt-eps 1e-6 | {"opt_eps": 1e-6}
opt adamw; opt-eps 1e-3 | {"opt_eps": 1e-3}
opt adamw; opt-betas 0.9 0.95 | {"opt_betas": (0.9, 0.95)}
opt adamw; opt-betas 0.8 0.99 | {"opt_betas": (0.8, 0.99)}
opt lion; opt-kwargs caution=true | {"opt_kwargs": {"caution": True}}
layer-decay 0.7 | {"layer_decay": 0.7}
layer-decay 0.5 | {"layer_decay": 0.5}
layer-decay 0.5; layer-decay-min-scale 0.3 | {"layer_decay": 0.5, "layer_decay_min_scale": 0.3}
layer-decay 0.5; layer-decay-no-opt-scale 0.3 | {"layer_decay": 0.5, "layer_decay_no_opt_scale": 0.3}
lr 0.3 | {"lr": 0.3}
"""


def groups_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict:
    keys = ("weight_decay", "betas", "eps", "momentum", "nesterov", "caution")
    group_of = by_parameter(optimizer.param_groups)
    found = {}
    for name, parameter in model.named_parameters():
        group = group_of.get(parameter)  # none of a layer that timm does not train
        found[name] = group and (group["lr"] * group.get("lr_scale", 1), *(group.get(key) for key in keys))
    return found


@each_row(OPTIMIZERS)
def test_the_groups_of_an_optimizer_are_timms(line, values):
    namespace = flags(line, **literal_eval(values))
    train = typed(line).train
    model = timm.create_model("test_vit")
    theirs = create_optimizer_v2(model, **optimizer_kwargs(namespace), **namespace.opt_kwargs)
    ours = build_optimizer(model, train, train.base_lr)
    assert type(ours) is type(theirs)
    assert groups_of(ours, model) == groups_of(theirs, model)


SCHEDULES = """
line | values
sched cosine | {}
sched step | {}
epochs 90 | {"epochs": 90}
epochs 40; sched step | {"epochs": 40}
lr 0.4; epochs 100 | {"lr": 0.4, "epochs": 100}
warmup-lr 1e-3 | {"warmup_lr": 1e-3}
warmup-lr 0.01 | {"warmup_lr": 0.01}
warmup-epochs 20 | {"warmup_epochs": 20}
warmup-epochs 0 | {"warmup_epochs": 0}
"""


@each_row(SCHEDULES)
def test_the_rates_of_a_run_are_timms(line, values):
    namespace = flags(line, **literal_eval(values))
    train = typed(line).train
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=namespace.lr)
    scheduler, epochs = create_scheduler_v2(optimizer, **scheduler_kwargs(namespace))
    assert train.num_epochs == epochs
    schedule = build_schedule(train, 10, 128)
    for epoch in (1, 2, 3, *range(0, epochs, epochs // 10)):
        scheduler.step(epoch)
        assert schedule.lr_at(10 * epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6), epoch


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "resnet50", "swin_tiny_patch4_window7_224"])
@pytest.mark.parametrize("program", ["timm", "torchvision"])
def test_the_rates_of_dropout_beside_the_recipe_of_a_program_are_the_models_own(name, program):
    config = config_for(f"-cfg={ROOT}/configs/programs/{program}.yaml", f"-model={name}")
    nets = build_on_meta(config.model, config.data), timm.create_model(name)
    for kind, rate in ((nn.Dropout, "p"), (DropPath, "drop_prob")):
        ours, theirs = ([getattr(one, rate) for one in net.modules() if isinstance(one, kind)] for net in nets)
        assert ours == pytest.approx(theirs)
