"""timm's names and layouts -> Google's and PaddleViT's: the inverses of `models/weights/`.

Legend: P patch side, C image channels, D embedding channels, H heads, K channels of a head.
"""

import re

import torch

from configs.schema.families.family import Family
from configs.schema.model import Model
from models.weights.names import summarize_names

State = dict[str, torch.Tensor]

_BLOCK = r"blocks\.(\d+)"
_KIND = r"(weight|bias)"
_TO_PADDLEVIT = {
    r"cls_token": r"cls_token",
    r"pos_embed": r"position_embedding",
    rf"patch_embed\.proj\.{_KIND}": r"patch_embedding.patch_embedding.\1",
    rf"{_BLOCK}\.norm1\.{_KIND}": r"encoder.layers.\1.attn_norm.\2",
    rf"{_BLOCK}\.attn\.qkv\.{_KIND}": r"encoder.layers.\1.attn.qkv.\2",
    rf"{_BLOCK}\.attn\.proj\.{_KIND}": r"encoder.layers.\1.attn.out.\2",
    rf"{_BLOCK}\.norm2\.{_KIND}": r"encoder.layers.\1.mlp_norm.\2",
    rf"{_BLOCK}\.mlp\.(fc1|fc2)\.{_KIND}": r"encoder.layers.\1.mlp.\2.\3",
    rf"norm\.{_KIND}": r"encoder.encoder_norm.\1",
    rf"head\.{_KIND}": r"classifier.\1",
}
_GOOGLE_BLOCK = r"Transformer/encoderblock_\1"
# The names of vit_jax. {norm} and {linear} stand for scale or kernel, and bias.
_TO_GOOGLE = {
    r"cls_token": r"cls",
    r"pos_embed": r"Transformer/posembed_input/pos_embedding",
    rf"patch_embed\.proj\.{_KIND}": r"embedding/{linear}",
    rf"{_BLOCK}\.norm1\.{_KIND}": rf"{_GOOGLE_BLOCK}/LayerNorm_0/{{norm}}",
    rf"{_BLOCK}\.attn\.proj\.{_KIND}": rf"{_GOOGLE_BLOCK}/MultiHeadDotProductAttention_1/out/{{linear}}",
    rf"{_BLOCK}\.norm2\.{_KIND}": rf"{_GOOGLE_BLOCK}/LayerNorm_2/{{norm}}",
    rf"{_BLOCK}\.mlp\.fc1\.{_KIND}": rf"{_GOOGLE_BLOCK}/MlpBlock_3/Dense_0/{{linear}}",
    rf"{_BLOCK}\.mlp\.fc2\.{_KIND}": rf"{_GOOGLE_BLOCK}/MlpBlock_3/Dense_1/{{linear}}",
    rf"norm\.{_KIND}": r"Transformer/encoder_norm/{norm}",
    rf"head\.{_KIND}": r"head/{linear}",
}
_QKV = re.compile(rf"{_BLOCK}\.attn\.qkv\.{_KIND}")
_LINEAR_WEIGHT = re.compile(r"(.*\.(qkv|attn\.proj|fc1|fc2)|head)\.weight")
_STATISTICS = ((r"\.running_mean$", "._mean"), (r"\.running_var$", "._variance"))


class NoName(Exception):
    """The other program has no name for a tensor, or its names are not known. The message is the reason."""


def to_paddlevit(state: State) -> State:
    """The ViT of PaddleViT: linear weights (out, in) -> (in, out). Raises NoName for a tensor that it does not have."""
    return {
        _rename(name, _TO_PADDLEVIT): tensor.t() if _LINEAR_WEIGHT.fullmatch(name) else tensor
        for name, tensor in state.items()
    }


def to_google(state: State, num_heads: int) -> State:
    """The ViT of vit_jax. Raises NoName for a tensor that it does not have."""
    result: State = {}
    for name, tensor in state.items():
        if match := _QKV.fullmatch(name):
            block, kind = match.groups()
            for part, rows in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                by_head = rows.t() if kind == "weight" else rows  # (D, H x K) or (H x K)
                leaf = "kernel" if kind == "weight" else "bias"
                attention = f"Transformer/encoderblock_{block}/MultiHeadDotProductAttention_1"
                result[f"{attention}/{part}/{leaf}"] = by_head.unflatten(-1, (num_heads, -1))
            continue
        is_bias = name.endswith(".bias")
        renamed = _rename(name, _TO_GOOGLE)
        renamed = renamed.format(norm="bias" if is_bias else "scale", linear="bias" if is_bias else "kernel")
        result[renamed] = _to_google_layout(name, tensor, num_heads)
    return result


def to_paddle_family(state: State, family: Family, options: Model, linear: set[str]) -> State:
    """The names of a family of PaddleViT's, by the inverse of the renames in `configs/schema/families/`.

    linear: names of the weights of linear layers.

    Raises:
        NoName: the names of this family cannot be inverted.
    """
    renames = [_inverted(pattern, replacement) for pattern, replacement in reversed(family.renames_for(options))]
    if family.split or None in renames:
        raise NoName(f"the table of PaddleViT's names of {family.title} works in one direction only")
    result: State = {}
    for name, tensor in state.items():
        is_computed = any(re.fullmatch(pattern, name) for pattern in family.computed)
        if is_computed or not tensor.is_floating_point():  # PaddlePaddle's batch norms have no counters
            continue
        renamed = name
        for pattern, replacement in (*renames, *_STATISTICS):
            renamed = re.sub(pattern, replacement, renamed)
        result[renamed] = tensor.t() if name in linear and tensor.ndim == 2 else tensor
    return result


def _rename(name: str, table: dict[str, str]) -> str:
    for pattern, other in table.items():
        if match := re.fullmatch(pattern, name):
            return match.expand(other)
    raise NoName(f"no name for {summarize_names([name])}")


def _to_google_layout(name: str, tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    if name == "patch_embed.proj.weight":
        return tensor.permute(2, 3, 1, 0)  # (D, C, P, P) -> (P, P, C, D)
    if name.endswith(".attn.proj.weight"):
        return tensor.t().unflatten(0, (num_heads, -1))  # (D, H x K) -> (H, K, D)
    return tensor.t() if _LINEAR_WEIGHT.fullmatch(name) else tensor


def _inverted(pattern: str, replacement: object) -> tuple[str, str] | None:
    """The inverse of a rename of plain text, such as '^a\\.b\\.' -> 'c.'; None for one with groups or a function."""
    anchor = "^" if pattern.startswith("^") else ""
    end = "$" if pattern.endswith("$") else ""
    plain = re.sub(r"\\(.)", r"\1", pattern.removeprefix("^").removesuffix("$"))
    if not isinstance(replacement, str) or re.escape(plain) != pattern.removeprefix("^").removesuffix("$"):
        return None
    return f"{anchor}{re.escape(replacement)}{end}", plain
