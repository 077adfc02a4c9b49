"""The section LOSS, and the keys of distillation in the section TRAIN: a teacher model gives additional targets."""

import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, field_validator, model_validator

from configs.parts import LOSSES
from configs.schema.section import Floats, OptionalPath, Probability, Section, option


class Loss(Section):  # type: ignore[no-redef]  # pydantic's plugin, on a field that is called kwargs
    """The training loss. `TRAIN.SMOOTHING` applies to all of them; the evaluation loss is always cross-entropy."""

    name: Annotated[str, AfterValidator(LOSSES.check_name)] = option(
        "cross_entropy", "cross_entropy; bce: of each class, binary (ResNet strikes back, DeiT III); or a plugin's"
    )
    kwargs: Annotated[dict[str, Any] | None, AfterValidator(LOSSES.check_kwargs)] = option(
        None, "options of a plugin's loss"
    )
    target_threshold: float | None = option(
        None, "bce: targets above it, smoothed and mixed, become 1, others 0; null: soft targets", ge=0, lt=1
    )
    class_weights: Literal["balanced"] | Floats | None = option(
        None,
        "factor of the loss of each class (bce: of its positive term); balanced: proportional to 1 / training images, "
        "with a mean of 1 over these images (DATA.MULTI_LABEL: images without / with the label); or a list of "
        "NUM_CLASSES values; null: 1",
    )

    @field_validator("class_weights")
    @classmethod
    def _check_weights(cls, weights: str | tuple[float, ...] | None) -> str | tuple[float, ...] | None:
        if isinstance(weights, tuple) and not (weights and min(weights) > 0):
            raise ValueError("each weight must be greater than 0")
        return weights

    @model_validator(mode="after")
    def _check(self) -> "Loss":
        if self.name != "bce" and self.target_threshold is not None:
            raise ValueError("TARGET_THRESHOLD applies to LOSS.NAME bce only; remove it or set LOSS.NAME=bce")
        return self


WEIGHTS_EXTENSIONS = (".pdparams", ".safetensors", ".pth", ".pt", ".bin", ".npz", ".shards")
DEFAULT_TEACHER = "regnety_160.deit_in1k"  # DeiT's (Touvron et al., 2021)


class Distillation(Section):
    """The names are PaddleViT's, whose TEACHER_MODEL is a file of weights; TEACHER_WEIGHTS is ours."""

    distillation_type: Annotated[
        Literal["none", "soft", "hard"], BeforeValidator(lambda name: "none" if name is None else name)
    ] = option("none", "targets from a teacher; soft: its softened probabilities; hard: its most probable class")
    distillation_alpha: Probability = option(
        0.5, "weight of the distillation loss; the loss of the labels has the weight 1 - this"
    )
    distillation_tau: float = option(1.0, "soft: temperature, which divides the logits of both models", gt=0)
    teacher_model: OptionalPath = option(
        None,
        "a model of timm's, or a recipe in configs/; null: the model that the checkpoint TEACHER_WEIGHTS "
        f"names, else {DEFAULT_TEACHER}; a file of weights: its stem is the model, if the file does not name it",
    )
    teacher_weights: OptionalPath = option(None, "the teacher's weights: a file, or timm to download timm's")

    @property
    def teacher_file(self) -> str | None:
        """The weights of the teacher: TEACHER_WEIGHTS, else TEACHER_MODEL if it is a file."""
        return self.teacher_weights or (self.teacher_model if _is_file(self.teacher_model) else None)

    @property
    def named_teacher(self) -> str | None:
        """TEACHER_MODEL if it names a model and no file."""
        return None if _is_file(self.teacher_model) else self.teacher_model

    @property
    def implied_teacher(self) -> str:
        """The model if neither TEACHER_MODEL nor the checkpoint names one."""
        if self.teacher_model is None:
            return DEFAULT_TEACHER
        return os.path.splitext(os.path.basename(self.teacher_model))[0]


def _is_file(teacher: str | None) -> bool:
    return teacher is not None and teacher.lower().endswith(WEIGHTS_EXTENSIONS)
