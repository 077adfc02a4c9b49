"""The pixel baseline of a run: when it is measured, and recorded."""

from concurrent.futures import Future, wait

from configs.schema import Data
from datasets.small_images import pixel_baseline
from datasets.sources.samples import Samples
from engine.progress import EpochProgress, Observer
from engine.run.facts import PixelBaseline, read_fact
from engine.training.session import RunOutputs, Session
from utils.errors import UserError
from utils.notes import Note
from utils.threads import DaemonPool

_WAIT_SECONDS = 10.0  # at the end of a run


class BaselineThread(Observer):
    """Computes the baseline of a run from its first step on; a resumed run has it in its record."""

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        self._plan, self._logger = session.plan, outputs.logger
        self._future: Future[PixelBaseline | Note | None] | None = None
        self.result = read_fact(outputs.record.values["facts"], PixelBaseline)
        self._is_due = session.state.context.is_main and self.result is None

    def after_step(self, progress: EpochProgress) -> None:
        if self._is_due:
            plan, self._pool, self._is_due = self._plan, DaemonPool(1), False
            self._future = self._pool.submit(measure_baseline, plan.config.data, plan.train, plan.val)

    def after_evaluation(self) -> None:
        self.record()

    def record(self, is_end: bool = False) -> None:
        """Records the result if it is there. A run ends before it only if the images take long to read."""
        if self._future and wait([self._future], _WAIT_SECONDS * is_end).done:
            note, self._future = self._future.result(), None
            self.result = note if isinstance(note, PixelBaseline) else None
            if note:
                self._logger.note(note)


def measure_baseline(data: Data, train: Samples, val: Samples) -> PixelBaseline | Note | None:
    """The baseline, see `pixel_baseline`, or a line for the log: no run fails for it."""
    try:
        baseline = pixel_baseline(data, train, val)
    except Exception as error:
        return Note("log", f"No pixel baseline: {error if isinstance(error, UserError) else repr(error)}")
    return PixelBaseline(*baseline) if baseline else None
