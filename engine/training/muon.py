"""timm's Muon (Jordan et al., 2024) with fewer kernels."""

from collections import defaultdict
from typing import Any

import torch
from timm.optim import muon

from utils.library_compat import is_updated_by_muon, newton_schulz_coefficients
from utils.torch_compat import multiplies_bfloat16_with_onednn


class BatchedMuon(muon.Muon):
    """timm's Muon, with the matrices of one shape orthogonalized together: the same bits on a CPU, fewer kernels.

    The state, the first step, the AdamW for the other parameters, and AdaMuon are timm's. A CPU without instructions
    for bfloat16 orthogonalizes in float32: 14 to 20 times as fast.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        gradients: dict[torch.Tensor, torch.Tensor] = {}
        for group in self.param_groups:
            for own in self._batches(group).values():
                self._update_together([*own], [*own.values()], group)
                gradients |= own
        for one in gradients:
            one.grad = None
        super().step()  # type: ignore[no-untyped-call]
        for one, gradient in gradients.items():
            one.grad = gradient

    def _batches(self, group: dict[str, Any]) -> dict[Any, dict[torch.Tensor, torch.Tensor]]:
        """The matrices of Muon with their gradients, by shape, type and device."""
        batches: dict[Any, dict[torch.Tensor, torch.Tensor]] = defaultdict(dict)
        if group["algo"] != "muon":
            return batches
        for one in group["params"]:
            if one.grad is None:
                continue
            is_matrix = one.ndim == 2 or group["conv_mode"] == "flatten"
            if is_matrix and is_updated_by_muon(self.state.get(one, {})):
                batches[one.shape, one.dtype, one.device][one] = one.grad
        return batches

    def _update_together(
        self, parameters: list[torch.Tensor], gradients: list[torch.Tensor], group: dict[str, Any]
    ) -> None:
        """timm's update of B parameters of one shape (out, in, ...), as B matrices (out, in)."""
        lr, momentum = group["lr"], group["momentum"]
        buffers = [self.state[one]["momentum_buffer"] for one in parameters]
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, buffers, momentum) if group["nesterov"] else buffers
        in_bfloat16 = parameters[0].device.type != "cpu" or multiplies_bfloat16_with_onednn()
        matrices = muon.zeropower_via_newtonschulz(
            torch.stack(updates).flatten(2),
            group["ns_steps"],
            newton_schulz_coefficients(group["ns_coefficients"]),
            dtype=torch.bfloat16 if in_bfloat16 else torch.float32,
            **{key: group[key] for key in ("eps", "safety_factor", "scale_eps")},
        )
        scale = muon.get_lr_scale(matrices.shape, group["adjust_lr_fn"]) if group["adjust_lr_fn"] else 1.0
        steps = matrices.to(parameters[0].dtype).reshape(-1, *parameters[0].shape).unbind()
        torch._foreach_add_(parameters, steps, alpha=-lr * scale)
