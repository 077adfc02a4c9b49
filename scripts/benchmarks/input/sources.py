"""The sources of images that `benchmark_input.py -sources` compares: a folder and tar shards.

All read the same JPEGs, or their pixels at one size, up to normalized float32 batches or, as before a GPU, `uint8`: see
docs/benchmarks.md, Data sources. Each turn starts a fresh loader, a cold turn with an empty cache. All files are in the
memory of the operating system.
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from configs.schema import Config
from scripts import make_shards
from scripts.benchmarks.images import link_images
from scripts.benchmarks.input.streams import Streams, our_batches, webdataset_batches
from scripts.benchmarks.range_server import serving
from utils.distributed import ProcessContext

ENTRIES = 8192  # 0.9 GB: more than a cold turn reads
SHARD_MB = 4  # two windows of 16 shards, which may be there when a cold turn begins, have 1,200 images
LATENCY_MS = 10.0
CACHE_GB = 4.0

FOLDER, LOCAL, WEBDATASET = "folder", "tar, local", "WebDataset, local"
UINT8, SMALL = "folder, uint8", "tar, local, -size 256, uint8"
COLD, WARM, UNCACHED = (f"tar over HTTP, {cache}" for cache in ("cold cache", "warm cache", "no cache"))
RATIOS = [*((name, FOLDER) for name in (LOCAL, COLD, WARM, UNCACHED)), (LOCAL, WEBDATASET), (SMALL, UINT8)]


@contextlib.contextmanager
def source_streams(images: Path, folder: Path, config: Config, context: ProcessContext) -> Iterator[Streams]:
    """Prepares the sources. `images` are class folders of JPEGs, `folder` is for temporary files."""
    link_images(images, folder / "files", ENTRIES, copies=True)
    data = ["-dataset=folder", f"-data_path={folder / 'files'}"]
    with contextlib.redirect_stdout(sys.stderr):
        make_shards.main([*data, f"-output={folder / 'shards'}", f"-shard_mb={SHARD_MB}"])
        make_shards.main([*data, f"-output={folder / 'small'}", f"-shard_mb={SHARD_MB}", "-size=256"])
    with serving(folder / "shards", LATENCY_MS) as url:
        streams = _streams(folder, url, config, context)
        with contextlib.closing(streams[WARM]()) as stream:  # downloads every shard of an epoch
            num_images = 0
            while num_images < ENTRIES:
                num_images += next(stream)
        yield streams


def _streams(folder: Path, url: str, config: Config, context: ProcessContext) -> Streams:
    shards = folder / "shards"

    def ours(
        dataset: str, path: Path | str, cache: str | None = None, empties: bool = False, normalizes: bool = True
    ) -> Iterator[int]:
        cache_dir, cache_gb = folder / (cache or "no-cache"), CACHE_GB if cache else 0.0
        if empties:
            shutil.rmtree(cache_dir, ignore_errors=True)
        data = {"dataset": dataset, "data_path": str(path), "cache_dir": str(cache_dir), "cache_gb": cache_gb}
        return our_batches(config.with_data(**data), context, normalizes)

    return {
        FOLDER: lambda: ours("folder", folder / "files"),
        LOCAL: lambda: ours("tar", shards),
        UINT8: lambda: ours("folder", folder / "files", normalizes=False),
        SMALL: lambda: ours("tar", folder / "small", normalizes=False),
        COLD: lambda: ours("tar", url, "cold", empties=True),
        WARM: lambda: ours("tar", url, "warm"),
        UNCACHED: lambda: ours("tar", url),
        WEBDATASET: lambda: webdataset_batches(sorted(shards.glob("train-*.tar")), config.data, context.device),
    }
