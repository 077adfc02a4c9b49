"""Work beside the first steps of a run, which wait for none of it: two checks, the pixel baseline, and
`train_batch.png`: images of a training batch as the model gets them, and their targets.
"""

import math
from collections.abc import Sequence
from concurrent.futures import Future, wait
from multiprocessing.connection import Connection
from typing import Any
from unicodedata import combining, normalize

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from configs.schema import Data
from datasets.loading.workers import call_in_background
from datasets.small_images import pixel_baseline
from datasets.sources.checks import decode_images, error_of
from datasets.sources.names import list_names
from datasets.sources.samples import ImageFiles, Samples
from engine.evaluation.files import save_picture, to_picture
from engine.progress import EpochProgress, Observer
from engine.run.facts import PixelBaseline, read_fact
from engine.run.record import TRAIN_BATCH
from engine.training.outputs import RunOutputs
from engine.training.session import Session
from utils.errors import UserError, on_one_line, shortened
from utils.notes import Note
from utils.system import usable_cores
from utils.threads import DaemonPool

_WAIT_SECONDS = 10.0  # for the baseline, at the end of a run


class UntrainedParameters(Observer):
    """Warns of the trained parameters that get no gradient in the first step."""

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        self._logger = outputs.logger
        self._names: dict[nn.Parameter, str] = {}
        if session.plan.found is None and not session.plan.config.model.tune.solves_head:  # else the run has warned
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
    """Decodes all validation and test images from the first step on, in a process of low priority, for which no rank
    waits.

    The evaluations find the images that it has not reached: without loading workers or a second core, in a resumed run,
    and with DATA.ON_BAD_IMAGE skip, all of them. A probe has read the images before its step.
    """

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        plan = session.plan
        data = plan.config.data
        self._channels = data.image_channels
        self._splits = [samples for samples in (plan.val, plan.test) if isinstance(samples, ImageFiles)]
        is_new = plan.found is None and not plan.config.model.tune.solves_head
        has_core = session.batches.prefetched_batches > 0 and len(usable_cores()) > 1
        self._is_due = session.state.context.is_main and is_new and has_core and data.on_bad_image == "error"
        self._answer: Future[UserError | None] | None = None

    def after_step(self, progress: EpochProgress) -> None:
        if self._is_due:
            self._is_due = False
            answer = call_in_background(decode_images, self._splits, self._channels)
            self._pool = DaemonPool(1)  # a process that is stopped while it sends blocks this thread alone
            self._answer = self._pool.submit(_receive_error, answer)

    def error(self) -> UserError | None:
        """The error about unreadable images, on the main process; None as long as no answer is there."""
        return self._answer.result() if self._answer and self._answer.done() else None


def _receive_error(answer: Connection) -> UserError | None:
    """The error in the answer of `decode_images`; None if all images can be read, or if its process has died."""
    try:
        bad = answer.recv()
    except (EOFError, OSError):
        return None
    if isinstance(bad, UserError):
        return bad
    return error_of(bad) if bad else None


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


_MAX_IMAGES, _COLUMNS, _MAX_CLASSES, _MAX_NAME_CHARS = 16, 4, 4, 18  # classes of an image: the largest shares
# Letters that Unicode does not decompose into one of ASCII and an accent.
_LETTERS = str.maketrans({"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "ı": "i"})
_SIDE, _GAP, _LINE, _FONT = 160, 4, 16, 12  # pixels: of an image, between images, of a line of text


class TrainBatch(Observer):
    """Draws a grid of the next batch of the main process after its step, unless the run has the picture."""

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        self._plan, self._logger = session.plan, outputs.logger
        self._path, self._kept = outputs.folder / TRAIN_BATCH, list[torch.Tensor]()
        if session.state.context.is_main and not self._path.is_file():  # a hook: nothing is augmented or mixed twice
            self._hook = session.state.transform.register_forward_hook(self._keep)

    def _keep(self, transform: Any, inputs: Any, outputs: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._hook.remove()
        self._kept = [tensor[:_MAX_IMAGES].to("cpu", copy=True) for tensor in outputs]

    def after_step(self, progress: EpochProgress) -> None:
        """Warns if the file cannot be written: the run is more important."""
        if not self._kept:
            return
        (images, targets), self._kept = self._kept, []
        data, font = self._plan.config.data, ImageFont.load_default(_FONT)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.imagenet_mean, data.imagenet_std))
        pixels = (255 * (images.float() * std + mean)).round().nan_to_num(0).clamp(0, 255).to(torch.uint8)
        is_sample = targets.reshape(len(targets), -1)[:, 0] >= 0  # other positions of the batch are left out
        texts = [target_text(target, self._plan.class_names) for target in targets[is_sample]]
        width, height = _SIDE + _GAP, _SIDE + _GAP + _LINE * max((text.count("\n") + 1 for text in texts), default=0)
        grid = Image.new("RGB", (_COLUMNS * width - _GAP, _LINE + math.ceil(len(texts) / _COLUMNS) * height), "white")
        ImageDraw.Draw(grid).text((0, 0), f"Epoch {progress.epoch + 1}, step {progress.done_steps}", "black", font)
        for number, (crop, text) in enumerate(zip(pixels[is_sample], texts, strict=True)):
            cell = Image.new("RGB", (_SIDE, height), "white")  # a wide name ends at its edge
            cell.paste(to_picture(crop, _SIDE))
            ImageDraw.Draw(cell).text((0, _SIDE), text, "black", font)
            grid.paste(cell, (number % _COLUMNS * width, _LINE + number // _COLUMNS * height))
        try:
            save_picture(grid, self._path)
        except OSError as error:
            self._logger.warn(f"{self._path}: cannot be drawn ({error.strerror or error})")


def target_text(target: torch.Tensor, names: Sequence[str] | None) -> str:
    """A line per class of a target, () or (classes,), with its share unless it is 1."""
    shares = enumerate(target.tolist()) if target.ndim else [(int(target), 1.0)]
    lines = []
    for label, share in sorted(shares, key=lambda item: -item[1])[:_MAX_CLASSES]:
        name = names[label] if names and label < len(names) else ""  # a head may have more outputs than names
        name = shortened(on_one_line(_in_ascii(name) or f"class {label}"), _MAX_NAME_CHARS)
        lines += [name if math.isclose(share, 1, rel_tol=1e-6) else f"{name} {share:.2f}"] if share > 0 else []
    return "\n".join(lines) or "no label"


def _in_ascii(name: str) -> str:
    """The name without accents, since Pillow's font has only ASCII: 'Hute' of 'Hüte'; '' of another script."""
    letters = normalize("NFKD", name.translate(_LETTERS))
    plain = "".join(letter for letter in letters if not combining(letter))
    return plain if plain.isascii() else ""
