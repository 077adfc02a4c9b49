"""The blocks of a plain ViT in few passes over memory: Triton kernels for training in half precision on a GPU.

Products and attention stay torch's. Four kernels replace the ops between them, which move most of the bytes of a step:
- residual sum and LayerNorm; backward in one pass, also the gradients of scale, shift and the bias of the layer before
- GELU; backward with the gradient of the bias before it
- the gradients of q, k and v -> the gradient of their common layer, and of its bias
Dropout and drop-path are inside: masks follow from hashes of the elements' numbers, so that none is stored.

Kernels compute in float32. They round where autocast does, and the stream if it is in half, but no bias gradients.
Legend: B images, T tokens, M = B T rows, N channels of a row, H heads, D channels of a head; "stream": residual stream.
"""

from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention, DropPath, Mlp
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from models import fused_kernels as kernels
from models.blocks import Casting, add_mixin
from models.fused_functions import Activate, AddNorm, Linear, SplitHeads, mask_of
from models.recompute import Recomputed
from models.vit import SampleDropBlock
from utils.torch_compat import hooks_of


def _factors(path: nn.Module, x: Tensor) -> Tensor | None:
    """The factors (B,) of a drop-path of x (B, T, N); None without one."""
    if not isinstance(path, DropPath) or not path.training or not path.drop_prob:
        return None
    kept = 1 - path.drop_prob
    factors = torch.empty(len(x), device=x.device).bernoulli_(kept)
    return factors.div_(kept) if kept and path.scale_by_keep else factors


def run_fused(blocks: Any, x: Tensor, half: torch.dtype) -> Tensor:
    """Blocks: x (B, T, N) of the stream -> (B, T, N). half: dtype of the products and of attention."""
    _, tokens, width = x.shape
    stream = x.reshape(-1, width).contiguous()  # the memory of one image may have another order, which `reshape` keeps
    added: tuple[Any, ...] = (None, None, mask_of(None), None)
    with torch.autocast(x.device.type, enabled=False):
        for number, block in enumerate(blocks, 1):
            attn = block.attn
            mlp = block.mlp
            norm = block.norm1
            stream, y = AddNorm.apply(stream, *added, norm.weight, norm.bias, norm.eps, half, tokens)
            qkv = Linear.apply(y, attn.qkv.weight, attn.qkv.bias, False)
            q, k, v = SplitHeads.apply(qkv, attn.qkv.bias, tokens, attn.num_heads)
            o = F.scaled_dot_product_attention(q, k, v, dropout_p=attn.attn_drop.p * attn.training)
            o = o.transpose(1, 2).reshape(len(y), -1)
            branch = Linear.apply(o, attn.proj.weight, attn.proj.bias, False)
            factors = _factors(block.drop_path1, x)
            added = branch, attn.proj.bias, mask_of(attn.proj_drop), factors
            norm = block.norm2
            stream, y = AddNorm.apply(stream, *added, norm.weight, norm.bias, norm.eps, half, tokens)
            h = Linear.apply(y, mlp.fc1.weight, mlp.fc1.bias, False)
            hidden = Activate.apply(h, mlp.fc1.bias, mask_of(mlp.drop1))
            is_last = number == len(blocks)
            branch = Linear.apply(hidden, mlp.fc2.weight, mlp.fc2.bias, is_last)
            factors = _factors(block.drop_path2, x)
            if not is_last:
                added = branch, mlp.fc2.bias, mask_of(mlp.drop2), factors
        branch = mlp.drop2(branch.view(x.shape))
        if factors is not None:
            branch = branch.float() * factors[:, None, None]
        return (stream.view(x.shape) + branch).to(x.dtype)


class FusedBlocks(nn.Module):
    """Mix-in of the sequence of blocks. Evaluation, float32 and hooks, of any module inside, run torch's ops."""

    half_stream: bool
    hooks: list[dict[int, Any]]

    def forward(self, x: Tensor) -> Tensor:
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        is_trained = self.training and torch.is_grad_enabled()
        if not is_trained or not x.is_cuda or half == torch.float32 or any(self.hooks):
            return super().forward(x)
        return run_fused(self, x.to(half) if self.half_stream else x, half)


def why_not_fused(model: VisionTransformer) -> str:
    """The reason why the blocks of a plain ViT cannot be fused, on any device; '' if they can."""
    if model.grad_checkpointing or any(isinstance(block, Recomputed) for block in model.blocks):
        return "MODEL.GRAD_CHECKPOINTING recomputes the blocks one by one"
    if not all(map(is_plain, model.blocks)):
        return "some are frozen, or differ from timm's with pre-norm, biases, exact GELU and fused attention"
    return ""


def fuse_blocks(model: VisionTransformer, half_stream: bool) -> None:
    """Makes the blocks of a plain ViT fused, in place. half_stream: whether their stream is in half also in O1."""
    blocks = add_mixin(model.blocks, FusedBlocks)
    blocks.half_stream = half_stream
    blocks.hooks = [*chain.from_iterable(map(hooks_of, blocks.modules()))]


def is_plain(block: Any) -> bool:
    """Whether `run_fused` computes this block: timm's with pre-norm, biases, exact GELU and trained weights."""
    forward = next(vars(one)["forward"] for one in type(block).__mro__ if "forward" in vars(one) and one is not Casting)
    if forward not in (Block.forward, SampleDropBlock.forward):
        return False
    attn = block.attn
    mlp = block.mlp
    if type(attn).forward is not Attention.forward or type(mlp) is not Mlp or type(mlp.act) is not nn.GELU:
        return False
    if not attn.fused_attn or attn.gate is not None or mlp.act.approximate != "none":
        return False
    return _has_plain_parts(block) and any(parameter.requires_grad for parameter in block.parameters())


def _has_plain_parts(block: Any) -> bool:
    """Whether the norms and linear layers have biases, and other layers do nothing but drop."""
    attn = block.attn
    mlp = block.mlp
    norms = (block.norm1, block.norm2)
    layers = (attn.qkv, attn.proj, mlp.fc1, mlp.fc2)
    nothing = (attn.q_norm, attn.k_norm, attn.norm, mlp.norm, block.ls1, block.ls2)
    drops = (attn.proj_drop, mlp.drop1, mlp.drop2, block.drop_path1, block.drop_path2)
    return (
        all(type(one) is nn.Identity for one in nothing)
        and all(type(one) in (nn.Identity, nn.Dropout, DropPath) for one in drops)
        and all(type(layer).forward is nn.Linear.forward and layer.bias is not None for layer in layers)
        and all(isinstance(norm, nn.LayerNorm) and norm.bias is not None for norm in norms)
        and norms[0].normalized_shape[0] <= kernels.MAX_WIDTH
    )
