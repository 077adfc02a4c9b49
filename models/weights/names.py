"""Tensor names and layouts of Google's Vision Transformers, of PaddleViT's models, and of the authors' own programs, ->
timm's.

Legend: D embed_dim, H heads, K width of a head, P patch size, C channels.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import torch
from torch import Tensor, nn

from configs.schema.families.family import Family, Renames, renames_in
from configs.schema.families.registry import FAMILIES
from configs.schema.model import Model
from configs.yaml_io import format_value
from models.timm_model import classifiers
from utils.errors import UserError
from utils.notes import Note

State = dict[str, Tensor]
Convert = Callable[[State], tuple[State, list[Note]]]  # the state with the model's names, and lines about it

# vit_jax numbers all parts of a block together (0, 1, 2, 3), big_vision numbers each kind from 0.
_GOOGLE = renames_in(r"""
^cls$ cls_token
^(?:Transformer/posembed_input/)?pos_embedding$ pos_embed
^embedding/(kernel|bias)$ patch_embed.proj.\1
^Transformer/encoderblock_(\d+)/LayerNorm_0/(scale|bias)$ blocks.\1.norm1.\2
^Transformer/encoderblock_(\d+)/MultiHeadDotProductAttention_[01]/(query|key|value)/(kernel|bias)$ blocks.\1.attn.\2.\3
^Transformer/encoderblock_(\d+)/MultiHeadDotProductAttention_[01]/out/(kernel|bias)$ blocks.\1.attn.proj.\2
^Transformer/encoderblock_(\d+)/LayerNorm_[12]/(scale|bias)$ blocks.\1.norm2.\2
^Transformer/encoderblock_(\d+)/MlpBlock_[03]/Dense_0/(kernel|bias)$ blocks.\1.mlp.fc1.\2
^Transformer/encoderblock_(\d+)/MlpBlock_[03]/Dense_1/(kernel|bias)$ blocks.\1.mlp.fc2.\2
^Transformer/encoder_norm/(scale|bias)$ norm.\1
^head/(kernel|bias)$ head.\1
^MAPHead_0/probe$ attn_pool.latent
^MAPHead_0/MultiHeadDotProductAttention_0/query/(kernel|bias)$ attn_pool.q.\1
^MAPHead_0/MultiHeadDotProductAttention_0/(key|value)/(kernel|bias)$ attn_pool.\1.\2
^MAPHead_0/MultiHeadDotProductAttention_0/out/(kernel|bias)$ attn_pool.proj.\1
^MAPHead_0/LayerNorm_0/(scale|bias)$ attn_pool.norm.\1
^MAPHead_0/MlpBlock_0/Dense_0/(kernel|bias)$ attn_pool.mlp.fc1.\1
^MAPHead_0/MlpBlock_0/Dense_1/(kernel|bias)$ attn_pool.mlp.fc2.\1
""")
_MAX_BLOCKS = 1000
_LINEAR_WEIGHT = re.compile(r"(.*\.(qkv|proj|fc1|fc2)|head)\.weight")
_JOINED = {"qkv": ("query", "key", "value"), "kv": ("key", "value")}
# Tensors that timm's functions leave out and models compute: tables of positions and masks, the counters of a profiler
_COMPUTED = re.compile(r"relative_position_index|relative_coords_table|attention_bias_idxs|mask|rope|rotary_emb|total_")


def summarize_names(names: Iterable[Any], limit: int = 3) -> str:
    """'a, b, c and 7 more', safe for names from an untrusted file: printable, each at most about 80 characters."""
    names = [*names] or ["nothing"]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(format_value, names[:limit])) + more


def google_to_timm(state: State) -> State:
    """The ViT of vit_jax or big_vision, also with stacked blocks -> timm's. In other names '/' becomes '.'."""
    result = {}
    unstacked: State = {}
    for name, tensor in state.items():
        if name.startswith("Transformer/encoderblock/"):  # big_vision may stack all blocks along the first axis
            blocks = tensor[:_MAX_BLOCKS]  # a file may claim any number of empty blocks
            unstacked |= {name.replace("block/", f"block_{i}/", 1): block for i, block in enumerate(blocks)}
        else:
            unstacked[name] = tensor
    for name, tensor in unstacked.items():
        timm_name = re.sub(r"\.(scale|kernel)$", ".weight", _renamed(name, _GOOGLE))
        result[timm_name.replace("/", ".")] = _to_timm_layout(timm_name, tensor)
    for joined, kinds in _JOINED.items():
        first = f".{kinds[0]}."
        for name in [name for name in result if first in name]:
            parts = [name.replace(first, f".{kind}.") for kind in kinds]
            if all(part in result for part in parts):
                result[name.replace(first, f".{joined}.")] = torch.cat([result.pop(part) for part in parts])
    return result


def _to_timm_layout(name: str, tensor: Tensor) -> Tensor:
    if name == "patch_embed.proj.weight":
        return tensor.permute(3, 2, 0, 1)  # (P, P, C, D) -> (D, C, P, P)
    if re.search(r"\b(query|key|value|q)\.", name):
        # (D, H, K) -> (H x K, D); bias (H, K) -> (H x K)
        return tensor.flatten(1).t() if name.endswith(".weight") else tensor.flatten()
    if _LINEAR_WEIGHT.fullmatch(name):
        return tensor.flatten(0, -2).t()  # (H, K, D) -> (D, H x K); (in, out) -> (out, in)
    return tensor


# PaddleViT's, by the rules in `configs/schema/families/`

# RegNetY-16GF (Radosavovic et al., 2020), the teacher of PaddleViT's distillations; no value of MODEL.TYPE.
_REGNET = Family(
    timm="regnety_160",
    arguments=lambda options, data: {},
    renames=r"""
^stages\.(\d)\.blocks\.(\d+)\. s{1+1}.b{2+1}.
^stem\.0\. stem.conv.
^stem\.1\. stem.bn.
\.conv(\d)\. .conv\1.conv.
\.bn(\d)\. .conv\1.bn.
\.downsample\.conv1x1\. .downsample.conv.
\.se\.conv(\d)_1x1\. .se.fc\1.
^head\.2\. head.fc.
""",
)
_STATISTICS = renames_in(r"""
\._mean$ .running_mean
\._variance$ .running_var
""")


def paddle_to_timm(file: Path, options: Model, model: nn.Module, state: State) -> tuple[State, list[Note]]:
    """The state of a .pdparams file with the names and the layout of `model`, as `to_model_names`.

    PaddleClas has the names of timm or of the authors, and PaddlePaddle's layout. Raises UserError if the file contains
    a tensor that the model does not have.
    """
    family = FAMILIES.get(options.type, FAMILIES["deit"])  # which names its tensors as PaddleViT's ViT and its head
    if options.type == "timm" and options.name.partition(".")[0] == _REGNET.timm:
        family = _REGNET
    own = model.state_dict()
    result, unknown = _from_paddlevit(family, options, model, state)
    counters = {name: tensor for name, tensor in own.items() if not tensor.is_floating_point()}
    if result and not unknown:
        computed = {name: own[name] for name in own if _matches(family.computed, name)}
        return counters | computed | result, []
    others, notes = _of_paddleclas(model, state)
    if body_names(model) <= counters.keys() | others.keys():
        return counters | others, notes
    raise UserError(
        f"{file}: contains {summarize_names(unknown)}, which MODEL.TYPE {options.type} does not have; "
        "give weights of this model, or set MODEL to match"
    )


def _from_paddlevit(family: Family, options: Model, model: nn.Module, state: State) -> tuple[State, list[str]]:
    """The tensors with the names and the layout of `model`, and the names that it does not have."""
    table = family.renames
    renames = {**_STATISTICS, **(table(options) if callable(table) else renames_in(table))}
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    own = model.state_dict()
    result: State = {}
    biases = {}
    unknown = []
    for name, tensor in state.items():
        if _matches(family.dropped, name):
            continue
        renamed = _renamed(name, renames)
        parts = _split(renamed, family)
        mean = renamed.replace(".conv.bias", ".bn.running_mean")
        if own.keys() >= {*parts}:
            # The kind of the layer tells the layout: the shape of a square weight does not.
            rows = tensor.t() if parts[0] in linear and tensor.ndim == 2 else tensor
            result |= zip(parts, rows.chunk(len(parts)) if len(parts) > 1 else [rows], strict=False)
        elif mean in own:
            biases[mean] = tensor
        else:
            unknown.append(name)
    for mean in biases.keys() & result.keys():  # the batch norm subtracts the mean: the same function
        result[mean] = result[mean].float() - biases[mean].float()
    return result, unknown


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _of_paddleclas(model: nn.Module, state: State) -> tuple[State, list[Note]]:
    """The names of timm or of the authors, in PaddlePaddle's layout."""
    plain = {_renamed(name, _STATISTICS): tensor for name, tensor in state.items()}
    for name, tensor in plain.items():
        if tensor.ndim == 2 and name.endswith(".weight"):
            plain[name] = tensor.t()
    return to_model_names(model, plain)


def _split(name: str, family: Family) -> list[str]:
    """The names of the tensors into which a tensor is split, such as the one of query, key and value."""
    for pattern, modules in family.split.items():
        match = re.fullmatch(pattern, name)
        if match:
            return [f"{match[1]}{module}{match[2]}" for module in modules]
    return [name]


def _renamed(name: str, renames: Renames) -> str:
    for pattern, replacement in renames.items():
        name = re.sub(pattern, replacement, name)
    return name


# The programs of others

# ViTs of torchvision and MMPretrain, whose blocks are numbered in order
_OF_OTHERS = renames_in(r"""
^(?:encoder\.)?layers\.(?:encoder_layer_)?(\d+)\. blocks.\1.
^class_token$ cls_token
^encoder\.pos_embedding$ pos_embed
^(?:conv_proj|patch_embed\.projection)\. patch_embed.proj.
^(?:encoder\.ln|ln1)\. norm.
\.ln_?([12])\. .norm\1.
\.self_attention\.in_proj_ .attn.qkv.
\.self_attention\.out_proj\. .attn.proj.
\.(?:mlp\.(?:0|linear_1)|ffn\.layers\.0\.0)\. .mlp.fc1.
\.(?:mlp\.(?:3|linear_2)|ffn\.layers\.1)\. .mlp.fc2.
^heads(?:\.head)?\. head.
""")
_FIRST_NAMES = {"encoder.layers.encoder_layer_0.ln_1.weight", "layers.0.ln1.weight"}


def head_names(model: nn.Module) -> list[str]:
    """The paths of the modules that timm calls the classifier: 'head', 'fc', 'head.fc', or two if distilled."""
    heads = classifiers(model)
    return [name for name, module in model.named_modules() if any(module is head for head in heads)]


def body_names(model: nn.Module) -> set[str]:
    """The names of the model's tensors without its classifiers."""
    paths = tuple(f"{path}." for path in head_names(model))
    return {name for name in model.state_dict() if not name.startswith(paths)}


def to_model_names(model: nn.Module, state: State) -> tuple[State, list[Note]]:
    """The state with the names of timm's `model`, and lines for the log; `state` itself if it is of another model.

    Sources: torchvision's and MMPretrain's ViT; the names of the authors, by the `checkpoint_filter_fn` of timm's model
    (Swin, ConvNeXt, DeiT III, BEiT, DINOv2 with registers); the blocks of DINOv2's training in chunks.
    """
    body = body_names(model)
    if body <= state.keys():
        return state, []
    if _FIRST_NAMES & state.keys():
        return {_renamed(name, _OF_OTHERS): tensor for name, tensor in state.items()}, []
    if "blocks.0.norm1.weight" in body:
        state = {re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", name): tensor for name, tensor in state.items()}
    for module in dict.fromkeys(one.__module__ for one in type(model).__mro__):
        rename: Any = getattr(sys.modules[module], "checkpoint_filter_fn", None)
        # Exceptions of many types, if the state is of another model. timm prints some of them.
        with suppress(Exception), catch_warnings(action="ignore"), redirect_stdout(None):
            has_scale = "adapt_layer_scale" in inspect.signature(rename).parameters  # as timm has for DeiT III
            found: State = rename(dict(state), model, **({"adapt_layer_scale": True} if has_scale else {}))
            if len(body & found.keys()) > len(body & state.keys()):
                note = Note("log", f"names: converted by timm's {module.rpartition('.')[2]}")
                return _left_out(body, state, found) | found, [note]
    return state, []


def _left_out(body: set[str], state: State, found: State) -> State:
    """The tensors of the model's own parts, such as `blocks`, that timm's function leaves out of `found`.

    Not those that the model computes, or that are zero, such as the biases of most files of DINOv3.
    """
    parts = {name.partition(".")[0] for name in body}
    kept = {tensor.data_ptr() for tensor in found.values()}  # renamed, or split
    left = State()
    for name, tensor in state.items():
        is_kept = name in found or tensor.data_ptr() in kept
        is_computed = _COMPUTED.search(name) or not tensor.any()
        if name.partition(".")[0] in parts and not (is_kept or is_computed):
            left[name] = tensor
    return left
