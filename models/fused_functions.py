"""The autograd functions of fused blocks, each with a kernel in its forward or backward pass.

Stored for the backward pass, in channels of the stream per token, in half and with an MLP ratio of 4: AddNorm its sum
(1, twice), Linear qkv and fc1 the norm (1, twice), attention (torch's) and Linear proj q, k, v and its result (4),
Activate and Linear fc2 their inputs (4 each): 16 in a block.

Autograd casts the gradients of these functions to the dtypes of their inputs, and drops gradients of frozen weights.
Legend: B images, T tokens, M = B T rows, N channels of a row, H heads, D channels of a head; "stream": residual stream.
"""

from typing import Any

import torch
import triton
from torch import Tensor, nn

from configs.yaml_io import Values
from models import fused_kernels as kernels


def mask_of(dropout: Any) -> Values:
    """A kernel's arguments for a dropout, or for none. The seeds are of torch's generator of the CPU, which each
    micro-step seeds: no GPU waits.
    """
    rate = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
    seeds = torch.randint(2**31, (2,)).tolist() if rate else (0, 0)
    values = (*seeds, min(round(rate * 2**31), 2**31 - 1), 1 / (1 - rate) if rate < 1 else 0.0, rate > 0)
    return dict(zip((*kernels.MASK, "factor", "DROPS"), values, strict=True))


def _programs(x: Tensor, blocks: int, per_processor: int) -> int:
    """Programs that stay: each has sums of its own."""
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    return min(blocks, processors * per_processor)


def _options(warps: int) -> Values:
    """Triton's options. Its default of fused multiply-adds changes with 3.10, and 3.9 warns of it."""
    return {"num_warps": warps, "enable_fp_fusion": True}


def _row(width: int, warps: int) -> Values:
    """The size of a program that holds a row, and its options. warps: for 1,024 columns."""
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, **_options(min(16, max(1, warps * block // 1024)))}


class Linear(torch.autograd.Function):
    """x (M, in) in half -> (M, out). The next function computes the gradient of the bias, unless it is `sums_bias`."""

    @staticmethod
    def forward(ctx, x, weight, bias, sums_bias):
        half = weight.to(x.dtype)
        ctx.sums_bias = sums_bias
        ctx.dtype = weight.dtype
        ctx.save_for_backward(half, x if ctx.needs_input_grad[1] else None)
        return torch.addmm(bias.to(x.dtype), x, half.t())

    @staticmethod
    def backward(ctx, g):
        half, x = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = torch.mm(g, half)
        if ctx.needs_input_grad[1]:
            exact = {"out_dtype": ctx.dtype} if g.is_cuda and ctx.dtype != g.dtype else {}  # no rounding to half
            dw = torch.mm(g.t(), x, **exact)
        if ctx.sums_bias:
            db = g.sum(0, dtype=torch.float32)
        return dx, dw, db, None


class Activate(torch.autograd.Function):
    """h (M, N) in half -> dropout(GELU(h)). bias: of the layer whose output is h; its gradient comes from here."""

    @staticmethod
    def forward(ctx, h, bias, mask):
        ctx.save_for_backward(h)
        ctx.mask = mask
        block, warps = kernels.ACTIVATE
        y = torch.empty_like(h)
        grid = (triton.cdiv(h.numel(), block),)
        kernels.activate[grid](h, y, h.numel(), **mask, BLOCK=block, **_options(warps))
        return y

    @staticmethod
    def backward(ctx, dy):
        (h,) = ctx.saved_tensors
        rows, block, steps, warps = kernels.ACTIVATE_BACK
        M, N = h.shape
        parts = triton.cdiv(M, rows * steps)
        dh = torch.empty_like(h)
        sums = h.new_empty((parts, N), dtype=torch.float32)
        sizes = {"N": N, "ROWS": rows, "BLOCK": block, "STEPS": steps, **_options(warps)}
        grid = (triton.cdiv(N, block) * parts,)
        kernels.activate_back[grid](dy.contiguous(), h, dh, sums, M, **ctx.mask, **sizes)
        return dh, sums.sum(0), None


class AddNorm(torch.autograd.Function):
    """x (M, N) of the stream, a (M, N) in half or None -> x + path * dropout(a), and its LayerNorm in half.

    bias: of the layer whose output is a; its gradient comes from here. path (B,): factors of drop-path, or None.
    """

    @staticmethod
    def forward(ctx, x, a, bias, mask, path, scale, shift, eps, half, tokens):
        M, N = x.shape
        ctx.adds = a is not None
        ctx.masks = {"T": tokens, **mask}
        ctx.half = half
        rows, warps = kernels.ADD_NORM[x.itemsize]
        total = torch.empty_like(x) if ctx.adds else x
        y = torch.empty_like(x, dtype=half)
        mean = x.new_empty(M, dtype=torch.float32)
        rstd = torch.empty_like(mean)  # Triton compiles a kernel again for an address that is no multiple of 16
        kernels.add_norm[(triton.cdiv(M, rows),)](
            x, x if a is None else a, path, scale, shift, total, y, mean, rstd, M, eps,
            N=N, ADDS=ctx.adds, ROWS=rows, **ctx.masks, **_row(N, warps),
        )  # fmt: skip
        ctx.save_for_backward(total, mean, rstd, scale, path)
        return total if ctx.adds else x.view_as(x), y

    @staticmethod
    def backward(ctx, gx, dy):
        total, mean, rstd, scale, path = ctx.saved_tensors
        M, N = total.shape
        masks = ctx.masks
        rows, warps, per = kernels.ADD_NORM_BACK
        dx = torch.empty_like(total)
        has_da = ctx.adds and (total.dtype != ctx.half or masks["DROPS"] or path is not None)
        da = torch.empty_like(total, dtype=ctx.half) if has_da else dx
        programs = _programs(total, triton.cdiv(M, rows), per)
        sums = total.new_empty((programs, 3, N), dtype=torch.float32)
        kernels.add_norm_back[(programs,)](
            dy.contiguous(), gx.contiguous(), path, scale, total, mean, rstd, dx, da, sums, M,
            N=N, HAS_DA=has_da, ROWS=rows, **masks, **_row(N, warps),
        )  # fmt: skip
        of_scale, of_shift, of_bias = sums.sum(0)
        added = (da, of_bias) if ctx.adds else (None, None)
        return dx, *added, None, None, of_scale, of_shift, None, None, None


class SplitHeads(torch.autograd.Function):
    """qkv (M, 3 H D) -> q, k, v (B, H, T, D). bias: of the layer qkv; its gradient comes from here."""

    @staticmethod
    def forward(ctx, qkv, bias, tokens, heads):
        parts = qkv.view(-1, tokens, 3, heads, qkv.shape[1] // (3 * heads)).unbind(2)
        return tuple(part.transpose(1, 2) for part in parts)

    @staticmethod
    def backward(ctx, *gradients):
        B, H, T, D = gradients[0].shape
        N = H * D
        rows, warps, per = kernels.PACK
        programs = _programs(gradients[0], triton.cdiv(B * T, rows), per)
        out = gradients[0].new_empty((B * T, 3, N))
        sums = out.new_empty((programs, 3, N), dtype=torch.float32)
        for number, part in enumerate(gradients):
            part = part if part.stride(3) == 1 else part.contiguous()
            targets = (out[:, number], sums[:, number])
            sizes = {"T": T, "D": D, "N": N, "ROWS": rows}
            kernels.pack[(programs,)](part, *targets, B * T, *part.stride()[:3], **sizes, **_row(N, warps))
        return out.flatten(1), sums.sum(0).flatten(), None, None
