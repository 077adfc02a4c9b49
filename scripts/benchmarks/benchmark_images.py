"""JPEGs for the benchmarks: crops of photographs, with noise that gives them the file size of real photographs.

Without scikit-learn and matplotlib, which contain the photographs, smooth random pictures replace them.
"""

import io
import random
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from PIL import Image

from scripts.make_imagenet_sample import class_name, class_scenes, random_crop
from utils.errors import UserError

CLASSES = 8
QUALITY = 90
_ENDINGS = (".jpg", ".jpeg")
_MAX_NOISE = 80.0  # standard deviation, on a scale of 255


def make_images(folder: Path, size: tuple[int, int], count: int, mean_bytes: int) -> None:
    """Writes `count` different JPEGs of `size` (width, height) to class folders; their mean size is `mean_bytes`."""
    rng, noise_rng = random.Random(0), np.random.default_rng(0)
    scenes = _scenes()
    strength = _noise_strength([random_crop(scene, size, rng) for scene in scenes[:3]], mean_bytes)
    for number in range(count):
        label = number % CLASSES
        parent = folder / class_name(label)
        parent.mkdir(parents=True, exist_ok=True)
        picture = add_noise(random_crop(scenes[label], size, rng), strength, noise_rng)
        (parent / f"{number:08d}.jpg").write_bytes(encoded(picture))


def _scenes() -> list[Image.Image]:
    """One picture per class."""
    try:
        return class_scenes(CLASSES)
    except ModuleNotFoundError:
        pixels = np.random.default_rng(0).integers(0, 256, (CLASSES, 15, 20, 3), dtype=np.uint8)
        return [Image.fromarray(one).resize((320, 240), Image.Resampling.BICUBIC) for one in pixels]


def _noise_strength(pictures: list[Image.Image], mean_bytes: int) -> float:
    """The noise at which the mean file size is `mean_bytes`, to a few percent; 0 if no noise is needed."""
    low, high = 0.0, _MAX_NOISE
    for _ in range(7):
        middle = (low + high) / 2
        noise_rng = np.random.default_rng(0)
        size = sum(len(encoded(add_noise(picture, middle, noise_rng))) for picture in pictures) / len(pictures)
        low, high = (middle, high) if size < mean_bytes else (low, middle)
    return low


def add_noise(picture: Image.Image, strength: float, rng: np.random.Generator) -> Image.Image:
    """Adds Gaussian noise to the brightness of an RGB picture; `strength` is its standard deviation (of 255)."""
    noise = strength * rng.standard_normal((picture.height, picture.width, 1), dtype=np.float32)
    return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))


def encoded(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def link_images(images: Path, folder: Path, entries: int) -> list[Path]:
    """Makes a data set of `entries` training images from class folders of JPEGs, as links that repeat the images.

    With a long epoch the pauses of loaders between epochs do not count. The validation split has one image per class.

    Args:
        images: has a folder per class, directly or in `train`.
        folder: gets `train` and `val`.

    Returns:
        The different images, in order.

    Raises:
        UserError: `images` has fewer than two class folders with JPEGs.
    """
    root = images / "train" if (images / "train").is_dir() else images
    classes = {folder.name: files for folder in _folders(root) if (files := _jpegs_below(folder))}
    if len(classes) < 2:
        raise UserError(
            f"{images}: has fewer than two folders of JPEGs ({' '.join(_ENDINGS)}); name a folder of class folders"
        )
    for split, count in (("train", entries), ("val", len(classes))):
        for name in classes:
            (folder / split / name).mkdir(parents=True)
        for number, (name, image) in enumerate(islice(_alternate_classes(classes), count)):
            (folder / split / name / f"{number:08d}.jpg").symlink_to(image)
    return [image for files in classes.values() for image in files]


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _jpegs_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.resolve().rglob("*") if path.suffix.lower() in _ENDINGS)


def _alternate_classes(classes: dict[str, list[Path]]) -> Iterator[tuple[str, Path]]:
    """Endless: the first image of each class, then the second of each class, and so on."""
    streams = {name: cycle(files) for name, files in classes.items()}
    while True:
        for name, stream in streams.items():
            yield name, next(stream)


def mean_kilobytes(images: list[Path]) -> float:
    return sum(image.stat().st_size for image in images) / len(images) / 1000
