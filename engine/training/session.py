"""The session of a training run: its plan as objects. It decides no option, and writes nothing."""

from dataclasses import dataclass

from datasets.decoding.images import BadImageList
from datasets.loading.loader import BatchSource, Loader, build_eval_loader, build_train_batches, shard_windows
from datasets.sources.checks import digest_of, notes_on
from engine.checkpoint.epoch_layout import EpochLayout
from engine.checkpoint.weights_record import HELD_OUT_FILE
from engine.evaluation.evaluate import Evaluator
from engine.plan.training import Plan
from engine.run.facts import Devices, Fact, TrainingData
from engine.run.folder import record_environment
from engine.run.log import RunLogger
from engine.training.build import build_train_state
from engine.training.eval_model import build_evaluator
from engine.training.optimization.schedule import lr_warning, schedule_warnings
from engine.training.optimization.weight_average import average_warning, describe_average
from engine.training.snapshot import RunPosition, restore
from engine.training.step import TrainState
from models.tuning import random_backbone_warning
from utils.device import cpu_warning
from utils.distributed import ProcessContext, call_on_main
from utils.system import busy_note


@dataclass(frozen=True)
class Session:
    """The state of a training run at its position, and the batches of this rank.

    val_batches: for `evaluator`. bad_images: of this rank; it needs a folder before batches are loaded.
    """

    plan: Plan
    state: TrainState
    position: RunPosition
    batches: BatchSource
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


def _build_batches(plan: Plan, context: ProcessContext) -> tuple[BatchSource, EpochLayout]:
    """The training batches of this rank, and how they are divided into steps."""
    config, data, batch = plan.config, plan.config.data, plan.batch
    batches = build_train_batches(config, plan.train, context, batch)
    plan.train.notes.append(batches.workers_note)
    windows = shard_windows(plan.train, data)
    layout = EpochLayout(
        samples=batches.num_samples,
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
