"""The training loss: a sum over samples, since the step divides by the global batch.

With distillation, it also compares the student with a teacher: (1 - ALPHA) x base + ALPHA x distillation, where base is
the loss on the labels. In DeiT (Touvron et al., 2021) the labels train one head and the teacher another; a student with
one head has both parts on its logits.

Legend: B images per batch, S pixels on a side.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from configs.parts import LOSSES
from configs.schema import Data, Distillation, Model
from configs.schema import Loss as LossOptions
from datasets.batch import PADDING
from engine.precision.policy import Precision
from engine.training.losses.teacher import build_teacher
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
        losses: torch.Tensor = bce(logits.float(), _dense(targets, classes) * (1 - smoothing) + smoothing / classes)
        return losses.mean(-1).masked_fill(_is_padding(targets), 0).sum()

    return loss


def _of_plugin(options: LossOptions, smoothing: float, class_weights: torch.Tensor | None) -> Loss:
    """A function of (logits, smoothed and mixed targets, options) -> losses (B,); the first two float32 (B, classes).

    The loss of a sample is multiplied by the weight of its class. Padding gets valid targets: no NaN arises.
    """
    function = LOSSES.build(options.name, options.kwargs)

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        classes, padding = logits.shape[-1], _is_padding(targets)
        dense = _dense(targets.clamp(min=0), classes).float()
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


def _dense(targets: torch.Tensor, classes: int) -> torch.Tensor:
    """Targets with a column per class, (B, classes)."""
    return targets if targets.ndim > 1 else targets.unsqueeze(-1) == torch.arange(classes, device=targets.device)


def _is_padding(targets: torch.Tensor) -> torch.Tensor:
    """bool (B,): the positions without a sample."""
    return (targets if targets.ndim == 1 else targets[:, 0]) == PADDING


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


# Logits (B, classes); of a model with two heads in training: (class head, distillation head).
Outputs = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
# (outputs, targets, images that the student received) -> loss (), summed over the samples
StepLoss = Callable[[Outputs, torch.Tensor, torch.Tensor], torch.Tensor]


def build_step_loss(
    base: Loss,
    options: Distillation,
    student: nn.Module,
    student_options: Model,
    data: Data,
    precision: Precision,
    class_names: Sequence[str] | None = None,
) -> tuple[StepLoss, list[str]]:
    """The loss of a step, and log lines about the teacher.

    With distillation, a `student` with two heads (timm's distilled DeiT, LeViT, PiT, ...) returns both in training;
    call this before the model is copied. A student in evaluation mode, or trained without distillation, returns their
    mean; a student with MODEL.TUNE head does, too, since it stays in evaluation mode.

    Raises:
        UserError: as `build_teacher`.
    """
    if options.distillation_type == "none":
        return lambda outputs, targets, images: base(outputs, targets), []
    teacher, notes = build_teacher(options, student_options, data, precision, class_names)
    if set_distilled_training := getattr(student, "set_distilled_training", None):
        set_distilled_training(True)
    tau, alpha = options.distillation_tau, options.distillation_alpha
    compare = partial(soft_targets, tau=tau) if options.distillation_type == "soft" else hard_targets

    def loss(outputs: Outputs, targets: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        class_logits, logits = outputs if isinstance(outputs, tuple) else (outputs, outputs)
        distillation = compare(logits.float(), teacher(images), _is_padding(targets))
        return (1 - alpha) * base(class_logits, targets) + alpha * distillation

    return loss, [*notes, f"Distillation: {options.distillation_type}, alpha {alpha:g}, tau {tau:g}"]


def class_logits(outputs: Outputs) -> torch.Tensor:
    """The logits (B, classes) for top-1: the mean of two heads, as in an evaluation."""
    return outputs if isinstance(outputs, torch.Tensor) else (outputs[0] + outputs[1]) / 2


def soft_targets(student: torch.Tensor, teacher: torch.Tensor, padding: torch.Tensor, tau: float) -> torch.Tensor:
    """tau^2 x KL(teacher || student) of probabilities softened by `tau`, summed over classes and samples.

    As Hinton et al. (2015) and timm's LogitDistillationTask. DeiT's code also divides by the number of classes, so its
    ALPHA corresponds to a much smaller one here. PaddleViT's is defective: it passes log-probabilities as targets.

    student, teacher: logits float32 (B, classes); padding: bool (B,), the samples that do not count.
    """
    ours, theirs = (F.log_softmax(logits / tau, dim=-1) for logits in (student, teacher))
    divergence = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)
    return tau**2 * divergence.masked_fill(padding, 0).sum()


def hard_targets(student: torch.Tensor, teacher: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of the student with the teacher's most probable class (Touvron et al., 2021), summed.

    Without label smoothing. Arguments as `soft_targets`.
    """
    labels = teacher.argmax(-1).masked_fill(padding, PADDING)
    return F.cross_entropy(student, labels, reduction="sum", ignore_index=PADDING)
