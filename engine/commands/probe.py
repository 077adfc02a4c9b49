"""The command of MODEL.TUNE probe."""

from configs.reading.command_line import Command
from engine.commands.train import run_training
from engine.features.probe import run_probe
from utils.distributed import ProcessContext


def probe(command: Command, context: ProcessContext) -> int:
    """Fits a linear head on the features of the frozen backbone. Returns the exit status, as `train`."""
    return run_training(command, context, run_probe)
