"""Heat maps of the images of a prediction: where the model looks, or the pixels on which its best class depends."""

import re
from itertools import compress
from pathlib import Path, PurePath

import torch
import torch.nn.functional as F
from torch import nn

from datasets.batch import PADDING, Batch
from datasets.loading.sampler import Key
from datasets.sources.samples import Samples
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.pictures import attention_rollout, reads_class_token, to_unit_range, write_map
from engine.parallel.compile import run_eagerly

EXPLANATIONS = "explanations"
_CELLS = 14  # of a gradient map on a side: patches of 16 pixels of 224


def explanation_file(index: int, name: str) -> str:
    """The file of the map of image `index`, relative to the folder of the prediction, in characters that are safe."""
    return f"{EXPLANATIONS}/{index:06d}-{re.sub('[^A-Za-z0-9_-]+', '_', PurePath(name).stem)[:60]}.png"


def write_maps(
    folder: Path, samples: Samples, model: nn.Module, evaluator: Evaluator, batch: Batch, keys: list[Key]
) -> None:
    """Writes the map of each image of a batch that could be read; raises OSError."""
    (folder / EXPLANATIONS).mkdir(exist_ok=True)
    is_sample = (batch.targets != PADDING).reshape(len(keys), -1).any(1).tolist()
    for crop, (_, index, _) in compress(zip(batch.images, keys, strict=True), is_sample):
        # One by one: the maps or the graph of a large model take gigabytes.
        heat = heat_map(model, evaluator.transform(crop[None]), evaluator)[0]
        write_map(folder / explanation_file(index, samples.name(index)), crop.cpu(), heat, max(crop.shape[-1], 160))


def heat_map(model: nn.Module, images: torch.Tensor, evaluator: Evaluator) -> torch.Tensor:
    """The attention rollout if the model reads a class token that attends over one grid, else the gradient."""
    maps = attention_rollout(model, images, evaluator) if reads_class_token(model) else ""
    return input_gradient(model, images, evaluator) if isinstance(maps, str) else maps


def input_gradient(model: nn.Module, images: torch.Tensor, evaluator: Evaluator) -> torch.Tensor:
    """Input x gradient (Shrikumar et al., 2016): normalized images (B, C, S, S) -> float32 (B, G, G) in 0..1.

    The gradient is of the highest logit. A cell of the map is the mean over its pixels of |sum over the channels|.
    """
    with torch.inference_mode(False), torch.enable_grad():
        images = images.clone().requires_grad_()
        with evaluator.precision.autocast(), run_eagerly():
            logits = evaluator.forward(model, images)
        (gradients,) = torch.autograd.grad(logits.amax(-1).sum(), images)
    products = (gradients * images.detach()).sum(1).abs()
    return to_unit_range(F.adaptive_avg_pool2d(products, min(_CELLS, products.shape[-1])))
