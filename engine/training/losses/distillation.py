"""Distillation: the loss of a step also compares the student with a teacher.

The loss is (1 - ALPHA) x base + ALPHA x distillation, where base is the loss of the run on the labels. In DeiT (Touvron
et al., 2021) the labels train one head and the teacher another; a student with one head has both parts on its logits.

Legend: B images per batch, S pixels on a side.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from configs.schema import Data, Distillation, Model
from datasets.batch import PADDING
from engine.precision.policy import Precision
from engine.training.losses.loss import Loss
from engine.training.losses.teacher import build_teacher

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


def _is_padding(targets: torch.Tensor) -> torch.Tensor:
    """bool (B,). A batch with padding is not mixed, so mixed targets (B, classes) have none."""
    if targets.ndim > 1:
        return torch.zeros(len(targets), dtype=torch.bool, device=targets.device)
    return targets == PADDING
