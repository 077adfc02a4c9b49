"""The commands of the entry scripts, and how a shortage of memory is reported."""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from configs.command_line import Command
from configs.schema import Config
from datasets.recognition import recognize_dataset
from datasets.sources.listing import forget_listings
from engine.plan.training import check_same_options
from engine.run.log import print_waiting_notes
from utils import notes
from utils.device import find_shortage, keep_freed_memory, op_without_deterministic_algorithm
from utils.distributed import ProcessContext
from utils.errors import Unavailable, UserError, error_from
from utils.files import file_fix
from utils.signals import kill_children

# By command: the module here, imported when the command runs, and its function.
_MODULES = {
    "train": ("train", "train"),
    "probe": ("train", "train"),
    "profile": ("train", "profile"),
    "dry_run": ("train", "dry_run"),
    "eval": ("evaluate", "evaluate"),
    "predict": ("evaluate", "predict"),
}


def import_command(name: str) -> Callable[[Command, ProcessContext], int]:
    """The function of a command."""
    module, function = _MODULES[name]
    found: Callable[[Command, ProcessContext], int] = getattr(import_module(f"engine.commands.{module}"), function)
    return found


def run(command: Command, context: ProcessContext) -> int:
    """Runs the command on every rank. Returns the exit status: 0, or the signal's if a signal ended a training run.

    Raises UserError: any problem that the user can solve.
    """
    config = command.config
    notes.on_run_end = notes.without_run
    top_k = command.prediction.top_k if command.prediction else None
    check_same_options(config, context, command=command.name, split=command.flags.split, top_k=top_k)
    if context.device.type == "cpu":
        keep_freed_memory()
    try:
        config = config.changed(data=recognize_dataset(config.data, context, command.has_columns_of_run))
        run_command = import_command(command.name)
        status = run_command(replace(command, config=config), context)
        if context.is_main:
            notes.record_run_end("finished", 0)  # a training run has recorded its own end
        return status
    except SystemExit as error:  # of a plugin or a library; its status may be 0
        raise UserError(f"{error!r} of a plugin or a library ended the run; raise another exception there") from error
    except Exception as error:
        explained = _explain(error, config)
        if explained is None:
            raise
        raise explained from error
    finally:
        forget_listings()  # of a start that has ended before the samples were read
        print_waiting_notes()
        kill_children()


def _explain(error: Exception, config: Config) -> UserError | None:
    """An error that says what to do about `error`; None for one that this program does not know."""
    shortage = find_shortage(error)
    if shortage:
        data = config.data
        flag = "-batch_size"
        size = data.batch_size
        if config.eval.enabled or shortage.in_evaluation:
            flag = "-batch_size_eval"
            size = data.eval_batch_size
        fix = f"lower {flag}"
        if shortage.in_loading and data.num_workers:
            fix = "lower -num_workers"
        memory = "GPU" if shortage.on_gpu else "host"
        setup = f"{config.model.name} at {flag} {size}, DATA.IMAGE_SIZE {data.image_size}"
        return Unavailable(f"out of {memory} memory with {setup}: {fix} ({shortage.reason})")
    op = op_without_deterministic_algorithm(error)
    if op:
        return UserError(f"DETERMINISTIC: {op} has no deterministic algorithm here; set it to false")
    if not isinstance(error, OSError):
        return None
    name = os.fsdecode(error.filename or "the system")
    return error_from(error, f"{name}: {error.strerror or error}; {file_fix(error)}")
