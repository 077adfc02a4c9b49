"""Measures the share of DATA.IMAGE_HASHES in the CPU seconds that reading, decoding and cropping images takes.

    python scripts/benchmarks/benchmark_hashes.py

The images have 500 x 375 pixels, as JPEG, PNG and BMP. See docs/benchmarks.md.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from PIL import Image

from configs.schema import Data, Train
from datasets.loading.loader import BatchReader
from datasets.reading import unlabelled
from datasets.sources.samples import ImageFiles
from datasets.transforms.host import build_host_transform
from scripts.benchmarks.benchmark_train import make_images
from utils.processes.entry import run_script

ROUNDS = 15


def main(argv: list[str]) -> int:
    data = Data()
    with TemporaryDirectory() as temporary:
        jpegs = [*make_images(Path(temporary) / "JPEG", count=32).rglob("*.jpg")]
        for kind in ("JPEG", "PNG", "BMP"):
            folder = Path(temporary) / kind
            folder.mkdir(exist_ok=True)
            for file in jpegs if kind != "JPEG" else ():
                Image.open(file).save(folder / f"{file.stem}.{kind.lower()}")
            samples = unlabelled(str(folder), data)
            assert isinstance(samples, ImageFiles)
            reader = BatchReader(samples, data, build_host_transform(data, Train(), 0))
            reading = _mean_of_lowest(partial(_read, reader), len(samples))
            samples.hash_content()
            hashing = _mean_of_lowest(partial(_hash, samples), len(samples))
            times = f"{1e3 * reading:.2f} ms of CPU per image, SHA-256 {1e3 * hashing:.3f} ms"
            print(f"{kind}: {times}, {hashing / reading:.1%}")
    return 0


def _hash(samples: ImageFiles, index: int) -> float:
    """The CPU time of a hash of the content of an image."""
    content = samples.read_bytes(index)
    assert samples.hashes
    samples.hashes.rows[index] = 0
    started = time.process_time()
    samples.note_content(index, content)
    return time.process_time() - started


def _read(reader: BatchReader, index: int) -> float:
    """The CPU time of an image from the disk to a training crop."""
    started = time.process_time()
    reader.__getitems__([(0, index, 0)])
    return time.process_time() - started


def _mean_of_lowest(seconds: Callable[[int], float], images: int) -> float:
    return sum(min(seconds(index) for _ in range(ROUNDS)) for index in range(images)) / images


if __name__ == "__main__":
    run_script(main)
