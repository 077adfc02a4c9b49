"""The training loss: a sum over samples, since the step divides by the global batch."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from configs.parts import LOSSES
from configs.schema import Loss as LossOptions
from datasets.batch import PADDING
from utils.errors import UserError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def build_loss(options: LossOptions, smoothing: float, class_weights: torch.Tensor | None = None) -> Loss:
    """LOSS.NAME: logits (B, classes), targets -> loss (), summed over the samples, in fp32.

    Targets are labels int64 (B,), of which those equal to `PADDING` do not count, or mixed targets (B, classes). For
    bce also multi-hot targets (B, classes), of which rows of `PADDING` do not count.

    Args:
        smoothing: label smoothing, of mixed targets too.
        class_weights: float32 (classes,), from `read_class_weights`.
    """
    build = {"cross_entropy": _cross_entropy, "bce": _bce}.get(options.name, _of_plugin)
    return build(options, smoothing, class_weights)


def _cross_entropy(options: LossOptions, smoothing: float, class_weights: torch.Tensor | None) -> Loss:
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(
            logits.float(),
            targets,
            weight=class_weights,
            reduction="sum",
            ignore_index=PADDING,
            label_smoothing=smoothing,
        )

    return loss


def _bce(options: LossOptions, smoothing: float, class_weights: torch.Tensor | None) -> Loss:
    """timm's binary cross-entropy (Wightman et al., 2021): smoothing, then the threshold; the mean over the classes.

    timm's module accepts no padding, and leaves the smoothing of mixed targets to timm's mixup: both are done here.
    """
    from timm.loss import BinaryCrossEntropy  # imported where it is used, as few runs need it

    bce = BinaryCrossEntropy(0.0, options.target_threshold, pos_weight=class_weights, reduction="none")

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        classes = logits.shape[-1]
        dense = targets
        if targets.ndim == 1:
            dense = targets.unsqueeze(-1) == torch.arange(classes, device=targets.device)
        padding = dense[:, 0] == PADDING if targets.ndim > 1 else targets == PADDING
        losses: torch.Tensor = bce(logits.float(), dense * (1 - smoothing) + smoothing / classes)
        return losses.mean(-1).masked_fill(padding, 0).sum()

    return loss


def _of_plugin(options: LossOptions, smoothing: float, class_weights: torch.Tensor | None) -> Loss:
    """A function of (logits, smoothed and mixed targets, options) -> losses (B,); the first two float32 (B, classes).

    The loss of a sample is multiplied by the weight of its class. Padding gets valid targets: no NaN arises.
    """
    function = LOSSES.build(options.name, options.kwargs)

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        classes, padding = logits.shape[-1], (targets if targets.ndim == 1 else targets[:, 0]) == PADDING
        dense = targets = targets.clamp(min=0)
        if targets.ndim == 1:
            dense = targets.unsqueeze(-1) == torch.arange(classes, device=targets.device)
        dense = dense.float()
        try:
            losses: torch.Tensor = function(logits.float(), dense * (1 - smoothing) + smoothing / classes)
        except TypeError as error:  # such as a missing argument
            reason = f"{error}; it is called with (logits, targets, options) (-debug: traceback)"
            raise UserError(f"LOSS.NAME {options.name}: {reason}") from error
        if losses.shape != padding.shape:
            raise UserError(f"LOSS.NAME {options.name}: must return losses {(*padding.shape,)}, not {(*losses.shape,)}")
        weights = 1.0 if class_weights is None else dense @ class_weights
        return (weights * losses).masked_fill(padding, 0).sum()

    return loss


def read_class_weights(
    options: LossOptions, targets: np.ndarray, num_classes: int, device: torch.device
) -> torch.Tensor | None:
    """The weights float32 (classes,) of `LOSS.CLASS_WEIGHTS`; None if all are 1.

    balanced: N / (K n) for a class with n of the N training samples, K classes with samples (scikit-learn's formula).
    Their mean over the samples is 1. With several labels per sample: (N - n) / n, with which the positive and the
    negative terms of a class have equal weight, as torch's documentation of `pos_weight` has it. A class without
    samples gets the weight of a class with one.

    Args:
        targets: the labels of the training split, int64 (N,), or multi-hot int8 (N, classes).
    Raises:
        UserError: another number of weights than of classes.
    """
    weights = options.class_weights
    if weights is None:
        return None
    if weights == "balanced" and targets.ndim == 2:
        positive = torch.from_numpy(targets.sum(axis=0, dtype=np.int64)).clamp(min=1)
        return ((len(targets) - positive).clamp(min=1) / positive).to(device)
    if weights == "balanced":
        from timm.loss import compute_class_weights

        counts = torch.from_numpy(np.bincount(targets, minlength=num_classes))
        _, balanced = compute_class_weights(counts, len(targets), method="inv_freq")
        return (balanced * (len(targets) / (balanced.double() @ counts.double())).float()).to(device)
    if len(weights) != num_classes:
        raise UserError(
            f"LOSS.CLASS_WEIGHTS: has {len(weights)} values, but the model has {num_classes} classes "
            "(MODEL.NUM_CLASSES); give one value per class, or balanced"
        )
    return torch.tensor(weights, device=device)
