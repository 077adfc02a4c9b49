"""timm's Muon (Jordan et al., 2024) with fewer kernels, and with q, k and v orthogonalized apart where asked for."""

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch
from timm.optim import muon
from torch import nn

from utils.library_compat import is_updated_by_muon, newton_schulz_coefficients, route_to_muon
from utils.torch_compat import multiplies_bfloat16_with_onednn

# timm's modules whose layers `qkv` have the rows of q, of k, and of v, in this order, each one a third. Elsewhere the
# rows of a head stand together (TinyViT), or v has more of them (LeViT, EfficientFormer).
_THIRDS = {
    "timm.layers.attention",
    "timm.layers.attention_pool2d",
    "timm.layers.diff_attention",
    "timm.models.beit",
    "timm.models.cait",
    "timm.models.coat",
    "timm.models.convit",
    "timm.models.davit",
    "timm.models.edgenext",
    "timm.models.eva",
    "timm.models.fastvit",
    "timm.models.gcvit",
    "timm.models.hiera",
    "timm.models.hieradet_sam2",
    "timm.models.maxxvit",
    "timm.models.metaformer",
    "timm.models.mvitv2",
    "timm.models.nest",
    "timm.models.swin_transformer",
    "timm.models.swin_transformer_v2",
    "timm.models.swin_transformer_v2_cr",
    "timm.models.twins",
    "timm.models.vision_transformer_relpos",
    "timm.models.vision_transformer_sam",
    "timm.models.volo",
    "timm.models.xcit",
}


def fused_qkv(model: nn.Module) -> set[torch.Tensor]:
    """The weights (3 C, D) of timm's layers `qkv` with the rows of q first, then of k, then of v."""
    found = set[torch.Tensor]()
    for module in model.modules():
        layer = getattr(module, "qkv", None)
        by_head = getattr(module, "head_first", False)  # MaxViT: q, k and v of a head stand together
        without_q = getattr(module, "use_global", False)  # GCViT: q comes from elsewhere
        is_known = any(kind.__module__ in _THIRDS for kind in type(module).__mro__)
        if is_known and isinstance(layer, nn.Linear) and not by_head and not without_q:
            found.add(layer.weight)
    return found


class BatchedMuon(muon.Muon):
    """timm's Muon, with the matrices of one shape orthogonalized together: the same bits on a CPU, fewer kernels.

    split: weights (3 C, D), whose thirds are orthogonalized apart and scaled by their own shape, from the first step
    on; timm's bits hold for all others. The state, the first step of other parameters, the AdamW for the rest and
    AdaMuon are timm's. A CPU without instructions for bfloat16 orthogonalizes in float32: 14 to 20 times as fast.
    """

    def __init__(self, groups: Any, split: Collection[torch.Tensor] = (), **defaults: Any) -> None:
        super().__init__(groups, **defaults)
        self._split = set(split)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients: dict[torch.Tensor, torch.Tensor] = {}
        for group in self.param_groups:
            for (*_, parts), own in self._batches(group).items():
                self._update_together([*own], [*own.values()], group, parts)
                gradients |= own
        for one in gradients:
            one.grad = None
        super().step()  # type: ignore[no-untyped-call]
        for one, gradient in gradients.items():
            one.grad = gradient
        return loss

    def _batches(self, group: dict[str, Any]) -> dict[Any, dict[torch.Tensor, torch.Tensor]]:
        """The matrices of Muon with their gradients, by shape, type, device, and number of parts to orthogonalize."""
        batches: dict[Any, dict[torch.Tensor, torch.Tensor]] = defaultdict(dict)
        if group["algo"] != "muon":
            return batches
        for one in group["params"]:
            if one.grad is None:
                continue
            parts = 1
            if one in self._split:
                parts = 3
                route_to_muon(one, self.state[one], group)
            is_matrix = one.ndim == 2 or group["conv_mode"] == "flatten"
            if is_matrix and is_updated_by_muon(self.state.get(one, {})):
                batches[one.shape, one.dtype, one.device, parts][one] = one.grad
        return batches

    def _update_together(
        self, parameters: list[torch.Tensor], gradients: list[torch.Tensor], group: dict[str, Any], parts: int
    ) -> None:
        """timm's update of B parameters of one shape (out, in, ...), as B * parts matrices (out / parts, in)."""
        lr, momentum = group["lr"], group["momentum"]
        buffers = [self.state[one]["momentum_buffer"] for one in parameters]
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, buffers, momentum) if group["nesterov"] else buffers
        in_bfloat16 = parameters[0].device.type != "cpu" or multiplies_bfloat16_with_onednn()
        rows = parameters[0].shape[0] // parts
        matrices = muon.zeropower_via_newtonschulz(
            torch.stack(updates).reshape(len(updates) * parts, rows, -1),
            group["ns_steps"],
            newton_schulz_coefficients(group["ns_coefficients"]),
            dtype=torch.bfloat16 if in_bfloat16 else torch.float32,
            **{key: group[key] for key in ("eps", "safety_factor", "scale_eps")},
        )
        scale = muon.get_lr_scale(matrices.shape, group["adjust_lr_fn"]) if group["adjust_lr_fn"] else 1.0
        steps = matrices.to(parameters[0].dtype).reshape(-1, *parameters[0].shape).unbind()
        torch._foreach_add_(parameters, steps, alpha=-lr * scale)
