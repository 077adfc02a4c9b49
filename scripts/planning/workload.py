"""Parameters, FLOPs and bytes of a training step, read from the model on the meta device."""

import warnings
from dataclasses import dataclass

import torch
from torch import nn

from configs.schema import Config
from engine.precision.policy import Precision
from engine.run.mfu.flops import count_parameters, training_flops
from engine.training.optimization.optimizer import SHARDED_OPTIMIZERS, moments_per_parameter
from models.attention import EXPLICIT
from models.blocks import blocks_of
from models.build import build_model
from scripts.planning.activations import PassMemory, measure_passes
from utils.errors import UserError
from utils.torch_compat import BatchNorm

GPU, _META = torch.device("cuda"), torch.device("meta")


@dataclass(frozen=True)
class Workload:
    """A training step of one model with one set of options.

    Attributes:
        parameters, trained: their number; trained: those with a gradient.
        block: parameters of the largest block. rest: parameters outside of all blocks.
        flops_per_image: of the forward and backward pass, without recomputation.
        passes: by whether the blocks are checkpointed; without True if the model does not support it.
        moments: values per trained parameter that the optimizer keeps.
        has_average: of the weights.
        sharding_problem: the part that FSDP and HSDP do not support; None if there is none.
    """

    parameters: int
    trained: int
    block: int
    rest: int
    flops_per_image: int
    passes: dict[bool, PassMemory]
    moments: float
    has_average: bool
    sharding_problem: str | None
    precision: Precision

    @property
    def is_half(self) -> bool:
        """Whether the model that runs the passes has half weights."""
        return self.precision.level in ("O2", "O3")

    @property
    def value_bytes(self) -> int:
        """Of a parameter in the passes, and of its gradient with DDP."""
        return 2 if self.is_half else 4


def measure_workload(config: Config) -> Workload:
    """Builds the model on the meta device, counts its FLOPs, and runs its passes there.

    Drop-path is off: it would save an amount of memory and time that changes from step to step.

    Raises:
        UserError: the model or the optimizer cannot be built, or its passes do not run on the meta device.
    """
    amp = config.amp.model_copy(update={"dtype": config.amp.dtype or "float16"})  # the default of a GPU
    config = config.with_model(pretrained=None, droppath=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision = Precision(amp, _META)
        model = _build(config, checkpointing=False)
        passes = {False: _measure(model, config, precision)}
        if hasattr(model, "set_grad_checkpointing"):
            try:
                passes[True] = _measure(_build(config, checkpointing=True), config, precision)
            except UserError:
                if config.model.grad_checkpointing:
                    raise
        flops = training_flops(model, config.data)
    blocks = _block_sizes(model)
    parameters, trained = count_parameters(model)
    return Workload(
        parameters=parameters,
        trained=trained,
        block=max(blocks, default=0),
        rest=parameters - sum(blocks),
        flops_per_image=flops,
        passes=passes,
        moments=moments_per_parameter(config.train),
        has_average=config.train.model_ema,
        sharding_problem=_sharding_problem(model, config, precision),
        precision=precision,
    )


def _build(config: Config, checkpointing: bool) -> nn.Module:
    options = config.with_model(grad_checkpointing=checkpointing)
    with _META:
        return build_model(options.model, options.data, _META)[0]


def _measure(model: nn.Module, config: Config, precision: Precision) -> PassMemory:
    half = precision.dtype if precision.level in ("O1", "O2") else None
    is_explicit = config.model.attention == EXPLICIT
    try:
        return measure_passes(precision.compute_copy(model), config.data, half, is_explicit)
    except Exception as error:  # a model may do anything that tensors without memory do not support
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"MODEL.NAME: {config.model.name} does not run without memory ({reason}); measure it with -profile"
        ) from error


def _sharding_problem(model: nn.Module, config: Config, precision: Precision) -> str | None:
    problems = {
        "MODEL.TUNE lora": config.model.tuned == "lora",
        "AMP.LEVEL O3": precision.level == "O3",
        "batch norms, which this model has": any(isinstance(module, BatchNorm) for module in model.modules()),
        config.train.optimizer.name: config.train.optimizer.name.lower() not in SHARDED_OPTIMIZERS,
    }
    return next((problem for problem, is_present in problems.items() if is_present), None)


def _block_sizes(model: nn.Module) -> list[int]:
    """Parameters of each block, without the blocks inside it."""
    counted: set[int] = set()
    sizes = []
    for block in reversed(blocks_of(model)):  # inner ones first
        own = {id(parameter): parameter.numel() for parameter in block.parameters() if id(parameter) not in counted}
        counted |= set(own)
        sizes.append(sum(own.values()))
    return sizes
