"""A training run: its state, its data, and its folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.reading.command_line import to_yaml
from configs.reading.compare import non_default_options
from configs.schema import Config
from configs.schema.model import Model
from datasets.decoding.bad_images import BadImageList
from datasets.loading.batches import BatchSource, build_eval_loader
from datasets.loading.loader import Loader
from datasets.sources.checks import notes_on
from datasets.sources.digest import digest_of
from datasets.sources.samples import Samples
from engine.checkpoint.reader import FoundCheckpoint
from engine.checkpoint.split_entry import HELD_OUT_FILE, split_to_entry
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.files import EvaluationFiles
from engine.run.environment import record_environment
from engine.run.facts import Devices, Fact, TrainingData
from engine.run.log import RunLogger
from engine.run.loggers import LoggerGroup
from engine.run.mfu.flops import describe_model
from engine.run.reporter import Reporter
from engine.training.build import build_train_state
from engine.training.eval_model import build_eval_files, build_evaluator
from engine.training.losses.loss import read_class_weights
from engine.training.optimization.schedule import lr_warning, schedule_warnings
from engine.training.optimization.weight_average import average_warning, describe_average
from engine.training.run_data import DataSplits, build_batches
from engine.training.snapshot import RunPosition, restore
from engine.training.state import TrainState
from utils.device import cpu_warning
from utils.distributed import ProcessContext, call_on_main
from utils.system import busy_note


@dataclass(frozen=True)
class Validation:
    """The evaluations of an epoch: the validation images of this rank, and the files about the best epoch."""

    evaluator: Evaluator
    batches: Loader
    num_samples: int
    files: EvaluationFiles


@dataclass(frozen=True)
class Run:
    """A training run in its folder.

    Attributes:
        train: the samples. batches: of them, on this rank.
        bad_images: this rank's list of images that cannot be read.
        class_names: of the data, None if it has none.
        split: of the data, the entry of checkpoints.
    """

    folder: Path
    logger: RunLogger
    state: TrainState
    train: Samples
    batches: BatchSource
    validation: Validation
    bad_images: BadImageList
    reporter: Reporter
    class_names: Sequence[str] | None
    split: dict[str, Any] | None


def build_run(
    config: Config,
    splits: DataSplits,
    context: ProcessContext,
    logger: RunLogger,
    open_folder: Callable[[int], Path],
    found: FoundCheckpoint | None = None,
) -> tuple[Run, RunPosition]:
    """Builds all parts of a training run, identical on every rank, and restores the checkpoint `found`.

    config, splits: as `read_run_data` returns them. open_folder: number of steps done -> the folder of the run. It is
    called when options, data, weights and checkpoint have been checked. Nothing is written before.

    Raises:
        UserError: an option, the weights or the checkpoint are wrong.
    """
    data, timeout = config.data, config.timeout_seconds
    batches, layout = build_batches(config, splits, context)
    class_weights = read_class_weights(config.loss, splits.train.targets, config.model.num_logits, context.device)
    state, notes = build_train_state(config, context, layout, class_weights, splits.class_names)
    _log_parts(state, splits, notes, logger)
    if context.device.type == "cpu" and (note := busy_note()):
        logger.info(f"----- {note}")
    for warning in (*splits.warnings, *_warnings(state, is_new=found is None)):
        logger.warn(f"Warning: {warning}")
    record_environment(context, logger, found.run_folder if found else None)
    position = restore(state, logger, found)
    folder = open_folder(position.progress.step)
    bad_images = BadImageList(folder, context.rank)
    evaluator = build_evaluator(config, state.precision, state.strategy, context)
    validation = Validation(
        evaluator,
        build_eval_loader(data, splits.val, context, timeout, bad_images),
        len(splits.val),
        build_eval_files(config, splits.val, evaluator, folder),
    )
    reporter = _build_reporter(state, folder, logger)
    entry = split_to_entry(splits.split)
    parts = validation, bad_images, reporter, splits.class_names, entry
    return Run(folder, logger, state, splits.train, batches, *parts), position


def _log_parts(state: TrainState, splits: DataSplits, notes: list[str | Fact], logger: RunLogger) -> None:
    context, layout = state.context, state.layout
    for note in notes:
        logger.note(note)
    if layout.batch.whole_steps:
        logger.info(f"----- Global batch: {layout.batch}; TRAIN.ACCUM_ITER is not used")
    if state.average:
        logger.info(f"----- {describe_average(state.config.train)}")
    logger.record(Devices(context.world_size, str(context.device), state.precision.describe()))
    logger.record(
        TrainingData(
            training=len(splits.train),
            validation=len(splits.val),
            test=len(splits.test) if splits.test else 0,
            classes=len(splits.train.class_names),
            model_classes=state.config.model.num_logits,
            validation_digest=digest_of(splits.val) if context.is_main else "",
        )
    )
    logger.record(splits.preprocessing)
    if splits.split:
        logger.info(f"----- Data: the held-out images are listed in {HELD_OUT_FILE}, SHA-256 {splits.split.digest}")
    for note in call_on_main(lambda: notes_on(splits.train, splits.val, splits.test), context) or []:  # may read images
        logger.note(f"Data: {note}")


def _warnings(state: TrainState, is_new: bool) -> list[str]:
    """Options that do not fit the size of this run, or this device."""
    train, layout = state.config.train, state.layout
    warnings = (
        *schedule_warnings(train),
        lr_warning(train, layout.batch.global_size),
        average_warning(train, train.num_epochs * layout.steps_per_epoch),
        cpu_warning(state.context.device),
        _frozen_warning(state.config.model) if is_new else None,
    )
    return [warning for warning in warnings if warning]


def _frozen_warning(model: Model) -> str | None:
    if model.tuned == "full" or model.pretrained:
        return None
    return f"MODEL.TUNE={model.tuned} keeps random weights: give the weights of the backbone with -pretrained"


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
