"""The files of a prediction: one row per image, with the ranked classes and their probabilities.

Rows are written one by one: a million images are a list of paths, never results or a table in memory.

A killed prediction continues from a file that has the results as they are computed. Each line is JSON: `SampleResults`,
and as `key` a digest of all inputs with the index of the first sample.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.command_line import unused_keys
from configs.flags import Prediction
from configs.load import flatten
from configs.schema import Config
from datasets.sources.checks import digest_of
from datasets.sources.samples import Samples
from engine.evaluation.files import explanation_file
from engine.evaluation.results import SampleResults, name_of_target
from engine.run.log import RunLogger
from utils.files import open_atomically, own_file, space_fix
from utils.metrics import Metrics
from utils.tables import aligned_table, safe_cell

BATCHES_PER_WRITE = 8  # before a write, the host waits for the device
_WITHOUT_EFFECT = "DATA.NUM_WORKERS DATA.DATA_PATH DATA.CACHE_* DATA.BATCH_SIZE* MODEL.PRETRAINED MODEL.RESUME"


def digest_inputs(config: Config, samples: Samples, weights: Iterable[torch.Tensor], *more: Any) -> str:
    """A digest of all that the results of the samples depend on: options, images in their order, weights, `more`."""
    values = config.model_dump(mode="json", by_alias=True, include={"data", "model", "amp", "eval", "deterministic"})
    unused = [*_WITHOUT_EFFECT.split(), *unused_keys("eval")]
    options = {key: value for key, value in flatten(values) if not any(fnmatchcase(key, one) for one in unused)}
    digest = sha256(json.dumps([options, *more, digest_of(samples)]).encode())
    for index in range(len(samples)):
        digest.update(f"\n{samples.name(index)}".encode(errors="surrogateescape"))
    digest.update(samples.states().data)
    for tensor in weights:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class PartFile:
    """Iterates over the results so far, in the order of the samples, of which only a few are in memory."""

    def __init__(self, path: Path, digest: str) -> None:
        """Removes the results of other inputs."""
        self.path, self.digest = path, digest
        open(path, "a", opener=own_file).close()
        self.num_samples = sum(len(results.labels) for results in self)
        if not self.num_samples:
            open(path, "w", opener=own_file).close()

    def append(self, results: SampleResults) -> None:
        fields = {name: value.tolist() for name, value in vars(results).items() if isinstance(value, np.ndarray)}
        line = {"key": [self.digest, self.num_samples], "errors": list(results.errors.items()), **fields}
        try:
            with open(self.path, "a", encoding="ascii", opener=own_file) as file:
                file.write(f"\n{json.dumps(line)}")
        except OSError as error:  # of a full disk, it names no file
            raise OSError(
                error.errno, f"{error.strerror}; {space_fix(error.strerror)} and repeat the command", self.path
            ) from None
        self.num_samples += len(results.labels)

    def __iter__(self) -> Iterator[SampleResults]:
        start = 0
        with open(self.path, "rb") as file:
            for line in file:
                try:
                    fields = json.loads(line)
                    key = fields.pop("key")
                except (ValueError, AttributeError, LookupError, TypeError):  # not written completely, or not by us
                    continue
                if key == [self.digest, start]:
                    errors = dict(fields.pop("errors"))
                    yield SampleResults(**{name: np.array(fields[name]) for name in fields}, errors=errors)
                    start += len(fields["labels"])


def open_part_file(path: Path, digest: str, num_samples: int, logger: RunLogger) -> PartFile:
    """The results of an earlier run with the same inputs, of `num_samples`, or else an empty file."""
    existed, part = path.exists() and path.stat().st_size > 0, PartFile(path, digest)
    if existed:
        start = f"continues after {part.num_samples} of {num_samples} images" if part.num_samples else "starts again"
        logger.info(f"----- {path}: the prediction {start}, by the digest of weights, images and options")
    return part


CSV_FILE, JSON_FILE = "predictions.csv", "predictions.json"
UNKNOWN = "unknown"
_SHOWN_RANKS, _SHOWN_CHARS = 3, 48

_Image = tuple[str, list[tuple[str, float]], dict[str, str], str | None]


class Predictions:
    """The predictions of N images.

    class_names: of all labels of the model. options: samples without a path have labels, the column `target`; maps are
    the column `explanation`. With `thresholds` (classes,), of several labels per image, the column `predicted` has the
    classes from their thresholds on. With -threshold, the column `label` has the most probable class, or of several
    labels all classes, from that probability on, else "unknown".
    """

    def __init__(
        self,
        part: PartFile,
        samples: Samples,
        class_names: Sequence[str],
        options: Prediction,
        thresholds: np.ndarray | None = None,
    ) -> None:
        self._part, self._samples, self._class_names, self._options = part, samples, class_names, options
        self._labelled, self._thresholds = options.path is None, thresholds
        is_used = {
            "predicted": thresholds is not None,
            "label": options.threshold is not None,
            "target": self._labelled,
            "explanation": options.explain,
        }
        self._text_columns = [column for column, used in is_used.items() if used]
        self._num_ranks = min(options.top_k or len(class_names), len(class_names))
        self.num_readable = sum(len(results.readable) for results in part)

    def metrics(self, best: str | None) -> Metrics:
        """The metrics of labelled data, whose results are in memory then. best: of `EVAL.BEST_METRIC`."""
        columns = [vars(results) for results in self._part]
        names = [name for name, values in columns[0].items() if isinstance(values, np.ndarray)]
        arrays: dict[str, Any] = {name: np.concatenate([column[name] for column in columns]) for name in names}
        return SampleResults(**arrays, thresholds=self._thresholds).metrics(best)

    def _images(self, names: Sequence[str], num_ranks: int) -> Iterator[_Image]:
        """Path, (class, probability) of the most probable classes, label and target if there are some, and the error
        of an unreadable image."""
        index = 0
        for results in self._part:
            ranked = results.labels.tolist(), results.probabilities.tolist()
            for labels, probabilities in zip(*ranked, strict=True):
                error = results.errors.get(index)
                classes = [(names[label], round(value, 6)) for label, value in zip(labels, probabilities, strict=True)]
                texts = dict[str, str]()
                if self._thresholds is not None:
                    reached = np.array(probabilities) >= self._thresholds[labels]
                    found = (names[label] for label, is_reached in zip(labels, reached, strict=True) if is_reached)
                    texts["predicted"] = "" if error else " | ".join(found)
                if self._options.threshold is not None:
                    possible = classes[:1] if self._thresholds is None else classes
                    labelled = (name for name, value in possible if value >= self._options.threshold)
                    texts["label"] = "" if error else " | ".join(labelled) or UNKNOWN
                if self._labelled:
                    texts["target"] = name_of_target(self._samples.targets[index], names)
                if self._options.explain:
                    texts["explanation"] = "" if error else explanation_file(index, self._samples.name(index))
                yield self._samples.listed_name(index), [] if error else classes[:num_ranks], texts, error
                index += 1

    def _rows(self, names: Sequence[str], num_ranks: int) -> Iterator[list[str]]:
        """The header, and the cells of each image."""
        columns = [f"{name}_{rank}" for rank in range(1, num_ranks + 1) for name in ("class", "probability")]
        yield [safe_cell(self._samples.column), *columns, *self._text_columns, "error"]
        for path, ranked, texts, error in self._images(names, num_ranks):
            cells = [cell for name, probability in ranked for cell in (name, f"{probability:.6f}")]
            cells += [""] * (len(columns) - len(cells))
            yield [safe_cell(path), *cells, *texts.values(), safe_cell(error or "")]

    def _wide_rows(self, names: Sequence[str]) -> Iterator[list[str]]:
        """The header, and the probability of each class for each image; empty cells for an unreadable image."""
        yield [safe_cell(self._samples.column), *names, *self._text_columns]
        for path, ranked, texts, _ in self._images(names, len(names)):
            probability_of = dict(ranked)
            cells = [f"{probability_of[name]:.6f}" if ranked else "" for name in names]
            yield [safe_cell(path), *cells, *texts.values()]

    def write_csv(self, folder: Path, excel: bool = False) -> Path:
        """Writes `predictions.csv` atomically; raises OSError. excel: with a byte order mark, for spreadsheets."""
        with open_atomically(folder / CSV_FILE) as file:
            file.write("\ufeff" * excel)
            names = [safe_cell(name) for name in self._class_names]
            rows = self._rows(names, self._num_ranks) if self._options.top_k else self._wide_rows(names)
            csv.writer(file, lineterminator="\n").writerows(rows)
        return folder / CSV_FILE

    def write_json(self, folder: Path) -> Path:
        """Writes `predictions.json` atomically: a list of objects, one in each line. Raises OSError."""
        with open_atomically(folder / JSON_FILE) as file:
            separator = "[\n"
            for path, ranked, texts, error in self._images(self._class_names, self._num_ranks):
                predictions = [{"class": name, "probability": probability} for name, probability in ranked]
                file.write(separator + json.dumps({"path": path, "predictions": predictions, **texts, "error": error}))
                separator = ",\n"
            file.write("\n]\n")
        return folder / JSON_FILE

    def table(self, rows: int) -> str:
        """The first `rows` predictions, and as many later errors, with at most three classes, for a terminal."""
        images = self._rows(self._class_names, min(_SHOWN_RANKS, self._num_ranks))
        header, *lines = islice(images, rows + 1)
        lines += islice((row for row in images if row[-1]), rows)
        more = len(self._samples) - len(lines)
        return aligned_table(header, lines, _SHOWN_CHARS) + (f"\n... and {more} more" if more else "")
