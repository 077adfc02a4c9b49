"""The commands train and probe."""

from contextlib import ExitStack

from configs.command_line import Command
from engine.plan.training import plan_training
from engine.run.folder import start_log
from engine.training.batch_size import find_batch_size
from engine.training.minutes import fit_into_minutes
from engine.training.probe import run_probe, solve_new_head
from engine.training.session import build_session, open_outputs
from engine.training.trainer import Trainer, finish_run
from utils.distributed import ProcessContext


def train(command: Command, context: ProcessContext) -> int:
    """Trains, from the start or from a checkpoint, or fits the head of a probe. Returns 0, or the status of a signal.

    Options, data and checkpoint are checked before the folder of the run is created, or changed. The main process locks
    it; the folder of a resumed run before its checkpoint is read.
    """
    logger = start_log(command, context)
    with ExitStack() as locks:
        plan = plan_training(command, context, logger, find_batch_size, locks)
        solved = solve_new_head(plan, context, logger)
        plan = fit_into_minutes(plan, context, logger, solved)
        session = build_session(plan, context, logger, solved)
        outputs = open_outputs(command, session, logger, locks)
        locks.callback(outputs.reporter.close)  # if training fails
        trainer = Trainer(session, outputs)
        if plan.config.model.tune.solves_head:
            run_probe(trainer, solved)
        else:
            trainer.train()
        return finish_run(command, trainer)
