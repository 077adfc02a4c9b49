"""Half-precision weights: the model that computes, and the fp32 weights that the optimizer updates in its place."""

import copy

import torch
from timm.layers import RmsNorm, RmsNorm2d, SimpleNorm, SimpleNorm2d
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, RmsNorm, RmsNorm2d, SimpleNorm, SimpleNorm2d, _BatchNorm)


def half_copy(model: nn.Module, half: torch.dtype, everything: bool) -> nn.Module:
    """A copy with weights in `half`; it shares the fp32 norms, and the buffers, with `model`.

    With `everything` norms and buffers are half, too, but for batch norms: their running statistics need fp32.
    """
    stays = (_BatchNorm,) if everything else _NORMS
    memo = {}
    for module in model.modules():
        shared = isinstance(module, stays)
        for parameter in module.parameters(recurse=False):
            halved = nn.Parameter(parameter.detach().to(half), requires_grad=parameter.requires_grad)
            memo.setdefault(id(parameter), parameter if shared else halved)
        for buffer in module.buffers(recurse=False):
            memo[id(buffer)] = buffer.to(half) if everything and buffer.is_floating_point() and not shared else buffer
    return copy.deepcopy(model, memo)


class MasterWeights:
    """The fp32 weights behind a model that computes in half, and their way there and back, once a step.

    As masters (Apex's and Paddle's O2) they are kept from step to step. Without masters they exist only while the
    optimizer works: taken from the half weights before, rounded into them after. That rounding is stochastic (Gupta
    et al., 2015): by a random choice of the two neighbours, right on average, where the nearest one would swallow
    every update smaller than half the distance. For a model that computes with its own weights nothing happens.
    """

    def __init__(self, full: nn.Module, computing: nn.Module, masters: bool) -> None:
        self.full, self.computing = full, computing
        self.masters = masters
        pairs = [pair for pair in zip(full.parameters(), computing.parameters(), strict=True) if pair[0] is not pair[1]]
        self._frozen = [pair for pair in pairs if not pair[0].requires_grad]
        self._full = [kept for kept, _ in pairs if kept.requires_grad]
        self._half = [used for kept, used in pairs if kept.requires_grad]
        self._sizes = [kept.numel() for kept in self._full]
        self._values: torch.Tensor | None = None  # of all of them, one behind the other
        batch_norms = [module for module in computing.modules() if isinstance(module, _BatchNorm)]
        self._statistics = [b for norm in batch_norms for b in norm.buffers() if b.is_floating_point()]
        self._remembered = [buffer.clone() for buffer in self._statistics]
        self.reload()
        self._release()

    @property
    def kept(self) -> nn.Module:
        """The model whose weights are the state between steps."""
        return self.full if self.masters else self.computing

    def copy_grads_to_master(self) -> None:
        """Before the optimizer: its weights (without masters) and its gradients, from the half model's."""
        if not self._full:
            return
        if not self.masters:
            self._values, values = self._flat_views()
            torch._foreach_copy_(values, [used.detach() for used in self._half])
            for kept, value in zip(self._full, values, strict=True):
                kept.data = value
        _, gradients = self._flat_views()
        for kept, half, gradient in zip(self._full, self._half, gradients, strict=True):
            kept.grad = None if half.grad is None else gradient
        if given := [half for half in self._half if half.grad is not None]:
            torch._foreach_copy_([kept.grad for kept in self._full if kept.grad is not None], [h.grad for h in given])
        for half in given:
            half.grad = None

    @torch.no_grad()
    def copy_master_to_model(self, seed: int) -> None:
        """After the optimizer: its weights into the half model. The `seed` of the rounding must be alike on all ranks.

        Weights that have not changed stay as they are: a half value is not rounded away from itself.
        """
        if not self._full:
            return
        if not self.masters:
            _round_stochastically(self._values, self._half[0].dtype, seed)
        torch._foreach_copy_(self._half, self._full)
        self._release()

    @torch.no_grad()
    def reload(self) -> None:
        """After new values for the `kept` model: into the other one."""
        for full, half in (*self._frozen, *zip(self._full, self._half, strict=True)):
            if self.masters:
                half.copy_(full)
            elif not full.requires_grad:  # the others are taken when they are needed
                full.copy_(half)

    def save_batch_stats(self) -> None:
        """Before a step's passes: what batch norms have learned so far."""
        if self._statistics:
            torch._foreach_copy_(self._remembered, self._statistics)

    def restore_batch_stats(self, skipped: torch.Tensor) -> None:
        """After them: as it was, if the step was `skipped` (1 or 0): the batch may have made NaNs of it."""
        was_skipped = skipped > 0
        for now, before in zip(self._statistics, self._remembered, strict=True):
            torch.where(was_skipped, before, now, out=now)

    def _flat_views(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        flat = torch.empty(sum(self._sizes), device=self._half[0].device)
        parts = flat.split(self._sizes)
        return flat, [part.view_as(half) for part, half in zip(parts, self._half, strict=True)]

    def _release(self) -> None:
        """Frees what no one needs until the next step."""
        self._values = None
        for kept in self._full:
            kept.grad = None
            if not self.masters:
                kept.data = kept.data.new_zeros(()).expand(kept.shape)  # the shape alone


def _round_stochastically(values: torch.Tensor, half: torch.dtype, seed: int) -> None:
    """Rounds fp32 `values` in place to values of `half`, up or down with a probability that keeps the mean.

    Below the smallest normal number of `half` it rounds to the nearest instead.
    """
    lost_bits = 23 - {torch.bfloat16: 7, torch.float16: 10}[half]
    generator = torch.Generator(values.device).manual_seed(seed)
    bits = values.view(torch.int32)
    bits += torch.randint(2**lost_bits, bits.shape, dtype=torch.int32, device=bits.device, generator=generator)
    bits &= -(2**lost_bits)
