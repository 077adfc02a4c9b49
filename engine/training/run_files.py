"""The files that a run writes for its readers while it trains: about its best epoch, a training batch, and adapters.

The files about the best epoch, and the page, take a share of the time of the run. `train_batch.png` has images of a
training batch as the model gets them, and their targets. The adapters of a run with LoRA are a folder for peft, beside
its checkpoints. The pixel baseline, and the list of evaluated images like training images, are here, too.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from configs.schema import Config
from engine.checkpoint.run_folder import BEST
from engine.evaluation.files import save_picture, to_picture
from engine.evaluation.results import SampleResults
from engine.progress import EpochProgress, Observer
from engine.report import REPORT, TRAIN_BATCH
from engine.training.session import RunOutputs, Session
from models.tuning import adapter_size, write_peft_folder
from utils.errors import on_one_line, shortened
from utils.metrics import Metrics

if TYPE_CHECKING:
    from engine.report.contents import RunContents
from collections.abc import Mapping
from concurrent.futures import Future, wait

from configs.schema import Data
from datasets.small_images import Readable, find_similar, pixel_baseline, read_thumbnails
from datasets.sources.names import names_of_labels
from datasets.sources.samples import Samples
from engine.evaluation.files import write_findings
from engine.evaluation.results import name_of_target
from engine.run.facts import PixelBaseline, read_fact
from utils.errors import UserError
from utils.notes import Note
from utils.tables import safe_cell
from utils.threads import DaemonPool


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


_MAX_IMAGES, _COLUMNS, _MAX_CLASSES, _MAX_NAME_CHARS = 16, 4, 4, 18  # classes of an image: the largest shares
_SIDE, _GAP, _LINE, _FONT = 160, 4, 16, 12  # pixels: of an image, between images, of a line of text


class TrainBatch(Observer):
    """Draws the next batch of the main process after its step, unless the run has the picture."""

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
        try:
            save_picture(self._draw(images, targets, progress), self._path)
        except OSError as error:
            self._logger.warn(f"{self._path}: cannot be drawn ({error.strerror or error})")

    def _draw(self, images: torch.Tensor, targets: torch.Tensor, progress: EpochProgress) -> Image.Image:
        """A grid of the samples: positions of the batch without one are left out."""
        data, font = self._plan.config.data, ImageFont.load_default(_FONT)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.imagenet_mean, data.imagenet_std))
        pixels = (255 * (images.float() * std + mean)).round().nan_to_num(0).clamp(0, 255).to(torch.uint8)
        is_sample = targets.reshape(len(targets), -1)[:, 0] >= 0
        texts = [target_text(target, self._plan.class_names) for target in targets[is_sample]]
        width, height = _SIDE + _GAP, _SIDE + _GAP + _LINE * max((text.count("\n") + 1 for text in texts), default=0)
        grid = Image.new("RGB", (_COLUMNS * width - _GAP, _LINE + math.ceil(len(texts) / _COLUMNS) * height), "white")
        ImageDraw.Draw(grid).text((0, 0), f"Epoch {progress.epoch + 1}, step {progress.done_steps}", "black", font)
        for number, (crop, text) in enumerate(zip(pixels[is_sample], texts, strict=True)):
            cell = Image.new("RGB", (_SIDE, height), "white")  # a wide name ends at its edge
            cell.paste(to_picture(crop, _SIDE))
            ImageDraw.Draw(cell).text((0, _SIDE), text, "black", font)
            grid.paste(cell, (number % _COLUMNS * width, _LINE + number // _COLUMNS * height))
        return grid


def target_text(target: torch.Tensor, names: Sequence[str] | None) -> str:
    """A line per class of a target, () or (classes,), with its share unless it is 1; only ASCII: Pillow's font."""
    shares = enumerate(target.tolist()) if target.ndim else [(int(target), 1.0)]
    lines = []
    for label, share in sorted(shares, key=lambda item: -item[1])[:_MAX_CLASSES]:
        name = names[label] if names and label < len(names) else ""  # a head may have more outputs than names
        name = shortened(on_one_line(name if name.isascii() and name else f"class {label}"), _MAX_NAME_CHARS)
        lines += [name if math.isclose(share, 1, rel_tol=1e-6) else f"{name} {share:.2f}"] if share > 0 else []
    return "\n".join(lines) or "no label"


class PeftFolder(Observer):
    """Writes the adapters, if there are any, of the best checkpoint; of the last one until there is a best one."""

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        self._model, self._lora = session.state.meta_model, session.plan.config.model.lora
        self._logger = outputs.logger

    def after_save(self, path: Path, content: dict[str, Any]) -> None:
        if not adapter_size(self._model) or (content["best"] and path.stem != Path(BEST).stem):
            return
        try:
            write_peft_folder(path, content, self._model, self._lora)
        except OSError as error:  # the checkpoint has the adapters, too
            self._logger.warn(f"the adapters cannot be written for peft: {error}")


COPIES = "copies"
_MAX_PAIRS = 10_000
_COPIES_COLUMNS = ("split", "path", "training_image", "similarity", "label", "label_in_training")
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


def note_similar(config: Config, splits: Mapping[str, Samples], folder: Path) -> Note:
    """Looks for training images, `splits['train']`, that are similar to evaluated ones; returns a line for the log.

    The list is `copies/copies.csv` in `folder`. The thumbnails of files are kept in SAVE/features for later runs.

    Raises OSError.
    """
    readable = {split: samples for split, samples in splits.items() if isinstance(samples, Readable)}
    if len(readable) < len(splits):
        return Note("log", f"DATA.NEAR_COPIES: {config.data.dataset} has no images to compare")
    kept, train = Path(config.save) / "features", readable.pop("train")
    thumbnails, names = read_thumbnails(config.data, train, kept), names_of_labels(train, config.model.num_logits)
    counts, rows = [], []
    for split, samples in readable.items():
        found = find_similar(thumbnails, read_thumbnails(config.data, samples, kept))
        counts.append(f"{len(found)} of {len(samples)} {split}")
        for index, match, similarity in found:
            both = (samples, index), (train, match)
            paths = [one.name(place) for one, place in both]
            labels = [name_of_target(one.targets[place], names) for one, place in both]
            rows.append((both, [split, *map(safe_cell, paths), f"{similarity:.4f}", *map(safe_cell, labels)]))
    text = f"similar to training images: {' and '.join(counts)} images"
    if not rows:
        return Note("log", text)
    images, cells = zip(*sorted(rows, key=lambda row: row[1][3], reverse=True)[:_MAX_PAIRS], strict=True)
    table = write_findings(folder / COPIES, _COPIES_COLUMNS, cells, images, config.data)
    return Note("warning", f"{text}; their figures may be too high: {table}")
