"""The blocks of a plain ViT in few passes over memory: Triton kernels for training in half precision on a GPU.

Products and attention stay torch's. Four kernels replace the ops between them, which move most of the bytes of a step:
- residual sum and LayerNorm; backward in one pass, also the gradients of scale, shift and the bias of the layer before
- exact GELU; backward with the gradient of the bias before it
- the gradients of q, k and v -> the gradient of their common layer, and of its bias
Dropout and drop-path are inside: masks follow from hashes of the elements' numbers, so that none is stored.

Kernels compute in float32. They round where autocast does, and the stream if it is in half, but no bias gradients.
Legend: B images, T tokens, M = B T rows, N channels of a row, H heads, D channels of a head; "stream": residual stream.
"""

from functools import cache
from itertools import chain, groupby
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from timm.layers import Attention, DropPath, Mlp
from timm.models.vision_transformer import Block, VisionTransformer
from torch import nn

from models.blocks import Casting, add_mixin
from models.kernels import UnbindAttention
from models.vit import SampleDropBlock
from utils.errors import UserError
from utils.torch_compat import hooks_of

_MASK = ("seed", "other_seed", "threshold")  # integers that differ in each step
_MAX_WIDTH = 4096  # a program holds a row
# The fastest of about ten sizes each for ViT-B/16 on an H200: rows of a program, warps for 1,024 columns, programs per
# processor. `ADD_NORM`: by the bytes of an element of the stream; `GELU_BACK`: rows, columns, steps, warps.
ADD_NORM = {4: (2, 4), 2: (2, 2)}
ADD_NORM_BACK = (1, 2, 8)
GELU, GELU_BACK, PACK = (2048, 4), (16, 128, 8, 4), (2, 4, 4)


@triton.jit
def _keep(at, seed, other_seed, threshold, factor):
    """`factor` with the probability 1 - threshold / 2^31, else 0; from a hash of `at` (murmur3's, with two seeds)."""
    bits = at.to(tl.uint32) ^ seed.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) + other_seed.to(tl.uint32)
    bits = bits * 0xC2B2AE35
    bits = bits ^ (bits >> 16)
    return tl.where((bits >> 1).to(tl.int32) >= threshold, factor, 0.0)


@triton.jit(do_not_specialize=_MASK)
def _add_norm(
    x, a, path, scale, shift, total, y, mean, rstd, M, eps, seed, other_seed, threshold, factor,
    N: tl.constexpr, T: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    at = rows[:, None].to(tl.int64) * N + cols[None, :]
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        added = tl.load(a + at, mask=inside, other=0.0).to(tl.float32)
        if DROPS:
            added *= _keep(at, seed, other_seed, threshold, factor)
        if path is not None:
            added *= tl.load(path + rows // T, mask=rows < M, other=0.0)[:, None]
        rounded = (v + added).to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=inside)
        v = rounded.to(tl.float32)
    m = tl.sum(v, axis=1) / N
    d = tl.where(inside, v - m[:, None], 0.0)
    r = 1 / tl.sqrt(tl.sum(d * d, axis=1) / N + eps)
    g = tl.load(scale + cols, mask=cols < N, other=0.0).to(tl.float32)
    b = tl.load(shift + cols, mask=cols < N, other=0.0).to(tl.float32)
    tl.store(y + at, (d * r[:, None] * g[None, :] + b[None, :]).to(y.dtype.element_ty), mask=inside)
    tl.store(mean + rows, m, mask=rows < M)
    tl.store(rstd + rows, r, mask=rows < M)


@triton.jit(do_not_specialize=_MASK)
def _add_norm_back(
    dy, gx, path, scale, total, mean, rstd, dx, da, sums, M, seed, other_seed, threshold, factor,
    N: tl.constexpr, T: tl.constexpr, HAS_DA: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """gx: the gradient of the sum, dy: of its norm. A program strides over the rows, and has sums of its own."""
    first, programs, cols = tl.program_id(0), tl.num_programs(0), tl.arange(0, BLOCK)
    good = cols < N
    g = tl.load(scale + cols, mask=good, other=0.0).to(tl.float32)
    of_scale = tl.zeros((BLOCK,), tl.float32)
    of_shift = tl.zeros((BLOCK,), tl.float32)
    of_bias = tl.zeros((BLOCK,), tl.float32)
    for block in range(first, tl.cdiv(M, ROWS), programs):
        rows = block * ROWS + tl.arange(0, ROWS)
        inside = (rows[:, None] < M) & good[None, :]
        at = rows[:, None].to(tl.int64) * N + cols[None, :]
        o = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(total + at, mask=inside, other=0.0).to(tl.float32)
        m = tl.load(mean + rows, mask=rows < M, other=0.0)
        r = tl.load(rstd + rows, mask=rows < M, other=0.0)
        h = tl.where(inside, (v - m[:, None]) * r[:, None], 0.0)
        of_shift += tl.sum(o, axis=0)
        of_scale += tl.sum(o * h, axis=0)
        w = o * g[None, :]
        d = (w - h * (tl.sum(w * h, axis=1) / N)[:, None] - (tl.sum(w, axis=1) / N)[:, None]) * r[:, None]
        d = tl.where(inside, d + tl.load(gx + at, mask=inside, other=0.0).to(tl.float32), 0.0)
        tl.store(dx + at, d.to(dx.dtype.element_ty), mask=inside)
        if DROPS:
            d *= _keep(at, seed, other_seed, threshold, factor)
        if path is not None:
            d *= tl.load(path + rows // T, mask=rows < M, other=0.0)[:, None]
        if HAS_DA:
            tl.store(da + at, d.to(da.dtype.element_ty), mask=inside)
        of_bias += tl.sum(d, axis=0)
    out = sums + first * 3 * N + cols
    tl.store(out, of_scale, mask=good)
    tl.store(out + N, of_shift, mask=good)
    tl.store(out + 2 * N, of_bias, mask=good)


@triton.jit
def _normal(v):
    """The normal distribution's integral up to v, and its density times sqrt(2 pi).

    Abramowitz and Stegun 7.1.26: half of the instructions of erf. Small values keep digits that 1 + erf loses.
    """
    density = tl.exp2(v * v * -0.7213475204444817)
    t = 1 / (1 + 0.23164190 * tl.abs(v))
    series = -0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))
    tail = t * (0.127414796 + t * series) * density
    return tl.where(v > 0, 1 - tail, tail), density


@triton.jit(do_not_specialize=_MASK)
def _gelu(h, y, size, seed, other_seed, threshold, factor, DROPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(h + at, mask=at < size, other=0.0).to(tl.float32)
    out = v * _normal(v)[0]
    if DROPS:
        out *= _keep(at, seed, other_seed, threshold, factor)
    tl.store(y + at, out.to(y.dtype.element_ty), mask=at < size)


@triton.jit(do_not_specialize=_MASK)
def _gelu_back(
    dy, h, dh, sums, M, seed, other_seed, threshold, factor,
    N: tl.constexpr, DROPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """A program has ROWS * STEPS rows and BLOCK columns, which are summed once, at the end."""
    blocks = tl.cdiv(N, BLOCK)  # in one dimension of the grid: the others have at most 65,535 programs
    cols, part = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK), tl.program_id(0) // blocks
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for step in range(STEPS):
        rows = (part * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = (rows[:, None] < M) & (cols[None, :] < N)
        at = rows[:, None].to(tl.int64) * N + cols[None, :]
        v = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
        o = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        if DROPS:
            o *= _keep(at, seed, other_seed, threshold, factor)
        integral, density = _normal(v)
        d = o * (integral + v * 0.3989422804014327 * density)
        total += d
        tl.store(dh + at, d.to(dh.dtype.element_ty), mask=inside)
    tl.store(sums + part * N + cols, tl.sum(total, axis=0), mask=cols < N)


@triton.jit
def _pack(
    part, out, sums, M, to_image, to_head, to_token,
    T: tl.constexpr, D: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """part (B, H, T, D) with any strides but 1 for D -> N = H D of the 3 N channels of out, and their sums."""
    first, programs, cols = tl.program_id(0), tl.num_programs(0), tl.arange(0, BLOCK)
    source = part + (cols // D * to_head + cols % D)[None, :]
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(first, tl.cdiv(M, ROWS), programs):
        rows = block * ROWS + tl.arange(0, ROWS)
        inside = (rows[:, None] < M) & (cols[None, :] < N)
        place = (rows // T).to(tl.int64) * to_image + rows % T * to_token
        v = tl.load(source + place[:, None], mask=inside, other=0.0)
        tl.store(out + rows[:, None].to(tl.int64) * 3 * N + cols[None, :], v, mask=inside)
        total += tl.sum(v.to(tl.float32), axis=0)
    tl.store(sums + first * 3 * N + cols, total, mask=cols < N)


def _mask(dropout: Any) -> dict[str, Any]:
    """A kernel's arguments for a dropout, or for none. The seeds are of torch's generator of the CPU, which each
    micro-step seeds: no GPU waits.
    """
    rate = dropout.p if isinstance(dropout, nn.Dropout) else 0.0
    seeds = torch.randint(2**31, (2,)).tolist() if rate else (0, 0)
    values = (*seeds, min(round(rate * 2**31), 2**31 - 1), 1 / (1 - rate) if rate < 1 else 0.0, rate > 0)
    return dict(zip((*_MASK, "factor", "DROPS"), values, strict=True))


def _programs(x: torch.Tensor, blocks: int, per_processor: int) -> int:
    """Programs that stay: each has sums of its own."""
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    return min(blocks, processors * per_processor)


def _row(width: int, warps: int) -> dict[str, int]:
    """The size of a program that holds a row, and its warps. warps: for 1,024 columns."""
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": min(16, max(1, warps * block // 1024))}


class _Linear(torch.autograd.Function):
    """x (M, in) in half -> (M, out). The next function computes the gradient of the bias.

    Autograd casts the gradients of this function and of the next ones to the dtypes of the inputs.
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        half = weight.to(x.dtype)
        ctx.save_for_backward(x, half)
        ctx.dtype = weight.dtype
        return torch.addmm(bias.to(x.dtype), x, half.t())

    @staticmethod
    def backward(ctx, g):
        x, half = ctx.saved_tensors
        exact = {"out_dtype": ctx.dtype} if g.is_cuda and ctx.dtype != g.dtype else {}  # no rounding to half
        return torch.mm(g, half), torch.mm(g.t(), x, **exact), None


class _Gelu(torch.autograd.Function):
    """h (M, N) in half -> dropout(gelu(h)). bias: of the layer whose output is h; its gradient comes from here."""

    @staticmethod
    def forward(ctx, h, bias, mask):
        ctx.save_for_backward(h)
        ctx.mask = mask
        block, warps = GELU
        y = torch.empty_like(h)
        _gelu[(triton.cdiv(h.numel(), block),)](h, y, h.numel(), **mask, BLOCK=block, num_warps=warps)
        return y

    @staticmethod
    def backward(ctx, dy):
        (h,) = ctx.saved_tensors
        rows, block, steps, warps = GELU_BACK
        M, N = h.shape
        parts = triton.cdiv(M, rows * steps)
        dh = torch.empty_like(h)
        sums = h.new_empty((parts, N), dtype=torch.float32)
        sizes = {"N": N, "ROWS": rows, "BLOCK": block, "STEPS": steps, "num_warps": warps}
        _gelu_back[(triton.cdiv(N, block) * parts,)](dy.contiguous(), h, dh, sums, M, **ctx.mask, **sizes)
        return dh, sums.sum(0), None


class _AddNorm(torch.autograd.Function):
    """x (M, N) of the stream, a (M, N) in half or None -> (x + path * dropout(a), its LayerNorm in half).

    bias: of the layer whose output is a; its gradient comes from here. path (B,): factors of drop-path, or None.
    """

    @staticmethod
    def forward(ctx, x, a, bias, mask, path, scale, shift, eps, half, tokens):
        M, N = x.shape
        adds = a is not None
        rows, warps = ADD_NORM[x.itemsize]
        total = torch.empty_like(x) if adds else x
        y = torch.empty_like(x, dtype=half)
        mean, rstd = x.new_empty((2, M), dtype=torch.float32)
        ctx.masks = {"T": tokens, **mask}
        ctx.half = half
        ctx.adds = adds
        _add_norm[(triton.cdiv(M, rows),)](
            x, x if a is None else a, path, scale, shift, total, y, mean, rstd, M, eps,
            N=N, ADDS=adds, ROWS=rows, **ctx.masks, **_row(N, warps),
        )  # fmt: skip
        ctx.save_for_backward(total, mean, rstd, scale, path)
        return total if adds else x.view_as(x), y

    @staticmethod
    def backward(ctx, gx, dy):
        total, mean, rstd, scale, path = ctx.saved_tensors
        M, N = total.shape
        masks = ctx.masks
        rows, warps, per = ADD_NORM_BACK
        dx = torch.empty_like(total)
        has_da = ctx.adds and (total.dtype != ctx.half or masks["DROPS"] or path is not None)
        da = torch.empty_like(total, dtype=ctx.half) if has_da else dx
        programs = _programs(total, triton.cdiv(M, rows), per)
        sums = total.new_empty((programs, 3, N), dtype=torch.float32)
        _add_norm_back[(programs,)](
            dy.contiguous(), gx.contiguous(), path, scale, total, mean, rstd, dx, da, sums, M,
            N=N, HAS_DA=has_da, ROWS=rows, **masks, **_row(N, warps),
        )  # fmt: skip
        of_scale, of_shift, of_bias = sums.sum(0)
        added = (da, of_bias) if ctx.adds else (None, None)
        return dx, *added, None, None, of_scale, of_shift, None, None, None


class _Heads(torch.autograd.Function):
    """qkv (M, 3 H D) -> q, k, v (B, H, T, D). bias: of the layer qkv; its gradient comes from here."""

    @staticmethod
    def forward(ctx, qkv, bias, tokens, heads):
        parts = qkv.view(-1, tokens, 3, heads, qkv.shape[1] // (3 * heads)).unbind(2)
        return tuple(part.transpose(1, 2) for part in parts)

    @staticmethod
    def backward(ctx, *gradients):
        B, H, T, D = gradients[0].shape
        N = H * D
        rows, warps, per = PACK
        programs = _programs(gradients[0], triton.cdiv(B * T, rows), per)
        out = gradients[0].new_empty((B * T, 3, N))
        sums = out.new_empty((programs, 3, N), dtype=torch.float32)
        for number, part in enumerate(gradients):
            part = part if part.stride(3) == 1 else part.contiguous()
            targets = (out[:, number], sums[:, number])
            sizes = {"T": T, "D": D, "N": N, "ROWS": rows}
            _pack[(programs,)](part, *targets, B * T, *part.stride()[:3], **sizes, **_row(N, warps))
        return out.flatten(1), sums.sum(0).flatten(), None, None


def _branch(x: torch.Tensor, layer: nn.Linear, dropout: nn.Module, path: nn.Module, batch: int) -> tuple[Any, ...]:
    """The end of a branch, for `_AddNorm`: layer(x), its bias, the masks of dropout (M, N) and of drop-path (B,)."""
    factors = None
    if isinstance(path, DropPath) and path.drop_prob:
        kept = 1 - path.drop_prob
        factors = torch.empty(batch, device=x.device).bernoulli_(kept)
        factors = factors.div_(kept) if kept and path.scale_by_keep else factors
    return _Linear.apply(x, layer.weight, layer.bias), layer.bias, _mask(dropout), factors


def run_fused(blocks: Any, x: torch.Tensor, half: torch.dtype) -> torch.Tensor:
    """Blocks in training mode: x (B, T, N) of the stream -> (B, T, N). half: dtype of the products and of attention."""
    batch, tokens, width = x.shape
    stream = x.reshape(-1, width).contiguous()  # the memory of one image may have another order, which `reshape` keeps
    added: tuple[Any, ...] = (None, None, _mask(None), None)
    with torch.autocast(x.device.type, enabled=False):
        for number, block in enumerate(blocks, 1):
            attn, mlp, norm = block.attn, block.mlp, block.norm1
            stream, y = _AddNorm.apply(stream, *added, norm.weight, norm.bias, norm.eps, half, tokens)
            qkv = _Linear.apply(y, attn.qkv.weight, attn.qkv.bias)
            q, k, v = _Heads.apply(qkv, attn.qkv.bias, tokens, attn.num_heads)
            o = F.scaled_dot_product_attention(q, k, v, dropout_p=attn.attn_drop.p).transpose(1, 2).reshape(len(y), -1)
            added = _branch(o, attn.proj, attn.proj_drop, block.drop_path1, batch)
            norm = block.norm2
            stream, y = _AddNorm.apply(stream, *added, norm.weight, norm.bias, norm.eps, half, tokens)
            hidden = _Gelu.apply(_Linear.apply(y, mlp.fc1.weight, mlp.fc1.bias), mlp.fc1.bias, _mask(mlp.drop1))
            if number < len(blocks):
                added = _branch(hidden, mlp.fc2, mlp.drop2, block.drop_path2, batch)
    return stream.view(x.shape) + block.drop_path2(mlp.drop2(mlp.fc2(hidden.view(batch, tokens, -1))))


class FusedBlocks(nn.Module):
    """Mix-in of the sequence of blocks. Other blocks, evaluation, hooked modules and float32 run torch's ops.

    plain: the blocks that can be fused, and the hooks of all modules in each.
    """

    half_stream: bool
    plain: dict[nn.Module, list[dict[int, Any]]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        blocks: Any = self
        if not (torch.is_grad_enabled() and x.is_cuda and half != torch.float32):
            return super().forward(x)
        for is_fused, group in groupby(blocks, self._is_fused):
            if is_fused:
                stream = x.to(half) if self.half_stream else x
                x = run_fused([*group], stream, half)
            else:
                for block in group:
                    x = block(x)
        return x

    def _is_fused(self, block: nn.Module) -> bool:
        return block in self.plain and block.training and not any(self.plain[block])


def fuse_blocks(model: VisionTransformer, device: torch.device, half_stream: bool) -> tuple[int, str]:
    """Makes the plain blocks of a ViT fused, in place, if they are half of the blocks or more.

    Returns their number, and the reason why other blocks are not fused.

    half_stream: whether the stream between the blocks is in half also in O1.
    Raises UserError: Triton does not work on the device.
    """
    if model.grad_checkpointing:
        return 0, "MODEL.GRAD_CHECKPOINTING recomputes the blocks one by one"
    plain = {block: [*chain.from_iterable(map(hooks_of, block.modules()))] for block in model.blocks if is_plain(block)}
    others = [block for block in model.blocks if block not in plain]
    reason = _difference(others[0]) if others else ""
    if len(plain) < len(others):
        return 0, reason
    check_kernels(device)
    blocks = add_mixin(model.blocks, FusedBlocks)
    blocks.half_stream, blocks.plain = half_stream, plain
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
        _Gelu.apply(h, h, _mask(None))
    except Exception as error:  # of many types, also of the operating system
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"Triton does not work here: {reason}") from error


def _difference(block: Any) -> str:
    """Why a block is not plain, in words."""
    if getattr(block, "drops_samples", (False, False))[1]:
        return "drop path does not compute the dropped samples"
    if not all(parameter.requires_grad for parameter in block.parameters()):
        return "weights are frozen"
    if hasattr(block, "attn") and not getattr(block.attn, "fused_attn", True):
        return "attention is explicit"
    return "they differ from timm's block with pre-norm, biases and exact GELU"


def is_plain(block: Any) -> bool:
    """Whether `run_fused` computes this block: timm's with pre-norm, biases, exact GELU and all weights trained."""
    forward = next(vars(one)["forward"] for one in type(block).__mro__ if "forward" in vars(one) and one is not Casting)
    if forward is not Block.forward and (forward is not SampleDropBlock.forward or block.drops_samples[1]):
        return False
    attn = block.attn
    mlp = block.mlp
    if type(attn).forward not in (Attention.forward, UnbindAttention.forward) or type(mlp) is not Mlp:
        return False
    if not attn.fused_attn or attn.gate is not None or type(mlp.act) is not nn.GELU or mlp.act.approximate != "none":
        return False
    return _has_plain_parts(block) and all(parameter.requires_grad for parameter in block.parameters())


def _has_plain_parts(block: Any) -> bool:
    """Whether the norms and linear layers have biases, and other layers do nothing but drop."""
    attn = block.attn
    mlp = block.mlp
    norms = (block.norm1, block.norm2)
    layers = (attn.qkv, attn.proj, mlp.fc1, mlp.fc2)
    nothing = (block.ls1, block.ls2, attn.q_norm, attn.k_norm, attn.norm, mlp.norm)
    drops = (attn.proj_drop, mlp.drop1, mlp.drop2, block.drop_path1, block.drop_path2)
    return (
        all(type(one) is nn.Identity for one in nothing)
        and all(type(one) in (nn.Identity, nn.Dropout, DropPath) for one in drops)
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
        and all(isinstance(norm, nn.LayerNorm) and norm.bias is not None for norm in norms)
        and norms[0].normalized_shape[0] <= _MAX_WIDTH
    )
