"""The outputs of a run: its folder, what is written there besides checkpoints, and the page."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from configs.command_line import Command, to_yaml
from configs.compare import non_default_options
from configs.schema import Config
from configs.schema.train import Horizon
from datasets.sources.class_names import names_of_labels
from engine.checkpoint.files import FoundCheckpoint
from engine.checkpoint.run_folder import BEST, lock_run_folder
from engine.checkpoint.weights_record import describe_data, write_held_out
from engine.evaluation.files import EvaluationFiles
from engine.evaluation.images import write_images
from engine.plan.training import Plan, new_run
from engine.progress import EpochProgress, Evaluated, Observer
from engine.report.contents import RunContents, contents_of
from engine.run.cost import describe_model
from engine.run.facts import TrainingData, read_fact
from engine.run.folder import enter_folder, open_new_folder
from engine.run.log import RunLogger
from engine.run.loggers import LoggerGroup
from engine.run.record import EVALUATION, REPORT, RunRecord, read_run
from engine.run.reporter import Reporter
from engine.training.session import Session
from engine.training.snapshot import RunPosition, space_notes
from utils.distributed import call_on_main
from utils.errors import UserError, error_from
from utils.files import link_or_copy
from utils.notes import Note

# Of a result: the start of a new run measures the first ones, training the others. A resumed run takes the first ones
# from its record, and all of them if it has ended and trains no step.
_OF_START = ("probe_score", "knn_top1", "probe_l2")
_OF_TRAINING = ("samples", "average_score", "raw_score", "peak_memory_bytes", "numeric_precision", "device")


@dataclass(frozen=True)
class RunOutputs:
    """The folder of a run and all that is written to it but the checkpoints.

    evaluation: the files about the best epoch, of the validation images.
    """

    folder: Path
    logger: RunLogger
    reporter: Reporter
    evaluation: EvaluationFiles

    @property
    def record(self) -> RunRecord:
        return self.logger.record


def open_outputs(command: Command, session: Session, logger: RunLogger, locks: ExitStack) -> RunOutputs:
    """Opens the folder of the resumed run, or a new one, which the main process locks; a collective call.

    Raises UserError: the folder cannot be created, or another host does not see it; or as `refuse_other_images`.
    """
    plan = session.plan
    context = session.state.context
    position = session.position
    command = replace(command, config=plan.config)
    found = plan.found
    progress = position.progress
    names = plan.class_names or names_of_labels(plan.train, plan.config.model.num_logits)
    values = describe_data(plan.config.data, names)
    if found:
        values |= {"checkpoint": str(found.path.absolute()), "epoch": progress.epoch, "step": progress.step}
    refuse_other_images(command, session, logger)
    logger.note(*(call_on_main(lambda: space_notes(session.state, plan.run_folder), context) or ()))
    if folder := plan.run_folder:
        call_on_main(partial(_link_best, position), context)
        if position.best:
            logger.record.set_best(position.best, folder / BEST)
        enter_folder(folder, command, context, logger, progress.step, position.has_ended, **values)
        if context.is_main:
            logger.record.update(checkpoint=values["checkpoint"])  # the folder has it: a command resumes the run
    else:
        folder = open_new_folder(command, context, logger, **values)
        if context.is_main:
            locks.enter_context(lock_run_folder(folder))
        if found:
            logger.note(Note("screen", f"Resume: {found.path} is not the end of a run; the new run is in {folder}"))
    call_on_main(partial(write_held_out, folder, plan.split), context)
    before = logger.record.earlier.get("result", {})
    measured = (*_OF_START, *_OF_TRAINING) if position.has_ended else _OF_START
    logger.record.set_result(**{key: before.get(key) for key in measured})
    logger.begin(*session.lines, f"Folder: {folder}")
    return _outputs(session, folder, logger)


def refuse_other_images(command: Command, session: Session, logger: RunLogger) -> None:
    """Raises UserError: the run has ended with another number of images, or other validation images; collective."""
    found = session.plan.found
    position = session.position
    if found and found.run_folder and position.has_ended:
        call_on_main(partial(_check_record, found, position, command, logger), session.state.context)


def _check_record(found: FoundCheckpoint, position: RunPosition, command: Command, logger: RunLogger) -> None:
    folder = found.path.parent
    before = read_fact(read_run(folder), TrainingData)
    now = read_fact(logger.record.values, TrainingData)
    if not before or not now:
        return
    has_same_numbers = (now.training, now.validation) == (before.training, before.validation)
    if has_same_numbers and before.validation_digest in ("", now.validation_digest):  # "": of an older record
        return
    epochs = position.horizon.num_epochs
    fix = f"-epochs={2 * epochs} trains on them"
    if position.progress.epoch < epochs:
        fix = "-opts TRAIN.PATIENCE=null trains on them"
    if position.config.model.solves_head:
        fix = new_run(found, command)
    images = f"{before.images}, now {now.images}"
    raise UserError(f"{folder}: the run has ended with other images ({images}); -eval evaluates it on them; {fix}")


def _link_best(position: RunPosition) -> None:
    """Links the best checkpoint of a resumed run, if best.pth is of another epoch, damaged or missing."""
    best = position.best_path
    if best and best.name != BEST:
        try:
            link_or_copy(best, best.with_name(BEST))
        except OSError as error:
            raise error_from(error, f"{best}: cannot be copied: {error.strerror}") from None


def open_profile(command: Command, session: Session, logger: RunLogger) -> RunOutputs:
    """Opens a new folder, for a run without checkpoints; a collective call."""
    command = replace(command, config=session.plan.config)
    folder = open_new_folder(command, session.state.context, logger, "profile-")
    logger.begin(*session.lines[:-1], f"Folder: {folder}")  # without the epochs: a profile has its own
    return _outputs(session, folder, logger)


def _outputs(session: Session, folder: Path, logger: RunLogger) -> RunOutputs:
    session.bad_images.open(folder)
    config = session.plan.config
    state = session.state
    layout = state.layout
    precision = state.precision
    reporter = Reporter(
        state.context,
        logger,
        precision.scaler,
        partial(describe_model, state.meta_model, config.data, precision.dtype, precision.tf32, state.context),
        state.timer,
        clock=session.position.clock,
        horizon=session.position.horizon,
        report_freq=config.report_freq,
        images_per_epoch=layout.batches_per_epoch * layout.batch.micro_step_size,
        max_steps=config.train.max_steps,
        loggers=LoggerGroup(config.loggers, to_yaml(config), non_default_options(config), logger),
    )
    evaluation = EvaluationFiles(folder / EVALUATION, session.plan.val, config, session.evaluator)
    return RunOutputs(folder=folder, logger=logger, reporter=reporter, evaluation=evaluation)


@dataclass(eq=False)
class ImagesTable(Observer):
    """Writes `images.csv.gz` after the first epoch of this start, in which all images have been read once."""

    plan: Plan
    outputs: RunOutputs
    written: int = -1  # images that had been read

    def after_epoch(self, progress: EpochProgress, ends: bool) -> None:
        if self.written < 0:
            found = self.plan.found
            self.write(found.path if found else self.plan.config.model.pretrained)

    def write(self, weights: str | Path | None) -> None:
        """A collective call. weights: of the run to compare with."""
        plan = self.plan
        outputs = self.outputs
        is_same = plan.found is not None
        context = outputs.reporter.context
        data = plan.config.data
        logger = outputs.logger
        self.written = write_images(plan.splits, outputs.folder, weights, is_same, data, context, logger, self.written)


_MAX_TIME_SHARE = 0.005  # of the evaluation files, and of the page
_FIRST_SECONDS = 0.5  # that the first evaluation files, and the first page, are expected to take


class RunReport(Observer):
    """Keeps the evaluation files of the best epoch, and `report.html`, up to date in at most 1% of the run's time.

    `update()` is called after the checkpoint of an epoch, and `update(now=True)` when the final state is recorded; the
    main process alone writes. If there is no time for the files of the best epoch, `best` has its results until the end
    of the run. A file that cannot be written, as on a full disk, gives a line in the log and never ends the run.
    """

    def __init__(self, outputs: RunOutputs, config: Config, horizon: Horizon) -> None:
        self.outputs = outputs
        self.config = config
        self.horizon = horizon
        self.best: Evaluated | None = None  # whose files are not written, without its model
        self._is_end = False
        self._failed = list[Callable[[], None]]()
        self.has_page = False  # of the latest state
        first_time = time.monotonic() + _FIRST_SECONDS / _MAX_TIME_SHARE
        self._next_time = dict.fromkeys((self._write_evaluation, self._write_page), first_time)

    @property
    def contents(self) -> RunContents:
        """The run as the page shows it, from the record in memory."""
        return contents_of(self.outputs.record, self.config, self.horizon.options)

    def after_epoch(self, progress: EpochProgress, ends: bool) -> None:
        """Says that the first evaluated epoch is far below the probe of the run. The end has another verdict."""
        if progress.epoch + 1 == self.config.validate_freq and not ends:
            call_on_main(self._judge_first_epoch, self.outputs.reporter.context)

    def _judge_first_epoch(self) -> None:
        from engine.report.verdict import first_epoch_of  # late, as the page

        if text := first_epoch_of(self.contents):
            self.outputs.logger.note(Note("screen", text))

    def update(self, evaluated: Evaluated | None = None, now: bool = False) -> None:
        """Writes the files, unless they were written a short while ago.

        evaluated: the latest one. If it is the best one and there is no time for its files, only the end of the run
        writes them. now: writes them in any case, but not the page of an evaluation, which the final state follows.
        """
        if evaluated and evaluated.is_best:
            self.best = evaluated
        self._is_end = now
        for write, next_time in self._next_time.items():
            started = time.monotonic()
            is_needed = now and (write == self._write_evaluation or not evaluated)
            if not is_needed and started < next_time:
                continue
            try:
                write()
            except Exception as error:  # a page is never worth a run
                if write not in self._failed:  # else after each epoch
                    self.outputs.logger.warn(f"{REPORT} cannot be written: {type(error).__name__}: {error}")
                self._failed.append(write)
            finished = time.monotonic()
            self._next_time[write] = finished + (finished - started) / _MAX_TIME_SHARE
        if self.best:
            self.best = replace(self.best, model=None)

    def _write_evaluation(self) -> None:
        best = self.best
        if best and best.results and (best.model or self._is_end):
            self.best = None
            self.outputs.evaluation.write(best.metrics, best.results, best.model, epoch=best.epoch, split="val")

    def _write_page(self) -> None:
        from engine.report.page import write_report  # imported late: it needs jinja2

        self.has_page = False
        write_report(self.outputs.folder)
        self.has_page = True
