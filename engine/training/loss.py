"""The training loss: a sum over samples, since the step divides by the global batch; and the teacher of a distillation.

With distillation, the loss compares the student with a teacher: (1 - ALPHA) x base + ALPHA x distillation, where base
is the loss on the labels. In DeiT (Touvron et al., 2021) the labels train one head and the teacher another; a student
with one head has both parts on its logits.

Legend: B images per batch, C channels, S pixels on a side.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.load import OptionTable, model_sections
from configs.parts import LOSSES
from configs.resolve import follow_options
from configs.schema import Config, Data
from configs.schema import Loss as LossOptions
from configs.schema.section import only
from configs.weights import NORMALIZATION, architecture, follow_weights
from configs.yaml_io import Values, shorten
from datasets.batch import PADDING, is_padding
from datasets.sources.class_names import map_labels, rename_classes
from datasets.sources.samples import UNKNOWN, is_multi_hot
from engine.checkpoint.weights_record import WeightsRecord, read_record, weights_record
from engine.features.classifiers import Loss
from engine.plan.evaluation import match_outputs
from engine.precision.policy import Precision
from models.build import build_model, outputs_of_weights
from models.weights.choose import TEACHER
from models.weights.fit import Fitted
from utils.errors import UserError, error_from


def build_loss(
    options: LossOptions, smoothing: float, class_weights: Tensor | None = None, multi_label: bool = False
) -> Loss:
    """LOSS.NAME: logits (B, classes), targets -> loss (), summed over the samples, in fp32.

    Targets are labels int64 (B,), of which those equal to `PADDING` do not count, or mixed targets (B, classes). For
    bce and asl also multi-hot targets (B, classes), of which rows of `PADDING` and cells `UNKNOWN` do not count.

    smoothing: label smoothing, of mixed targets too.
    class_weights: float32 (classes,), from `read_class_weights`.
    multi_label: whether the targets are multi-hot (DATA.MULTI_LABEL); SMOOTH_TO_HALF is for them.
    """
    if options.name == "cross_entropy":
        arguments: Values = {"weight": class_weights, "label_smoothing": smoothing, "reduction": "sum"}
        return lambda logits, targets: F.cross_entropy(logits.float(), targets, ignore_index=PADDING, **arguments)
    to_half = options.smooth_to_half and multi_label
    losses_of = _LOSSES_OF.get(options.name, _of_plugin)(options, class_weights)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        classes = logits.shape[-1]
        dense = targets.clamp(min=0)  # padding gets valid targets: no NaN arises
        if dense.ndim == 1:
            dense = dense.unsqueeze(-1) == torch.arange(classes, device=targets.device)
        dense = dense.float()
        ways = 2 if to_half else classes
        is_unknown = targets.reshape(len(targets), -1) == UNKNOWN
        losses = losses_of(logits.float(), dense * (1 - smoothing) + smoothing / ways, dense, is_unknown)
        return losses.masked_fill(is_padding(targets), 0).sum()

    return loss


# (logits, smoothed targets, targets, cells that do not count) -> losses (B,); the others (B, classes), float32 or bool
_Losses = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


# Of timm's losses: its modules accept no padding, and leave the smoothing of mixed targets to timm's mixup. They are
# imported where used, as few runs need them.


def _bce(options: LossOptions, class_weights: Tensor | None) -> _Losses:
    """timm's binary cross-entropy (Wightman et al., 2021), the mean over the classes; a threshold after smoothing."""
    from timm.loss import BinaryCrossEntropy

    bce = BinaryCrossEntropy(0.0, options.target_threshold, pos_weight=class_weights, reduction="none")
    return lambda logits, smoothed, targets, is_unknown: bce(logits, smoothed).masked_fill(is_unknown, 0).mean(-1)


def _asl(options: LossOptions, class_weights: Tensor | None) -> _Losses:
    """timm's asymmetric loss (Ridnik et al., 2021, arXiv 2009.14119), the sum over the classes."""
    from timm.loss import AsymmetricLossMultiLabel

    asl = AsymmetricLossMultiLabel(**options.kwargs or {}, pos_weight=class_weights, reduction="none")
    return lambda logits, smoothed, targets, is_unknown: asl(logits, smoothed).masked_fill(is_unknown, 0).sum(-1)


def _of_plugin(options: LossOptions, class_weights: Tensor | None) -> _Losses:
    """A function of (logits, smoothed and mixed targets, options) -> losses (B,); the first two float32 (B, classes).

    The loss of a sample is multiplied by the weight of its class.
    """
    function = LOSSES.build(options.name, options.kwargs)

    def losses_of(logits: Tensor, smoothed: Tensor, targets: Tensor, is_unknown: Tensor) -> Tensor:
        try:
            losses: Tensor = function(logits, smoothed)
        except TypeError as error:  # such as a missing argument
            raise UserError(
                f"LOSS.NAME {options.name}: {error}; it is called with (logits, targets, options) (-debug: traceback)"
            ) from error
        if losses.shape != logits.shape[:1]:
            raise UserError(
                f"LOSS.NAME {options.name}: must return losses {(*logits.shape[:1],)}, not {(*losses.shape,)}"
            )
        return losses if class_weights is None else (targets @ class_weights) * losses

    return losses_of


_LOSSES_OF = {"bce": _bce, "asl": _asl}  # by LOSS.NAME; other names are of plugins


def read_class_weights(
    options: LossOptions, targets: np.ndarray, num_classes: int, device: torch.device
) -> Tensor | None:
    """The weights float32 (classes,) of `LOSS.CLASS_WEIGHTS`; None if all are 1.

    balanced: N / (K n) for a class with n of the N training samples, K classes with samples (scikit-learn's formula).
    Their mean over the samples is 1. With several labels per sample: (N - n) / n, with which the positive and the
    negative terms of a class have equal weight, as torch's documentation of `pos_weight` has it. A class without
    samples gets the weight of a class with one. Unknown cells do not count.

    targets: the labels of the training split, int64 (N,), or multi-hot int8 (N, classes).
    Raises UserError: another number of weights than of classes; a plugin's loss of targets with unknown cells.
    """
    if LOSSES[options.name].code and is_multi_hot(targets) and (targets == UNKNOWN).any():
        raise UserError(f"LOSS.NAME {options.name}: does not leave out unknown labels; set LOSS.NAME to bce or asl")
    weights = options.class_weights
    if weights is None:
        return None
    if weights == "balanced":
        return _balanced_weights(targets, num_classes).to(device)
    if len(weights) != num_classes:
        raise UserError(
            f"LOSS.CLASS_WEIGHTS: has {len(weights)} values, but the model has {num_classes} classes"
            " (MODEL.NUM_CLASSES); give one value per class, or balanced"
        )
    return torch.tensor(weights, device=device)


def _balanced_weights(targets: np.ndarray, num_classes: int) -> Tensor:
    if is_multi_hot(targets):
        positive = torch.from_numpy(np.count_nonzero(targets > 0, axis=0)).clamp(min=1)
        known = torch.from_numpy(np.count_nonzero(targets != UNKNOWN, axis=0))
        return (known - positive).clamp(min=1) / positive
    from timm.loss import compute_class_weights

    counts = torch.from_numpy(np.bincount(targets, minlength=num_classes))
    _, balanced = compute_class_weights(counts, len(targets), method="inv_freq")
    return balanced * (len(targets) / (balanced.double() @ counts.double())).float()


def label_loss(config: Config, targets: np.ndarray | None, device: torch.device) -> Loss:
    """The loss on the labels. targets: of the training split; None in a trial. Raises as `read_class_weights`."""
    weights = None
    if targets is not None:
        weights = read_class_weights(config.loss, targets, config.model.num_logits, device)
    return build_loss(config.loss, config.train.smoothing, weights, config.data.multi_label)


# Logits (B, classes); of a model with two heads in training: (class head, distillation head).
Outputs = Tensor | tuple[Tensor, Tensor]
# (outputs, targets, images that the student received) -> loss (), summed over the samples
StepLoss = Callable[[Outputs, Tensor, Tensor], Tensor]


def build_step_loss(
    config: Config,
    student: nn.Module,
    precision: Precision,
    targets: np.ndarray | None,
    class_names: Sequence[str] | None,
) -> "tuple[StepLoss, Teacher | None]":
    """The loss of a step, and its teacher.

    With distillation, a `student` with two heads (timm's distilled DeiT, LeViT, PiT, ...) returns both in training;
    call this before the model is copied. A student in evaluation mode, or trained without distillation, returns their
    mean; a student with MODEL.TUNE head does, too, since it stays in evaluation mode.

    targets, class_names: of the training data; None in a trial.
    Raises UserError: as `read_class_weights` and `build_teacher`.
    """
    options = config.train
    base = label_loss(config, targets, precision.device)
    if options.distillation_type == "none":
        return lambda outputs, targets, images: base(outputs, targets), None
    teacher = build_teacher(config, precision, class_names)
    if set_distilled_training := getattr(student, "set_distilled_training", None):
        set_distilled_training(True)
    tau = options.distillation_tau
    alpha = options.distillation_alpha
    compare = partial(soft_targets, tau=tau) if options.distillation_type == "soft" else hard_targets

    def loss(outputs: Outputs, targets: Tensor, images: Tensor) -> Tensor:
        class_logits, logits = outputs if isinstance(outputs, tuple) else (outputs, outputs)
        distillation = compare(logits.float(), teacher(images), is_padding(targets))
        return (1 - alpha) * base(class_logits, targets) + alpha * distillation

    return loss, teacher


def class_logits(outputs: Outputs) -> Tensor:
    """The logits (B, classes) for top-1: the mean of two heads, as in an evaluation."""
    return outputs if isinstance(outputs, Tensor) else (outputs[0] + outputs[1]) / 2


def soft_targets(student: Tensor, teacher: Tensor, padding: Tensor, tau: float) -> Tensor:
    """tau^2 x KL(teacher || student) of probabilities softened by `tau`, summed over classes and samples.

    As Hinton et al. (2015) and timm's LogitDistillationTask. DeiT's code also divides by the number of classes, so its
    ALPHA corresponds to a much smaller one here. PaddleViT's is defective: it passes log-probabilities as targets.

    student, teacher: logits float32 (B, classes); padding: bool (B,), the samples that do not count.
    """
    ours, theirs = (F.log_softmax(logits / tau, dim=-1) for logits in (student, teacher))
    divergence = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)
    return tau**2 * divergence.masked_fill(padding, 0).sum()


def hard_targets(student: Tensor, teacher: Tensor, padding: Tensor) -> Tensor:
    """The cross-entropy of the student with the teacher's most probable class (Touvron et al., 2021), summed.

    Without label smoothing. Arguments as `soft_targets`.
    """
    labels = teacher.argmax(-1).masked_fill(padding, PADDING)
    return F.cross_entropy(student, labels, reduction="sum", ignore_index=PADDING)


TIMM = "timm"  # as TEACHER_WEIGHTS: timm's published weights


class Teacher:
    """A frozen model in evaluation mode: images of the student -> logits float32 (B, classes), without gradients.

    It computes in the precision of the run, eagerly, and receives the augmented and mixed images of the student (DeiT),
    with its own normalization and in its own size (bicubic, as Pillow). The host does not wait.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        fitted: Fitted,
        precision: Precision,
        own: Data,
        student: Data,
        outputs: Sequence[int],
    ) -> None:
        """`model` is in fp32 and on its device. `own` and `student`: image size, mean and std of the two models.

        outputs: of `model`, for each class of the student.
        """
        precision.set_norm_dtypes(model)
        self.model = precision.compute_copy(model).requires_grad_(False).eval()
        self.name = name
        self.fitted = fitted
        self.data = own
        self.precision = precision
        self.size = own.input_size
        self._outputs = torch.tensor(outputs, device=precision.device)
        mean = np.array(own.imagenet_mean)
        std = np.array(own.imagenet_std)
        values = np.stack([student.imagenet_std / std, (student.imagenet_mean - mean) / std])
        # From the student's normalization, (C, 1, 1)
        self._factor, self._offset = torch.from_numpy(values).float().to(precision.device)[..., None, None]

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        with self.precision.autocast():
            logits: Tensor = self.model(self.preprocess(images))
        return logits.float()[:, self._outputs]

    def preprocess(self, images: Tensor) -> Tensor:
        """Images (B, C, S, S) with the student's normalization -> images for the teacher, float32."""
        images = torch.addcmul(self._offset, images, self._factor)
        if images.shape[-2:] == self.size:
            return images
        return F.interpolate(images, size=self.size, mode="bicubic", antialias=True)


_SAME = "give a teacher of the same classes"


def _options_of_teacher(
    sections: dict[str, Values], checkpoint: WeightsRecord | None, config: Config
) -> tuple[Config, WeightsRecord]:
    """The options of the teacher whose sections MODEL and DATA are given, and the record of its weights."""
    stated = {} if checkpoint else sections["DATA"]
    given = only(stated, ("IMAGE_SIZE", "IMAGE_CHANNELS", *NORMALIZATION))
    own, *_ = follow_options(OptionTable({"MODEL": sections["MODEL"], "DATA": given}))
    student = config.model
    weights = config.train.teacher_file
    own = own.with_model(num_classes=student.num_logits, attention=student.attention, pretrained=weights)
    record = checkpoint or weights_record(own.model)
    return follow_weights(own, {f"DATA.{key}" for key in given}, record).options, record


def _check_teacher(own: Config, checkpoint: WeightsRecord | None, config: Config) -> None:
    """Raises UserError: the teacher has other classes or channels than the student."""
    classes = config.model.num_logits
    number = checkpoint.num_classes if checkpoint else outputs_of_weights(own.model, own.data)
    # `build_model` finds the head of a file without a number of classes.
    if number != classes and (number or config.train.teacher_file == TIMM):
        raise UserError(f"has {number or 'no'} classes and the student {classes} (MODEL.NUM_CLASSES); {_SAME}")
    if own.data.image_channels != config.data.image_channels:
        raise UserError(
            f"takes images of {own.data.image_channels} channels, "
            f"and DATA.IMAGE_CHANNELS is {config.data.image_channels}; choose another teacher"
        )


def _outputs_of_teacher(own: Config, record: WeightsRecord, class_names: Sequence[str] | None, data: Data) -> list[int]:
    """The output of the teacher for each class of `data`, the student's. Raises UserError: a class has none."""
    if not class_names:
        return []
    if record.class_names:
        names = rename_classes(record.class_names, data.rename)
        outputs: list[int] = map_labels(class_names, names, "the teacher").tolist()
    else:
        outputs = match_outputs(class_names, own.model, record, data.classes)[0]
    if -1 in outputs:
        raise UserError(f"{shorten(class_names[outputs.index(-1)])} is no class of the teacher; {_SAME}")
    return outputs


def build_teacher(config: Config, precision: Precision, class_names: Sequence[str] | None = None) -> Teacher:
    """The teacher of a student with the options of `config`.

    The model is TEACHER_MODEL, else the model in the checkpoint, else the file's name without its extension. The
    preprocessing comes from the checkpoint, else from the recipe, else from the weights; missing keys from the family.
    The head must have the student's number of classes. class_names: of the run's data, None if it has none.
    Raises UserError: no weights, an unknown model, other classes or channels than the student's, an image size that the
    model does not accept, or weights that do not fit.
    """
    options = config.train
    weights = options.teacher_file
    name = options.named_teacher or options.implied_teacher
    if weights is None:
        raise UserError(
            f"TRAIN.TEACHER_WEIGHTS: DISTILLATION_TYPE {options.distillation_type} needs a teacher with weights; give "
            f"-teacher_model_path=FILE, or for ImageNet set TEACHER_WEIGHTS to {TIMM}, or DISTILLATION_TYPE to none"
        )
    try:
        checkpoint = None if weights == TIMM else read_record(weights)
        if checkpoint and not options.named_teacher:
            name = str(checkpoint.model.get("NAME"))
            sections = {"MODEL": architecture(checkpoint.model)}
        else:
            sections = model_sections(name)
        if weights == TIMM and sections["MODEL"].get("TYPE") != TIMM:
            raise UserError(f"{name} is no model of timm's; give a file of weights")
        own, record = _options_of_teacher(sections, checkpoint, config)
        _check_teacher(own, checkpoint, config)
        outputs = _outputs_of_teacher(own, record, class_names, config.data)
        outputs += [one for one in range(config.model.num_logits) if one not in outputs]  # more than the data has
        model, fitted = build_model(own.model, own.data, precision.device, TEACHER, record.image_size)
    except UserError as error:
        raise error_from(error, f"TRAIN.TEACHER_MODEL {name}, TRAIN.TEACHER_WEIGHTS: {error}") from error
    return Teacher(name, model, fitted, precision, own.data, config.data, outputs)
