"""The pixel baseline of a run, computed beside its first steps."""

from concurrent.futures import Future, wait

from configs.schema import Data
from datasets.small_images import pixel_baseline
from datasets.sources.samples import Samples
from engine.progress import EpochProgress, Evaluated, Observer
from engine.run.facts import PixelBaseline, read_fact
from engine.run.log import RunLogger
from utils.errors import first_line
from utils.notes import Note
from utils.threads import DaemonPool

_WAIT_SECONDS = 10.0  # for the baseline, at the end of a run


class BaselineThread(Observer):
    """Computes the baseline of a run from its first step on; a resumed run has it in its record."""

    def __init__(self, data: Data, train: Samples, val: Samples, logger: RunLogger, is_main: bool) -> None:
        self._inputs = (data, train, val)
        self._logger = logger
        self._future: Future[PixelBaseline | Note | None] | None = None
        self.result = read_fact(logger.record.values, PixelBaseline)
        self._is_due = is_main and self.result is None

    def after_step(self, progress: EpochProgress) -> None:
        if self._is_due:
            self._is_due = False
            self._pool = DaemonPool(1)
            self._future = self._pool.submit(measure_baseline, *self._inputs)

    def after_evaluation(self, progress: EpochProgress, evaluated: Evaluated) -> None:
        self.record()

    def record(self, is_end: bool = False) -> None:
        """Records the result if it is there. A run ends before it only if the images take long to read."""
        if self._future and wait([self._future], _WAIT_SECONDS * is_end).done:
            note = self._future.result()
            self._future = None
            self.result = note if isinstance(note, PixelBaseline) else None
            if note:
                self._logger.note(note)


def measure_baseline(data: Data, train: Samples, val: Samples) -> PixelBaseline | Note | None:
    """The baseline, see `pixel_baseline`, or a line for the log: no run fails for it."""
    try:
        baseline = pixel_baseline(data, train, val)
    except Exception as error:
        return Note("log", f"No pixel baseline: {first_line(error)}")
    return PixelBaseline(*baseline) if baseline else None
