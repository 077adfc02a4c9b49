"""A rank that is slower than the others: found after 50 steps, with its cause, once; noise is not found."""

import re
import time
from pathlib import Path

import pytest
import torch
from conftest import GREY, TINY_VIT, only_run
from rank import run_commands
from timm.models.vision_transformer import VisionTransformer

from datasets.loading.loader import Loader
from engine.run.step_timer import FORWARD_PASS, LOADING, SlowRanks
from utils.distributed import ProcessContext
from utils.files import read_json
from utils.status import STATUS, RunStatus

EVEN = (0.01, 0.10)  # waiting for data, forward pass


@pytest.fixture
def slow_ranks(cpu, tmp_path):
    """A function that makes a `SlowRanks`; its status.json is in `tmp_path`."""
    (status := RunStatus(tmp_path, world_size=2)).begin()
    return lambda compares_forward=True: SlowRanks(compares_forward, cpu, status)


def feed(ranks: SlowRanks, steps: int, *seconds: tuple[float, float]) -> list[tuple[int, str]]:
    """The notes in these equal steps, each with the number of steps done then."""
    times = torch.tensor(seconds, dtype=torch.float64)
    return [(step, note) for step in range(1, steps + 1) for note in ranks.add_step(times)]


@pytest.mark.parametrize(
    ("seconds", "cause", "times"),
    [
        ((0.09, 0.10), LOADING, "90 ms per step against 10 ms"),
        ((0.01, 0.18), FORWARD_PASS, "180 ms per step against 100"),
    ],
)
def test_found_after_50_steps_with_rank_cause_and_times(slow_ranks, tmp_path, seconds, cause, times):
    ((step, note),) = feed(slow_ranks(), 500, EVEN, EVEN, seconds, EVEN)
    assert step == 50 and all(word in note for word in ("rank 2 on", " 73% ", cause, times))  # 0.19 s against 0.11 s
    assert (status := read_json(tmp_path / STATUS)["slow_rank"])["rank"] == 2 and status["cause"] == cause


def test_told_again_after_recovery_or_for_another_cause(slow_ranks, tmp_path):
    ranks, slow_loading, slow_forward = slow_ranks(), (0.09, 0.10), (0.01, 0.19)
    assert len(feed(ranks, 90, EVEN, EVEN, slow_loading)) == 1
    assert feed(ranks, 10, EVEN, EVEN, EVEN) == []
    assert feed(ranks, 100, EVEN, EVEN, slow_loading) == []  # too short a recovery
    ((step, note),) = feed(ranks, 100, EVEN, EVEN, slow_forward)
    assert step == 50 and FORWARD_PASS in note
    ((_, note),) = feed(ranks, 50, EVEN, EVEN, EVEN)
    assert re.fullmatch("Rank 2 on .* is no longer slow", note) and read_json(tmp_path / STATUS)["slow_rank"] is None
    assert [step for step, _ in feed(ranks, 100, EVEN, EVEN, slow_forward)] == [50]


@pytest.mark.parametrize(
    ("compares_forward", "seconds", "causes"),
    [
        (True, (EVEN, (0.01, 0.14)), [FORWARD_PASS]),  # one of two ranks
        (True, (EVEN, (0.01, 0.12)), []),  # 18%
        (True, ((0.0, 0.004), (0.0, 0.008)), []),  # twice as long, but 4 ms
        (False, (EVEN, EVEN, (0.01, 5.0)), []),  # the forward pass waits for other ranks
        (False, (EVEN, EVEN, (0.09, 0.1)), [LOADING]),
    ],
)
def test_noise_is_not_found(slow_ranks, compares_forward, seconds, causes):
    notes = feed(slow_ranks(compares_forward), 200, *seconds)
    assert len(notes) == len(causes) and all(cause in note for cause, (_, note) in zip(causes, notes, strict=True))


def test_bursts_of_loading_workers_count_as_their_mean_and_single_stalls_do_not(slow_ranks):
    """Four workers: every fourth step waits."""
    ranks = slow_ranks()
    assert feed(ranks, 1, EVEN, (60.0, 0.1), EVEN) == []
    bursts = ((0.0 if step % 4 else 0.4, 0.1) for step in range(99))
    ((_, note),) = (found for seconds in bursts for found in feed(ranks, 1, EVEN, EVEN, seconds))
    assert "rank 2 " in note and LOADING in note


def train_with_a_slow_rank(context: ProcessContext, cause: str, output: Path) -> None:
    """Rank 1 sleeps in every batch, or in every forward pass."""
    to_device, forward = Loader._to_device, VisionTransformer.forward
    seconds = 0.05 * (context.rank == 1)
    options = [*TINY_VIT, *GREY, "TRAIN.NUM_EPOCHS=9", "TRAIN.MAX_STEPS=56", "VALIDATE_FREQ=100", "SAVE_FREQ=100"]
    with pytest.MonkeyPatch.context() as patch:
        if cause == LOADING:
            patch.setattr(Loader, "_to_device", lambda *arguments: (time.sleep(seconds), to_device(*arguments))[1])
        else:
            patch.setattr(VisionTransformer, "forward", lambda *images: (time.sleep(seconds), forward(*images))[1])
        run_commands(context, [["-dataset=digits", "-batch_size=64", f"-output={output}", "-opts", *options]])


@pytest.mark.slow
@pytest.mark.parametrize("cause", [LOADING, FORWARD_PASS])
def test_slow_loader_and_slow_forward_pass_of_one_rank(tmp_path, ranks, cause):
    ranks(2)(train_with_a_slow_rank, cause, tmp_path)
    folder = only_run(tmp_path)
    (line,) = re.findall(r"Warning: (rank .*)", (folder / "log.txt").read_text())
    pattern = r"rank 1 on \S+ was \d+(%| times) slower than the median rank for 50 steps; cause: (.*) \(\d+ ms .*\)"
    assert re.fullmatch(pattern, line)[2] == cause
    slow = read_json(folder / STATUS)["slow_rank"]
    assert (slow["rank"], slow["cause"]) == (1, cause)
