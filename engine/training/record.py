"""The record of a training run: what it writes. It is opened when the session is ready; nothing is written before."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.reading.command_line import Command, to_yaml
from configs.reading.compare import non_default_options
from engine.checkpoint.run_folder import lock_run_folder
from engine.checkpoint.weights_record import describe_data, write_data_files
from engine.evaluation.files import EvaluationFiles
from engine.run.flops import describe_model
from engine.run.folder import begin_status, enter_folder, next_command, open_new_folder
from engine.run.log import RunLogger
from engine.run.loggers import LoggerGroup
from engine.run.reporter import Reporter
from engine.training.eval_model import build_eval_files
from engine.training.session import Session
from engine.training.snapshot import disk_note
from engine.training.step import TrainState
from utils.status import RunStatus


@dataclass(frozen=True)
class Record:
    """The folder of a run and all that is written to it but the checkpoints.

    evaluation: the files about the best epoch, of the validation images.
    """

    folder: Path
    logger: RunLogger
    reporter: Reporter
    evaluation: EvaluationFiles
    status: RunStatus


def open_record(command: Command, session: Session, logger: RunLogger, locks: ExitStack) -> Record:
    """Opens the folder of the resumed run, or a new one, which the main process locks; a collective call.

    Raises:
        UserError: the folder cannot be created, or another host does not see it.
    """
    plan, context, progress = session.plan, session.state.context, session.position.progress
    command = replace(command, config=plan.config)
    saved: dict[str, Any] = {}
    if plan.found:
        saved = {"checkpoint": str(plan.found.path.absolute()), "epoch": progress.epoch, "step": progress.step}
    if folder := plan.run_folder:
        enter_folder(folder, command, context, logger, progress.step)
    else:
        folder = open_new_folder(command, context, logger)
        if context.is_main:
            locks.enter_context(lock_run_folder(folder))
    if context.is_main:
        write_data_files(folder, describe_data(plan.config.data, plan.class_names), plan.split)
        logger.note(disk_note(session.state, folder))
    resume = next_command(command, f"-resume={folder.absolute()}", from_anywhere=True)
    saved |= {"resume": resume} if plan.run_folder else {}
    return _record(session, folder, logger, begin_status(folder, context, resume, **saved))


def open_profile(command: Command, session: Session, logger: RunLogger) -> Record:
    """Opens a new folder, for a run without checkpoints; a collective call."""
    command, context = replace(command, config=session.plan.config), session.state.context
    folder = open_new_folder(command, context, logger, "profile-")
    return _record(session, folder, logger, begin_status(folder, context))


def _record(session: Session, folder: Path, logger: RunLogger, status: RunStatus) -> Record:
    session.bad_images.open(folder)
    return Record(
        folder=folder,
        logger=logger,
        reporter=_build_reporter(session.state, folder, logger),
        evaluation=build_eval_files(session.plan.config, session.plan.val, session.evaluator, folder),
        status=status,
    )


def _build_reporter(state: TrainState, folder: Path, logger: RunLogger) -> Reporter:
    config, layout, precision = state.config, state.layout, state.precision
    return Reporter(
        state.context,
        folder,
        logger,
        precision.scaler,
        lambda: describe_model(state.meta_model, config.data, precision.dtype, precision.tf32, state.context),
        state.timer,
        num_epochs=config.train.num_epochs,
        report_freq=config.report_freq,
        images_per_epoch=layout.batches_per_epoch * layout.batch.micro_step_size,
        max_steps=config.train.max_steps,
        metric=config.best_metric,
        loggers=LoggerGroup(config.loggers, to_yaml(config), non_default_options(config), logger),
    )
