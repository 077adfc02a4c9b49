"""The teacher of a distillation: its model, its weights, and the images that it receives.

Legend: B images per batch, C channels, S pixels on a side.
"""

from collections.abc import Sequence
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import nn

from configs.reading.checks import check_options
from configs.reading.layer_rules import architecture, check_family, model_sections
from configs.reading.option_layers import OptionLayers
from configs.reading.yaml_io import shorten
from configs.rules import complete
from configs.schema import Config, Data, Distillation, Model
from configs.weights import NORMALIZATION, WeightsRecord
from datasets.sources.samples import map_labels
from engine.checkpoint.weights_record import read_record, weights_record
from engine.plan.outputs import match_outputs
from engine.precision.policy import Precision
from models.build import build_model
from utils.errors import UserError, did_you_mean, error_from

TIMM = "timm"  # as TEACHER_WEIGHTS: timm's published weights
_PREPROCESSING = ("IMAGE_SIZE", "IMAGE_CHANNELS", *NORMALIZATION)


class Teacher:
    """A frozen model in evaluation mode: images of the student -> logits float32 (B, classes), without gradients.

    It computes in the precision of the run, eagerly, and receives the augmented and mixed images of the student (DeiT),
    with its own normalization and in its own size (bicubic, as Pillow). The host does not wait.
    """

    def __init__(
        self, model: nn.Module, precision: Precision, own: Data, student: Data, outputs: Sequence[int] | None = None
    ) -> None:
        """`model` is in fp32 and on its device. `own` and `student`: image size, mean and std of the two models.

        outputs: of `model`, for each class of the student; None: in the same order.
        """
        precision.set_norm_dtypes(model)
        self.model = precision.compute_copy(model).requires_grad_(False).eval()
        self.precision, self.size = precision, own.input_size
        self._outputs = None if outputs is None else torch.tensor(outputs, device=precision.device)
        self._rescale = _rescale(own, student, precision.device)

    @torch.no_grad()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        with self.precision.autocast():
            logits: torch.Tensor = self.model(self.preprocess(images))
        return logits.float() if self._outputs is None else logits.float()[:, self._outputs]

    def preprocess(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, S, S) with the student's normalization -> images for the teacher, float32."""
        if self._rescale:
            factor, offset = self._rescale
            images = torch.addcmul(offset, images, factor)
        if images.shape[-2:] == self.size:
            return images
        return F.interpolate(images, size=self.size, mode="bicubic", antialias=True)


def _rescale(own: Data, student: Data, device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Factor and offset (C, 1, 1) from the student's normalization to the teacher's; None if they are equal."""
    if (own.imagenet_mean, own.imagenet_std) == (student.imagenet_mean, student.imagenet_std):
        return None
    factors = [theirs / ours for theirs, ours in zip(student.imagenet_std, own.imagenet_std, strict=True)]
    shifts = [theirs - ours for theirs, ours in zip(student.imagenet_mean, own.imagenet_mean, strict=True)]
    offsets = [shift / ours for shift, ours in zip(shifts, own.imagenet_std, strict=True)]
    factor, offset = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (factors, offsets))
    return factor, offset


def build_teacher(
    options: Distillation,
    student: Model,
    data: Data,
    precision: Precision,
    class_names: Sequence[str] | None = None,
) -> tuple[Teacher, list[str]]:
    """The teacher of a student with the options `student` and `data`, and log lines about it.

    Its head must have the student's number of classes. class_names: of the run's data, None if it has none.

    Raises:
        UserError: no weights, an unknown model, other classes or channels than the student's, an image size that the
            model does not accept, or weights that do not fit.
    """
    weights = options.teacher_file
    if weights is None:
        raise UserError(
            f"TRAIN.TEACHER_WEIGHTS: DISTILLATION_TYPE {options.distillation_type} needs a teacher with weights; give "
            f"-teacher_model_path=FILE, or set TEACHER_WEIGHTS to {TIMM}, or DISTILLATION_TYPE to none"
        )
    try:
        checkpoint = None if weights == TIMM else read_record(weights)
    except UserError as error:
        raise error_from(error, f"TRAIN.TEACHER_WEIGHTS: {error}") from error
    name, config, num_classes = _find_model(options, weights, checkpoint)
    own = config.data
    if num_classes not in (None, student.num_logits):
        raise UserError(
            f"TRAIN.TEACHER_WEIGHTS: the teacher {name} has {num_classes} classes and the student "
            f"{student.num_logits} (MODEL.NUM_CLASSES); give a teacher of the same classes"
        )
    changes = {"attention": student.attention, "pretrained": weights, "weights_entry": student.weights_entry}
    options_of_teacher = config.with_model(num_classes=student.num_logits, **changes).model
    try:
        outputs = _outputs_of(class_names, options_of_teacher, weights_record(options_of_teacher), data.classes)
        size = checkpoint.image_size if checkpoint else None
        model, notes = build_model(options_of_teacher, own, precision.device, needs_head=True, weights_size=size)
    except UserError as error:
        problem = str(error).removeprefix("MODEL.PRETRAINED: ")
        raise error_from(error, f"TRAIN.TEACHER_WEIGHTS, teacher {name}: {problem}") from error
    if own.image_channels != data.image_channels:
        raise UserError(
            f"TRAIN.TEACHER_MODEL: {name} takes images of {own.image_channels} channels, and "
            f"DATA.IMAGE_CHANNELS is {data.image_channels}; choose another teacher"
        )
    source, *others = notes or [f"weights: {TIMM}"]
    about = (
        f"{name}, {source}, {own.image_size} pixels, mean {list(own.imagenet_mean)}, std "
        f"{list(own.imagenet_std)}, {student.num_logits} classes"
    )
    return Teacher(model, precision, own, data, outputs), [f"Teacher: {line}" for line in (about, *others)]


def _find_model(
    options: Distillation, weights: str, checkpoint: WeightsRecord | None
) -> tuple[str, Config, int | None]:
    """The name, the options and the number of classes, which is None if only the tensors of the file have it.

    The model is TEACHER_MODEL, else the model in the checkpoint, else the file's name without its extension. The
    preprocessing comes from the checkpoint, else from the recipe, else from timm; missing keys from the family.
    """
    if checkpoint and not options.named_teacher:
        name, model, data = str(checkpoint.model.get("NAME")), architecture(checkpoint.model), {}
    else:
        name = options.named_teacher or options.implied_teacher
        model, data = model_sections(name).values()
    published = _timm_config(name, model, weights)
    if checkpoint:
        data = checkpoint.data
    elif published and not data:
        channels, *size = published.input_size
        data = dict(zip(_PREPROCESSING, (size, channels, list(published.mean), list(published.std)), strict=True))
    layers = OptionLayers({"MODEL": model, "DATA": data})
    check_family(layers)
    sections, _ = complete(layers)
    preprocessing = {key: value for key, value in sections["DATA"].items() if key in _PREPROCESSING}
    try:
        config = check_options({"MODEL": sections["MODEL"], "DATA": preprocessing}, layers)
    except UserError as error:
        raise error_from(error, f"TRAIN.TEACHER_MODEL {name}: {error}; choose another teacher") from None
    if checkpoint:
        return name, config, checkpoint.num_classes
    return name, config, published.num_classes if weights == TIMM else None


def _outputs_of(
    class_names: Sequence[str] | None, teacher: Model, checkpoint: WeightsRecord | None, classes: str | None
) -> list[int] | None:
    """The output of the teacher for each class of the data; None if both have the same order, or labels are numbers.

    Raises:
        UserError: the teacher was trained on other classes; or as `match_outputs`.
    """
    if not class_names:
        return None
    if checkpoint and checkpoint.class_names:
        outputs: list[int] = map_labels(class_names, checkpoint.class_names).tolist()
    else:
        outputs = match_outputs(class_names, teacher, checkpoint, classes)[0]
    if -1 in outputs:
        unknown = shorten(class_names[outputs.index(-1)])
        raise UserError(f"{unknown} is no class of the teacher; give a teacher of the same classes")
    outputs += [one for one in range(teacher.num_logits) if one not in outputs]  # NUM_CLASSES is more than the data has
    return None if outputs == sorted(outputs) else outputs


def _timm_config(name: str, model: dict[str, Any], weights: str) -> Any:
    """timm's `pretrained_cfg` of a model of TYPE timm; None for another type."""
    if model.get("TYPE") != TIMM:
        if weights == TIMM:
            raise UserError(f"TRAIN.TEACHER_WEIGHTS timm: {name} is no model of timm's; give a file of weights")
        return None
    timm_name = str(model.get("NAME"))
    try:
        published: Any = timm.get_pretrained_cfg(timm_name, allow_unregistered=False)
    except RuntimeError:
        hint = did_you_mean(timm_name, timm.list_models(pretrained=True) + timm.list_models())
        raise UserError(
            f"TRAIN.TEACHER_MODEL: {timm_name[:80]} is neither a recipe in configs/ nor a model of timm's{hint}"
        ) from None
    if weights == TIMM and not published.has_weights:
        raise UserError(f"TRAIN.TEACHER_WEIGHTS timm: timm has no weights of {timm_name}; give a file of weights")
    return published
