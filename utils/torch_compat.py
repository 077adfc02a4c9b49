"""torch's private names, each behind one function, with the versions it was checked with."""

import torch
import torch._functorch.config
from torch import nn
from torch.amp.grad_scaler import OptState


def is_amp_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer's kernel divides by `grad_scale` and skips on `found_inf` itself. Checked: 2.10, 2.15."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def mark_unscaled(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, found_inf: torch.Tensor) -> None:
    """Tells the scaler that `optimizer.grad_scale` is set and infinities were looked for. Checked: 2.10, 2.15."""
    state = scaler._per_optimizer_states[id(optimizer)]
    state["found_inf_per_device"] = {found_inf.device: found_inf}
    state["stage"] = OptState.UNSCALED


def found_infs(scaler: torch.amp.GradScaler) -> list[torch.Tensor]:
    """The found_inf tensors (), 1 or 0, of all optimizers stepped since the last update. Checked: 2.10, 2.15."""
    return [inf for state in scaler._per_optimizer_states.values() for inf in state["found_inf_per_device"].values()]


def set_found_inf(scaler: torch.amp.GradScaler, found_inf: torch.Tensor) -> None:
    """Replaces what `scaler.update` reads as overflow. Checked: 2.10, 2.15."""
    for state in scaler._per_optimizer_states.values():
        state["found_inf_per_device"] = {found_inf.device: found_inf}


def is_compiled(model: nn.Module) -> bool:
    """Whether a module of the model was compiled in place (`module.compile()`). Checked: 2.10, 2.15."""
    return any(module._compiled_call_impl for module in model.modules())


def keep_forward_dtypes_in_compiled_backward() -> None:
    """Compiled backward passes then use the dtypes of the forward pass, as eager ones do. Checked: 2.10, 2.15."""
    torch._functorch.config.backward_pass_autocast = "off"
