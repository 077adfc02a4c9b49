"""JPEGs for the benchmarks: photographs with grain, so that they weigh what photographs of their size do."""

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
_STRONGEST_GRAIN = 80.0  # standard deviation, of 255


def make_images(folder: Path, size: tuple[int, int], count: int, mean_bytes: int) -> None:
    """Writes `count` different JPEGs of `size` (width, height) in class folders; each weighs about `mean_bytes`."""
    rng, noise = random.Random(0), np.random.default_rng(0)
    scenes = class_scenes(CLASSES)
    strength = _grain_strength([random_crop(scene, size, rng) for scene in scenes[:3]], mean_bytes)
    for number in range(count):
        label = number % CLASSES
        parent = folder / class_name(label)
        parent.mkdir(parents=True, exist_ok=True)
        picture = with_grain(random_crop(scenes[label], size, rng), strength, noise)
        (parent / f"{number:08d}.jpg").write_bytes(encoded(picture))


def _grain_strength(pictures: list[Image.Image], mean_bytes: int) -> float:
    """That with which the pictures weigh `mean_bytes` on average, to a few percent; 0 where they do without it."""
    low, high = 0.0, _STRONGEST_GRAIN
    for _ in range(7):
        middle = (low + high) / 2
        noise = np.random.default_rng(0)
        weight = sum(len(encoded(with_grain(picture, middle, noise))) for picture in pictures) / len(pictures)
        low, high = (middle, high) if weight < mean_bytes else (low, middle)
    return low


def with_grain(picture: Image.Image, strength: float, noise: np.random.Generator) -> Image.Image:
    """The RGB picture with noise in its brightness, of a standard deviation of `strength` (of 255)."""
    grain = strength * noise.standard_normal((picture.height, picture.width, 1), dtype=np.float32)
    return Image.fromarray(np.clip(np.asarray(picture) + grain, 0, 255).astype(np.uint8))


def encoded(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def link_images(images: Path, folder: Path, entries: int) -> list[Path]:
    """Makes of class folders of JPEGs a data set of so many training `entries`, by links that name each image in turn.

    An epoch is then as long as is wanted: loaders that stop for a moment between epochs do not do so all the time. One
    image of each class is for validation.

    Args:
        images: holds a folder per class, itself or in `train`.
        folder: where `train` and `val` are made.

    Returns:
        the different images, in their order.

    Raises:
        UserError: `images` holds no two classes of JPEGs.
    """
    root = images / "train" if (images / "train").is_dir() else images
    classes = {folder.name: files for folder in _folders(root) if (files := _jpegs_below(folder))}
    if len(classes) < 2:
        raise UserError(
            f"{images}: holds no two folders of JPEGs ({' '.join(_ENDINGS)}); name a folder of class folders"
        )
    for split, count in (("train", entries), ("val", len(classes))):
        for name in classes:
            (folder / split / name).mkdir(parents=True)
        for number, (name, image) in enumerate(islice(_in_turn(classes), count)):
            (folder / split / name / f"{number:08d}.jpg").symlink_to(image)
    return [image for files in classes.values() for image in files]


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _jpegs_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.resolve().rglob("*") if path.suffix.lower() in _ENDINGS)


def _in_turn(classes: dict[str, list[Path]]) -> Iterator[tuple[str, Path]]:
    """Without end: an image of each class, then the next of each."""
    streams = {name: cycle(files) for name, files in classes.items()}
    while True:
        for name, stream in streams.items():
            yield name, next(stream)


def mean_kilobytes(images: list[Path]) -> float:
    return sum(image.stat().st_size for image in images) / len(images) / 1000
