"""What `torch.compile` makes of a model's passes in training.

Only they are compiled. Evaluation, diagnosis and DDP's rehearsal go through the same modules eagerly: they come with
other batch sizes and modes, and each would have to be compiled anew.
"""

from contextlib import AbstractContextManager

import torch
from timm.layers import DropPath
from torch import nn

from configs.schema import Train
from utils.distributed import ProcessContext
from utils.errors import UserError


def compile_passes(model: nn.Module, options: Train, context: ProcessContext) -> str | None:
    """Lets `model` compile itself in its first pass; says what will be compiled, None where nothing is.

    `default` compiles block by block, where a model has alike `blocks`: they are compiled once, and the first step
    takes seconds. With drop-path they differ in its rate, and are compiled as one model. `max` compiles any model as
    one: the deeper it is the longer that takes, and the loops that it makes are larger. On a GPU it also times
    several kernels for each matrix product, and replays the passes as CUDA graphs where that is safe. The last bits
    of a result depend on the kernels: torch's cache keeps which were the fastest, and a run that is resumed without
    that cache, or on another machine, may take others. Parameters and state keep their names.

    Raises:
        UserError: there is no compiler that works.
    """
    if options.compile == "none":
        return None
    _try_compiler(context.device)
    blocks = list(getattr(model, "blocks", ()))
    alike = not any(isinstance(module, DropPath) for module in model.modules())
    if options.compile == "default" and blocks and alike:
        for block in blocks:
            block.compile(dynamic=False)
        return f"{len(blocks)} blocks"
    mode = _whole_model_mode(options, context)
    model.compile(dynamic=False, mode=mode)
    return f"the whole model{f', {mode}' if mode else ''}"


def eagerly() -> AbstractContextManager:
    """Within it nothing runs compiled."""
    return torch.compiler.set_stance("force_eager")


def _whole_model_mode(options: Train, context: ProcessContext) -> str | None:
    """A graph's replay writes where the one before has written, and so over gradients that are still to be added to.

    On CPUs the kernels that torch could choose from are slower than the ones it has without choosing.
    """
    if options.compile == "default" or context.device.type == "cpu":
        return None
    alone = options.accum_iter == 1 and context.world_size == 1
    return "max-autotune" if alone else "max-autotune-no-cudagraphs"


def _try_compiler(device: torch.device) -> None:
    """With a trifle, so that what is missing shows before anything is trained."""
    try:
        torch.compile(lambda tensor: tensor.sin() + 1)(torch.zeros(8, device=device))
    except Exception as error:  # of many kinds, by what is missing: a C++ compiler, Triton, a writable folder
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"TRAIN.COMPILE: nothing can be compiled here: {reason}; install g++, or leave -compile out"
        ) from error
