"""The files of an evaluation: its tables, and pictures. The report page and other programs read them.

Pictures of single samples show the crop that the model sees, its attention, and heat maps: where the model looks, or
the pixels on which its best class depends.

Legend: B images, C channels, S pixels on a side, H heads, T tokens, G cells on a side of a map.
"""

import io
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn

from configs.schema import Config, Data
from configs.yaml_io import Values
from datasets.batch import Batch, is_padding
from datasets.decoding.images import BadImage
from datasets.loading.sampler import Key
from datasets.sources.class_names import names_of_labels
from datasets.sources.samples import Samples
from datasets.sources.shared_arrays import to_nfc
from datasets.transforms.host import build_eval_host_transform, eval_geometry
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.results import SampleResults, worst_mistakes
from engine.evaluation.tables import ResultTables
from engine.parallel import run_eagerly
from engine.progress import Metrics
from engine.run.record import PICTURES, read_evaluation
from models.kernels import explicit_attention
from models.timm_model import classifiers
from utils.files import atomic_write, make_own_folder

_SIDE = 160  # pixels of a picture
_JPEG_QUALITY = 80
_Key = TypeVar("_Key", int, str)  # of a picture
# RGB of matplotlib's inferno
_LOW = (0, 0, 4)
_MIDDLE = (188, 55, 84)
_HIGH = (252, 255, 164)


def write_pictures(folder: Path, images: Mapping[_Key, tuple[Samples, int]], data: Data) -> dict[_Key, Tensor]:
    """Writes `<key>.jpg` of images: the crop that the model sees; returns the crops, uint8 (C, S, S), by key.

    images: samples and index of each, by key. An image that cannot be read has no picture. The earlier pictures of
    the folder are removed. Raises OSError.
    """
    shutil.rmtree(folder, ignore_errors=True)
    make_own_folder(folder)
    transform = build_eval_host_transform(data)
    crops = dict[_Key, Tensor]()
    for key, (samples, index) in images.items():
        with suppress(BadImage):
            crops[key], _ = transform(samples.open(index, data.image_channels), 0, index)
            save_picture(to_picture(crops[key]), folder / f"{key}.jpg")
    return crops


def write_attention(folder: Path, crops: dict[int, Tensor], model: nn.Module, evaluator: Evaluator) -> str | None:
    """Writes `<index>-attention.jpg` of each crop: the attention rollout over the picture; raises OSError.

    Returns why the model has no attention maps; None if it has some.
    """
    for index, crop in crops.items():  # one by one: the maps of a large model take gigabytes
        image = evaluator.transform(crop[None].to(evaluator.context.device))
        try:
            attention = attention_rollout(model, image, evaluator)
        except torch.OutOfMemoryError:
            return "attention maps: out of GPU memory; -eval draws them"
        if isinstance(attention, str):
            return attention
        write_map(folder / f"{index}-attention.jpg", crop, attention[0])
    return None


_NOT_PLAIN = ("lambda_init", "num_parallel")  # of timm's differential attention, and of its parallel ones


@torch.inference_mode()
def attention_rollout(model: nn.Module, images: Tensor, evaluator: Evaluator) -> Tensor | str:
    """Images (B, C, S, S) -> float32 (B, rows, columns) in 0..1 on the CPU: how much each patch adds to the output.

    Attention rollout (Abnar and Zuidema, 2020): the product over the layers of (A + I) / 2, A the mean over the heads.
    The output is the class token, the mean of it and the distillation token if each has a head, or the mean of the
    patches if the model pools them. Returns the reason for a model whose layers do not all attend over one grid of
    patches, one after the other, or whose output is another pooling.
    """
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    modules = [module for name, module in model.named_modules() if name.endswith("attn_drop")]
    if grid is None or not modules:
        return "attention maps need a ViT: this model has no attention over one grid of patches"
    is_plain = not any(hasattr(module, name) for module in model.modules() for name in _NOT_PLAIN)
    if not is_plain or _pooling_of(model) not in ("token", "avg"):
        text = "attention maps need a ViT with one attention per block"
        return f"{text}, and a class token or the average of the patches as its output"
    layers = list[Tensor]()

    def keep_mean(module: nn.Module, inputs: tuple[Tensor, ...], maps: Tensor) -> None:
        """maps: (B, H, T, T), the output of timm's modules `attn_drop`, whose AttentionExtract would keep all heads."""
        layers.append(maps.float().mean(1))

    handles = [module.register_forward_hook(keep_mean) for module in modules]
    try:
        with explicit_attention(model), evaluator.precision.autocast(), run_eagerly():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    num_prefix = getattr(model, "num_prefix_tokens", 1)
    tokens = num_prefix + grid[0] * grid[1]
    if {layer.shape for layer in layers} != {(len(images), tokens, tokens)}:
        return "attention maps need a ViT: the layers of this model attend over different sets of patches"
    identity = torch.eye(tokens, device=images.device)
    product = (layers[0] + identity) / 2
    for layer in layers[1:]:
        product = (layer + identity) / 2 @ product
    rows = product[:, : len(classifiers(model)) or 1]
    if not reads_class_token(model):
        rows = product[:, num_prefix:]
    output = rows.mean(1)
    return to_unit_range(output[:, num_prefix:].unflatten(1, grid))


def to_unit_range(maps: Tensor) -> Tensor:
    """Maps (B, rows, columns), each scaled to 0..1, on the CPU."""
    low = maps.amin((1, 2), keepdim=True)
    high = maps.amax((1, 2), keepdim=True)
    return ((maps - low) / (high - low).clamp(min=1e-30)).cpu()


def reads_class_token(model: nn.Module) -> bool:
    """Tells whether the output of a ViT is its class token, not the mean of the patches."""
    return getattr(model, "num_prefix_tokens", 1) > 0 and _pooling_of(model) == "token"


def _pooling_of(model: nn.Module) -> Any:
    """By MODEL.FEATURES, or timm's `global_pool`."""
    return getattr(model, "pooled_tokens", getattr(model, "global_pool", "token"))


def to_picture(crop: Tensor, side: int = _SIDE) -> Image.Image:
    """uint8 (C, H, W) -> RGB, its longer side of `side` pixels; small images are enlarged pixel by pixel."""
    pixels = crop.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(pixels)
    longer = max(crop.shape[1:])
    resampling = Image.Resampling.NEAREST if longer < side else Image.Resampling.LANCZOS
    return picture.resize([max(1, side * length // longer) for length in picture.size], resampling)


def write_map(path: Path, crop: Tensor, heat: Tensor, side: int = _SIDE) -> None:
    """Writes the gray crop, uint8 (C, H, W), colored by the map (rows, columns) in 0..1, as `to_picture`."""
    gray = to_picture(crop, side).convert("L").convert("RGB")
    levels = Image.fromarray((255 * heat).byte().numpy()).resize(gray.size, Image.Resampling.BILINEAR)
    save_picture(Image.blend(gray, ImageOps.colorize(levels, _LOW, _HIGH, _MIDDLE), 0.6), path)


def save_picture(picture: Image.Image, path: Path) -> None:
    encoded = io.BytesIO()  # the temporary file is open for a short time: the folder may be moved meanwhile
    picture.save(encoded, "PNG" if path.suffix == ".png" else "JPEG", quality=_JPEG_QUALITY)
    # For the page and for people: the record and the tables of a run wait for the disk, its many pictures do not.
    atomic_write(path, encoded.getvalue(), is_durable=False)


EXPLANATIONS = "explanations"
_CELLS = 14  # of a gradient map on a side: patches of 16 pixels of 224


def explanation_file(index: int, name: str) -> str:
    """The file of the map of image `index`, relative to the folder of the prediction: letters, digits, '_' and '-'.

    40 characters of UTF-8 are at most 160 bytes. Names of files are at most 255, also while they are temporary, with
    the name of the host.
    """
    stem = re.sub(r"[^\w-]+", "_", to_nfc(PurePath(name).stem))
    return f"{EXPLANATIONS}/{index:06d}-{stem[:40]}.png"


def write_maps(
    folder: Path,
    samples: Samples,
    model: nn.Module,
    evaluator: Evaluator,
    batch: Batch,
    keys: list[Key],
    whole: Data | None = None,
) -> None:
    """Writes the map of each image of a batch that could be read; raises OSError. whole: draws on whole images."""
    make_own_folder(folder / EXPLANATIONS)
    is_sample = (~is_padding(batch.targets)).tolist()
    for crop, (_, index, _) in compress(zip(batch.images, keys, strict=True), is_sample):
        # One by one: the maps or the graph of a large model take gigabytes.
        heat = heat_map(model, evaluator.transform(crop[None]), evaluator)[0]
        shown = crop.cpu()
        side = max(*crop.shape[1:], _SIDE)
        if whole:
            shown = samples.open(index, whole.image_channels).pixels
            heat = map_of_image(heat, whole, *shown.shape[1:])
            side = max(heat.shape)
        write_map(folder / explanation_file(index, samples.name(index)), shown, heat, side)


def map_of_image(heat: Tensor, data: Data, height: int, width: int) -> Tensor:
    """The map of the crop of an evaluation (rows, columns) -> of its image (height, width), 0 outside of the crop."""
    resized, (top, left) = eval_geometry(data, (height, width))
    down, right = (cells / pixels for cells, pixels in zip(heat.shape, data.input_size, strict=True))
    place = (right * resized[1] / width, 0, -right * left, 0, down * resized[0] / height, -down * top)  # in the map
    levels = Image.fromarray(heat.numpy())
    whole = levels.transform((width, height), Image.Transform.AFFINE, place, Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(whole))


def heat_map(model: nn.Module, images: Tensor, evaluator: Evaluator) -> Tensor:
    """The attention rollout if the model reads a class token that attends over one grid, else the gradient."""
    maps = attention_rollout(model, images, evaluator) if reads_class_token(model) else ""
    return input_gradient(model, images, evaluator) if isinstance(maps, str) else maps


def input_gradient(model: nn.Module, images: Tensor, evaluator: Evaluator) -> Tensor:
    """Input x gradient (Shrikumar et al., 2016): normalized images (B, C, S, S) -> float32 (B, G, G) in 0..1.

    The gradient is of the highest logit. A cell of the map is the mean over its pixels of |sum over the channels|.
    """
    with torch.inference_mode(False), torch.enable_grad():
        images = images.clone().requires_grad_()
        with evaluator.precision.autocast(), run_eagerly():
            logits = evaluator.forward(model, images)
        (gradients,) = torch.autograd.grad(logits.amax(-1).sum(), images)
    products = (gradients * images.detach()).sum(1).abs()
    rows, columns = (min(_CELLS, side) for side in products.shape[1:])
    return to_unit_range(F.adaptive_avg_pool2d(products, (rows, columns)))


NOT_DRAWN = "attention maps: the run ended before they were drawn; -eval draws them"


@dataclass
class EvaluationFiles:
    """The folder of the evaluations of one split; a later evaluation replaces the files of an earlier one."""

    folder: Path
    samples: Samples
    config: Config
    evaluator: Evaluator

    @property
    def values(self) -> Values:
        """The summary and the tables of the latest evaluation, also of an earlier start of the run; empty without."""
        return read_evaluation(self.folder)

    def write(self, metrics: Metrics, results: SampleResults, model: nn.Module | None, **about: Any) -> Values:
        """Writes all files, each atomically; returns the content of `summary.json`, which begins with `about`.

        model: the evaluated one, for the attention maps; without it there are none. Raises OSError.
        """
        make_own_folder(self.folder, parents=False)  # a run whose folder has been moved begins no other one
        shown = {index: (self.samples, index) for index in worst_mistakes(results.calibrated)}  # each takes a pass
        crops = write_pictures(self.folder / PICTURES, shown, self.config.data)
        note: str | None = NOT_DRAWN if crops else "no picture"  # why there are no attention maps
        if crops and model is not None:
            note = write_attention(self.folder / PICTURES, crops, model, self.evaluator)
        more = {"tta": "flip" if self.evaluator.flips else "none", "attention": note}
        if self.config.data.groups and results.groups is None:
            results = replace(results, lacks_groups=True)
        names = names_of_labels(self.samples, self.config.model.num_logits)
        tables = ResultTables(self.folder, names, self.samples.name, self.samples.checksums())
        return tables.write(metrics, results, about, **more)
