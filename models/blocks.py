"""The parts of a model: the repeated ones, sharded tensors, features, and mix-ins for the classes of existing modules.

The repeated parts are compiled, sharded and recomputed one by one. A sharded tensor is a `DTensor`, of which each rank
holds a part. The features are timm's `pre_logits`.

Legend: B images per batch, N tokens, F width of the features.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cache, partial
from types import MethodType
from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from models.timm_model import classifiers
from utils.errors import UserError


@cache
def _with_mixin(mixin: type[nn.Module], module_class: type[nn.Module]) -> type[nn.Module]:
    """One subclass per class, so that modules of one class still share it, and compile once."""
    return type(module_class.__name__, (mixin, module_class), {})


def add_mixin(module: nn.Module, mixin: type[nn.Module]) -> Any:
    """Gives the module a subclass with the methods of `mixin`, in place: its parameters and its place stay. Returns it.

    A wrapper would change the names of the state dict, and the attributes that timm's models read.
    """
    module.__class__ = _with_mixin(mixin, type(module))  # type: ignore[arg-type]  # a class is hashable
    return module


def remove_mixins(model: nn.Module, mixins: tuple[type[nn.Module], ...]) -> None:
    """Takes these mix-ins from the classes of all modules of `model`, in place, if no other was added after them."""
    for module in model.modules():
        while (bases := type(module).__bases__)[0] in mixins:
            module.__class__ = bases[1]


class Casting(nn.Module):
    """A mix-in: the forward pass runs in the module's mode, which casts the inputs of listed ops."""

    casting_mode: AbstractContextManager[Any]  # a TorchFunctionMode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self.casting_mode:
            return super().forward(*args, **kwargs)


_CONTAINERS = (nn.ModuleList, nn.Sequential)
_STAGES = re.compile(  # the names of timm's lists of stages or blocks; a stem and a part of the head are none
    r"(\w+_)?(blocks|features|layers|levels|network|stages)\d*|(layer|level|stage)\d+|body|repeat(_\d+)?"
)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The items of all containers named `blocks`, at any depth (timm's transformers, and the stages of others).

    Without such a container: the items of the model's own lists of stages, known by their names; [] without any.
    An outer block stands before those inside it. A model of transformers has a list of its own.
    """
    if own := getattr(model, "own_blocks", None):
        return list(own)
    named = [module for path, module in model.named_modules() if path.rpartition(".")[2] == "blocks"]
    containers = [module for module in named if isinstance(module, _CONTAINERS)]
    if not containers:
        stages = [module for name, module in model.named_children() if _STAGES.fullmatch(name)]
        containers = [module for module in stages if isinstance(module, _CONTAINERS)]
    return [block for block in _flat(containers) if any(True for _ in block.parameters())]


def _flat(modules: Iterable[nn.ModuleList | nn.Sequential]) -> Iterator[nn.Module]:
    """The items of the modules. A list among them has no forward pass, as in Twins: its items stand for it."""
    for module in modules:
        for item in module:
            yield from _flat([item]) if isinstance(item, nn.ModuleList) else (item,)


def inside_stages(blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """The blocks, and in place of a stage the blocks in it: timm's `checkpoint_seq` may call them one by one.

    A sequence with a single layer, such as a block of ConvMixer, is no stage.
    """
    parts = list[nn.Module]()
    for block in blocks:
        if type(block) is nn.Sequential and all([*item.children()] for item in block):
            parts += block
        else:
            parts.append(block)
    return parts


class _SharedDropPath(DropPath):
    """Mix-in of a drop-path: compiled, it takes its rate from tensors, so that blocks of any rates share a graph.

    Eager passes are timm's. The random numbers of compiled ones are the compiler's in any case.
    """

    keep_rate: Tensor  # (), float32
    scale: Tensor  # (), float32: of a kept sample

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and torch.compiler.is_compiling()):
            return super().forward(x)  # type: ignore[no-untyped-call]
        kept = torch.rand((len(x),) + (1,) * (x.ndim - 1), device=x.device) < self.keep_rate
        return x * (kept * self.scale).to(x.dtype)


def share_drop_path(model: nn.Module) -> None:
    """Gives the blocks of the model drop-paths that one compiled graph serves, also in place of timm's for rate 0."""
    if not any(isinstance(module, DropPath) for module in model.modules()):
        return
    device = next(model.parameters()).device
    modules = [one for block in blocks_of(model) for one in block.modules()]
    for parent, name, child in [(module, *named) for module in modules for named in module.named_children()]:
        is_off = type(child) is nn.Identity and name.startswith("drop_path")
        drop_path = DropPath(0.0).train(parent.training) if is_off else child
        if isinstance(drop_path, DropPath) and not isinstance(drop_path, _SharedDropPath):
            parent.add_module(name, shared := add_mixin(drop_path, _SharedDropPath))
            rate = 1 - drop_path.drop_prob
            shared.keep_rate = torch.tensor(rate, device=device)
            shared.scale = torch.tensor(1 / rate if rate and drop_path.scale_by_keep else 1.0, device=device)


def is_sharded(model: nn.Module) -> bool:
    """Returns whether a parameter of the model is sharded: a `DTensor`. Such a model cannot be copied."""
    return any(hasattr(parameter, "to_local") for parameter in model.parameters())


def local_tensor(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this rank holds, of the same memory; another tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class FeatureModel(nn.Module):
    """Images (B, C, S, S) -> features (B, F) of `model`, of which this is a view.

    Of timm's models: `forward_head(forward_features(images), pre_logits=True)`; of others the input of the classifier.
    Raises UserError for a model without a classifier.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model: Any = model
        self.heads = classifiers(model)
        if not self.heads:
            raise UserError(f"{name}: this family has no classifier whose input are features; use another model")

    def forward(self, images: Tensor) -> Tensor:
        if not hasattr(self.model, "forward_head"):
            return self._input_of_head(images).flatten(1)
        forward_head = self.model.forward_head
        replaced = vars(self.model).get("forward_head")
        # Replaced, not called: the model's own forward pass casts the inputs of listed ops.
        self.model.forward_head = partial(forward_head, pre_logits=True)
        try:
            features = self.model(images)
        finally:
            del self.model.forward_head  # not the method of the class
            if replaced:
                self.model.forward_head = replaced
        return features.flatten(1)

    def _input_of_head(self, images: Tensor) -> Tensor:
        found = []
        hook = self.heads[0].register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        try:
            self.model(images)
        finally:
            hook.remove()
        return found[0]

    def backbone(self) -> list[Tensor]:
        """The tensors that the features depend on: all parameters and buffers except the classifier's."""
        of_head = {id(tensor) for head in self.heads for tensor in head.parameters()}
        return [tensor for tensor in (*self.model.parameters(), *self.model.buffers()) if id(tensor) not in of_head]


def pool_tokens(model: Any, kind: str, num_classes: int) -> None:
    """Makes the class token, the average of the patch tokens, or both (DINOv2's probe) the features of a ViT.

    kind: 'token', 'avg' or 'token_avg', whose features are twice as wide and get a new classifier.
    Raises UserError: the model has no class token, or another head than one linear layer on pooled tokens.
    """
    first = getattr(model, "num_prefix_tokens", None)
    head = getattr(model, "head", None)
    if first is None or not isinstance(head, nn.Linear) or not hasattr(model, "forward_head"):
        raise UserError(f"MODEL.FEATURES {kind}: needs a ViT with one linear head; use pre_logits")
    if "token" in kind and getattr(model, "cls_token", None) is None:
        raise UserError(f"MODEL.FEATURES {kind}: this model has no class token; use avg or pre_logits")

    def forward_head(self: Any, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        parts = {"token": tokens[:, 0], "avg": tokens[:, first:].mean(dim=1)}
        norm = getattr(self, "fc_norm", nn.Identity())
        features = torch.cat([norm(parts[name]) for name in kind.split("_")], dim=-1)
        return features if pre_logits else self.head(features)

    model.forward_head = MethodType(forward_head, model)
    model.pooled_tokens = kind  # for attention maps: `global_pool` is timm's own
    if kind == "token_avg":
        model.head = nn.Linear(2 * head.in_features, num_classes)
