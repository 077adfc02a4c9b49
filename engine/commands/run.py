"""The commands of the entry scripts, and how a shortage of memory is reported."""

import os

import torch

from configs.command_line import Command
from configs.schema import Config
from engine.commands.dry_run import dry_run
from engine.commands.evaluate import evaluate_weights
from engine.commands.profile import profile
from engine.commands.train import train
from engine.precision.policy import precision_name
from engine.telemetry.reporter import peak_memory_bytes
from engine.training.evaluation import IN_EVALUATION
from utils.device import keep_freed_memory
from utils.distributed import ProcessContext, set_collective_timeout
from utils.errors import UserError
from utils.signals import kill_children

_COMMANDS = {"train": train, "eval": evaluate_weights, "profile": profile, "dry_run": dry_run}


def run(command: Command, context: ProcessContext) -> int:
    """Runs the command on every rank and returns the exit status: 0, or that of a signal which ended a training run.

    Raises:
        UserError: any problem that the user can solve.
    """
    config = command.config
    if context.device.type == "cpu":
        keep_freed_memory()
    set_collective_timeout(context, config.timeout_seconds)
    try:
        return _COMMANDS[command.name](config, context)
    except torch.OutOfMemoryError as error:
        raise _out_of_gpu_memory(config, context, error) from error
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else "the system"
        raise UserError(f"{where}: {error.strerror or error}") from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):
            raise
        raise UserError(
            f"out of host memory with {config.model.name} at -batch_size {config.data.batch_size} and "
            f"DATA.IMAGE_SIZE {config.data.image_size}; lower -batch_size and raise -accum_iter, or set "
            "MODEL.GRAD_CHECKPOINTING=true"
        ) from error
    finally:
        kill_children()


def _out_of_gpu_memory(config: Config, context: ProcessContext, error: torch.OutOfMemoryError) -> UserError:
    data, amp = config.data, config.amp
    if config.eval or IN_EVALUATION in getattr(error, "__notes__", ()):
        size, fixes = f"-batch_size_eval {data.eval_batch_size}", ["lower -batch_size_eval"]
    else:
        size = f"-batch_size {data.batch_size}"
        fixes = ["lower -batch_size and raise -accum_iter"]
        if not config.model.grad_checkpointing:
            fixes.append("set MODEL.GRAD_CHECKPOINTING=true")
    if not amp.enabled:
        fixes.append("use -amp")
    first_line = next(iter(str(error).splitlines()), "no details")
    return UserError(
        f"out of GPU memory with {config.model.name} at {size}, DATA.IMAGE_SIZE {data.image_size}, "
        f"{precision_name(amp, context.device)}; peak {peak_memory_bytes(context.device) / 1e9:.2f} GB: "
        f"{', or '.join(fixes)} ({first_line})"
    )
