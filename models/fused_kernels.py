"""The Triton kernels of fused blocks, and their sizes. Each computes in float32, and masks by hashes.

Legend: M rows of N channels, T tokens of an image, H heads, D channels of a head.
"""

import triton
import triton.language as tl

MASK = ("seed", "other_seed", "threshold")  # integers that differ in each step
ROWS_AND_MASK = ("M", *MASK)  # M differs in a batch of another size: Triton compiles no kernel again
MAX_WIDTH = 4096  # a program holds a row
# The fastest of about ten sizes each for ViT-B/16 on an H200: rows of a program, warps for 1,024 columns, programs per
# processor. `ADD_NORM`: by the bytes of an element of the stream; `ACTIVATE_BACK`: rows, columns, steps, warps.
ADD_NORM = {4: (2, 4), 2: (2, 2)}
ADD_NORM_BACK = (1, 2, 8)
ACTIVATE = (2048, 4)
ACTIVATE_BACK = (16, 128, 8, 4)
PACK = (2, 4, 4)


@triton.jit
def _load(pointers, mask):
    return tl.load(pointers, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(pointers, values, mask):
    tl.store(pointers, values.to(pointers.dtype.element_ty), mask=mask)


@triton.jit
def _keep(at, seed, other_seed, threshold, factor):
    """`factor` with the probability 1 - threshold / 2^31, else 0; from a hash of `at` (murmur3's, with two seeds)."""
    bits = at.to(tl.uint32) ^ seed.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) + other_seed.to(tl.uint32)
    bits = bits * 0xC2B2AE35
    bits = bits ^ (bits >> 16)
    return tl.where((bits >> 1).to(tl.int32) >= threshold, factor, 0.0)


@triton.jit(do_not_specialize=ROWS_AND_MASK)
def add_norm(
    x, a, path, scale, shift, total, y, mean, rstd, M, eps, seed, other_seed, threshold, factor,
    N: tl.constexpr, T: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    at = rows[:, None].to(tl.int64) * N + cols[None, :]
    v = _load(x + at, inside)
    if ADDS:
        added = _load(a + at, inside)
        if DROPS:
            added *= _keep(at, seed, other_seed, threshold, factor)
        if path is not None:
            added *= _load(path + rows // T, rows < M)[:, None]
        rounded = (v + added).to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=inside)
        v = rounded.to(tl.float32)
    m = tl.sum(v, axis=1) / N
    d = tl.where(inside, v - m[:, None], 0.0)
    r = 1 / tl.sqrt(tl.sum(d * d, axis=1) / N + eps)
    g = _load(scale + cols, cols < N)
    b = _load(shift + cols, cols < N)
    _store(y + at, d * r[:, None] * g[None, :] + b[None, :], inside)
    tl.store(mean + rows, m, mask=rows < M)
    tl.store(rstd + rows, r, mask=rows < M)


@triton.jit(do_not_specialize=ROWS_AND_MASK)
def add_norm_back(
    dy, gx, path, scale, total, mean, rstd, dx, da, sums, M, seed, other_seed, threshold, factor,
    N: tl.constexpr, T: tl.constexpr, HAS_DA: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """gx: the gradient of the sum, dy: of its norm. A program strides over the rows, and has sums of its own."""
    first = tl.program_id(0)
    programs = tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    good = cols < N
    g = _load(scale + cols, good)
    of_scale = tl.zeros((BLOCK,), tl.float32)
    of_shift = tl.zeros((BLOCK,), tl.float32)
    of_bias = tl.zeros((BLOCK,), tl.float32)
    for block in range(first, tl.cdiv(M, ROWS), programs):
        rows = block * ROWS + tl.arange(0, ROWS)
        inside = (rows[:, None] < M) & good[None, :]
        at = rows[:, None].to(tl.int64) * N + cols[None, :]
        o = _load(dy + at, inside)
        v = _load(total + at, inside)
        m = _load(mean + rows, rows < M)
        r = _load(rstd + rows, rows < M)
        h = tl.where(inside, (v - m[:, None]) * r[:, None], 0.0)
        of_shift += tl.sum(o, axis=0)
        of_scale += tl.sum(o * h, axis=0)
        w = o * g[None, :]
        d = (w - h * (tl.sum(w * h, axis=1) / N)[:, None] - (tl.sum(w, axis=1) / N)[:, None]) * r[:, None]
        d = tl.where(inside, d + _load(gx + at, inside), 0.0)
        _store(dx + at, d, inside)
        if DROPS:
            d *= _keep(at, seed, other_seed, threshold, factor)
        if path is not None:
            d *= _load(path + rows // T, rows < M)[:, None]
        if HAS_DA:
            _store(da + at, d, inside)
        of_bias += tl.sum(d, axis=0)
    out = sums + first * 3 * N + cols
    tl.store(out, of_scale, mask=good)
    tl.store(out + N, of_shift, mask=good)
    tl.store(out + 2 * N, of_bias, mask=good)


@triton.jit
def _gate(v):
    """The normal distribution's integral g(v), by which GELU is v g(v), and its density.

    By Abramowitz and Stegun 7.1.26: half of the instructions of erf. Small values keep digits that 1 + erf loses.
    """
    density = tl.exp2(v * v * -0.7213475204444817)
    t = 1 / (1 + 0.23164190 * tl.abs(v))
    series = -0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))
    least = t * (0.127414796 + t * series) * density  # of g and 1 - g
    return tl.where(v > 0, 1 - least, least), 0.3989422804014327 * density


@triton.jit(do_not_specialize=MASK)
def activate(
    h, y, size, seed, other_seed, threshold, factor, DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = _load(h + at, at < size)
    out = v * _gate(v)[0]
    if DROPS:
        out *= _keep(at, seed, other_seed, threshold, factor)
    _store(y + at, out, at < size)


@triton.jit(do_not_specialize=ROWS_AND_MASK)
def activate_back(
    dy, h, dh, sums, M, seed, other_seed, threshold, factor,
    N: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """A program has ROWS * STEPS rows and BLOCK columns, which are summed once, at the end."""
    blocks = tl.cdiv(N, BLOCK)  # in one dimension of the grid: the others have at most 65,535 programs
    cols = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    part = tl.program_id(0) // blocks
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for step in range(STEPS):
        rows = (part * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = (rows[:, None] < M) & (cols[None, :] < N)
        at = rows[:, None].to(tl.int64) * N + cols[None, :]
        v = _load(h + at, inside)
        o = _load(dy + at, inside)
        if DROPS:
            o *= _keep(at, seed, other_seed, threshold, factor)
        gate, density = _gate(v)
        d = o * (gate + v * density)
        total += d
        _store(dh + at, d, inside)
    tl.store(sums + part * N + cols, tl.sum(total, axis=0), mask=cols < N)


@triton.jit(do_not_specialize=("M",))
def pack(
    part, out, sums, M, to_image, to_head, to_token,
    T: tl.constexpr, D: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """part (B, H, T, D) with any strides but 1 for D -> N = H D of the 3 N channels of out, and their sums."""
    first = tl.program_id(0)
    programs = tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
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
