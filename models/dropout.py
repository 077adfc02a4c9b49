"""Dropout whose masks are drawn quickly on a CPU."""

import torch
from torch import nn

_LEVELS = 2**16


class FastDropout(nn.Dropout):
    """torch's dropout from 16 random bits per element, of torch's global generator.

    torch draws a real number for each: its forward and backward pass take 2.3 (bf16) to 2.6 times (fp32) as long. The
    rate is rounded to a multiple of 2^-16; what is kept is scaled by just that, as exactly as its type can.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left_out = round(self.p * _LEVELS)
        if not self.training or not 0 < left_out < _LEVELS:
            return super().forward(x)
        return x * _random_mask(x.detach(), left_out)


@torch.library.custom_op("ampvit::random_mask", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _random_mask(x: torch.Tensor, left_out: int) -> torch.Tensor:
    """Of x's shape and type: 0 with a probability of left_out / 2^16, else what keeps the mean.

    An op of its own, for the compiler's loops would be scalar with 16-bit integers in them.
    """
    size = x.numel()
    four_at_once = torch.empty(-(-size // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    kept = four_at_once.view(torch.int16)[:size].view(x.shape) >= left_out - _LEVELS // 2
    return kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - left_out))


@_random_mask.register_fake
def _(x: torch.Tensor, left_out: int) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def use_fast_dropout(model: nn.Module) -> None:
    """Replaces every plain dropout of the model."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, FastDropout(child.p))
