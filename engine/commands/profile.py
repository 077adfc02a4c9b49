"""The profiling command."""

from dataclasses import replace

from configs.command_line import Command
from engine.plan.training import plan_training
from engine.profiling.profiler import profile_run
from engine.run.folder import start_log
from engine.training.batch_size import find_batch_size
from engine.training.session import build_session, open_profile
from utils.distributed import ProcessContext


def profile(command: Command, context: ProcessContext) -> int:
    """Trains a few steps, without checkpoints, and prints the time of each phase."""
    logger = start_log(command, context)
    command = replace(command, config=command.config.model_copy(update={"loggers": ()}))  # a profile is no result
    session = build_session(plan_training(command, context, logger, find_batch_size), context, logger)
    profile_run(session, open_profile(command, session, logger))
    return 0
