"""JPEGs for the benchmarks, with the file size of photographs."""

import random
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from utils.errors import UserError

CLASSES = 8
QUALITY = 90
_GRAIN = 16  # pixels between the random colors that a picture interpolates


class Size(NamedTuple):
    """`count` images to make; `noise` is its standard deviation, on a scale of 255, and sets the size of the files."""

    width: int
    height: int
    noise: float
    count: int


IMAGENET, CAMERA = Size(500, 375, 16.7, 256), Size(2000, 1500, 4.5, 64)  # about 106 KB and 1 MB


def make_images(folder: Path, size: Size) -> Path:
    """Writes different JPEGs, smooth colors with noise, to class folders in `folder`; returns it."""
    rng = np.random.default_rng(0)
    shape = (size.height, size.width)
    for number in range(size.count):
        parent = folder / f"class{number % CLASSES}"
        parent.mkdir(parents=True, exist_ok=True)
        colors = rng.integers(0, 256, (*(side // _GRAIN + 1 for side in shape), 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(colors).resize(shape[::-1], Image.Resampling.BICUBIC))
        noise = size.noise * rng.standard_normal((*shape, 1), dtype=np.float32)  # of the brightness
        picture = Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))
        picture.save(parent / f"{number:08d}.jpg", quality=QUALITY)
    return folder


def link_images(images: Path, folder: Path, entries: int, copies: bool = False) -> None:
    """Makes a data set of `entries` training images from class folders of JPEGs, as links that repeat the images.

    With a long epoch the pauses of loaders between epochs do not count. The validation split has one image per class.

    images: has a folder per class, directly or in `train`. folder: gets `train` and `val`. copies: writes different
    files in place of links: a CPU's cache does not hold them, and no two are equal. Raises UserError if `images` has
    fewer than two class folders with JPEGs.
    """
    root = images / "train" if (images / "train").is_dir() else images
    classes = {}
    for parent in sorted(root.glob("*/")):
        files = sorted(file for file in parent.resolve().rglob("*") if file.suffix.lower() in (".jpg", ".jpeg"))
        if files:
            classes[parent.name] = files
    if len(classes) < 2:
        raise UserError(f"{images}: has fewer than two folders of JPEGs; name a folder of class folders")
    first = [(name, files[0]) for name, files in classes.items()]
    others = [(name, file) for name, files in classes.items() for file in files[1:]]
    random.Random(0).shuffle(others)
    for split, count in (("train", entries), ("val", len(first))):
        for number, (name, image) in enumerate(islice(cycle(first + others), count)):
            entry = folder / split / name / f"{number:08d}.jpg"
            entry.parent.mkdir(parents=True, exist_ok=True)
            if copies:
                entry.write_bytes(image.read_bytes() + f"{split} {number}".encode())
            else:
                entry.symlink_to(image)
