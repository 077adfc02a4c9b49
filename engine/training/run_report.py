"""The evaluation files of the best epoch, and the page of the run, while it trains, in a share of its time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

from configs.schema import Config
from engine.evaluation.results import SampleResults
from engine.progress import Metrics
from engine.report import REPORT
from engine.training.session import RunOutputs

if TYPE_CHECKING:
    from engine.report.contents import RunContents


class TimeShare:
    """Calls `work` at most so often that it takes a fraction `share` of the time of the run.

    first_seconds: that the first call is expected to take.
    """

    def __init__(self, work: Callable[[], None], share: float, first_seconds: float = 0.0) -> None:
        self.work, self.share = work, share
        self._next_time = time.monotonic() + first_seconds / share

    def update(self, now: bool = False) -> None:
        """Calls `work`, unless it was called a short while ago. now: calls it in any case."""
        started = time.monotonic()
        if not now and started < self._next_time:
            return
        try:
            self.work()
        finally:
            finished = time.monotonic()
            self._next_time = finished + (finished - started) / self.share


_MAX_TIME_SHARE = 0.005  # of the evaluation files, and of the page
_FIRST_SECONDS = 0.5  # that the evaluation files are expected to take


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of an epoch (from 1). Only the main process has the results.

    model: the evaluated one; None if training has changed its weights since, or if it is sharded.
    """

    model: nn.Module | None
    metrics: Metrics
    results: SampleResults | None
    epoch: int


class RunReport:
    """Keeps the evaluation files of the best epoch, and `report.html`, up to date in at most 1% of the run's time.

    The main process calls `update()` after the checkpoint of an epoch, and `update(now=True)` when the final
    state is recorded. The end of the run evaluates `best.pth` if there was no time for its files. A file that
    cannot be written, for example on a full disk, gives a line in the log and never ends the run.
    """

    def __init__(self, outputs: RunOutputs, config: Config) -> None:
        self.outputs, self._config = outputs, config
        self._best: Evaluated | None = None
        self._is_end = False
        self._last_problem = ""
        self._evaluation = TimeShare(lambda: self._try(self._write_evaluation), _MAX_TIME_SHARE, _FIRST_SECONDS)
        self._page = TimeShare(lambda: self._try(self._write_page), _MAX_TIME_SHARE)

    @property
    def contents(self) -> "RunContents":
        """The run as the page shows it, from the record in memory."""
        from engine.report.contents import contents_of  # imported late, as the page

        outputs = self.outputs
        return contents_of(outputs.record, self._config, outputs.evaluation.values)

    def update(self, best: Evaluated | None = None, now: bool = False) -> None:
        """Writes the files, unless they were written a short while ago. now: writes them in any case.

        best: the latest evaluation, if it is the best one so far. If there is no time for its files, only the end of
        the run writes them.
        """
        self._best, self._is_end = best or self._best, now
        self._evaluation.update(now)
        self._page.update(now)
        if self._best:
            self._best = replace(self._best, model=None)

    def _write_evaluation(self) -> None:
        best = self._best
        if best is None or best.results is None or not (best.model or self._is_end):
            return
        self._best = None
        self.outputs.evaluation.write(best.metrics, best.results, best.model, epoch=best.epoch, split="val")

    def _write_page(self) -> None:
        from engine.report.page import write_report  # imported late: it needs jinja2

        write_report(self.outputs.folder)

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # a page is never worth a run
            problem = f"{type(error).__name__}: {error}"
            if problem != self._last_problem:  # a disk stays full for hours
                self.outputs.logger.warn(f"{REPORT} cannot be written: {problem}")
            self._last_problem = problem
