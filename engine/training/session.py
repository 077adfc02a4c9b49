"""The session of a training run: its plan as objects; and the record: what it writes.

The session decides no option, and writes nothing. The record is opened when the session is ready.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from configs.batch_plan import EpochLayout
from configs.reading.checks import non_default_options
from configs.reading.command_line import Command, to_yaml
from configs.reading.option_layers import RUN_OPTIONS
from datasets.decoding.images import BadImageList
from datasets.loading.loader import Loader, TrainBatches, build_eval_loader, shard_windows
from datasets.sources.checks import digest_of, notes_on
from engine.checkpoint.run_folder import BEST, RECORDS, link_copies, lock_run_folder
from engine.checkpoint.weights_record import HELD_OUT_FILE, describe_data, write_data_files
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.files import EvaluationFiles
from engine.evaluation.session import build_eval_files, build_evaluator
from engine.plan.training import Plan
from engine.precision.master_weights import average_warning, describe_average
from engine.run.facts import Devices, Fact, TrainingData
from engine.run.flops import describe_model
from engine.run.folder import begin_status, enter_folder, next_command, open_new_folder, record_environment, set_aside
from engine.run.log import RunLogger
from engine.run.loggers import LoggerGroup
from engine.run.reporter import Reporter
from engine.training.build import build_train_state
from engine.training.optimizer import lr_warning, schedule_warnings
from engine.training.snapshot import RunPosition, disk_note, restore
from engine.training.step import TrainState
from models.tuning import random_backbone_warning
from utils.device import cpu_warning
from utils.distributed import ProcessContext, call_on_main
from utils.errors import error_from
from utils.status import RunStatus
from utils.system import busy_note


@dataclass(frozen=True)
class Session:
    """The state of a training run at its position, and the batches of this rank.

    val_batches: for `evaluator`. bad_images: of this rank; it needs a folder before batches are loaded.
    """

    plan: Plan
    state: TrainState
    position: RunPosition
    batches: TrainBatches
    val_batches: Loader
    evaluator: Evaluator
    bad_images: BadImageList


def build_session(plan: Plan, context: ProcessContext, logger: RunLogger) -> Session:
    """Builds all parts of a training run, identical on every rank, and restores the checkpoint of the plan.

    Raises:
        UserError: an option, the weights or the checkpoint are wrong.
    """
    config, bad_images = plan.config, BadImageList(context.rank)
    batches, layout = _build_batches(plan, context)
    state, notes = build_train_state(config, context, layout, plan)
    _log_parts(plan, state, notes, logger)
    if context.device.type == "cpu" and (note := busy_note()):
        logger.info(f"----- {note}")
    for warning in (*plan.warnings, *_warnings(state, is_new=plan.found is None)):
        logger.warn(f"Warning: {warning}")
    record_environment(context, logger, plan.run_folder)
    return Session(
        plan=plan,
        state=state,
        position=restore(state, logger, plan.found),
        batches=batches,
        val_batches=build_eval_loader(config.data, plan.val, context, config.timeout_seconds, bad_images),
        evaluator=build_evaluator(config, state.precision, state.strategy, context),
        bad_images=bad_images,
    )


def _build_batches(plan: Plan, context: ProcessContext) -> tuple[TrainBatches, EpochLayout]:
    """The training batches of this rank, and how they are divided into steps."""
    config, data, batch = plan.config, plan.config.data, plan.batch
    batches = TrainBatches(config, plan.train, context, batch)
    plan.train.notes.append(batches.workers_note)
    windows = shard_windows(plan.train, data)
    layout = EpochLayout(
        samples=len(plan.train),
        batch=batch,
        seed=config.seed,
        repeats=data.repeated_augmentation,
        shuffle_shards=windows.size if windows else 0,
        shards_crc=windows.crc if windows else 0,
        balanced=data.balanced_sampling,
    )
    return batches, layout


def _log_parts(plan: Plan, state: TrainState, notes: list[str | Fact], logger: RunLogger) -> None:
    context = state.context
    for note in notes:
        logger.note(note)
    if plan.batch.whole_steps:
        logger.info(f"----- Global batch: {plan.batch}; TRAIN.ACCUM_ITER is not used")
    if state.average:
        logger.info(f"----- {describe_average(state.config.train)}")
    logger.record(Devices(context.world_size, str(context.device), state.precision.describe()))
    logger.record(
        TrainingData(
            training=len(plan.train),
            validation=len(plan.val),
            test=len(plan.test) if plan.test else 0,
            classes=len(plan.train.class_names),
            model_classes=state.config.model.num_logits,
            validation_digest=digest_of(plan.val) if context.is_main else "",
        )
    )
    logger.record(plan.preprocessing)
    if plan.split:
        logger.info(f"----- Data: held-out images: SHA-256 {plan.split.digest}, listed in a run's {HELD_OUT_FILE}")
    for note in call_on_main(lambda: notes_on(plan.train, plan.val, plan.test), context) or []:  # may read images
        logger.note(f"Data: {note}")


def _warnings(state: TrainState, is_new: bool) -> list[str]:
    """Options that do not fit the size of this run, or this device."""
    train, layout = state.config.train, state.layout
    warnings = (
        *schedule_warnings(train),
        lr_warning(train, layout.batch.global_size),
        average_warning(train, train.num_epochs * layout.steps_per_epoch),
        cpu_warning(state.context.device),
        random_backbone_warning(state.config.model) if is_new else None,
    )
    return [warning for warning in warnings if warning]


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
        call_on_main(lambda: _prepare_folder(session, logger), context)
        enter_folder(folder, command, context, logger, progress.step)
    else:
        folder = open_new_folder(command, context, logger)
        if context.is_main:
            locks.enter_context(lock_run_folder(folder))
    if plan.found and not plan.run_folder:
        logger.info(f"----- Resume: {plan.found.path} is in no folder of a run; the run continues in {folder}")
    if context.is_main:
        write_data_files(folder, describe_data(plan.config.data, plan.class_names), plan.split)
        logger.note(disk_note(session.state, folder))
    resume = next_command(command, f"-resume={folder.absolute()}", from_anywhere=True)
    saved |= {"resume": resume} if plan.run_folder else {}
    return _record(session, folder, logger, begin_status(folder, context, resume, **saved))


def _prepare_folder(session: Session, logger: RunLogger) -> None:
    """Sets aside what is ahead in the folder of the resumed run; names its missing files."""
    plan, position = session.plan, session.position
    assert plan.found and plan.run_folder
    folder, best = plan.run_folder, position.best_path
    if missing := [name for name in (RUN_OPTIONS, *RECORDS) if not (folder / name).exists()]:
        logger.warn(f"Resume: missing in {folder}: {', '.join(missing)}; written from here on")
    try:
        set_aside(plan.found, plan.config.best_metric, logger)
        if best and best.stem != Path(BEST).stem:  # best.pth is of another epoch, damaged or missing
            link_copies(best, is_best=True, periodic_name=None, keep=0)
    except OSError as error:
        raise error_from(error, f"{error.filename or folder}: cannot be moved: {error.strerror}") from None


def open_profile(command: Command, session: Session, logger: RunLogger) -> Record:
    """Opens a new folder, for a run without checkpoints; a collective call."""
    command, context = replace(command, config=session.plan.config), session.state.context
    folder = open_new_folder(command, context, logger, "profile-")
    return _record(session, folder, logger, begin_status(folder, context))


def _record(session: Session, folder: Path, logger: RunLogger, status: RunStatus) -> Record:
    session.bad_images.open(folder)
    config, state = session.plan.config, session.state
    layout, precision = state.layout, state.precision
    reporter = Reporter(
        state.context,
        folder,
        logger,
        precision.scaler,
        partial(describe_model, state.meta_model, config.data, precision.dtype, precision.tf32, state.context),
        state.timer,
        num_epochs=config.train.num_epochs,
        report_freq=config.report_freq,
        images_per_epoch=layout.batches_per_epoch * layout.batch.micro_step_size,
        max_steps=config.train.max_steps,
        metric=config.best_metric,
        num_classes=config.model.num_logits,
        loggers=LoggerGroup(config.loggers, to_yaml(config), non_default_options(config), logger),
    )
    evaluation = build_eval_files(config, session.plan.val, session.evaluator, folder)
    return Record(folder=folder, logger=logger, reporter=reporter, evaluation=evaluation, status=status)
