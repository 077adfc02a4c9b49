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
    """For each contender: seconds until its (last) first batch, images/s of each turn, and the ratios of these speeds.

    One compute thread is used, because the workers occupy the cores. After a turn the script waits until the workers
    have prefetched `prefetched` batches and are idle. The turn of a contender that is restarted begins after its first
    batch.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results = {name: {"images_per_second": [], "against": one.against} for name, one in contenders.items()}
    streams = {}
    for name, contender in contenders.items():
        if not contender.is_restarted:
            streams[name] = _started(contender, results[name])
            _wait_for_prefetching(streams[name], prefetched, seconds)
    for _, name in interleaved(list(contenders), rounds):
        if contenders[name].is_restarted:
            with closing(_started(contenders[name], results[name])) as stream:
                speed = measure_turn(stream, seconds, device)
        else:
            for _ in range(prefetched + prefetched // 2):  # also lets the workers fall out of step
                next(streams[name])
            speed = measure_turn(streams[name], seconds, device)
            _wait_for_prefetching(streams[name], prefetched, seconds)
        results[name]["images_per_second"].append(speed)
        print_progress(f"{name}: {speed:.0f} images/s")
    torch.set_num_threads(threads)
    return with_ratios(results)


def _started(contender: Contender, result: dict[str, Any]) -> Iterator[int]:
    """Its stream, after the first batch."""
    started = time.perf_counter()
    stream = contender.start()
    next(stream)
    result["first_batch_seconds"] = time.perf_counter() - started
    return stream


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


def _wait_for_prefetching(stream: Iterator[int], prefetched: int, max_seconds: float) -> None:
    started = time.perf_counter()
    next(stream)  # takes as long as reading a batch, or less
    time.sleep(min(max_seconds, 0.2 + prefetched * (time.perf_counter() - started)))
