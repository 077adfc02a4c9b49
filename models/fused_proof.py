"""Whether Triton's kernels work for the blocks of a model: copies of two of them run by the kernels and by torch's ops.

The copies have two images, the model's tokens and dtypes, and weights of their own. Training compiles no other kernel.
"""

import copy
import platform
from subprocess import CalledProcessError
from typing import Any

import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from models.fused_blocks import run_fused
from utils.errors import first_line
from utils.seeding import seed_device

# Right kernels reach 3.3 eps: the stream in half, few tokens. A token without its gradients of q, k or v changes a row
# by 41% (17 tokens), 11% (197), 5% (1,025): 6 eps of bfloat16 are 4.7%.
_MAX_ERROR = 6
_REMEDY = (
    "it needs gcc, Python's headers (python3-dev), and space in TRITON_CACHE_DIR, where you may write; "
    "MODEL.FUSED_BLOCKS=false skips this test"
)
_faults: dict[str, str] = {}  # by everything that chooses the kernels


def find_fault(model: VisionTransformer, half: torch.dtype, half_stream: bool, device: torch.device) -> str:
    """The reason why the blocks of a plain ViT do not work by Triton's kernels, and what to do; '' if they do.

    Once per process: the plan of a run has a model on the meta device, and its session another one.
    """
    tokens = model.patch_embed.num_patches + model.num_prefix_tokens
    first: Any = model.blocks[0]
    stream = half if half_stream else first.attn.qkv.weight.dtype
    key = repr((model.blocks, first.attn.num_heads, tokens, half, stream, first.norm1.weight.dtype, device))
    if key not in _faults:
        _faults[key] = ""
        try:
            for block in (first, model.blocks[-1]):  # the rates of drop-path rise from 0
                _compare(block, tokens, half, stream, device)
        except Exception as error:  # of many types, also of the operating system
            cause = first_line(error)
            if isinstance(error, CalledProcessError):  # its text is the command; the screen has the compiler's
                cause = "its C compiler fails"
            _faults[key] = f"Triton does not work on {platform.node()}: {cause}; {_REMEDY}"
    return _faults[key]


def _compare(block: Any, tokens: int, half: torch.dtype, stream: torch.dtype, device: torch.device) -> None:
    """Raises an error of any type: a kernel does not compile or run, or its result differs from torch's ops."""
    if torch.cuda.get_device_capability(device) < (8, 0):
        raise RuntimeError("it supports compute capability 8.0 and higher")
    seed_device(0, device)
    blocks = nn.Sequential(copy.deepcopy(block).to_empty(device=device).requires_grad_())
    with torch.no_grad():
        for parameter in blocks.parameters():  # weights so large that both branches count; biases and norms around 1
            parameter.normal_(float(parameter.ndim == 1), parameter.shape[-1] ** -0.5)
    shape = (2, 2, tokens, block.attn.qkv.in_features)
    x, gradient = torch.randn(shape, device=device, dtype=stream, requires_grad=True)

    def results(is_fused: bool) -> list[Tensor]:
        with torch.autocast(device.type, half):
            out = run_fused(blocks, x, half) if is_fused else blocks(x)
        return [out, *torch.autograd.grad(out, [x, *blocks.parameters()], gradient)]

    blocks.eval()  # without drops
    for plain, fused in zip(results(False), results(True), strict=True):
        if _differ(plain.float(), fused.float(), _MAX_ERROR * torch.finfo(half).eps):
            raise RuntimeError("its kernels and torch's ops differ")
    blocks.train()
    if not all(result.isfinite().all() for result in results(True)):
        raise RuntimeError("its kernels with dropout return infinite values")


def _differ(plain: Tensor, fused: Tensor, limit: float) -> bool:
    """Whether the error of a row or a channel, or of an element of a vector, is NaN or above `limit` of their root mean
    square. A wrong row hides in the norm of a whole matrix. The gradient of a bias of keys is 0 but for rounding.
    """
    errors = (fused - plain).reshape(-1, plain.shape[-1])
    norms = (errors.norm(dim=0), errors.norm(dim=1))
    return not all((norm <= limit * plain.norm() / len(norm) ** 0.5).all() for norm in norms)
