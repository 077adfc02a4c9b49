"""Parameter groups, optimizers by name, and loading of optimizer state."""

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

from configs.schema import Train
from engine.parallel.strategy import Single
from engine.training.optimization.optimizer import build_optimizer, set_lr
from utils.errors import UserError


def test_no_decay_on_biases_norms_and_tokens():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
    optimizer = build_optimizer(model, Train())
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        without_decay = parameter.ndim <= 1 or name in ("cls_token", "pos_embed")
        assert (id(parameter) in decayed) != without_decay, name
    assert optimizer.defaults["fused"]


FAMILIES = {
    "vit_tiny_patch16_224": {"img_size": 32},
    "deit_tiny_distilled_patch16_224": {"img_size": 32},
    "swin_tiny_patch4_window7_224": {"img_size": 56},
    "convnext_atto": {},
    "levit_128s": {},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_layer_decay_is_that_of_timm(name):
    model = timm.create_model(name, **FAMILIES[name])
    train = Train.model_validate({"LAYER_DECAY": 0.75, "OPTIMIZER": {"NAME": "AdamWDL"}})
    optimizer = build_optimizer(model, train)
    assert type(optimizer) is torch.optim.AdamW and optimizer.defaults["fused"]
    no_decay = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    groups = param_groups_layer_decay(model, train.weight_decay, no_decay, layer_decay=0.75)
    set_lr(optimizer, 2.0)
    actual = {id(p): (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    assert actual == {id(p): (2 * g["lr_scale"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert len(actual) == len(list(model.parameters()))


def test_layer_decay_needs_layers():
    with pytest.raises(UserError, match=r"TRAIN\.LAYER_DECAY"):
        build_optimizer(nn.Linear(2, 2), Train.model_validate({"LAYER_DECAY": 0.5}))


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adam", "lamb"])
def test_optimizers_by_name(name):
    model = nn.Linear(3, 2)
    train = Train.model_validate({"OPTIMIZER": {"NAME": name, "BETAS": (0.8, 0.9), "MOMENTUM": 0.5}})
    optimizer = build_optimizer(model, train)
    if name == "SGD":
        assert optimizer.param_groups[0]["momentum"] == 0.5
    else:
        assert tuple(optimizer.param_groups[0]["betas"]) == (0.8, 0.9)


def test_unknown_optimizer_suggests_the_nearest_name():
    with pytest.raises(UserError, match=r"TRAIN\.OPTIMIZER\.NAME: .*AdamX; did you mean adam"):
        build_optimizer(nn.Linear(2, 2), Train.model_validate({"OPTIMIZER": {"NAME": "AdamX"}}))


def test_loaded_optimizer_state_keeps_the_current_options():
    def optimizer(weight_decay: float) -> torch.optim.Optimizer:
        return build_optimizer(nn.Linear(3, 2), Train.model_validate({"WEIGHT_DECAY": weight_decay}))

    old, new = optimizer(0.1), optimizer(0.5)
    for group in old.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    old.step()
    Single().load_optimizer_state(new, old.state_dict())
    assert {group["weight_decay"] for group in new.param_groups} == {0.0, 0.5}
    assert all(
        torch.equal(a["exp_avg"], b["exp_avg"]) for a, b in zip(*(o.state.values() for o in (old, new)), strict=True)
    )
