"""Findings in small copies of the images: the pixel baseline of a run, and evaluated images like training images."""

from collections.abc import Mapping
from concurrent.futures import Future, wait
from pathlib import Path

from configs.schema import Config, Data
from datasets.small_images import Readable, find_similar, pixel_baseline, read_thumbnails
from datasets.sources.names import names_of_labels
from datasets.sources.samples import Samples
from engine.evaluation.files import write_findings
from engine.evaluation.results import name_of_target
from engine.progress import EpochProgress, Observer
from engine.run.facts import PixelBaseline, read_fact
from engine.training.session import RunOutputs, Session
from utils.errors import UserError
from utils.notes import Note
from utils.tables import safe_cell
from utils.threads import DaemonPool

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
