"""The training command."""

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from configs.schema import Config
from engine.checkpoint.trained_on import write_classes
from engine.commands.open_run import begin_status, lock_and_find, open_training
from engine.training.build import build_run
from engine.training.run_data import read_run_data
from engine.training.trainer import Trainer
from utils.distributed import ProcessContext


def train(config: Config, context: ProcessContext) -> int:
    """Trains, from the start or from a checkpoint; returns the exit status: 0, or that of a signal."""
    with ExitStack() as locks:
        found = lock_and_find(config, context, locks)
        checkpoint = found.state if found else None
        config, samples = read_run_data(config, context, checkpoint["class_names"] if checkpoint else None)
        folder, logger = open_training(config, context, locks, found)
        status = begin_status(folder, context)
        if checkpoint:  # it holds all weights, and the pretrained file may be gone
            config = config.with_model(pretrained=None)
        run = build_run(config, samples, context, folder, logger)
        if context.is_main:
            write_classes(folder, run.description)
        trainer = Trainer(run, status, checkpoint)
        del found, checkpoint  # as large as the model and its moments
        result = trainer.train()
        return _conclude(trainer, result)


def _conclude(trainer: Trainer, result: dict[str, Any]) -> int:
    """Logs how the run ended and how to resume or evaluate it; returns the exit status."""
    signal, logger, folder = trainer.interrupted, trainer.run.logger, trainer.run.folder
    resume = f"-resume={shlex.quote(str(folder))}"
    if signal:
        logger.info(f"----- Interrupted by {signal}; saved; resume with {resume}")
        outcome = {"state": "interrupted", "signal": str(signal), "resume": resume}
    elif not result["finished"]:
        logger.info(f"----- Stopped at TRAIN.MAX_STEPS; resume with {resume}")
        outcome = {"state": "stopped", "resume": resume}
    else:
        outcome = {"state": "finished"}
    if result["top1"] is not None:
        command = f"-cfg={folder}/config.yaml", "-eval", f"-pretrained={result['checkpoint']}"
        logger.info(
            f"----- Best top-1: {result['top1']:.2f}% (epoch {result['epoch']}), {result['checkpoint']}\n"
            f"      Evaluate it: python {Path(sys.argv[0]).name} {shlex.join(command)}"
        )
    if trainer.run.context.is_main:
        trainer.status.update(**outcome)
    return signal.status if signal else 0
