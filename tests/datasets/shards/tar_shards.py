"""Small data sets of tar shards with real images."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from tests.datasets.shards.tar_files import tar_of


def jpeg(seed: int, size: tuple[int, int] = (24, 20)) -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "JPEG")
    return buffer.getvalue()


def write_shard(path: Path, numbers: Iterable[int], classes: int = 2) -> None:
    """Samples `000007.jpg`, `000007.cls` of these numbers, with the labels number % classes."""
    samples = [((f"{n:06d}.jpg", jpeg(n)), (f"{n:06d}.cls", str(n % classes).encode())) for n in numbers]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_of([file for sample in samples for file in sample]))


def write_shards(root: Path, train: int = 4, per_shard: int = 10, val: int = 12) -> Path:
    """`train` shards of `per_shard` samples, and one of `val` samples."""
    for number in range(train):
        write_shard(root / f"train-{number:04d}.tar", range(number * per_shard, (number + 1) * per_shard))
    write_shard(root / "val-0000.tar", range(1000, 1000 + val))
    return root
