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
from engine.run.timing.slow_ranks import FORWARD, LOADING, SlowRank, SlowRankReport, SlowRanks
from utils.distributed import ProcessContext
from utils.status import RunStatus, read_status


def feed(ranks: SlowRanks, steps: int, *seconds: tuple[float, float]) -> list[tuple[int, SlowRank]]:
    """The ranks found in these equal steps, with the number of steps done then; seconds: (wait, forward) per rank."""
    times = torch.tensor(seconds, dtype=torch.float64)
    return [(step, found) for step in range(1, steps + 1) for found in ranks.add_step(times)[0]]


EVEN = (0.01, 0.10)


def test_found_after_50_steps_with_rank_cause_and_times():
    for seconds, cause, own, middle in (((0.09, 0.10), LOADING, 0.09, 0.01), ((0.01, 0.18), FORWARD, 0.18, 0.10)):
        ((step, slow),) = feed(SlowRanks(compares_forward=True), 500, EVEN, EVEN, seconds, EVEN)
        assert (step, slow.rank, slow.cause) == (50, 2, cause)
        assert torch.allclose(torch.tensor([slow.seconds, slow.median_seconds]), torch.tensor([own, middle]))
        assert round(slow.percent) == 73  # 0.19 s against 0.11 s


def test_told_again_after_recovery_or_for_another_cause():
    ranks = SlowRanks(compares_forward=True)
    slow_loading, slow_forward = (0.09, 0.10), (0.01, 0.19)
    assert len(feed(ranks, 90, EVEN, EVEN, slow_loading)) == 1
    assert feed(ranks, 10, EVEN, EVEN, EVEN) == []
    assert feed(ranks, 100, EVEN, EVEN, slow_loading) == []  # too short a recovery
    ((step, slow),) = feed(ranks, 100, EVEN, EVEN, slow_forward)
    assert (step, slow.cause) == (50, FORWARD)
    assert feed(ranks, 50, EVEN, EVEN, EVEN) == []
    assert [step for step, _ in feed(ranks, 100, EVEN, EVEN, slow_forward)] == [50]


def test_a_recovered_rank_leaves_the_status(cpu, tmp_path):
    status = RunStatus(tmp_path, world_size=2)
    status.begin()
    report = SlowRankReport(SlowRanks(compares_forward=True), cpu, status)
    slow, even = torch.tensor([[0.0, 0.05], [0.0, 0.15]]), torch.tensor([[0.0, 0.05], [0.0, 0.05]])
    lines = [line for _ in range(50) for line in report.lines(slow)]
    assert "rank 1 on" in lines[0] and read_status(tmp_path)["slow_rank"]["rank"] == 1
    lines = [line for _ in range(50) for line in report.lines(even)]
    assert re.fullmatch("Rank 1 on .* is no longer slow", lines[0]) and len(lines) == 1
    assert "slow_rank" not in read_status(tmp_path)


@pytest.mark.parametrize(
    ("compares_forward", "ranks", "causes"),
    [
        (True, (EVEN, (0.01, 0.14)), [FORWARD]),  # one of two ranks
        (True, (EVEN, (0.01, 0.12)), []),  # 18%
        (True, ((0.0, 0.004), (0.0, 0.008)), []),  # twice as long, but 4 ms
        (False, (EVEN, EVEN, (0.01, 5.0)), []),  # the forward pass waits for other ranks
        (False, (EVEN, EVEN, (0.09, 0.1)), [LOADING]),
    ],
)
def test_noise_is_not_found(compares_forward, ranks, causes):
    assert [slow.cause for _, slow in feed(SlowRanks(compares_forward), 200, *ranks)] == causes


def test_bursts_of_loading_workers_count_as_their_mean_and_single_stalls_do_not():
    """Four workers: every fourth step waits."""
    ranks, found = SlowRanks(compares_forward=True), []
    assert feed(ranks, 1, EVEN, (60.0, 0.1), EVEN) == []
    for step in range(99):
        found += feed(ranks, 1, EVEN, EVEN, (0.4 if step % 4 == 0 else 0.0, 0.1))
    assert [(slow.rank, slow.cause) for _, slow in found] == [(2, LOADING)]


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
@pytest.mark.parametrize("cause", [LOADING, FORWARD])
def test_slow_loader_and_slow_forward_pass_of_one_rank(tmp_path, ranks, cause):
    ranks(2)(train_with_a_slow_rank, cause, tmp_path)
    folder = only_run(tmp_path)
    (line,) = re.findall(r"Warning: (rank .*)", (folder / "log.txt").read_text())
    pattern = r"rank 1 on \S+ was \d+(%| times) slower than the median rank for 50 steps; cause: (.*) \(\d+ ms .*\)"
    assert re.fullmatch(pattern, line)[2] == cause
    slow = read_status(folder)["slow_rank"]
    assert (slow["rank"], slow["cause"]) == (1, cause)
