"""Gradient checkpointing: blocks whose backward pass recomputes what their forward pass does not store.

`true` stores the inputs of the blocks of timm's models (timm's own). `cheap` also stores the results of products,
convolutions and attention: the backward pass recomputes only norms, activations, masks and casts. Both have the random
numbers and dtypes of the forward pass, so that the gradients are bit-identical.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import SelectiveCheckpointContext, checkpoint, create_selective_checkpoint_contexts

from models.blocks import Casting, add_mixin, blocks_of, inside_stages
from utils.errors import UserError, first_line
from utils.torch_compat import BatchNorm, is_attention_without_dropout, tree_leaves

_aten = torch.ops.aten
_PRODUCTS = {  # and the place of the weight among the arguments. None of them draws random numbers.
    _aten.mm.default: 1, _aten.addmm.default: 2, _aten.bmm.default: 1, _aten.baddbmm.default: 2,
    _aten.convolution.default: 1,
}  # fmt: skip
# Ops whose backward pass needs neither their inputs nor their results.
_LINEAR = {
    _aten.add.Tensor, _aten.add_.Tensor, _aten.view.default, _aten._unsafe_view.default, _aten.permute.default,
    _aten.transpose.int, _aten.clone.default, _aten._to_copy.default,
}  # fmt: skip
_TRIAL_BATCH = 16  # so large that blocks drop whole samples in it, at MODEL.DROPPATH of 0.1 and more


def enable_grad_checkpointing(model: Any, name: str) -> None:
    """Stores only the inputs of the blocks of a timm model. The backward pass recomputes all other activations.

    The recomputation also updates the running statistics of batch norms: `MasterWeights.kept_batch_stats` is around the
    backward pass. torch.compile supports it; with batch norm a compiled model saves little memory. Raises UserError if
    timm does not support it.
    """
    try:
        model.set_grad_checkpointing(True)
    except (AttributeError, AssertionError):  # no such method, or a method that refuses
        fix = "cheap or false" if _innermost_blocks(model) else "false"
        raise UserError(f"MODEL.GRAD_CHECKPOINTING: timm does not support it for {name}; set it to {fix}") from None


def _is_saved(unneeded: torch.Size | None, context: SelectiveCheckpointContext, op: Any, *args: Any, **_: Any) -> bool:
    """Whether the result of `op` is stored. A stored op does not run again, so it must not draw random numbers.

    unneeded: the shape of the weight whose product no backward pass needs.
    """
    if op in _PRODUCTS:
        return args[_PRODUCTS[op]].shape != unneeded
    return is_attention_without_dropout(op, args)


class Recomputed(nn.Module):
    """A mix-in for blocks: in training they store what `_is_saved` says. Inside the forward pass, as torch's compiler
    hides the ops of a compiled block from a checkpoint around it.
    """

    new_contexts: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(*args, **kwargs)
        run = partial(checkpoint, super().forward, use_reentrant=False, context_fn=self.new_contexts)
        if torch.compiler.is_compiling():
            return run(*args, **kwargs)
        # With the cache of weights in half, a second pass in one context of autocast has fewer ops than its repetition.
        was_enabled = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            return run(*args, **kwargs)
        finally:
            torch.set_autocast_cache_enabled(was_enabled)


class _Observer:
    """A policy that finds the last product of a block."""

    def __init__(self) -> None:
        self.weights: list[torch.Size] = []  # of all products
        self.is_last = False  # only ops of `_LINEAR` follow the last one

    def __call__(self, context: SelectiveCheckpointContext, op: Any, *args: Any, **kwargs: Any) -> bool:
        if op in _PRODUCTS and not context.is_recompute:
            self.weights.append(args[_PRODUCTS[op]].shape)
            self.is_last = True
        elif op not in _LINEAR and not context.is_recompute:
            self.is_last = False
        return _is_saved(None, context, op, *args, **kwargs)

    def unneeded(self) -> torch.Size | None:
        """The shape of the weight of the last product, if no op after it needs the result; it must be unique."""
        if not self.is_last or self.weights.count(self.weights[-1]) > 1:
            return None
        return self.weights[-1]


def store_products(model: nn.Module, meta_model: nn.Module, image_shape: tuple[int, ...], name: str) -> None:
    """Makes the innermost blocks of `model` store the results of products, convolutions and attention, in place.

    It follows the op lists, whose modes the repetition of a block needs. Activations do not work in place any more. A
    trial pass of `meta_model`, a copy without memory, shows whether anything else changes a stored tensor.

    image_shape: (C, S, S).
    Raises UserError: the model calls no blocks, or its trial pass fails.
    """
    observers = []
    for block in _innermost_blocks(meta_model):
        observers.append(_Observer())
        _store(block, observers[-1])
    for module in meta_model.train().modules():
        if isinstance(module, BatchNorm):  # a synchronized one would wait for the other ranks
            module.eval()
        if isinstance(module, Casting):  # for autocast, which the meta device does not have
            module.casting_mode = nullcontext()
    try:
        outputs = tree_leaves(meta_model(torch.empty(_TRIAL_BATCH, *image_shape, device="meta")))
        sum(output.sum() for output in outputs).backward()
    except Exception as error:  # of many types, by family
        raise UserError(
            f"MODEL.GRAD_CHECKPOINTING cheap: not for {name} ({first_line(error)}); set it to true or false"
        ) from error
    if not any(observer.weights for observer in observers):
        raise UserError(f"MODEL.GRAD_CHECKPOINTING cheap: {name} calls no blocks; set it to false")
    for block, observer in zip(_innermost_blocks(model), observers, strict=True):
        _store(block, partial(_is_saved, observer.unneeded()))


def _store(block: nn.Module, policy: Callable[..., bool]) -> None:
    add_mixin(block, Recomputed).new_contexts = partial(create_selective_checkpoint_contexts, policy)
    in_place: list[Any] = [module for module in block.modules() if hasattr(module, "inplace")]
    for module in in_place:
        module.inplace = False


def _innermost_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that have children, none of which is a block."""
    blocks = inside_stages(blocks_of(model))
    return [block for block in blocks if [*block.children()] and not {*blocks} & {*block.modules()} - {block}]
