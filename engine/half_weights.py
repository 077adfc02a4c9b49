"""Half-precision weights: the model that computes, and the fp32 weights that the optimizer updates in its place."""

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _BatchNorm)


def half_copy(model: nn.Module, half: torch.dtype, norms_too: bool) -> nn.Module:
    """A copy with weights in `half`; it shares the fp32 norms, and all buffers, with `model`.

    Batch norms stay fp32 even with `norms_too`: their running statistics need it.
    """
    stays = (_BatchNorm,) if norms_too else _NORMS
    shared = [p for module in model.modules() if isinstance(module, stays) for p in module.parameters(recurse=False)]
    memo = {id(tensor): tensor for tensor in (*shared, *model.buffers())}
    for parameter in model.parameters():
        halved = nn.Parameter(parameter.detach().to(half), requires_grad=parameter.requires_grad)
        memo.setdefault(id(parameter), halved)
    return copy.deepcopy(model, memo)


class FullWeights:
    """The fp32 weights behind a model that computes in half, and their way there and back, once a step.

    As masters (Apex's and Paddle's O2) they are kept from step to step. Without masters they exist only while the
    optimizer works: taken from the half weights before, rounded into them after. That rounding is stochastic (Gupta
    et al., 2015): by a random choice of the two neighbours, right on average, where the nearest one would swallow
    every update smaller than half the distance. For a model that computes with its own weights nothing happens.
    """

    def __init__(self, full: nn.Module, computing: nn.Module, masters: bool) -> None:
        self.full, self.computing = full, computing
        self.masters = masters
        pairs = [
            (kept, used)
            for kept, used in zip(full.parameters(), computing.parameters(), strict=True)
            if kept is not used and kept.requires_grad
        ]
        self._full = [kept for kept, _ in pairs]
        self._half = [used for _, used in pairs]
        self._sizes = [kept.numel() for kept in self._full]
        self._values: torch.Tensor | None = None  # of all of them, one behind the other
        self._statistics = [buffer for buffer in computing.buffers() if buffer.is_floating_point()]
        self._remembered = [buffer.clone() for buffer in self._statistics]
        self._release()

    @property
    def kept(self) -> nn.Module:
        """The model whose weights are the state between steps."""
        return self.full if self.masters else self.computing

    def gather(self) -> None:
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
    def publish(self, seed: int) -> None:
        """After the optimizer: its weights into the half model. The `seed` of the rounding must be alike on all ranks.

        Weights that have not changed stay as they are: a half value is not rounded away from itself.
        """
        if not self._full:
            return
        if not self.masters:
            _round_stochastically(self._values, self._half[0].dtype, seed)
        self.refresh()
        self._release()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copies the fp32 weights, where they are at hand, into the half model."""
        if self._full and (self.masters or self._values is not None):
            torch._foreach_copy_(self._half, self._full)

    def remember_statistics(self) -> None:
        """Before a step's passes: what batch norms have learned so far."""
        if self._statistics:
            torch._foreach_copy_(self._remembered, self._statistics)

    def restore_statistics(self, skipped: torch.Tensor) -> None:
        """After them: as it was, if the step was `skipped` (1 or 0): the batch may have made NaNs of it."""
        for now, before in zip(self._statistics, self._remembered, strict=True):
            torch.where(skipped > 0, before, now, out=now)

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
