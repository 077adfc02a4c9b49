"""The preprocessing of an image processor of transformers, by its answers: classes compute more than their keys state.

LeViT resizes to 256/224 of its size, EfficientNet divides by the deviation twice, Perceiver crops before it resizes.
Legend: C channels, H x W pixels that the model sees.
"""

import io
import math
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from configs.schema import Data
from configs.schema.data import MAX_CROP_PCT
from configs.yaml_io import Values
from datasets.decoding.decode import LazyImage, open_image
from datasets.transforms.device import Normalize
from datasets.transforms.host import build_eval_host_transform
from models.timm_model import preprocessing_of
from models.transformers_model import image_processor
from utils.errors import UserError
from utils.file_formats.hf_folder import FLIPS

_MAX_DIFFERENCE = 0.02  # of normalized pixels, in the mean; a crop may be one pixel beside
_FILTERS = {0: "nearest", 1: "bicubic", 2: "bilinear", 3: "bicubic"}  # by Pillow's numbers; Lanczos is 1e-3 beside
_SIZES = ("do_resize", "size", "crop_size")
_FOLDED = {  # keys whose effect the answers show, or that change no pixel
    *_SIZES, "resample", "crop_pct", "image_mean", "image_std", "rescale_factor", "rescale_offset", "include_top",
    "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb", "image_processor_type", FLIPS,
}  # fmt: skip


def published_in(folder: Path) -> Values:
    """The preprocessing of the processor in a folder, as a `pretrained_cfg` of timm.

    Raises UserError: this program gives other pixels; names the keys that it does not follow. Exceptions of
    transformers: the folder has no processor, or a damaged one.
    """
    processor = image_processor(folder)
    values = processor.to_dict()
    order = [2, 1, 0] if values.get(FLIPS) else [0, 1, 2]
    black, white = (_answer(processor, Image.new("RGB", (64, 64), color))[order] for color in ("black", "white"))
    height, width = black.shape[1:]
    low, high = (answer[:, height // 2, width // 2] for answer in (black, white))
    std = 1 / (high - low)
    config = {
        "input_size": tuple(black.shape),
        "interpolation": _FILTERS[values["resample"]],
        "mean": _without_noise(-low * std),
        "std": _without_noise(std),
    }
    pictures = [_picture(2 * height, 2 * width, "RGBA"), _picture(2 * height, 3 * width, "RGB")]
    images = list(map(_open, pictures))
    answers = [_answer(processor, picture)[order] for picture in pictures]
    best: Values = config
    least = math.inf
    for side, mode in product(_sides(values, min(height, width)), ("center", "squash")):
        found = config | {"crop_mode": mode, "crop_pct": min(height, width) / side}
        difference = max(map(partial(_difference, found), images, answers))
        if difference < least:
            best = found
            least = difference
    if least <= _MAX_DIFFERENCE:
        return best
    left = [key for key, value in values.items() if value and key not in _FOLDED]
    problem = f"{folder}: {type(processor).__name__} gives other pixels, in the mean {least:.2g} beside"
    raise UserError(
        f"{problem}: {', '.join(left or _SIZES)} cannot be followed; "
        "change these keys of its file, or run the model with transformers"
    )


def _answer(processor: Any, picture: Image.Image) -> Tensor:
    """The processor's normalized pixels (C, H, W) of a picture, as transformers' pipeline opens it."""
    return processor(images=picture.convert("RGB"), return_tensors="pt")["pixel_values"][0]


def _without_noise(values: Tensor) -> tuple[float, ...]:
    """Numbers without the rounding errors of float32, and without -0."""
    return tuple(float(f"{number:.6g}") + 0.0 for number in values.tolist())


def _sides(values: Values, shown: int) -> set[int]:
    """The lengths to which the processor may resize the shorter side."""
    sizes = [values.get(key) or {} for key in ("size", "crop_size")]
    stated = {side for size in sizes for side in size.values()} - {None}
    of_levit = {int(256 / 224 * side) for side in stated}
    sides = {*stated, *of_levit, int(shown / (values.get("crop_pct") or 1))}
    return {side for side in sides if shown <= MAX_CROP_PCT * side}


def _picture(height: int, width: int, mode: str) -> Image.Image:
    """Smooth colors: a crop that is one pixel beside changes little, another crop much."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    planes = np.stack([64 + 128 * x, 64 + 128 * y, 192 - 128 * x, 255 * y], -1).astype(np.uint8)
    return Image.fromarray(planes[..., : len(mode)])


def _open(picture: Image.Image) -> LazyImage:
    """The picture as this program opens a file of it."""
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=0)
    return open_image(file.getvalue(), 3, lambda: "a picture")


def _difference(config: Values, image: LazyImage, answer: Tensor) -> float:
    """The mean difference between the answer and the pixels of an evaluation by `config`; infinite for other shapes."""
    training, evaluation = preprocessing_of(config)
    data = Data.model_validate(training | evaluation)
    pixels = Normalize(data)(build_eval_host_transform(data)(image, 0, 0)[0][None])[0]
    return float((pixels - answer).abs().mean()) if pixels.shape == answer.shape else math.inf
