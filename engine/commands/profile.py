"""The profiling command."""

from configs.schema import Config
from engine.commands.open_run import begin_status, open_new_run
from engine.profiling.profiler import profile_run
from engine.training.build import build_run
from engine.training.run_data import read_run_data
from utils.distributed import ProcessContext


def profile(config: Config, context: ProcessContext) -> int:
    """Trains a few steps, without checkpoints, and writes a page that shows the time of each phase."""
    config, samples = read_run_data(config, context)
    folder, logger = open_new_run(config, context, "profile")
    status = begin_status(folder, context)
    profile_run(build_run(config, samples, context, folder, logger), config.model.name)
    if context.is_main:
        status.update(state="finished")
    return 0
