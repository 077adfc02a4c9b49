"""Measures the index of a data set of tar shards: building, writing, opening, and the memory of a worker.

python scripts/benchmarks/benchmark_shard_index.py -images 1000000 -shard_mb 256
"""

import argparse
import io
import pickle
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.flags import Parser
from datasets.shards.indexing.build import open_index
from datasets.shards.indexing.index import INDEX_NAME, Index, write_index
from datasets.shards.shard import Shard
from datasets.shards.storage.store import ShardStore
from datasets.sources.mapped_arrays import share_arrays
from datasets.sources.strings import StringPacker, to_arrays
from scripts.benchmarks.common import write_json
from scripts.flags import add_flag, new_file, positive
from utils.errors import run_and_report_errors
from utils.tables import markdown_table

_IMAGES_PER_SHARD = 2000
_IMAGE_BYTES = 110_000  # ImageNet's mean
_T = TypeVar("_T")
# A worker: the memory that it shares with no process, before and after it reads every array of the index.
_WORKER = """
import pickle, re, sys
from pathlib import Path
import datasets.shards.indexing.index, datasets.sources.mapped_arrays

def private_bytes():
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(1024 * int(size) for size in re.findall(r"Private_(?:Clean|Dirty):\\s+(\\d+)", text))

data = sys.stdin.buffer.read()
before = private_bytes()
arrays = pickle.loads(data)
total = sum(int(array.sum(dtype="u8")) for array in arrays.values())
print(private_bytes() - before)
"""


def main(argv: list[str]) -> int:
    flags = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        figures = _measure_index(Path(folder), flags.images) | _measure_build(Path(folder), flags.shard_mb)
    print(markdown_table(["", ""], [[name, f"{value:,.2f}"] for name, value in figures.items()]))
    write_json(flags.json, figures)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="scripts/benchmarks/benchmark_shard_index.py", description="Measures the index of tar shards.")
    add_flag(parser, "images", type=positive, default=1_000_000, metavar="N", help="images (default: 1000000)")
    add_flag(parser, "shard_mb", type=positive, default=256, metavar="MB", help="size of a shard that is indexed")
    add_flag(parser, "json", type=new_file, metavar="FILE", help="also write the figures to this file")
    return parser


def _timed(call: Callable[[], _T]) -> tuple[_T, float]:
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


def _measure_index(folder: Path, num_images: int) -> dict[str, float]:
    index, path = _make_index(num_images), folder / INDEX_NAME
    _, write_seconds = _timed(lambda: write_index(path, index))
    store = ShardStore(str(folder), 10.0)
    (opened, _), open_seconds = _timed(lambda: open_index(store, index.shards, folder / "cache"))
    assert len(opened) == num_images
    shared, share_seconds = _timed(lambda: share_arrays(opened.arrays))
    for array in shared.values():
        array.sum()  # this process maps all pages, as another worker does
    worker = [sys.executable, "-c", _WORKER]
    root = Path(__file__).parents[2]
    answer = subprocess.run(worker, input=pickle.dumps(shared), stdout=subprocess.PIPE, check=True, cwd=root)
    return {
        "images": num_images,
        "index, MB": path.stat().st_size / 1e6,
        "write, s": write_seconds,
        "open, s": open_seconds,
        "share with workers, s": share_seconds,
        "private memory of a worker, MB": int(answer.stdout) / 1e6,
    }


def _make_index(num_images: int) -> Index:
    names = StringPacker(f"n01440764/ILSVRC2012_{image:08d}.JPEG" for image in range(num_images))
    position = np.arange(num_images)
    num_shards = -(-num_images // _IMAGES_PER_SHARD)
    shards = [Shard(f"train-{shard:06d}.tar", 2**28, f'"{shard:032x}"') for shard in range(num_shards)]
    arrays = {
        "ends": np.minimum(np.arange(1, num_shards + 1) * _IMAGES_PER_SHARD, num_images),
        "offsets": 512 + position % _IMAGES_PER_SHARD * (_IMAGE_BYTES + 2048),
        "lengths": np.full(num_images, _IMAGE_BYTES, np.int32),
        "crcs": position.astype(np.uint32),
        "targets": position % 1000,
    }
    return Index(shards, None, arrays | to_arrays(names.strings(), "names"))


def _measure_build(folder: Path, shard_mb: int) -> dict[str, float]:
    image, path = np.random.default_rng(0).bytes(_IMAGE_BYTES), folder / "shard" / "train-0.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as tar:
        for number in range(max(1, shard_mb * 1_000_000 // _IMAGE_BYTES)):
            for name, content in ((f"{number:06d}.jpg", image), (f"{number:06d}.cls", b"%d" % (number % 1000))):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    store = ShardStore(str(path.parent), 10.0)
    (index, _), seconds = _timed(lambda: open_index(store, store.head([path.name]), folder / "cache"))
    return {
        "shard, MB": path.stat().st_size / 1e6,
        "its images": len(index),
        "build, MB/s": path.stat().st_size / 1e6 / seconds,
    }


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
