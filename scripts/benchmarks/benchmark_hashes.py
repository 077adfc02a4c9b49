"""Measures the share of DATA.IMAGE_HASHES in the CPU seconds that reading, decoding and cropping images takes.

    python scripts/benchmarks/benchmark_hashes.py

The images have 500 x 375 pixels, as JPEG, PNG and BMP. See docs/benchmarks.md.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from PIL import Image

from configs.schema import Data, Train
from datasets.loading.loader import BatchReader
from datasets.reading import unlabelled
from datasets.transforms.host import build_host_transform
from scripts.benchmarks.benchmark_train import make_images
from utils.processes.entry import run_script

ROUNDS = 15


def main(argv: list[str]) -> int:
    torch.set_num_threads(1)  # as in a loading worker
    data = Data()
    with TemporaryDirectory() as temporary:
        jpegs = [*make_images(Path(temporary) / "JPEG", count=32).rglob("*.jpg")]
        for kind in ("JPEG", "PNG", "BMP"):
            folder = Path(temporary) / kind
            folder.mkdir(exist_ok=True)
            for file in jpegs if kind != "JPEG" else ():
                Image.open(file).save(folder / f"{file.stem}.{kind.lower()}")
            samples = unlabelled(str(folder), data)
            reader = BatchReader(samples, data, build_host_transform(data, Train(), 0))
            reading = hashing = 0.0
            for index, file in enumerate(folder.rglob("*.*")):
                reading += _lowest(partial(reader.__getitems__, [(0, index, 0)]))
                hashing += _lowest(partial(sha256, file.read_bytes()))
            print(f"{kind}: reading {reading:.3f} s of CPU, SHA-256 {hashing:.3f} s, {hashing / reading:.1%}")
    return 0


def _lowest(call: Callable[[], object]) -> float:
    """The lowest CPU time of a call, seconds."""
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return min(times)


if __name__ == "__main__":
    run_script(main)
