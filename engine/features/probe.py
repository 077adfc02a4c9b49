"""A run whose only step fits the head on the features of the frozen backbone; and labels that may be wrong.

Legend: N samples, F width of the features, C classes.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from configs.schema import Data
from datasets.sources.samples import Samples
from datasets.sources.split import hash_paths
from engine.evaluation.pictures import write_findings
from engine.features.classifiers import ROWS, Margins, fit_probe, knn_top1, out_of_fold_margins, stratified_folds
from engine.features.store import extract
from engine.training.loss import build_loss, read_class_weights
from engine.training.trainer import Trainer
from models.blocks import FeatureModel
from models.timm_model import classifiers
from utils.distributed import broadcast_object, call_on_main
from utils.errors import UserError
from utils.metrics import BatchSums
from utils.tables import safe_cell

SUSPECTS = "suspects"
_COLUMNS = ("path", "label", "predicted", "probability", "label_probability", "margin")


class Features(NamedTuple):
    """The features of the readable samples of a split: float32 (N, F), their targets (N, ...) and indices (N,)."""

    values: torch.Tensor
    targets: torch.Tensor
    indices: np.ndarray


class Fitted(NamedTuple):
    """Weight (C, F) and bias (C,) on the CPU, figures for run.json, and the sums of the training images."""

    weight: torch.Tensor
    bias: torch.Tensor
    figures: dict[str, Any]
    sums: BatchSums | None


def run_probe(trainer: Trainer) -> None:
    """Runs an epoch of one step, which fits the head; with the evaluation and the files of a training.

    The features of the training and of the validation images are kept in SAVE/features, for the same run after a kill
    and for other probes with this backbone, these images and this preprocessing.

    Raises:
        UserError: the head is not one linear layer; the features are not finite, or of fewer than two images.
    """
    with trainer.started():
        if not trainer.has_ended():
            trainer.start_epoch()
            if not trainer.progress.done_steps:
                _fit_head(trainer)
            trainer.end_epoch()


def _fit_head(trainer: Trainer) -> None:
    weights, progress, context = trainer.state.precision.weights, trainer.progress, trainer.context
    model = FeatureModel(trainer.state.eval_model, trainer.config.model.name)
    heads = classifiers(weights.saved)
    if len(heads) > 1 or not isinstance(heads[0], nn.Linear) or heads[0].bias is None:
        raise UserError(
            f"MODEL.TUNE probe: the head of {trainer.config.model.name} is not one linear layer; set it to head"
        )
    train = _features(trainer, model, trainer.plan.train, "train")
    val = _features(trainer, model, trainer.plan.val, "val")
    on_main = call_on_main(lambda: _fit(trainer, train, val), context)
    fitted = broadcast_object(on_main and on_main._replace(sums=None), context)
    assert fitted is not None  # the main process has fitted it
    with torch.no_grad():
        heads[0].weight.copy_(fitted.weight)
        heads[0].bias.copy_(fitted.bias)
    weights.sync_after_load()
    trainer.outputs.record.set_result(**fitted.figures)
    if on_main and on_main.sums is not None:  # the sums are over all ranks
        no = torch.zeros((), device=context.device)
        progress.sums.add_step(on_main.sums, no, no > 0)
    progress.done_steps += 1
    trainer.after_step(progress)


def _features(trainer: Trainer, model: FeatureModel, samples: Samples, split: str) -> Features:
    """The features of a split on the main process, none on the others; a collective call."""
    config, bad_images, device = trainer.config, trainer.session.bad_images, trainer.context.device
    root = Path(config.save) / "features"
    place = lambda digest: root / f"{split}-{digest[:16]}" / "features.npy"  # noqa: E731
    evaluator = trainer.session.evaluator
    file = extract(config, samples, evaluator, model, place, bad_images, trainer.after_eval_batch)
    if file is None:
        return Features(torch.empty(0), torch.empty(0), np.empty(0, np.int64))
    readable = np.setdiff1d(np.arange(len(samples)), list(file.errors))
    values = torch.from_numpy(file.values[readable])
    if len(values) < 2 or not values.isfinite().all():
        problem = "fewer than two images can be read" if len(values) < 2 else "NaN or infinite; use bfloat16"
        raise UserError(f"MODEL.TUNE probe: features of {split}: {problem}")
    return Features(values.to(device), torch.from_numpy(samples.targets[readable]).to(device), readable)


def _fit(trainer: Trainer, train: Features, val: Features) -> Fitted:
    config, matmul, classes = trainer.config, torch.backends.cuda.matmul, trainer.config.model.num_logits
    samples, logger = trainer.plan.train, trainer.outputs.logger
    class_weights = read_class_weights(config.loss, samples.targets, classes, trainer.context.device)
    loss = build_loss(config.loss, config.train.smoothing, class_weights)
    tf32, matmul.allow_tf32 = matmul.allow_tf32, False  # its rounding errors end the line search
    group_of = np.unique(hash_paths(samples.groups)[train.indices], return_inverse=True)[1] if samples.groups else None
    if group_of is not None and not group_of.any():
        logger.warn("Warning: Probe: one group has all training images: its folds, too, are of images (DATA.GROUPS)")
        group_of = None
    folds = stratified_folds(train.targets, group_of)
    weight, bias, l2 = fit_probe(train.values, train.targets, classes, loss, folds)
    figures = {"probe_l2": l2}
    logger.info(f"----- Probe: L2 penalty {l2:g} of the weights for standardized features")
    if not config.data.multi_label:
        figures["knn_top1"] = knn_top1(train.values, train.targets, val.values, val.targets, classes)
        logger.info(f"----- k-NN top-1 on the same features: {figures['knn_top1']:.2f}%")
    if config.eval.suspects:
        found = out_of_fold_margins(train.values, train.targets, classes, loss, l2, folds)
        names = trainer.outputs.evaluation.class_names
        logger.info(
            f"----- {write_suspects(trainer.outputs.folder, found, train.indices, samples, names, config.data)}"
        )
    sums = []
    for rows, labels in zip(train.values.split(ROWS), train.targets.split(ROWS), strict=True):
        logits = F.linear(rows, weight, bias)
        sums.append(BatchSums.of(loss(logits, labels), logits, labels, len(labels)))
    matmul.allow_tf32 = tf32
    return Fitted(weight.cpu(), bias.cpu(), figures, reduce(add, sums))


def write_suspects(
    folder: Path, found: Margins, indices: np.ndarray, samples: Samples, names: Sequence[str], data: Data
) -> str:
    """Lists the samples for which another class is predicted, the lowest margin first; returns a line for the log.

    The order is by cleanlab's normalized margin (Northcutt et al., "Confident Learning", 2021).

    indices: of the margins in `samples`, (N,). Raises OSError.
    """
    cells, images = [], []
    for row in np.argsort(found.values, kind="stable")[: int((found.values < 0).sum())].tolist():
        index = int(indices[row])
        texts = samples.name(index), names[samples.targets[index]], names[found.others[row]]
        figures = found.probabilities[row], found.label_probabilities[row], found.values[row]
        cells.append([*map(safe_cell, texts), *(f"{100 * figure:.4f}" for figure in figures)])
        images.append([(samples, index)])
    file = write_findings(folder / SUSPECTS, _COLUMNS, cells, images, data)
    problem = "training images are predicted as another class by probes without them"
    return f"{len(cells)} of {len(indices)} {problem}: {file}"
