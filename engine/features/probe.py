"""The head of a probe: solved for on the features of the frozen backbone; and labels that may be wrong.

Legend: N samples, F width of the features, C classes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.schema import Config
from datasets.decoding.images import BadImage
from datasets.loading.loader import BadImageList
from datasets.sources.class_names import list_names, names_of_labels
from datasets.sources.samples import Samples, label_pairs
from datasets.sources.split import hash_paths
from engine.evaluation import files
from engine.evaluation.evaluate import AfterBatch, Evaluator
from engine.evaluation.results import SampleResults
from engine.evaluation.session import EvalModel
from engine.evaluation.suspects import Margins, margins, write_suspects
from engine.features.classifiers import (
    ROWS,
    Loss,
    classes_of_one_fold,
    fit_probe,
    have_label,
    knn_top1,
    out_of_fold_margins,
    probabilities_of,
    stratified_folds,
)
from engine.features.store import Extracted, Extraction
from engine.progress import BatchSums, Metrics
from engine.report.contents import suspect_picture
from engine.run.log import RunLogger
from engine.run.record import PICTURES
from models.blocks import FeatureModel
from models.timm_model import linear_head
from utils.distributed import broadcast_object, call_on_main
from utils.errors import UserError

_PICTURES = 24  # of the first suspects


class Features(NamedTuple):
    """The features of a split: float32 (N, F) of the readable samples, their targets (N, ...) and indices (N,).

    file: of all samples.
    """

    values: Tensor
    targets: Tensor
    indices: np.ndarray
    file: Extracted


class Solved(NamedTuple):
    """The solved head: weight (C, F) and bias (C,) on the CPU, its L2 penalty, and k-NN's top-1 on the same features,
    None with several labels.

    On the main process alone: sums: of the training images; results: of the validation images.
    """

    weight: Tensor
    bias: Tensor
    l2: float
    knn_top1: float | None
    sums: BatchSums | None
    results: SampleResults | None


class ProbeTask(NamedTuple):
    """The inputs of a probe. model: an evaluated one; its head gets the solution. loss: of the probe.

    bad_images: of the folder of the run, if it exists. after_batch: called after each batch of features. solved: of the
    same task, which is not fitted again. suspects: the table to write of labels that may be wrong.
    """

    config: Config
    model: nn.Module
    evaluator: Evaluator
    train: Samples
    val: Samples
    loss: Loss
    logger: RunLogger
    bad_images: BadImageList | None = None
    after_batch: AfterBatch = lambda *_: None
    suspects: Path | None = None
    solved: Solved | None = None


def solve_head(task: ProbeTask) -> Solved:
    """Solves for the head on all ranks; a collective call.

    The features of the training and of the validation images are kept in SAVE/features, for other probes with this
    backbone, these images and this preprocessing.
    Raises UserError: the features are not finite, or of fewer than two images.
    """
    model = FeatureModel(task.model, task.config.model.name)
    context = task.evaluator.context
    train = _features(task, model, task.train, "train", fewest=2)
    val = _features(task, model, task.val, "val", fewest=1)
    on_main = call_on_main(lambda: _solve(task, model, train, val), context)
    solved = broadcast_object(on_main and on_main._replace(sums=None, results=None), context)
    assert solved  # the main process has solved it
    set_head(task.model, solved)
    return on_main or solved


def evaluate_test_images(
    config: Config, built: EvalModel, samples: Samples, bad_images: BadImageList, after_batch: AfterBatch
) -> tuple[Metrics, SampleResults | None]:
    """As `Evaluator.evaluate`, from features that other folds have computed; a collective call.

    Raises UserError: no image is readable.
    """
    model = FeatureModel(built.compute, config.model.name)
    evaluator = built.evaluator
    file = Extraction(config, samples, evaluator, model, bad_images, after_batch).once("test")
    results = call_on_main(
        lambda: evaluator.results_of_features(model.heads[0], samples, *file) if file else None, evaluator.context
    )
    return evaluator.share(results, samples)


def set_head(model: nn.Module, solved: Solved) -> None:
    """model: with a linear head of this shape."""
    head = linear_head(model)
    assert head
    with torch.no_grad():
        head.weight.copy_(solved.weight)
        head.bias.copy_(solved.bias)


def _features(task: ProbeTask, model: FeatureModel, samples: Samples, split: str, fewest: int) -> Features | None:
    """The features of a split on the main process, None on the others; a collective call.

    Raises UserError: they are not finite, or of less than `fewest` images.
    """
    context = task.evaluator.context
    file = Extraction(task.config, samples, task.evaluator, model, task.bad_images, task.after_batch).once(split)

    def read() -> Features:
        assert file
        if task.bad_images:  # of features that another run has computed, too
            task.bad_images.add(BadImage(samples.name(index), reason, "") for index, reason in file.errors.items())
        readable = np.setdiff1d(np.arange(len(samples)), list(file.errors))
        values = torch.from_numpy(file.values[readable])
        key = "TUNE" if task.config.model.solves_head else "HEAD"
        title = f"MODEL.{key} probe: features of {split}"
        if len(values) < fewest:
            raise UserError(f"{title}: {len(values)} images can be read")
        if not values.isfinite().all():
            raise UserError(f"{title}: NaN or infinite; use bfloat16")
        targets = torch.from_numpy(samples.targets[readable])
        return Features(values.to(context.device), targets.to(context.device), readable, file)

    return call_on_main(read, context)


def _solve(task: ProbeTask, model: FeatureModel, train: Features | None, val: Features | None) -> Solved:
    """As `solve_head`, on the main process."""
    assert train and val
    classes = task.config.model.num_logits
    with _products_in_float32():
        folds = _folds_of(task, train)
        lone = classes_of_one_fold(train.targets, folds)
        names = names_of_labels(task.train, classes)
        if len(lone):
            text = f"classes with all training images in one of five folds: {list_names([names[one] for one in lone])}"
            task.logger.log(f"----- Probe: {text}; these images neither choose the L2 penalty nor are suspects")
        if task.solved:
            l2 = task.solved.l2
            weight = task.solved.weight.to(train.values)
            bias = task.solved.bias.to(train.values)
        else:
            weight, bias, l2 = fit_probe(train.values, train.targets, classes, task.loss, folds)
            task.logger.log(f"----- Probe: L2 penalty {l2:g} of the weights for standardized features")
        knn = None
        if not task.config.data.multi_label:
            knn = knn_top1(train.values, train.targets, val.values, val.targets, classes)
            task.logger.log(f"----- k-NN top-1 on the same features: {knn:.2f}%")
        if task.suspects:
            of_train = out_of_fold_margins(train.values, train.targets, classes, task.loss, l2, folds)
            of_val = margins(probabilities_of(F.linear(val.values, weight, bias), val.targets), val.targets)
            known = ~have_label(train.targets, lone).cpu().numpy()
            unseen = np.setdiff1d(np.arange(classes), label_pairs(train.targets.cpu().numpy())[1])
            trained = ~have_label(val.targets, torch.from_numpy(unseen).to(val.targets.device)).cpu().numpy()
            parts = [
                (task.train, train.indices[known], of_train.take(known)),
                (task.val, val.indices[trained], of_val.take(trained)),
            ]
            task.logger.info(f"Suspects: {_list_suspects(task, names, parts)}")
        sums = []
        for rows, labels in zip(train.values.split(ROWS), train.targets.split(ROWS), strict=True):
            logits = F.linear(rows, weight, bias)
            sums.append(BatchSums.of(task.loss(logits, labels), logits, labels, len(labels)))
    solved = Solved(weight.cpu(), bias.cpu(), l2, knn, reduce(add, sums), None)
    set_head(task.model, solved)
    return solved._replace(results=task.evaluator.results_of_features(model.heads[0], task.val, *val.file))


@contextmanager
def _products_in_float32() -> Iterator[None]:
    """The rounding errors of TF32 end the line search of a fit."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def _folds_of(task: ProbeTask, train: Features) -> Tensor:
    """The fold of each readable training image, (N,): of whole groups, where there are several."""
    groups = task.train.groups
    group_of = None
    if groups:
        group_of = np.unique(hash_paths(groups)[train.indices], return_inverse=True)[1]
        if not group_of.any():
            group_of = None
            task.logger.warn("Probe: one group has all training images: its folds, too, are of images (DATA.GROUPS)")
    return stratified_folds(train.targets, group_of)


def _list_suspects(task: ProbeTask, names: Sequence[str], parts: Sequence[tuple[Samples, np.ndarray, Margins]]) -> str:
    """Lists training and validation images whose label may be wrong; returns a line for the log. Raises OSError.

    parts: of both: the samples, the indices of some, and their margins by a probe that has not seen them.
    """
    assert task.suspects
    images = list[tuple[str, str]]()
    places = list[tuple[Samples, int]]()
    for split, (samples, indices, _) in zip(("train", "val"), parts, strict=True):
        for index in indices.tolist():
            images.append((split, samples.name(index)))
            places.append((samples, index))
    found = Margins(*map(np.concatenate, zip(*(of_part for _, _, of_part in parts), strict=True)))
    data = task.config.data
    suspects = write_suspects(task.suspects, found, images, names)
    shown = {suspect_picture(*images[index]): places[index] for index in suspects[:_PICTURES]}
    files.write_pictures(task.suspects.parent / PICTURES, shown, data)
    problem = "images may be wrong, or the images hard: probes without them are sure of another class"
    return f"{task.suspects}: {len(suspects)} labels of {len(images)} {problem}"
