"""One evaluation over all ranks: every sample counts once, and its result does not depend on the number of ranks.

Legend: B images per batch, N samples, K ranked classes, C classes.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.schema.operating_point import TO_CHOOSE, Decision
from configs.yaml_io import Values
from datasets.batch import PADDING, Batch
from datasets.decoding.images import BadImage
from datasets.loading.loader import Loader, unreadable
from datasets.loading.sampler import EvalSampler, Key
from datasets.loading.workers import call_in_background
from datasets.sources.checks import decode_images, error_of
from datasets.sources.samples import ImageFiles, Samples, is_multi_hot
from engine.evaluation.ranking import log_odds, rank_labels
from engine.evaluation.results import TOP_K, Fields, SampleResults, score_classes
from engine.parallel import Strategy, run_eagerly
from engine.precision.policy import Precision
from engine.progress import EpochProgress, Metrics, Observer
from engine.run.log import progress_bar
from engine.run.reporter import format_speed
from utils.device import IN_EVALUATION
from utils.distributed import ProcessContext, broadcast_object, call_on_main, gather_objects, gather_to_main
from utils.errors import UserError
from utils.metric_table import MAX_SCORED_CLASSES
from utils.notes import RUN_LOG
from utils.system import usable_cores
from utils.tables import format_duration
from utils.threads import DaemonPool

AfterBatch = Callable[[Batch, list[Key]], None]  # with the keys of the samples of the batch
_FEATURES = 4096  # samples at a time
_BATCHES_PER_GATHER = 32  # the copies of all of them would take more than the results
_SECONDS_BETWEEN_LINES = 60.0

Computed = Values  # arrays (N, ...), and `errors`, the reasons of unreadable samples


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models with these settings.

    transform: uint8 images -> normalized images (B, channels, S, S), on the device.
    flips: whether the logits of an image are the mean over it and its mirror image (EVAL.TTA: flip).
    multi_label: whether an image may have several labels (DATA.MULTI_LABEL).
    best_metric: of `EVAL.BEST_METRIC`.
    keeps_logits: whether the results have the logits of each sample (EVAL.SAVE_LOGITS).
    decision: of the weights; in a training to be chosen.
    class_mask: bool (C,) on the device, False for classes whose logits are -inf; None: there are none.
    merged: the outputs whose probabilities are added, by the label that their class has (DATA.RENAME).
    before_error: called by all ranks before they raise the error of unreadable images.
    """

    transform: nn.Module
    precision: Precision
    strategy: Strategy
    context: ProcessContext
    flips: bool = False
    multi_label: bool = False
    best_metric: str | None = None
    keeps_logits: bool = False
    class_mask: Tensor | None = None
    merged: Mapping[int, Sequence[int]] = field(default_factory=dict)
    decision: Decision = TO_CHOOSE
    before_error: Callable[[], None] = lambda: None

    @property
    def thresholds(self) -> np.ndarray | None:
        """As of `SampleResults`."""
        return None if self.decision.thresholds is None else np.array(self.decision.thresholds)

    def evaluate(
        self, model: nn.Module, batches: Loader, after_batch: AfterBatch = lambda *_: None
    ) -> tuple[Metrics, SampleResults | None]:
        """The metrics on all ranks, and on the main process the results of all samples; a collective call.

        Raises UserError: no sample is readable.
        """
        (results,) = self.classify(model, batches, TOP_K, len(batches), after_batch)
        return self.share(results, batches.samples)

    def share(self, results: SampleResults | None, samples: Samples) -> tuple[Metrics, SampleResults | None]:
        """The metrics on all ranks, and on the main process its results with the groups and the thresholds.

        Raises UserError: no sample is readable.
        """

        def compute() -> tuple[Metrics, SampleResults]:
            assert results
            if not len(results.readable):
                problem = "no image of the evaluation can be read"
                raise UserError(f"{problem}; bad_images_*.csv in the run's folder has the reasons")
            groups = None if samples.groups is None else np.array([*samples.groups], np.str_)
            temperature = self.decision.temperature or results.best_temperature
            point = self.decision.point
            complete = replace(results, thresholds=self.thresholds, groups=groups, temperature=temperature, point=point)
            return complete.metrics(self.best_metric), complete

        metrics, complete = call_on_main(compute, self.context) or (None, None)
        metrics = broadcast_object(metrics, self.context)
        assert metrics
        return metrics, complete

    def classify(
        self, model: nn.Module, batches: Loader, top_k: int, every: int, after_batch: AfterBatch = lambda *_: None
    ) -> Iterator[SampleResults | None]:
        """Yields the results of all ranks after each `every` batches; None except on the main process. Collective.

        The scores of single labels are gathered for at most `MAX_SCORED_CLASSES` classes: the area under the ROC curve
        needs all of them at once. That is 51 MB for 50,000 images; 1000 classes would take 200 MB on the device.
        """

        for computed in self.compute(model, batches, partial(self._summarize, top_k=top_k), every, after_batch):
            temperature = self.decision.temperature or 1.0
            yield SampleResults(**computed, temperature=temperature, multi_label=self.multi_label) if computed else None

    def _summarize(self, logits: Tensor, targets: Tensor, top_k: int = TOP_K) -> Fields:
        ranked = (score_classes if self.multi_label else _rank_classes)(logits, targets, top_k)
        return ranked | ({"logits": logits.half().clamp(-65504, 65504)} if self.keeps_logits else {})

    def results_of_features(
        self, head: nn.Module, samples: Samples, features: np.ndarray, errors: dict[int, str]
    ) -> SampleResults:
        """The results of `evaluate` from the features (N, F) of all samples, the inputs of `head`, NaN for `errors`."""
        parts = []
        weight = next(head.parameters())
        values = torch.from_numpy(np.nan_to_num(features)).to(weight)
        targets = torch.from_numpy(samples.targets.copy())
        targets[list(errors)] = PADDING
        with torch.inference_mode(), self.precision.autocast(), run_eagerly():
            for rows, labels in zip(values.split(_FEATURES), targets.to(weight.device).split(_FEATURES), strict=True):
                parts.append(self._summarize(head(rows).float(), labels))
        arrays: Values = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
        return SampleResults(**arrays, errors=errors)

    def compute(
        self,
        model: nn.Module,
        batches: Loader,
        summarize: Callable[[Tensor, Tensor], Fields],
        every: int,
        after_batch: AfterBatch,
    ) -> Iterator[Computed | None]:
        """Applies `summarize` to outputs and targets, (B, ...) each; yields the gathered results as `classify` does.

        Raises UserError: unreadable images, on all ranks: after the last batch, so that one error names all of them.
        """
        parts: list[Fields] = []
        bad: dict[int, BadImage] = {}
        bad_of_all: dict[int, BadImage] = {}
        sampler = batches.sampler
        assert isinstance(sampler, EvalSampler)
        with self.strategy.evaluation(model):
            model.eval()
            self.strategy.sync_buffers(model)
            try:
                loaded = zip(self._with_progress(batches, sampler.end), sampler, strict=True)
                for number, (batch, keys) in enumerate(loaded, 1):
                    with self.precision.autocast(), run_eagerly():
                        outputs = self.forward(model, self.transform(batch.images))
                    parts.append(summarize(outputs, batch.targets))
                    if batch.bad:
                        bad |= zip(unreadable(batch.targets, keys), batch.bad, strict=True)
                    after_batch(batch, keys)
                    if number % every == 0 or number == len(sampler):
                        num_samples = sampler.end(number) - sampler.end(number - len(parts))
                        arrays, found = self._gather(parts, bad, num_samples)
                        bad_of_all |= found
                        if bad_of_all and batches.refuses_bad and number == len(sampler):
                            self.before_error()
                            raise error_of([bad_of_all[index] for index in sorted(bad_of_all)])
                        reasons = {index: image.reason for index, image in found.items()}
                        yield {**arrays, "errors": reasons} if arrays else None
                        parts = []
                        bad = {}
            except Exception as error:
                error.add_note(IN_EVALUATION)
                raise

    def _with_progress(self, batches: Loader, end: Callable[[int], int]) -> Iterator[Batch]:
        """Shows a progress bar on a terminal, else a line per minute. end: the samples of so many batches."""
        total = len(batches.sampler)
        bar = progress_bar("Validation", self.context, total, "batches", over=batches)
        last = started = time.perf_counter()
        for number, batch in enumerate(bar, 1):
            yield batch
            if bar.disable and (now := time.perf_counter()) - last >= _SECONDS_BETWEEN_LINES:
                last = now
                speed = (end(number) - end(0)) / (now - started)
                done = end(number)
                figures = f"{format_speed(speed)}, left {format_duration((end(total) - done) / speed)}"
                logging.getLogger(RUN_LOG).info(f"----- {done} of {end(total)} images done, {figures}")

    def forward(self, model: nn.Module, images: Tensor) -> Tensor:
        """The logits, or other outputs of `model`, float32 (B, C), of normalized images (B, channels, S, S)."""
        logits = model(images).float()
        logits = (logits + model(images.flip(-1)).float()) / 2 if self.flips else logits
        temperature = self.decision.temperature or 1
        for label, outputs in self.merged.items():  # adds the probabilities of logits / temperature
            of_class = temperature * (logits[:, outputs] / temperature).logsumexp(-1)
            logits = logits.index_fill(1, torch.tensor(outputs, device=logits.device), -torch.inf)
            logits[:, label] = of_class
        return logits if self.class_mask is None else logits.masked_fill(~self.class_mask, -torch.inf)

    def _gather(
        self, parts: list[Fields], bad: dict[int, BadImage], num_samples: int
    ) -> tuple[dict[str, np.ndarray], dict[int, BadImage]]:
        """The results of the next `num_samples` samples, on the main process; and their unreadable images, on all."""
        arrays = {}
        for name, first in list(parts[0].items()):
            whole = torch.empty(num_samples, *first.shape[1:], dtype=first.dtype)
            done = 0
            for start in range(0, len(parts), _BATCHES_PER_GATHER):
                batches = [part.pop(name) for part in parts[start : start + _BATCHES_PER_GATHER]]
                gathered = gather_to_main(torch.stack(batches), self.context)
                if gathered is None:
                    continue
                by_batch = torch.stack([values.cpu() for values in gathered], dim=1)  # batch b: rank b % world size
                samples = by_batch.flatten(0, 2)[: num_samples - done]  # the last batches are filled up
                whole[done : done + len(samples)] = samples
                done += len(samples)
            if self.context.is_main:
                arrays[name] = whole.numpy()
        gathered_bad = gather_objects(bad, self.context)
        return arrays, {index: image for part in gathered_bad for index, image in part.items()}


def _rank_classes(logits: Tensor, targets: Tensor, top_k: int) -> Fields:
    """The fields of `SampleResults` for a batch: logits (B, C), targets int64 (B,) -> tensors (B, ...)."""
    if is_multi_hot(targets):  # multi-hot int8 (B, C): each label is right, so the most probable one is the target
        best = logits.masked_fill(targets != 1, -torch.inf).argmax(-1)
        targets = best.masked_fill(targets[:, 0] == PADDING, PADDING)
    log_probabilities = logits.log_softmax(-1)
    labels = rank_labels(logits, top_k)
    scores = {"scores": log_odds(logits)} if logits.shape[-1] <= MAX_SCORED_CLASSES else {}
    return scores | {
        "targets": targets,
        "labels": labels.int(),
        "probabilities": log_probabilities.gather(-1, labels).exp(),
        "losses": F.nll_loss(log_probabilities, targets, reduction="none", ignore_index=PADDING),
    }


class EvaluationImages(Observer):
    """Decodes all validation and test images from the first step on, in a process of low priority, for which no rank
    waits.

    The evaluations find the images that it has not reached: without loading workers or a second core, in a resumed run,
    and with DATA.ON_BAD_IMAGE skip, all of them. A probe has read the images before its step.
    """

    def __init__(self, splits: Sequence[Samples | None], channels: int, is_due: bool) -> None:
        """is_due: this process has loading workers, and has to decode the images."""
        self._channels = channels
        self._splits = [samples for samples in splits if isinstance(samples, ImageFiles)]
        self._is_due = is_due and len(usable_cores()) > 1
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
