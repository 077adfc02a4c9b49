"""Heat maps over the images of a prediction (`-explain`): the pixels on which the most probable class depends.

Legend: B images, C channels, S pixels on a side, G cells of a map on a side.
"""

import re
from dataclasses import dataclass
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
_CELLS = 14  # of a gradient map on a side, as patches of 16 pixels of 224
_MIN_SIDE, _MAX_NAME = 160, 60  # pixels of a picture; characters


def explanation_file(index: int, name: str) -> str:
    """The file of the map of image `index`, in the folder of the predictions: `explanations/<index>-<name>.png`."""
    return f"{EXPLANATIONS}/{index}-{re.sub('[^A-Za-z0-9_-]+', '_', PurePath(name).stem)[:_MAX_NAME]}.png"


@dataclass(frozen=True)
class Explainer:
    """Writes the maps of a prediction to its folder; each rank those of its own batches."""

    folder: Path
    samples: Samples
    model: nn.Module
    evaluator: Evaluator

    def write(self, batch: Batch, keys: list[Key]) -> None:
        """Writes the maps of the images of a batch, except those that could not be read.

        Raises:
            OSError: a file cannot be written.
        """
        (self.folder / EXPLANATIONS).mkdir(exist_ok=True)
        is_sample = (batch.targets != PADDING).reshape(len(keys), -1).any(1).tolist()
        for crop, (_, index, _) in compress(zip(batch.images, keys, strict=True), is_sample):
            # One by one: the maps or the graph of a large model take gigabytes.
            heat = heat_map(self.model, self.evaluator.transform(crop[None]), self.evaluator)[0]
            path = self.folder / explanation_file(index, self.samples.name(index))
            write_map(path, crop.cpu(), heat, max(crop.shape[-1], _MIN_SIDE))


def heat_map(model: nn.Module, images: torch.Tensor, evaluator: Evaluator) -> torch.Tensor:
    """Images (B, C, S, S) -> float32 (B, G, G) in 0..1 on the CPU.

    Attention rollout if the model reads a class token that attends over one grid of patches, else the gradient.
    """
    maps = attention_rollout(model, images, evaluator) if reads_class_token(model) else ""
    return input_gradient(model, images, evaluator) if isinstance(maps, str) else maps


def input_gradient(model: nn.Module, images: torch.Tensor, evaluator: Evaluator) -> torch.Tensor:
    """Input x gradient (Shrikumar et al., 2016): images (B, C, S, S) -> float32 (B, G, G) in 0..1 on the CPU.

    The gradient of the highest logit times the normalized image: the sum over the channels, and of its absolute value
    the mean over the pixels of a cell, which is less noisy than single pixels.
    """
    with torch.inference_mode(False), torch.enable_grad():
        images = images.clone().requires_grad_()
        with evaluator.precision.autocast(), run_eagerly():
            logits = evaluator.forward(model, images)
        (gradients,) = torch.autograd.grad(logits.amax(-1).sum(), images)
    products = (gradients * images.detach()).float().sum(1).abs()
    return to_unit_range(F.adaptive_avg_pool2d(products, min(_CELLS, products.shape[-1])))
