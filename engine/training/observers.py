"""Observers of a training run: its compiled parts, its table of images, the verdict on its first epoch."""

from pathlib import Path

from engine.evaluation.images import write_images
from engine.parallel import CompiledParts
from engine.progress import EpochProgress, Observer
from engine.training.outputs import RunOutputs, RunReport
from engine.training.session import Session
from utils.distributed import call_on_main
from utils.notes import Note


class CompiledStep(Observer):
    """Logs which parts of the model the first step has run compiled, and its time."""

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        self._session, self._logger = session, outputs.logger
        self._parts: CompiledParts | None = None
        if session.plan.config.train.compiles:
            self._parts = CompiledParts(session.state.precision.weights.compute)

    def after_step(self, progress: EpochProgress) -> None:
        if self._parts:
            recomputes = self._session.plan.config.model.grad_checkpointing is True
            self._logger.note(self._parts.note(self._session.position.clock.lap_seconds, recomputes))
            self._parts = None


class ImagesTable(Observer):
    """Writes `images.csv.gz` after the first epoch of this start, in which all images have been read once."""

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        self._session, self._outputs = session, outputs
        self._is_due = True

    def after_epoch(self, progress: EpochProgress, ends: bool) -> None:
        if self._is_due:
            self._is_due = False
            plan = self._session.plan
            self.write(plan.found.path if plan.found else plan.config.model.pretrained)

    def write(self, weights: str | Path | None) -> None:
        """A collective call. weights: of the run to compare with."""
        plan = self._session.plan
        context = self._session.state.context
        is_same = plan.found is not None
        folder, logger = self._outputs.folder, self._outputs.logger
        write_images(plan.splits, folder, weights, is_same, plan.config.data, context, logger)


class FirstEpochVerdict(Observer):
    """Says that the first evaluated epoch is far below the probe of the run; the end of a run has another verdict."""

    def __init__(self, session: Session, outputs: RunOutputs, report: RunReport) -> None:
        self._session, self._logger, self._report = session, outputs.logger, report

    def after_epoch(self, progress: EpochProgress, ends: bool) -> None:
        if progress.epoch + 1 == self._session.plan.config.validate_freq and not ends:
            call_on_main(self._judge, self._session.state.context)

    def _judge(self) -> None:
        from engine.report.verdict import first_epoch_of  # late, as the page

        if text := first_epoch_of(self._report.contents):
            self._logger.note(Note("screen", text))
