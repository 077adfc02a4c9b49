"""Turns of contenders: endless streams of images, whose speed is measured in turns of a few seconds."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch

from scripts.benchmarks.common import interleaved, print_progress
from scripts.benchmarks.input.contenders import Contender
from utils.device import timed


def measure(
    contenders: dict[str, Contender], rounds: int, seconds: float, device: torch.device, prefetched: int
) -> dict[str, dict[str, Any]]:
    """Measures each contender: seconds until its (last) first batch, images/s of each turn, ratios of these speeds.

    A turn starts a stream and ends it. Its first batch and the `prefetched` next ones are not timed. One compute thread
    is used, because the workers occupy the cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results = {name: {"images_per_second": [], "against": one.against} for name, one in contenders.items()}
    for _, name in interleaved(list(contenders), rounds):
        started = time.perf_counter()
        with closing(contenders[name].start()) as stream:
            next(stream)
            results[name]["first_batch_seconds"] = time.perf_counter() - started
            for _ in range(prefetched):
                next(stream)
            speed = measure_turn(stream, seconds, device)
        results[name]["images_per_second"].append(speed)
        print_progress(f"{name}: {speed:.0f} images/s")
    torch.set_num_threads(threads)
    return with_ratios(results)


def with_ratios(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Adds for each round the speed of `against` / the contender's speed."""
    for one in results.values():
        pairs = zip(results[one["against"]]["images_per_second"], one["images_per_second"], strict=True)
        one["ratios"] = [ours / its for ours, its in pairs]
    return results


def measure_turn(stream: Iterator[int], seconds: float, device: torch.device) -> float:
    """Images/s over at least `seconds`; the turn ends with a whole batch."""
    images = 0

    def read() -> None:
        nonlocal images
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            images += next(stream)

    elapsed = timed(read, device)
    return images / elapsed
