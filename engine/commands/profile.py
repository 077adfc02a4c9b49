"""The profiling command."""

from dataclasses import replace

from configs.reading.command_line import Command
from engine.commands.open_run import begin_status, open_new_folder, start_log
from engine.profiling.profiler import profile_run
from engine.training.run import build_run
from engine.training.run_data import read_run_data
from utils.distributed import ProcessContext


def profile(command: Command, context: ProcessContext) -> int:
    """Trains a few steps, without checkpoints, and writes a page that shows the time of each phase."""
    logger = start_log(command, context)
    config, splits = read_run_data(command.config, context)
    config = config.model_copy(update={"loggers": ()})  # a profile is no result
    command = replace(command, config=config)
    run, _ = build_run(config, splits, context, logger, lambda _: open_new_folder(command, context, logger, "profile-"))
    status = begin_status(run.folder, context)
    profile_run(run)
    if context.is_main:
        status.update(state="finished", exit_status=0)
    return 0
