"""The two ways to compute attention, and how long each takes.

Legend: B images, N tokens, H heads, D width of a head.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from timm.layers import Attention
from timm.models import VisionTransformer
from torch import nn

from models.dropout import use_fast_dropout
from utils.device import timed

FUSED, EXPLICIT = "fused", "explicit"
_SCORES = {"cpu": 2**22, "cuda": 2**25}  # B x H x N x N that are measured at most: they stand for more
_FEWEST_ROUNDS, _MOST_ROUNDS, _SECONDS = 5, 100, 0.5


@dataclass(frozen=True)
class AttentionShape:
    tokens: int
    heads: int
    head_size: int
    dropout: float  # on the attention weights

    def batch_size(self, wanted: int, device: torch.device) -> int:
        """As many images as are measured in place of `wanted` ones."""
        return min(wanted, max(1, _SCORES[device.type] // (self.heads * self.tokens**2)))


def attention_shape(model: nn.Module) -> AttentionShape | None:
    """That of all of the model's attentions; None where they are not alike, or there are none."""
    attention = next((module for module in model.modules() if isinstance(module, Attention)), None)
    if not isinstance(model, VisionTransformer) or attention is None:
        return None
    tokens = model.patch_embed.num_patches + model.num_prefix_tokens
    return AttentionShape(tokens, attention.num_heads, attention.head_dim, attention.attn_drop.p)


def use_attention(model: nn.Module, kind: str) -> None:
    """Sets every attention of the model to torch's fused kernels, or to the explicit softmax(q k^T) v."""
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = kind == FUSED


def attention_seconds(
    shape: AttentionShape,
    batch_size: int,
    device: torch.device,
    dtype: torch.dtype,
    autocast: Callable[[], AbstractContextManager],
) -> dict[str, float]:
    """Of a forward and backward pass of one layer's attention without its projections, each way.

    They are the median of rounds in turn; on a CPU those that one thread works, for what else goes on there must not
    decide. It is the model's own code on q, k and v (B, N, 3 H D) of `dtype`. Global random state is left as it was.
    """
    width = shape.heads * shape.head_size
    taken: dict[str, list[float]] = {FUSED: [], EXPLICIT: []}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        attention = Attention(width, shape.heads, attn_drop=shape.dropout)
        attention.qkv = attention.proj = nn.Identity()
        if device.type == "cpu":
            use_fast_dropout(attention)
        qkv = torch.randn(batch_size, shape.tokens, 3 * width, device=device, dtype=dtype, requires_grad=True)
        gradient = torch.randn(batch_size, shape.tokens, width, device=device, dtype=dtype)

        def one_pass() -> None:
            with autocast():
                output = attention(qkv)
            torch.autograd.grad(output, qkv, gradient.to(output.dtype))

        began = time.perf_counter()
        for number in range(_MOST_ROUNDS):
            for kind in taken:
                use_attention(attention, kind)
                taken[kind].append(_worked(one_pass) if device.type == "cpu" else timed(one_pass, device))
            if number >= _FEWEST_ROUNDS and time.perf_counter() - began > _SECONDS:
                break
    return {kind: statistics.median(times[1:]) for kind, times in taken.items()}  # the first warms up


def _worked(work: Callable[[], None]) -> float:
    """Seconds of one thread's own work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    began = time.thread_time()
    work()
    worked = time.thread_time() - began
    torch.set_num_threads(threads)
    return worked
