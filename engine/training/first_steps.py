"""Work beside the first steps of a run, which wait for none of it: two checks, and the pixel baseline."""

from concurrent.futures import Future, wait
from multiprocessing.connection import Connection

import torch
from torch import nn

from configs.schema import Data
from datasets.loading.workers import call_in_background
from datasets.small_images import pixel_baseline
from datasets.sources.checks import decode_images, error_of
from datasets.sources.image_files import ImageFiles
from datasets.sources.names import list_names
from datasets.sources.samples import Samples
from engine.progress import EpochProgress, Observer
from engine.run.facts import PixelBaseline, read_fact
from engine.training.session import RunOutputs, Session
from utils.errors import UserError
from utils.notes import Note
from utils.system import usable_cores
from utils.threads import DaemonPool

_WAIT_SECONDS = 10.0  # for the baseline, at the end of a run


class UntrainedParameters(Observer):
    """Warns of the trained parameters that get no gradient in the first step."""

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        self._logger = outputs.logger
        self._names: dict[nn.Parameter, str] = {}
        if session.plan.found is None:  # else the run has warned
            model = session.state.precision.weights.compute
            self._names = {value: name for name, value in model.named_parameters() if value.requires_grad}
        self._hooks = [value.register_post_accumulate_grad_hook(self._found) for value in self._names]

    def _found(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        self._names.pop(parameter, None)

    def after_step(self, progress: EpochProgress) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._names:
            names = list_names(list(self._names.values()))
            self._logger.warn(f"without a gradient, so never trained: {names}")
        self._names, self._hooks = {}, []


class EvaluationImages(Observer):
    """Decodes all validation and test images from the first step on, in a process of low priority.

    Without loading workers or a second core, it decodes them before the first evaluation. With DATA.ON_BAD_IMAGE skip,
    the evaluations list unusable images.
    """

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        plan = session.plan
        self._channels = plan.config.data.image_channels
        self._splits = [samples for samples in (plan.val, plan.test) if isinstance(samples, ImageFiles)]
        self._is_due = session.state.context.is_main and plan.config.data.on_bad_image == "error"
        self._in_background = session.batches.prefetched_batches > 0 and len(usable_cores()) > 1
        self._answer: Connection | None = None

    def after_step(self, progress: EpochProgress) -> None:
        """Raises UserError: images cannot be read."""
        if self._is_due and self._in_background:
            self._is_due = False
            self._answer = call_in_background(decode_images, self._splits, self._channels)
        elif self._answer and self._answer.poll():
            self.before_evaluation()

    def before_evaluation(self) -> None:
        """Raises UserError: images cannot be read."""
        bad = decode_images(self._splits, self._channels) if self._is_due else []
        if self._answer:
            try:
                bad = self._answer.recv()
            except EOFError:  # the process has died: the evaluation finds the images
                bad = []
        self._is_due, self._answer = False, None
        if isinstance(bad, UserError):
            raise bad
        if bad:
            raise error_of(bad)


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
