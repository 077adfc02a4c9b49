"""The model of an evaluation, and the parts that training shares with it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from configs.schema import Config, Data
from configs.schema.model import UNTUNED
from datasets.sources.samples import Samples, names_of_labels
from datasets.transforms.device import build_eval_transform
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.files import EvaluationFiles
from engine.parallel.strategy import Single, Strategy
from engine.precision.policy import Precision, set_process_switches
from engine.run.facts import Attention, Fact
from engine.run.result import EVALUATION
from models.build import build_model
from models.kernels import AUTO, EXPLICIT, fused_kernels, prepare_convolutions, use_attention
from models.vit import use_linear_patches
from utils.distributed import ProcessContext


@dataclass(frozen=True)
class EvalModel:
    """The model of `MODEL.PRETRAINED`. `compute` runs the forward passes; `fp32` may be the same module."""

    compute: nn.Module
    fp32: nn.Module
    evaluator: Evaluator
    notes: list[str | Fact]


def build_eval_model(config: Config, context: ProcessContext, needs_head: bool = True) -> EvalModel:
    """Without `needs_head`, the weights need no head, and the model is for its features."""
    switch_notes = set_process_switches(config, context.device)
    model, notes = build_model(config.with_model(**UNTUNED).model, config.data, context.device, needs_head)
    convolution_notes = prepare_convolutions(model, config.model.channels_last, context.device)
    precision = Precision(config.amp, context.device)
    apply_op_lists(model, config.model.attention, precision)
    compute_model = precision.compute_copy(model).eval()
    all_notes: list[str | Fact] = [*switch_notes, *(f"Pretrained: {note}" for note in notes), *convolution_notes]
    with torch.inference_mode(), precision.autocast():
        all_notes += attention_notes(compute_model, dummy_images(config.data, context))
    evaluator = build_evaluator(config, precision, Single(), context)  # all ranks have the same buffers
    return EvalModel(compute=compute_model, fp32=model, evaluator=evaluator, notes=all_notes)


def build_evaluator(config: Config, precision: Precision, strategy: Strategy, context: ProcessContext) -> Evaluator:
    transform = build_eval_transform(config.data).to(context.device)
    flips, metric, keeps_logits = config.eval.tta == "flip", config.eval.best_metric, config.eval.save_logits
    return Evaluator(
        transform=transform,
        precision=precision,
        strategy=strategy,
        context=context,
        flips=flips,
        multi_label=config.data.multi_label,
        best_metric=metric,
        keeps_logits=keeps_logits,
    )


def build_eval_files(
    config: Config, samples: Samples, evaluator: Evaluator, folder: Path, name: str = EVALUATION
) -> EvaluationFiles:
    """The files of the evaluations of `samples`, in `name` in the folder of a run."""
    names = names_of_labels(samples, config.model.num_logits)
    return EvaluationFiles(
        folder=folder / name, samples=samples, data=config.data, class_names=names, evaluator=evaluator
    )


def dummy_images(data: Data, context: ProcessContext) -> torch.Tensor:
    """Two black images (2, C, S, S): the fewest with which batch norm works."""
    return torch.zeros((2, data.image_channels, data.image_size, data.image_size), device=context.device)


def attention_notes(model: nn.Module, images: torch.Tensor) -> list[Attention]:
    """The attention kernels that the model uses; empty if it has none."""
    kernels = fused_kernels(model, images)
    return [Attention(list(kernels))] if kernels else []


def apply_op_lists(model: nn.Module, attention: str, precision: Precision) -> None:
    """Makes attention explicit if softmax is listed: fused attention has no softmax op; MODEL.ATTENTION overrides this.

    Lists also apply to the convolution of a patch embedding, which is a linear layer only without them.
    """
    if "softmax" in precision.listed and attention == AUTO:
        use_attention(model, EXPLICIT)
    if precision.device.type == "cuda" and not precision.listed:
        use_linear_patches(model)
    precision.apply_op_lists(model)
