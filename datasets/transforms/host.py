"""Host transforms: operations on one image, in a loading worker, and the cropping and resizing of uint8 images.

To add an operation, write a function of (options, image, rng) and add it to `build_host_transform`. The operations of a
sample share one generator, which is a function of (seed, epoch, sample index, repeat).

Flips are computed here: on the host a flip takes a hundredth of the time of decoding; in a batch on a CPU, a tenth.

Augmentation policies on Pillow images are PaddleViT's RandAugment, AutoAugment and color jitter, and timm's strings. A
policy is called with (image, generator of the sample) and returns an image; the same object if it changes nothing.
timm draws from the global generators of `random` and NumPy. Here its module is loaded a second time, under another
name, and both generators are replaced in this copy only: draws are a function of the sample, and the process's
generators stay as they are. Loading the file alone also spares each worker the import of timm, two seconds.

Legend: B images per batch, C channels, S pixels on a side.
"""

import functools
import importlib.util
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.nn.functional import interpolate

from configs.parts import HOST_AUGMENTATIONS, Plugin, running_plugins
from configs.schema import Data, Train
from configs.yaml_io import Values
from datasets.batch import Drawn
from datasets.decoding.decode import LazyImage, from_pillow, to_pillow
from datasets.transforms.device import Box, RandomDeviceOperation, device_operations
from utils.errors import UserError
from utils.seeding import derive_seed
from utils.system import package_folder

_FILL = 128  # gray, beside a sheared or shifted image
_RAND_AUGMENT = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd"),
    *("ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "SharpnessIncreasing"),
    *("ShearX", "ShearY", "TranslateX", "TranslateY"),
)  # all effects increase with the magnitude
_LAYER_PROBABILITY = 0.5

Policy = Callable[[Image.Image, random.Random], Image.Image]
_Operation = Callable[[Image.Image], Image.Image]


def apply_policies(policies: Sequence[Policy], pixels: Tensor, rng: random.Random) -> Tensor:
    """Policies in sequence on uint8 (C, S, S): one conversion to a Pillow image, and one back."""
    original = image = to_pillow(pixels)
    for policy in policies:
        image = policy(image, rng)
    return pixels if image is original else from_pillow(image).contiguous()


def rand_augment(layers: int, magnitude: float, image: Image.Image, rng: random.Random) -> Image.Image:
    """`layers` of the 15 operations, with replacement, each with probability 0.5 (Cubuk et al., 2020).

    The magnitude is normally distributed with standard deviation 0.5, and clipped to 0..10.
    """
    timm_policies().random = rng
    for operation in rng.choices(_rand_augment(magnitude, len(image.getbands())), k=layers):
        image = operation(image)
    return image


def auto_augment(image: Image.Image, rng: random.Random) -> Image.Image:
    """One of the 25 pairs of operations found for ImageNet (Cubuk et al., 2019), with RandAugment's magnitude noise."""
    timm_policies().random = rng
    for operation in rng.choice(_auto_augment(len(image.getbands()))):
        image = operation(image)
    return image


@functools.cache
def _rand_augment(magnitude: float, channels: int) -> list[_Operation]:
    build = timm_policies().AugmentOp
    parameters = _paddle_parameters(channels)
    return [_as_paddle(build(name, _LAYER_PROBABILITY, magnitude, parameters)) for name in _RAND_AUGMENT]


@functools.cache
def _auto_augment(channels: int) -> list[list[_Operation]]:
    pairs = timm_policies().auto_augment_policy_original(_paddle_parameters(channels))
    return [[_as_paddle(operation) for operation in pair] for pair in pairs]


def _paddle_parameters(channels: int) -> Values:
    return {
        "magnitude_std": 0.5,
        "translate_const": 100,  # pixels
        "img_mean": (_FILL,) * channels,
        "interpolation": Image.Resampling.NEAREST,
    }


def _as_paddle(operation: Any) -> _Operation:
    """timm's operation with a draw also for the probability 1, and with black corners after a rotation."""
    operation.prob = math.nextafter(operation.prob, 0)
    if operation.name == "Rotate":
        del operation.kwargs["fillcolor"]
    return operation


def color_jitter(strength: float, image: Image.Image, rng: random.Random) -> Image.Image:
    """Brightness, contrast and saturation times 1 +- `strength`, in random order, as torchvision and Paddle do it."""
    for kind in rng.sample((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), 3):
        image = kind(image).enhance(rng.uniform(max(0, 1 - strength), 1 + strength))
    return image


def build_policies(data: Data, train: Train) -> list[Policy]:
    """AUGMENT_POLICY precedes RAND_AUGMENT, AUTO_AUGMENT and COLOR_JITTER; only 3a keeps the jitter, as in timm."""
    jitter: list[Policy] = [partial(color_jitter, train.color_jitter)] if train.color_jitter else []
    policy = train.augment_policy
    if policy:
        if policy.startswith("tv_"):
            return [partial(torchvision_policy, policy, data.interpolation)]
        of_timm = partial(timm_policy, policy, min(data.input_size), data.imagenet_mean, data.interpolation)
        return [of_timm, *jitter] if "3a" in policy else [of_timm]
    if train.rand_augment:
        return [partial(rand_augment, train.rand_augment_layers, train.rand_augment_magnitude)]
    return [auto_augment] if train.auto_augment else jitter


def timm_policy(
    policy: str, size: int, mean: tuple[float, ...], interpolation: str, image: Image.Image, rng: random.Random
) -> Image.Image:
    """A policy such as rand-m9-mstd0.5-inc1, with the parameters that timm's `create_transform` gives it.

    Posterizing to 0 bits is black; timm's own raises with Pillow 13.
    """
    module = timm_policies()
    module.random = rng
    module.np.random.seed(rng.getrandbits(32))
    return _build(policy, size, mean, interpolation)(image)


@functools.cache
def timm_policies() -> Any:
    """timm's module of policies."""
    path = package_folder("timm") / "data" / "auto_augment.py"
    spec = importlib.util.spec_from_file_location("timm_auto_augment_of_samples", path)
    module: Any = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    module.np = SimpleNamespace(**vars(np) | {"random": np.random.RandomState()})  # with a generator of its own
    for name in ("Posterize", "PosterizeIncreasing", "PosterizeOriginal"):
        module.NAME_TO_OP[name] = _posterize
    return module


def _posterize(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    """Keeps the upper `bits` of each value; 0 bits or fewer: black. Pillow 13 refuses 0 bits."""
    return ImageOps.posterize(image, min(bits, 8)) if bits > 0 else Image.new(image.mode, image.size)


@functools.cache
def _build(policy: str, size: int, mean: tuple[float, ...], interpolation: str) -> _Operation:
    """The transform with the parameters of timm's `transforms_imagenet_train`."""
    module = timm_policies()
    parameters = {
        "translate_const": int(size * 0.45),
        "img_mean": tuple(min(255, round(255 * value)) for value in mean),
        "interpolation": Image.Resampling[interpolation.upper()],
    }
    if policy.startswith("rand"):
        return module.rand_augment_transform(policy, parameters)
    if policy.startswith("augmix"):
        return module.augment_and_mix_transform(policy, parameters | {"translate_pct": 0.3})
    return module.auto_augment_transform(policy, parameters)


def torchvision_policy(policy: str, interpolation: str, image: Image.Image, rng: random.Random) -> Image.Image:
    """TrivialAugmentWide (Müller and Hutter, 2021), RandAugment, AutoAugment or AugMix as torchvision has them."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.getrandbits(63))
        return _of_torchvision(policy, interpolation)(image)


@functools.cache
def _of_torchvision(policy: str, interpolation: str) -> _Operation:
    """The transform as torchvision's references build it: a magnitude, or a severity, after -m."""
    from torchvision.transforms import InterpolationMode, autoaugment

    name, _, magnitude = policy.partition("-m")
    policies = {
        "tv_ra": partial(autoaugment.RandAugment, magnitude=int(magnitude or 9)),
        "tv_augmix": partial(autoaugment.AugMix, severity=int(magnitude or 3)),
        "tv_imagenet": partial(autoaugment.AutoAugment, autoaugment.AutoAugmentPolicy.IMAGENET),
        "tv_ta_wide": autoaugment.TrivialAugmentWide,
    }
    build = policies[name]
    return build(interpolation=InterpolationMode(interpolation))


_MAX_TRIES = 10


def resize(image: Tensor, height: int, width: int, interpolation: str = "bicubic") -> Tensor:
    """Resamples torch.uint8 (C, H, W) to (C, height, width): bicubic or bilinear, antialiased, or nearest, as Pillow
    does.

    An image that already has this size is copied: operations of plugins may change the result.
    """
    if image.shape[1:] == (height, width):
        return image.clone()
    if interpolation == "nearest":
        return interpolate(image[None], size=(height, width), mode="nearest-exact")[0]
    return interpolate(image[None], size=(height, width), mode=interpolation, antialias=True)[0]


def _resized_sides(sides: Sequence[int], crop: list[int], kind: str) -> list[int]:
    """Height and width of an image that is resized for a crop. kind: DATA.RESIZE."""
    if kind == "squash":
        return crop
    if kind == "crop" and crop[0] == crop[1]:
        return [side * crop[0] // min(sides) for side in sides]
    ratios = [side / target for side, target in zip(sides, crop, strict=True)]
    ratio = max(ratios) if kind == "pad" else min(ratios)
    return [max(1, round(side / ratio)) for side in sides]


def crop_sides(data: Data) -> list[int]:
    """Height and width of the crop for which `eval_crop` resizes an image."""
    return [math.floor(round(side / data.crop_pct, 6)) for side in data.input_size]  # 224 / 0.56 is 399.99999999999994


def eval_geometry(data: Data, sides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Height and width to which `eval_crop` resizes an image, and top and left of its crop in it, negative of a border.

    sides: height and width of the image.
    """
    resized = _resized_sides(sides, crop_sides(data), data.resize)
    margins = [side - shown for side, shown in zip(resized, data.input_size, strict=True)]
    is_border_first = data.resize != "crop"
    return resized, [-(-one // 2) if one < 0 and is_border_first else round(one / 2) for one in margins]


def eval_crop(data: Data, image: LazyImage, rng: random.Random) -> Tensor:
    """The part of the image that an evaluation shows, torch.uint8 (C, H, W) of DATA.IMAGE_SIZE.

    The image is resized for a crop of floor(IMAGE_SIZE / CROP_PCT), then its center is shown. DATA.RESIZE crop resizes
    it to cover this crop, pad to fit into it, squash to its proportions: timm's crop modes `center`, `border` and
    `squash`, which round as torchvision's Resize and CenterCrop. A border is black, with pad in the mean color. With
    crop it is placed as by PaddlePaddle's CenterCrop: torchvision and timm place it one pixel differently if it is odd.
    """
    pixels = image.pixels
    size = data.input_size
    (height, width), (top, left) = eval_geometry(data, pixels.shape[1:])
    resized = resize(pixels, height, width, data.interpolation)
    shown = resized[:, max(0, top) :, max(0, left) :][:, : size[0], : size[1]]
    if shown.shape[1:] == size:
        return shown
    color = [round(255 * value) if data.resize == "pad" else 0 for value in data.imagenet_mean]
    canvas = torch.tensor(color, dtype=torch.uint8).view(-1, 1, 1).repeat(1, *size)
    canvas[:, max(0, -top) :, max(0, -left) :][:, : shown.shape[1], : shown.shape[2]] = shown
    return canvas


def random_crop_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], rng: random.Random
) -> Box:
    """A random box inside an image of `height` x `width` pixels, by the rule of torchvision's RandomResizedCrop.

    The box's area, as a share of the image's, is uniform in `scale`; the logarithm of its width / height is uniform in
    the logarithms of `ratio`. If ten boxes do not fit into the image, the result is the central box whose aspect ratio
    is closest to `ratio`.
    """
    log_ratio = [math.log(bound) for bound in ratio]
    for _ in range(_MAX_TRIES):
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(*log_ratio))
        box_height = round(math.sqrt(area / aspect))
        box_width = round(math.sqrt(area * aspect))
        if 0 < box_height <= height and 0 < box_width <= width:
            return rng.randint(0, height - box_height), rng.randint(0, width - box_width), box_height, box_width
    box_height = min(height, round(width / ratio[0]))
    box_width = min(width, round(height * ratio[1]))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


_ImageOperation = Callable[[Tensor, random.Random], Tensor]


def random_resized_crop(data: Data, image: LazyImage, rng: random.Random) -> Tensor:
    """A random box of the image, resized to (C, S, S) (Szegedy et al., 2014)."""
    height, width = data.input_size
    low, high = (ratio * (width / height) for ratio in data.random_crop_ratio)
    _, rows, columns = image.pixels.shape
    top, left, box_rows, box_columns = random_crop_box(rows, columns, data.random_crop_scale, (low, high), rng)
    box = image.pixels[:, top : top + box_rows, left : left + box_columns]
    return resize(box, height, width, data.interpolation)


def random_flip(axis: int, probability: float, image: Tensor, rng: random.Random) -> Tensor:
    return image.flip(axis) if rng.random() < probability else image


@dataclass
class HostTransform:
    """A crop and operations on one image; it also draws the random parameters of the device operations.

    A device operation's parameters depend on the sample, not on its batch, so they are drawn here.

    plugins: the first attribute: a worker runs them before it unpickles the operations.
    """

    plugins: tuple[Plugin, ...] = field(init=False, default_factory=running_plugins)
    crop: Callable[[LazyImage, random.Random], Tensor]
    operations: Sequence[_ImageOperation] = ()
    device_operations: Sequence[RandomDeviceOperation] = ()
    seed: int = 0

    def __call__(self, image: LazyImage, epoch: int, index: int, repeat: int = 0) -> tuple[Tensor, list[Any]]:
        """Returns uint8 (C, S, S) and the parameters that each device operation has drawn for this sample."""
        place = (epoch, index, repeat) if repeat else (epoch, index)
        rng = random.Random(derive_seed(self.seed, "augment", *place))
        pixels = self.crop(image, rng)
        expected = pixels.dtype, pixels.shape
        for operation in self.operations:
            pixels = operation(pixels, rng)
        if (pixels.dtype, pixels.shape) != expected:  # a plugin's error, which would train on noise
            found = f"{pixels.dtype} {(*pixels.shape,)}"
            raise UserError(f"DATA.HOST_AUGMENTATIONS: must return torch.uint8 {(*expected[1],)}, not {found}")
        return pixels, [operation.draw(rng) for operation in self.device_operations]

    def collate(self, drawn: Sequence[list[Any] | None]) -> dict[str, Drawn]:
        """The drawn parameters of a batch (B,), None for padding, as tensors by the name of their operation."""
        tensors = {}
        for number, operation in enumerate(self.device_operations):
            parameters = operation.collate([sample and sample[number] for sample in drawn])
            if parameters is not None:
                tensors[operation.name] = parameters
        return tensors


def build_host_transform(data: Data, train: Train, seed: int) -> HostTransform:
    """The host transform of training images."""
    drawing = [one for one in device_operations(data, train) if isinstance(one, RandomDeviceOperation)]
    operations = [partial(random_flip, -1, data.hflip_prob)]  # after the crop, in their order
    if data.vflip_prob:
        operations.append(partial(random_flip, -2, data.vflip_prob))
    if policies := build_policies(data, train):
        operations.append(partial(apply_policies, policies))
    operations += [HOST_AUGMENTATIONS.build(name, given) for name, given in (data.host_augmentations or {}).items()]
    first = random_resized_crop if data.resize == "crop" else eval_crop
    return HostTransform(partial(first, data), operations, drawing, seed)


def build_eval_host_transform(data: Data) -> HostTransform:
    """The host transform of validation images."""
    return HostTransform(partial(eval_crop, data))
