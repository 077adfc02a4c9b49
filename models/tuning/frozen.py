"""Which parameters of a model are frozen, and in which mode its modules run.

Autograd records no graph and keeps no activations of a frozen part whose inputs need no gradients.
"""

from typing import Any

from timm.models import group_parameters
from torch import nn

from models.blocks import blocks_of
from models.timm_model import classifiers
from utils.errors import UserError
from utils.torch_compat import BatchNorm


def freeze_backbone(model: nn.Module) -> None:
    """Makes the head the only trainable module.

    Raises:
        UserError: the model has no head with parameters.
    """
    model.requires_grad_(False)
    for head in classifiers(model):
        head.requires_grad_(True)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("MODEL.TUNE: this model has no head with parameters; set it to full")


def train_last_blocks(model: nn.Module, count: int, name: str) -> None:
    """Trains the head, the last `count` blocks and all after them, in the order of timm's `group_matcher`.

    Raises:
        UserError: the model does not define its blocks, or has fewer.
    """
    get_matcher: Any = getattr(model, "group_matcher", None)
    matcher = get_matcher(coarse=False) if get_matcher else None
    layer_of = group_parameters(model, matcher, reverse=True) if matcher else {}
    blocks = sorted({layer_of[path] for path in _in_blocks(model, matcher)}) if matcher else []
    if not blocks:
        raise UserError(
            f"MODEL.TUNE last:{count}: {name} has no group_matcher, which defines its layers; use head or full"
        )
    if count > len(blocks):
        raise UserError(f"MODEL.TUNE last:{count}: {name} has {len(blocks)} blocks; give at most that number")
    fixed = {path for path, parameter in model.named_parameters() if not parameter.requires_grad}
    freeze_backbone(model)
    for path, parameter in model.named_parameters():
        if layer_of[path] >= blocks[-count] and path not in fixed:
            parameter.requires_grad_(True)


def _in_blocks(model: nn.Module, matcher: Any) -> list[str]:
    """The parameters in blocks: those that the matcher calls so, else those in the model's containers of blocks."""
    if isinstance(matcher, dict) and (patterns := {key: value for key, value in matcher.items() if "block" in key}):
        *groups, _ = group_parameters(model, patterns).values()  # the last group is outside of blocks
        return [paths[0] for paths in groups]
    inside = {parameter for block in blocks_of(model) for parameter in block.parameters()}
    return [path for path, parameter in model.named_parameters() if parameter in inside]


def set_training(model: nn.Module, tuned: str) -> None:
    """Sets training mode, and evaluation mode in the frozen part: no dropout, no update of running statistics.

    With adapters all blocks are in training mode, but batch norms.

    Args:
        tuned: `Model.tuned`.
    """
    if tuned in ("full", "lora"):
        model.train()
        for norm in (module for module in model.modules() if tuned == "lora" and isinstance(module, BatchNorm)):
            norm.eval()
    else:
        _set_modes(model, after=True)


def _set_modes(module: nn.Module, after: bool) -> bool:
    """Returns the mode. A module without parameters, such as a dropout, has the mode of the module `after` it."""
    trained = {parameter.requires_grad for parameter in module.parameters()} or {after}
    module.train(trained == {True})
    if len(trained) == 2:
        for child in reversed([*module.children()]):
            after = _set_modes(child, after)
    return module.training
