"""Compares sources of images for `benchmark_input.py -sources`: a folder, packed images, tar shards.

The same JPEGs, two workers, and up to normalized float32 batches:

- folder: class folders of image files;
- packed: the output of pack_dataset.py;
- tar, local: the output of make_shards.py with -shard_mb 4;
- tar over HTTP: the same shards from a web server in another process of this machine, which waits 10 ms before each
  answer: with an empty cache (cold), with a cache that has all shards (warm), and without a cache, by ranges;
- WebDataset: the local shards, a shuffle buffer of 1,000 samples, Pillow, the transforms of torchvision's references,
  batches made by the workers.

Each turn starts a fresh loader, a cold turn with an empty cache. All files are in the memory of the operating system.
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import webdataset
from torch.utils.data import DataLoader

from configs.schema import Config, Data
from scripts import make_shards, pack_dataset
from scripts.benchmarks.common import median_and_range, print_progress
from scripts.benchmarks.images import link_images, mean_kilobytes
from scripts.benchmarks.input.contenders import Contender, our_batches, reference_transform, with_data
from scripts.benchmarks.input.turns import measure
from scripts.benchmarks.range_server import serving
from utils.distributed import ProcessContext, single_process
from utils.tables import markdown_table

ENTRIES = 8192  # 0.9 GB: more than a cold turn reads
SHARD_MB = 4  # two windows of 16 shards, which may be there when a cold turn begins, have 1,200 images
LATENCY_MS = 10.0
CACHE_GB = 4.0
_SHUFFLE = 1000  # WebDataset's buffer, samples

FOLDER, LOCAL, COLD, WARM = "folder", "tar, local", "tar over HTTP, cold cache", "tar over HTTP, warm cache"
WEBDATASET = "WebDataset, local"
GOALS = {LOCAL: 0.95, COLD: 0.8, WARM: 0.95, WEBDATASET: 1.5}  # of the folder; for WebDataset: local tar / WebDataset


def measure_sources(images: Path, folder: Path, config: Config, rounds: int, seconds: float) -> dict[str, Any]:
    """Images/s of each source in each round; `images` are class folders of JPEGs, `folder` is for temporary files."""
    context = single_process()
    different = link_images(images, folder / "linked", ENTRIES)
    for link in (folder / "linked").rglob("*.jpg"):  # as many bytes as in the shards; 256 files stay in a CPU cache
        image = link.resolve()
        link.unlink()
        shutil.copyfile(image, link)
    print_progress(f"{len(different)} JPEGs of {mean_kilobytes(different):.0f} KB")
    data = ["-dataset=folder", f"-data_path={folder / 'linked'}"]
    with contextlib.redirect_stdout(sys.stderr):
        pack_dataset.main([*data, f"-output={folder / 'packed'}"])
        make_shards.main([*data, f"-output={folder / 'shards'}", f"-shard_mb={SHARD_MB}"])
    with serving(folder / "shards", LATENCY_MS) as url:
        sources = source_contenders(folder, url, config, context)
        _fill_cache(sources[WARM].start())
        results = measure(sources, rounds, seconds, context.device, prefetched=2 * config.data.num_workers)
    return {"mean_kilobytes": mean_kilobytes(different), "sources": results}


def source_contenders(folder: Path, url: str, config: Config, context: ProcessContext) -> dict[str, Contender]:
    shards = folder / "shards"

    def ours(dataset: str, path: Path | str, cache: str | None = None, empties: bool = False) -> Iterator[int]:
        cache_dir, cache_gb = folder / (cache or "no-cache"), CACHE_GB if cache else 0.0
        if empties:
            shutil.rmtree(cache_dir, ignore_errors=True)
        data = {"dataset": dataset, "data_path": str(path), "cache_dir": str(cache_dir), "cache_gb": cache_gb}
        return our_batches(with_data(config, **data), context)

    def from_webdataset() -> Iterator[int]:
        return webdataset_batches(sorted(shards.glob("train-*.tar")), config.data, context.device)

    return {
        FOLDER: Contender(lambda: ours("folder", folder / "linked"), FOLDER),
        "packed": Contender(lambda: ours("packed", folder / "packed"), FOLDER),
        LOCAL: Contender(lambda: ours("tar", shards), FOLDER),
        COLD: Contender(lambda: ours("tar", url, "cold", empties=True), FOLDER),
        WARM: Contender(lambda: ours("tar", url, "warm"), FOLDER),
        "tar over HTTP, no cache": Contender(lambda: ours("tar", url), FOLDER),
        WEBDATASET: Contender(from_webdataset, LOCAL),
    }


def _fill_cache(stream: Iterator[int]) -> None:
    """Reads one epoch: every shard of it is downloaded."""
    with contextlib.closing(stream):
        num_images = 0
        while num_images < ENTRIES:
            num_images += next(stream)


def webdataset_batches(shards: list[Path], data: Data, device: torch.device) -> Iterator[int]:
    """Endless batches, as WebDataset's documentation recommends: made by the workers, which share out the shards."""
    on_gpu = device.type == "cuda"
    samples = (
        webdataset.WebDataset(list(map(str, shards)), shardshuffle=len(shards), nodesplitter=webdataset.split_by_node)
        .repeat()
        .shuffle(_SHUFFLE)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(reference_transform(data), int)
        .batched(data.batch_size)
    )
    for images, targets in DataLoader(samples, batch_size=None, num_workers=data.num_workers, pin_memory=on_gpu):
        images.to(device, non_blocking=on_gpu), torch.as_tensor(targets).to(device, non_blocking=on_gpu)
        yield len(images)


def source_table(result: dict[str, Any]) -> str:
    rows = []
    for name, one in result["sources"].items():
        ratios, text = one["ratios"], ""
        if name == WEBDATASET:
            text = f"{median_and_range(ratios, '.2f')}: {LOCAL} / it"
        elif name != FOLDER:
            text = f"{median_and_range([1 / ratio for ratio in ratios], '.2f')} of {FOLDER}"
        goal = f"{GOALS[name]:.2f}" if name in GOALS else ""
        rows.append([name, median_and_range(one["images_per_second"], ".0f"), text, goal])
    return markdown_table([f"JPEGs of {result['mean_kilobytes']:.0f} KB from", "images/s", "ratio", "goal"], rows)
