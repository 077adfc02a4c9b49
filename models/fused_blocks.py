"""The blocks of a plain ViT in few passes over memory: Triton kernels for training in half precision on a GPU.

Products and attention stay torch's. Four kernels replace the ops between them, which move most of the bytes of a step:
- residual sum and LayerNorm; backward in one pass, also the gradients of scale, shift and the bias of the layer before
- GELU, exact or approximate; backward with the gradient of the bias before it
- the gradients of q, k and v -> the gradient of their common layer, and of its bias
Dropout and drop-path are inside: masks follow from hashes of the elements' numbers, so that none is stored. LayerScale
multiplies the weight of the layer before it, so that no branch is stored for its gradient.

Kernels compute in float32. They round where autocast does, and the stream if it is in half, but no bias gradients.
Legend: B images, T tokens, M = B T rows, N channels of a row, H heads, D channels of a head; "stream": residual stream.
"""

from functools import cache, partial
from itertools import chain, groupby
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention, DropPath, LayerScale, Mlp
from timm.layers.activations import GELU, GELUTanh, QuickGELU
from timm.models.vision_transformer import Block, VisionTransformer
from torch import nn

from models import fused_kernels as kernels
from models.blocks import Casting, add_mixin
from models.fused_functions import Activate, AddNorm, Linear, SplitHeads, activate, mask_of, norm
from models.kernels import UnbindAttention
from models.recompute import Recomputed
from models.vit import SampleDropBlock
from utils.errors import UserError, first_line
from utils.torch_compat import hooks_of


def _kind(act: nn.Module) -> int | None:
    """The kind of the activation for the kernels; None: they do not compute it."""
    if type(act) is nn.GELU:
        return {"none": kernels.EXACT, "tanh": kernels.TANH}[act.approximate]
    return {GELU: kernels.EXACT, GELUTanh: kernels.TANH, QuickGELU: kernels.QUICK}.get(type(act))


def _branch_end(
    layer: nn.Linear, scale: nn.Module, path: nn.Module, batch: int, half: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The weight and the bias of the last layer of a branch, with LayerScale, and the factors (B,) of the images.

    In float16 the weight has the ratios of LayerScale to its largest value, and the factors have that value: products
    of about 1e-5 would be subnormal numbers.
    """
    factors = None
    weight: torch.Tensor = layer.weight
    bias: torch.Tensor = layer.bias
    if isinstance(path, DropPath) and path.drop_prob:
        kept = 1 - path.drop_prob
        factors = torch.empty(batch, device=weight.device).bernoulli_(kept)
        factors = factors.div_(kept) if kept and path.scale_by_keep else factors
    if isinstance(scale, LayerScale):
        gamma = scale.gamma.float()
        if half == torch.float16:
            largest = gamma.detach().abs().amax().clamp(min=1e-20)
            gamma = gamma / largest
            factors = largest.repeat(batch) if factors is None else factors * largest
        weight = weight.float() * gamma[:, None]
        bias = bias.float() * gamma
    return weight, bias, factors


def run_fused(blocks: Any, x: torch.Tensor, half: torch.dtype, recomputes: bool = False) -> torch.Tensor:
    """Blocks in training mode: x (B, T, N) of the stream -> (B, T, N).

    half: dtype of the products and of attention. recomputes: norms and activations, in the backward pass.
    """
    batch, tokens, width = x.shape
    stream = x.reshape(-1, width).contiguous()  # the memory of one image may have another order, which `reshape` keeps
    added: tuple[Any, ...] = (None, None, mask_of(None), None)
    norm_again = gelu_again = None
    with torch.autocast(x.device.type, enabled=False):
        for number, block in enumerate(blocks, 1):
            attn, mlp = block.attn, block.mlp
            kind = _kind(mlp.act)
            scale, shift, eps = block.norm1.weight, block.norm1.bias, block.norm1.eps
            stream, y = AddNorm.apply(stream, *added, scale, shift, eps, half, tokens)
            if recomputes:
                norm_again = partial(norm, eps=eps, half=half)
            qkv = Linear.apply(y, attn.qkv.weight, attn.qkv.bias, False, norm_again, stream, scale, shift)
            q, k, v = SplitHeads.apply(qkv, attn.qkv.bias, tokens, attn.num_heads)
            o = F.scaled_dot_product_attention(q, k, v, dropout_p=attn.attn_drop.p).transpose(1, 2).reshape(len(y), -1)
            weight, bias, factors = _branch_end(attn.proj, block.ls1, block.drop_path1, batch, half)
            added = Linear.apply(o, weight, bias, False, None), bias, mask_of(attn.proj_drop), factors
            scale, shift, eps = block.norm2.weight, block.norm2.bias, block.norm2.eps
            stream, y = AddNorm.apply(stream, *added, scale, shift, eps, half, tokens)
            mask = mask_of(mlp.drop1)
            if recomputes:
                norm_again = partial(norm, eps=eps, half=half)
                gelu_again = partial(activate, kind=kind, mask=mask)
            h = Linear.apply(y, mlp.fc1.weight, mlp.fc1.bias, False, norm_again, stream, scale, shift)
            hidden = Activate.apply(h, mlp.fc1.bias, kind, mask)
            weight, bias, factors = _branch_end(mlp.fc2, block.ls2, block.drop_path2, batch, half)
            is_last = number == len(blocks)
            branch = Linear.apply(hidden, weight, bias, is_last, gelu_again, h)
            if not is_last:
                added = branch, bias, mask_of(mlp.drop2), factors
        branch = mlp.drop2(branch.view(x.shape))
        if factors is not None:
            branch = branch.float() * factors[:, None, None]
        return (stream.view(x.shape) + branch).to(x.dtype)


class FusedBlocks(nn.Module):
    """Mix-in of the sequence of blocks. Other blocks, evaluation, hooked modules and float32 run torch's ops.

    plain: the blocks that can be fused, and the hooks of all modules in each.
    """

    half_stream: bool
    recomputes: bool
    plain: dict[nn.Module, list[dict[int, Any]]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        blocks: Any = self
        if not (torch.is_grad_enabled() and x.is_cuda and half != torch.float32):
            return super().forward(x)
        for is_fused, group in groupby(blocks, self._is_fused):
            if is_fused:
                stream = x.to(half) if self.half_stream else x
                x = run_fused([*group], stream, half, self.recomputes)
            else:
                for block in group:
                    x = block(x)
        return x

    def _is_fused(self, block: nn.Module) -> bool:
        return block in self.plain and block.training and not any(self.plain[block])


def fuse_blocks(model: VisionTransformer, device: torch.device, half_stream: bool) -> tuple[int, str]:
    """Makes the plain blocks of a ViT fused, in place, if they are half of the trained blocks or more.

    Returns their number, and the reason why other blocks are not fused.

    half_stream: whether the stream between the blocks is in half also in O1.
    Raises UserError: Triton does not work on the device.
    """
    if model.grad_checkpointing:
        return 0, "MODEL.GRAD_CHECKPOINTING true recomputes the blocks one by one"
    plain = {block: [*chain.from_iterable(map(hooks_of, block.modules()))] for block in model.blocks if is_plain(block)}
    others = [block for block in model.blocks if block not in plain]
    trained = [block for block in others if _is_trained(block)]
    reason = _difference((trained + others)[0]) if others else ""
    if not plain or len(plain) < len(trained):
        return 0, reason
    check_kernels(device)
    blocks = add_mixin(model.blocks, FusedBlocks)
    blocks.half_stream, blocks.plain = half_stream, plain
    blocks.recomputes = any(isinstance(block, Recomputed) for block in plain)
    return len(plain), reason


@cache
def check_kernels(device: torch.device) -> None:
    """Compiles and runs a kernel: Triton needs a C compiler and a writable cache too.

    Raises UserError: it fails, or the compute capability is one that Triton does not support.
    """
    try:
        if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
            raise RuntimeError("it supports compute capability 8.0 and higher")
        h = torch.zeros(1, 16, device=device, dtype=torch.float16)
        Activate.apply(h, h, kernels.EXACT, mask_of(None))
    except Exception as error:  # of many types, also of the operating system
        raise UserError(f"Triton does not work here: {first_line(error)}") from error


def _difference(block: Any) -> str:
    """Why a block is not plain, in words."""
    if getattr(block, "drops_samples", (False, False))[1]:
        return "drop path does not compute the dropped samples"
    if not _is_trained(block):
        return "their weights are frozen"
    if hasattr(block, "attn") and not getattr(block.attn, "fused_attn", True):
        return "attention is explicit"
    return "they differ from timm's block with pre-norm, biases and GELU"


def _is_trained(block: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in block.parameters())


def is_plain(block: Any) -> bool:
    """Whether `run_fused` computes this block: timm's with pre-norm, biases, GELU and trained weights."""
    mixins = (Casting, Recomputed)
    forward = next(vars(one)["forward"] for one in type(block).__mro__ if "forward" in vars(one) and one not in mixins)
    if forward is not Block.forward and (forward is not SampleDropBlock.forward or block.drops_samples[1]):
        return False
    attn = block.attn
    mlp = block.mlp
    if type(attn).forward not in (Attention.forward, UnbindAttention.forward) or type(mlp) is not Mlp:
        return False
    if not attn.fused_attn or attn.gate is not None or _kind(mlp.act) is None:
        return False
    return _has_plain_parts(block) and _is_trained(block)


def _has_plain_parts(block: Any) -> bool:
    """Whether the norms and linear layers have biases, and other layers do nothing but drop or scale."""
    attn = block.attn
    mlp = block.mlp
    norms = (block.norm1, block.norm2)
    layers = (attn.qkv, attn.proj, mlp.fc1, mlp.fc2)
    nothing = (attn.q_norm, attn.k_norm, attn.norm, mlp.norm)
    drops = (attn.proj_drop, mlp.drop1, mlp.drop2, block.drop_path1, block.drop_path2)
    return (
        all(type(one) is nn.Identity for one in nothing)
        and all(type(one) in (nn.Identity, nn.Dropout, DropPath) for one in drops)
        and all(type(one) in (nn.Identity, LayerScale) for one in (block.ls1, block.ls2))
        and all(type(layer).forward is nn.Linear.forward and layer.bias is not None for layer in layers)
        and all(isinstance(norm, nn.LayerNorm) and norm.bias is not None for norm in norms)
        and norms[0].normalized_shape[0] <= kernels.MAX_WIDTH
    )
