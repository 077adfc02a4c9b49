"""The optimizer, its parameter groups, Muon with fewer kernels, and the learning rate: a pure function of the step."""

import fnmatch
import inspect
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import timm.optim
import torch
from timm.optim import muon
from torch import Tensor, nn

from configs.parts import OPTIMIZERS
from configs.schema import Train
from configs.schema.train import Horizon, Optimizer
from configs.yaml_io import Values
from datasets.sources.class_names import list_names
from engine.parallel import run_eagerly
from engine.progress import EpochProgress, Observer
from engine.run.log import RunLogger
from models.blocks import is_sharded
from models.timm_model import classifiers
from utils.device import find_shortage
from utils.errors import UserError, did_you_mean, first_line
from utils.files import without_none
from utils.library_compat import is_updated_by_muon, newton_schulz_coefficients, register_timm_optimizer
from utils.torch_compat import multiplies_bfloat16_with_onednn

_SGD = ("momentum", "nesterov")  # timm's names of torch's SGD
_FUSED_SHARDED = ("adam", "adamw")  # with a fused kernel of torch for sharded weights
_FUSED = (*_FUSED_SHARDED, *_SGD)
# Those that train sharded weights as whole ones (tests/engine/parallel/test_sharding.py). Not Muon and Adafactor.
SHARDED_OPTIMIZERS = {"adam", "adamw", "adamwdl", "lamb", "lars", "lion", "nadam", "nadamw", "sgd", *_SGD}
_OWN_KEYS = {  # arguments with keys of TRAIN
    "lr": "BASE_LR", "weight_decay": "WEIGHT_DECAY", "layer_decay": "LAYER_DECAY", "betas": "OPTIMIZER.BETAS",
    "eps": "OPTIMIZER.EPS", "momentum": "OPTIMIZER.MOMENTUM",
}  # fmt: skip
# The further arguments of `create_optimizer_v2` that a YAML file can hold; with Muon, two choose its AdamW by name.
_GROUPING = {"filter_bias_and_bn", "layer_decay_min_scale", "layer_decay_no_opt_scale"}
_OF_MUON = {"fallback_list", "fallback_no_weight_decay"}
# Names with another meaning in timm: AdamW with layer decay, which TRAIN.LAYER_DECAY sets here; SGD with momentum, as
# in torch and PaddleViT: timm's sgd is its nesterov.
_TIMM_NAMES = {"adamwdl": "adamw", "sgd": "momentum"}


def build_optimizer(model: nn.Module, options: Train, lr: float) -> torch.optim.Optimizer:
    """timm's optimizer of that name, without weight decay on biases, norms and tokens; fused if torch has a kernel.

    lr: the peak of the schedule, to which a corrected weight decay is relative; `train_steps` sets each step's rate.
    BETAS and EPS that are null are the optimizer's own, as in timm's `create_optimizer_v2`. With LAYER_DECAY the
    learning rate of a layer is scaled as in BEiT (Bao et al., 2021): timm's `param_groups_layer_decay`, with the layers
    of the model's `group_matcher`. HEAD_LR_SCALE multiplies the learning rate of the head.
    Raises UserError: timm has no optimizer of that name, or it cannot be built or step with these options; BETAS or
    KWARGS do not fit it; LAYER_DECAY for a model without layers.
    """
    if options.layer_decay is not None and not hasattr(model, "group_matcher"):
        raise UserError("TRAIN.LAYER_DECAY: this model does not define its layers (no group_matcher); set it to null")
    chosen = options.optimizer
    name = _known_name(chosen)
    arguments: Values = {"opt": name, "lr": lr, "weight_decay": options.weight_decay}
    if name in (_FUSED_SHARDED if is_sharded(model) else _FUSED):
        arguments["fused"] = True
    try:
        arguments |= _given_arguments(name, chosen)
        _try_one_step(model, arguments)
        optimizer = timm.optim.create_optimizer_v2(model, layer_decay=options.layer_decay, **arguments)
        if type(optimizer) is muon.Muon:
            optimizer = BatchedMuon(optimizer.param_groups, **optimizer.defaults)
    except Exception as error:  # some of timm's optimizers need other packages or options
        if isinstance(error, UserError) or find_shortage(error):
            raise
        raise UserError(
            f"TRAIN.OPTIMIZER: {chosen.name} does not work with these options: {first_line(error)}"
        ) from error
    _check_fallback_list(model, arguments.get("fallback_list", ()))
    zero_momentum(optimizer, chosen)
    if options.head_lr_scale != 1:
        optimizer.param_groups[:] = _with_groups_of_head(optimizer, model, options.head_lr_scale)
    return optimizer


def _known_name(chosen: Optimizer) -> str:
    """timm's name of the optimizer; a plugin's is registered there. Raises UserError: timm has no such optimizer."""
    name = timm_name(chosen)
    if chosen.name in OPTIMIZERS:  # of a plugin: timm's table has no public function to add it (timm 1.0)
        own = OPTIMIZERS[chosen.name].code
        if name not in timm.optim.list_optimizers() and "_" not in name:
            has = {f"has_{k}": k in inspect.signature(own).parameters for k in ("eps", "momentum", "betas")}
            register_timm_optimizer(name, own, **has)
        elif "_" in name or timm.optim.get_optimizer_class(name, bind_defaults=False) is not own:
            raise UserError(f"TRAIN.OPTIMIZER.NAME {name}: is timm's, or has _, which timm does not read; rename it")
    known = [str(one) for one in timm.optim.list_optimizers()]
    if name not in known:
        hint = did_you_mean(name, known)
        raise UserError(f"TRAIN.OPTIMIZER.NAME: unknown optimizer {chosen.name[:80]}{hint}")
    if timm.optim.get_optimizer_info(name).second_order:
        raise UserError(f"TRAIN.OPTIMIZER.NAME: {chosen.name} needs second derivatives, which no step has; use AdamW")
    return name


def _try_one_step(model: nn.Module, arguments: Values) -> None:
    """Raises any error of a step of a small tensor: the optimizer may need a closure, or other values in KWARGS."""
    weight = nn.Parameter(torch.ones(2, 2, device=next(model.parameters()).device))
    weight.grad = torch.ones_like(weight)
    with run_eagerly():
        timm.optim.create_optimizer_v2([weight], **arguments).step()


def _check_fallback_list(model: nn.Module, patterns: Sequence[str]) -> None:
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UserError(
                f"TRAIN.OPTIMIZER.KWARGS: fallback_list: no parameter matches {pattern[:80]}; "
                "give a list of names or patterns, such as [head.*]"
            )


def _with_groups_of_head(optimizer: torch.optim.Optimizer, model: nn.Module, scale: float) -> list[Values]:
    """The parameter groups, with groups of their own for the head: `scale` times the rate, LAYER_DECAY included."""
    heads = {parameter for head in classifiers(model) for parameter in head.parameters()}
    groups = []
    for group in optimizer.param_groups:
        backbone = [parameter for parameter in group["params"] if parameter not in heads]
        head = [parameter for parameter in group["params"] if parameter in heads]
        for parameters, factor in ((backbone, 1.0), (head, scale)):
            if parameters:
                lr_scale = group.get("lr_scale", 1.0) * factor
                groups.append(group | {"params": parameters, "lr_scale": lr_scale})
    return groups


def timm_name(chosen: Optimizer) -> str:
    return _TIMM_NAMES.get(chosen.name.lower(), chosen.name.lower())


def _given_arguments(name: str, chosen: Optimizer) -> Values:
    """The given options as arguments of `create_optimizer_v2`, which drops betas and eps that the optimizer lacks."""
    info = timm.optim.get_optimizer_info(name)
    given = chosen.kwargs or {}
    if chosen.betas and info.has_betas and len(chosen.betas) != info.num_betas:
        raise UserError(f"TRAIN.OPTIMIZER.BETAS: {chosen.name} has {info.num_betas} values, not {len(chosen.betas)}")
    kind = timm.optim.get_optimizer_class(name, bind_defaults=False)
    _, *parameters = inspect.signature(kind).parameters
    parameters += _GROUPING | (_OF_MUON if kind is muon.Muon else set())
    for key in given.keys() - (set(parameters) - _OWN_KEYS.keys()):
        hint = f"; its key is TRAIN.{_OWN_KEYS[key]}" if key in _OWN_KEYS else did_you_mean(key, parameters)
        raise UserError(f"TRAIN.OPTIMIZER.KWARGS: {key[:80]} is no further argument of {chosen.name}{hint}")
    own = {"betas": chosen.betas, "eps": chosen.eps, "momentum": chosen.momentum}
    if "deterministic" in parameters:  # Kron draws random numbers: equal ones on all ranks and in a resumed run
        own["deterministic"] = True
    return without_none(own) | given


def unused_optimizer_keys(chosen: Optimizer) -> list[str]:
    """The keys that are set and that the optimizer does not have, as BETAS of a family's default with SGD.

    timm's `create_optimizer_v2` drops them without a word.
    """
    info = timm.optim.get_optimizer_info(timm_name(chosen))
    is_used = {"BETAS": info.has_betas, "EPS": info.has_eps, "MOMENTUM": info.has_momentum}
    given = chosen.model_dump(by_alias=True, exclude_defaults=True)
    return [key for key in is_used if key in given and not is_used[key]]


def describe_optimizer(optimizer: torch.optim.Optimizer, chosen: Optimizer) -> str:
    """The hyperparameters in use, for the log."""
    shown = ("beta", "eps", "momentum", "nesterov")
    own = {key: value for key, value in optimizer.defaults.items() if key.startswith(shown)}
    in_use = own | (chosen.kwargs or {})
    return ", ".join([chosen.name, *(f"{key} {value}" for key, value in in_use.items() if value is not None)])


def scales_by_weights(chosen: Optimizer) -> bool:
    """Returns whether each step is in proportion to the norm of the weights, as LAMB's: zeros stay almost zero."""
    return "lamb" in chosen.name.lower()


def check_sharded_optimizer(options: Optimizer) -> None:
    """Raises UserError if it is unknown whether the optimizer trains sharded weights as whole ones."""
    if options.name.lower() not in SHARDED_OPTIMIZERS:
        names = ", ".join(sorted(SHARDED_OPTIMIZERS))
        raise UserError(
            f"TRAIN.OPTIMIZER.NAME: {options.name[:80]} is not known to train sharded weights as whole ones; "
            f"use one of {names}, or PARALLEL.STRATEGY=ddp"
        )


def zero_momentum(optimizer: torch.optim.Optimizer, chosen: Optimizer) -> None:
    """Initializes a missing momentum: if torch's fused SGD skips its first step, it keeps uninitialized buffers."""
    if not isinstance(optimizer, torch.optim.SGD) or not chosen.momentum:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


class BatchedMuon(muon.Muon):
    """timm's Muon (Jordan et al., 2024), with the matrices of one shape orthogonalized together.

    The same bits on a CPU, fewer kernels. The state, the first step, the AdamW for the other parameters, and AdaMuon
    are timm's. A CPU without instructions for bfloat16 orthogonalizes in float32: 14 to 20 times as fast.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        gradients: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            for own in self._batches(group).values():
                self._update_together([*own], [*own.values()], group)
                gradients |= own
        for one in gradients:
            one.grad = None
        super().step()  # type: ignore[no-untyped-call]
        for one, gradient in gradients.items():
            one.grad = gradient

    def _batches(self, group: Values) -> dict[Any, dict[Tensor, Tensor]]:
        """The matrices of Muon with their gradients, by shape, type and device."""
        batches: dict[Any, dict[Tensor, Tensor]] = defaultdict(dict)
        if group["algo"] != "muon":
            return batches
        for one in group["params"]:
            if one.grad is None:
                continue
            is_matrix = one.ndim == 2 or group["conv_mode"] == "flatten"
            if is_matrix and is_updated_by_muon(self.state.get(one, {})):
                batches[one.shape, one.dtype, one.device][one] = one.grad
        return batches

    def _update_together(self, parameters: list[Tensor], gradients: list[Tensor], group: Values) -> None:
        """timm's update of B parameters of one shape (out, in, ...), as B matrices (out, in)."""
        lr = group["lr"]
        momentum = group["momentum"]
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


EPOCHS_PER_REDUCTION = 30  # of the step decay, timm's default
_WSD_DECAY_SHARE = 1 / 5  # of NUM_EPOCHS


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up from WARMUP_START_LR to BASE_LR, then the decay of LR_SCHEDULER; all rates times `lr_factor`.

    cosine: to END_LR (Loshchilov and Hutter, 2016). linear: to END_LR. step: multiplied by DECAY_RATE every
    DECAY_EPOCHS, counted from the start of the warm-up as in timm's train.py, not below END_LR. wsd: constant, then
    linear to END_LR in the last DECAY_EPOCHS (Zhai et al., 2021: cooldown; Hu et al., 2024: warm-up, stable, decay).
    Without WARMUP_PREFIX the warm-up replaces the start of the decay. With PLANS a step has the rate of its place in
    the first one.

    At the end of every epoch the cosine equals PaddleViT's, and the step decay timm's, which change once per epoch.
    """

    options: Train
    horizon: Horizon
    steps_per_epoch: int
    images_per_step: int

    @property
    def peak_lr(self) -> float:
        return self.options.base_lr * lr_factor(self.options, self.images_per_step)

    def lr_at(self, step: float) -> float:
        """The learning rate of optimizer step `step`, counted from 0."""
        options = self.options
        decay = self.options.lr_scheduler
        factor = lr_factor(options, self.images_per_step)
        start_lr = options.warmup_start_lr * factor
        end_lr = options.end_lr * factor
        step = self.horizon.in_first_plan(step, self.steps_per_epoch)
        warmup_steps = options.warmup_epochs * self.steps_per_epoch
        if step < warmup_steps:
            return start_lr + (self.peak_lr - start_lr) * step / warmup_steps
        has_prefix = decay.name != "step" if decay.warmup_prefix is None else decay.warmup_prefix
        decay_start = warmup_steps if has_prefix else 0
        if decay.name == "step":
            reductions = (step - decay_start) // ((decay.decay_epochs or EPOCHS_PER_REDUCTION) * self.steps_per_epoch)
            return max(end_lr, self.peak_lr * math.pow(decay.decay_rate, reductions))
        num_epochs = self.horizon.plans_in_use[0][2]
        total_steps = num_epochs * self.steps_per_epoch
        if decay.name == "wsd":
            epochs = decay.decay_epochs or num_epochs * _WSD_DECAY_SHARE
            decay_start = max(decay_start, total_steps - epochs * self.steps_per_epoch)
        share = min(1.0, max(0.0, step - decay_start) / max(1, total_steps - decay_start))
        left = (1 + math.cos(math.pi * share)) / 2 if decay.name == "cosine" else 1 - share
        return end_lr + (self.peak_lr - end_lr) * left


def lr_factor(options: Train, images_per_step: int) -> float:
    """Linear scaling (Goyal et al., 2017), or by the square root (Malladi et al., 2022)."""
    if options.sqrt_scaled_lr:
        return math.sqrt(images_per_step / options.sqrt_scaled_lr)
    return images_per_step / options.linear_scaled_lr if options.linear_scaled_lr else 1.0


class UntrainedParameters(Observer):
    """Warns of the trained parameters that get no gradient in the first step."""

    def __init__(self, model: nn.Module, logger: RunLogger) -> None:
        self._logger = logger
        self._names = {value: name for name, value in model.named_parameters() if value.requires_grad}
        self._hooks = [value.register_post_accumulate_grad_hook(self._found) for value in self._names]

    def _found(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        self._names.pop(parameter, None)

    def after_step(self, progress: EpochProgress) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._names:
            names = list_names(list(self._names.values()))
            self._logger.warn(f"without a gradient, so never trained: {names}")
        self._names = {}
        self._hooks = []
