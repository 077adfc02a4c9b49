"""The trained parameters: all weights, the head, the last blocks, or low-rank adapters (MODEL.TUNE).

Autograd records no graph and keeps no activations of a frozen part whose inputs need no gradients.

Low-rank adapters (Hu et al., "LoRA", 2021) are a parametrization of weights. A linear layer keeps its frozen weight W
(O, I) and gets A (R, I) and B (O, R); reading its `weight` computes W + ALPHA / RANK * B A. The layer itself is not
wrapped: the attention of BEiT, EVA, Swin V2 and others computes with `self.qkv.weight` and never calls the layer. The
names of the state dict stay; `lora_A` and `lora_B` are added.

Legend: O output features, I input features, R rank.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save
from timm.models import group_parameters
from torch import Tensor, nn

from configs.schema.model import Lora, Model
from configs.yaml_io import Values
from models.blocks import add_mixin, blocks_of
from models.timm_model import classifiers
from models.weights.names import State, head_names
from utils.errors import UserError, did_you_mean
from utils.files import atomic_write, indented_json, make_own_folder
from utils.torch_compat import BatchNorm


def tune(model: nn.Module, options: Model) -> None:
    """Freezes what MODEL.TUNE does not train, and adds its adapters. Raises UserError for a model without that part."""
    kind, _, blocks = options.tune.partition(":")
    if blocks:
        _train_last_blocks(model, int(blocks), options.name)
    elif kind == "lora":
        add_adapters(model, options.lora, options.name)
    elif kind != "full":
        _freeze_backbone(model)


def _freeze_backbone(model: nn.Module) -> None:
    """Makes the head the only trainable module."""
    model.requires_grad_(False)
    for head in classifiers(model):
        head.requires_grad_(True)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("MODEL.TUNE: this model has no head with parameters; set it to full")


def _train_last_blocks(model: nn.Module, count: int, name: str) -> None:
    """Trains the head, the last `count` blocks and all after them, in the order of timm's `group_matcher`."""
    get_matcher = getattr(model, "group_matcher", None)
    if get_matcher is None:
        problem = f"{name} has no group_matcher, which defines its layers"
        raise UserError(f"MODEL.TUNE last:{count}: {problem}; use head or full")
    matcher = get_matcher(coarse=False)
    layer_of = group_parameters(model, matcher, reverse=True)
    blocks = sorted({layer_of[path] for path in _paths_in_blocks(model, matcher)})
    if not blocks:
        raise UserError(f"MODEL.TUNE last:{count}: {name} has no list of blocks; use head or full")
    if count > len(blocks):
        raise UserError(f"MODEL.TUNE last:{count}: {name} has {len(blocks)} blocks; give at most that number")
    trained = {path for path, parameter in model.named_parameters() if parameter.requires_grad}
    _freeze_backbone(model)
    for path, parameter in model.named_parameters():
        if path in trained and layer_of[path] >= blocks[-count]:
            parameter.requires_grad_(True)


def _paths_in_blocks(model: nn.Module, matcher: Any) -> list[str]:
    """Parameters in blocks: one in each that timm's matcher names, else all in the model's containers of blocks."""
    named = {}
    if isinstance(matcher, dict):
        named = {key: pattern for key, pattern in matcher.items() if "block" in key}
    if named:
        *groups, _ = group_parameters(model, named).values()  # the last group is outside of blocks
        return [group[0] for group in groups]
    inside = {parameter for block in blocks_of(model) for parameter in block.parameters()}
    return [path for path, parameter in model.named_parameters() if parameter in inside]


def set_training(model: nn.Module, options: Model) -> None:
    """Sets training mode, and evaluation mode in the frozen part: no dropout, no update of running statistics.

    With adapters all blocks are in training mode. Batch norms are frozen with adapters, or by MODEL.BATCH_NORM.
    """
    if options.tune in ("full", "lora"):
        model.train()
    else:
        _set_modes(model, after=True)
    for module in model.modules() if options.freezes_batch_norms else ():
        if isinstance(module, BatchNorm):
            module.eval()


def _set_modes(module: nn.Module, after: bool) -> bool:
    """Returns the mode. A module without parameters, such as a dropout, has the mode of the module `after` it."""
    trained = {parameter.requires_grad for parameter in module.parameters()} or {after}
    module.train(trained == {True})
    if len(trained) == 2:
        for child in reversed([*module.children()]):
            after = _set_modes(child, after)
    return module.training


A = "lora_A"
B = "lora_B"
_ENDS = (f".{A}", f".{B}")
_Layers = dict[str, nn.Linear]  # by their paths


def effective_weight(weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """W + alpha / R * B A, (O, I). In the dtype of W: autocast rounds the sum once, as it rounds merged weights."""
    with torch.autocast("cuda" if weight.is_cuda else "cpu", enabled=False):
        return torch.addmm(weight, b, a, alpha=alpha / len(a))


class _Adapted(nn.Module):
    """A mix-in for the class of a linear layer: its `weight` is the effective one.

    With DROPOUT, a step in training sets columns of A to zero. peft drops the inputs of A, separately for each token;
    a parametrization does not see the tokens, so one mask holds for all tokens of a pass.
    """

    lora_A: Tensor
    lora_B: Tensor
    lora_alpha: float
    lora_dropout: float

    @property
    def weight(self) -> Tensor:
        weight = self._parameters["weight"]
        a = self.lora_A
        assert weight is not None
        if self.training and self.lora_dropout:
            a = a * F.dropout(torch.ones_like(a[:1]), self.lora_dropout)
        return effective_weight(weight, a, self.lora_B, self.lora_alpha)


def add_adapters(model: nn.Module, options: Lora, name: str) -> None:
    """Freezes the backbone and adapts linear layers. B is zero: the outputs stay the same.

    TARGETS names the layers, as peft reads it, by whole paths or their ends. null: those inside blocks; layers that mix
    attention heads (CaiT) may have fewer features than the rank, and stay as they are.
    """
    in_heads = {module for head in classifiers(model) for module in head.modules()}
    linear = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and module not in in_heads and "weight" in module._parameters
    }
    if options.targets is None:
        layers = _layers_in_blocks(model, linear, options.rank, name)
    else:
        layers = _named_layers(linear, options.targets, name)
    model.requires_grad_(False)
    for path, layer in layers.items():
        width = min(layer.in_features, layer.out_features)
        if options.rank > width:
            raise UserError(f"MODEL.LORA.RANK {options.rank}: {path} is only {width} wide; lower it, or change TARGETS")
        a = layer.weight.new_empty((options.rank, layer.in_features))
        b = layer.weight.new_zeros((layer.out_features, options.rank))
        adapted = add_mixin(layer, _Adapted)
        adapted.lora_A = nn.Parameter(nn.init.kaiming_uniform_(a, 5**0.5))
        adapted.lora_B = nn.Parameter(b)
        adapted.lora_alpha = options.alpha
        adapted.lora_dropout = options.dropout
    for head in classifiers(model):
        head.requires_grad_(True)


def _layers_in_blocks(model: nn.Module, linear: _Layers, rank: int, name: str) -> _Layers:
    """Raises UserError: there is none."""
    inside = {module for block in blocks_of(model) for module in block.modules()}
    layers = {path: layer for path, layer in linear.items() if layer in inside}
    if not layers:
        raise UserError(f"MODEL.TUNE lora: {name} has no linear layers in a list of blocks; use head or full")
    wide = {path: layer for path, layer in layers.items() if min(layer.weight.shape) >= rank}
    return wide or layers  # all are narrower: the caller names one


def _named_layers(linear: _Layers, targets: Sequence[str], name: str) -> _Layers:
    """Raises UserError: a target is the end of no path."""
    ends = tuple(f".{target}" for target in targets)
    for target, end in zip(targets, ends, strict=True):
        if not any(f".{path}".endswith(end) for path in linear):
            hint = did_you_mean(target, {path.rpartition(".")[2] for path in linear})
            raise UserError(f"MODEL.LORA.TARGETS: {target[:80]} is no linear layer of {name}{hint}")
    return {path: layer for path, layer in linear.items() if f".{path}".endswith(ends)}


def merge_adapters(state: State, alpha: float) -> State:
    """The state with the effective weights in place of weights and adapters."""
    merged = {name: tensor for name, tensor in state.items() if not name.endswith(_ENDS)}
    for name in state.keys() - merged.keys():
        layer, _, part = name.rpartition(".")
        if part == A:
            weight, a, b = (state[f"{layer}.{other}"].float() for other in ("weight", A, B))
            merged[f"{layer}.weight"] = effective_weight(weight, a, b, alpha)
    return merged


PEFT_FOLDER = "adapter"
_PREFIX = "base_model.model."


def write_peft_folder(checkpoint: Path, content: Values, model: nn.Module, options: Lora) -> None:
    """Writes `adapter_model.safetensors`, with the trained head, and `adapter_config.json` beside a checkpoint.

    `PeftModel.from_pretrained(model, folder)` opens the folder, with timm's model as base. Raises OSError.
    """
    state = content["state_dict_ema"] or content["model"]
    heads = head_names(model)
    names = {name: f"{name}.weight" for name in state if name.endswith(_ENDS)}
    targets = [name.removesuffix(f".{A}") for name in names if name.endswith(f".{A}")]
    names |= {name: name for name in state if name.startswith(tuple(f"{head}." for head in heads))}
    tensors = {
        f"{_PREFIX}{to}": state[name].detach().to("cpu", torch.float32).contiguous() for name, to in names.items()
    }
    config = {
        "peft_type": "LORA", "r": options.rank, "lora_alpha": options.alpha, "lora_dropout": options.dropout,
        "target_modules": targets, "modules_to_save": heads, "bias": "none", "inference_mode": True,
    }  # fmt: skip
    folder = checkpoint.with_name(PEFT_FOLDER)
    make_own_folder(folder)
    atomic_write(folder / "adapter_model.safetensors", save(tensors, {"format": "pt"}))
    atomic_write(folder / "adapter_config.json", indented_json(config))
