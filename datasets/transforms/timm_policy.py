"""timm's augmentation policies by their strings: RandAugment, AugMix, AutoAugment, 3-Augment.

timm draws from the global generators of `random` and NumPy. Here its module is loaded a second time, under another
name, and both generators are replaced in this copy only: draws are a function of the sample, and the process's
generators stay as they are. Loading the file alone also spares each worker the import of timm, two seconds.
"""

import functools
import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datasets.transforms.pillow_ops import posterize

_NUMPY_SEED_BITS = 32


class TimmPolicy:
    """A policy such as rand-m9-mstd0.5-inc1, with the parameters that timm's `create_transform` gives it.

    Posterizing to 0 bits is black; timm's own raises with Pillow 13.
    """

    def __init__(self, policy: str, size: int, mean: tuple[float, ...], interpolation: str = "bicubic") -> None:
        self.arguments = policy, size, mean, interpolation

    def __call__(self, image: Image.Image, rng: random.Random) -> Image.Image:
        module = timm_policies()
        module.random = rng
        module.np.random.seed(rng.getrandbits(_NUMPY_SEED_BITS))
        return _build(*self.arguments)(image)


class _NumPy:
    """NumPy with a generator of its own as `random`."""

    def __init__(self) -> None:
        self.random = np.random.RandomState()

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@functools.cache
def timm_policies() -> Any:
    """timm's module of policies."""
    package = importlib.util.find_spec("timm")
    assert package and package.origin  # timm is a requirement
    path = Path(package.origin).parent / "data" / "auto_augment.py"
    spec = importlib.util.spec_from_file_location("timm_auto_augment_of_samples", path)
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.np = _NumPy()
    for name in ("Posterize", "PosterizeIncreasing", "PosterizeOriginal"):
        module.NAME_TO_OP[name] = posterize
    return module


@functools.cache
def _build(policy: str, size: int, mean: tuple[float, ...], interpolation: str) -> Callable[[Image.Image], Image.Image]:
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
