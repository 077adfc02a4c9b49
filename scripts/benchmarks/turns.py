"""Turns of contenders: endless streams of images, whose speed is measured in turns of a few seconds."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch

from scripts.benchmarks.common import interleaved, print_progress
from scripts.benchmarks.input_contenders import Contender
from utils.device import timed


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(
    contenders: dict[str, Contender], rounds: int, seconds: float, device: torch.device, prefetched: int
) -> dict[str, dict[str, Any]]:
    """For each contender: seconds until its (last) first batch, and images/s of each turn.

    After a turn the script waits until the workers have prefetched `prefetched` batches and are idle. The turn of a
    contender that is restarted begins after its first batch.
    """
    streams = {}
    results = {name: _empty_result(contender) for name, contender in contenders.items()}
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
    return with_ratios(results)


def _empty_result(contender: Contender) -> dict[str, Any]:
    return {
        "first_batch_seconds": 0.0,
        "images_per_second": [],
        "ends_as": contender.ends_as,
        "against": contender.against,
    }


def _started(contender: Contender, result: dict[str, Any]) -> Iterator[int]:
    """Its stream, after the first batch."""
    started = time.perf_counter()
    stream = contender.start()
    next(stream)
    result["first_batch_seconds"] = time.perf_counter() - started
    return stream


def with_ratios(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Adds the ratio of our speed to the contender's speed in each round."""
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
    if not prefetched:
        return
    started = time.perf_counter()
    next(stream)  # its time is that of reading a batch or less
    time.sleep(min(max_seconds, 0.2 + prefetched * (time.perf_counter() - started)))
