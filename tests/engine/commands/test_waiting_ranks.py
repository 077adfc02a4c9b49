"""Ranks wait without a limit for what one rank computes, writes or draws alone."""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch.distributed as dist
from conftest import digits_flags, of_module, only_run, read_result
from pytest import MonkeyPatch, mark
from rank import run_commands

from utils.distributed import ProcessContext

LIMIT_SECONDS = 6.0
SLOW_SECONDS = 7.5
EVALUATION = ("engine.evaluation.results:SampleResults.metrics", "engine.evaluation.tables:confidence_interval")
PAGE = ("engine.report.page:write_report",)
SAVE = ("engine.checkpoint.files:CheckpointWriter.save",)
PREDICTION = ("engine.evaluation.predictions:safe_cell", "engine.evaluation.predictions:join_results")
FEATURES = ("engine.features.store:atomic_write", "engine.evaluation.evaluate:Evaluator.results_of_features")


@contextlib.contextmanager
def slow_on_main(context: ProcessContext, names: tuple[str, ...]) -> Iterator[set[str]]:
    """The first call of each function on the main process takes longer than a rank waits in a collective."""
    called: set[str] = set()

    def slowed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name not in called and context.is_main:
                time.sleep(SLOW_SECONDS)
            called.add(name)
            return function(*arguments, **options)

        return call

    with MonkeyPatch.context() as patch:
        for name in names:
            module, path = name.split(":")
            owner = import_module(module)
            *holders, last = path.split(".")
            for holder in holders:
                owner = getattr(owner, holder)
            patch.setattr(owner, last, slowed(name, getattr(owner, last)))
        yield called


def run_slowly(context: ProcessContext, argv: list[str], names: tuple[str, ...]) -> set[str]:
    """The functions that the command has called on this rank."""
    dist.set_timeout(timedelta(seconds=LIMIT_SECONDS))
    try:
        with slow_on_main(context, names) as called:
            run_commands(context, [argv])
        dist.barrier()
    finally:
        dist.set_timeout(timedelta(seconds=600))  # the pool is used again
    return called


@of_module
def trained(ranks, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("waiting")
    called = ranks(3)(run_slowly, [*digits_flags(root), "-device=cpu"], (*EVALUATION, *PAGE, *SAVE))
    assert called[0] == {*EVALUATION, *PAGE, *SAVE}
    folder = only_run(root)
    assert read_result(folder)["finished"]
    return folder


@mark.slow
def test_ranks_wait_for_the_intervals_pages_and_checkpoints_of_a_training(trained):
    assert (trained / "report.html").is_file()


@mark.slow
@mark.parametrize(
    "command, names",
    [
        (["-eval"], (*EVALUATION, *PAGE)),
        (["-predict", "-explain"], (*PREDICTION, "engine.evaluation.files:heat_map")),
        (["-embed"], ("engine.features.store:_new_array", "engine.features.store:safe_cell")),
        (["-profile"], ("engine.profiling.profiler:phase_seconds",)),
        (["MODEL.TUNE=probe"], FEATURES),
    ],
)
def test_ranks_wait_for_what_one_rank_computes_alone(command, names, trained, ranks, tmp_path):
    argv = [f"-resume={trained}", *command, f"-output={tmp_path}"]
    if command[0] in ("-profile", "MODEL.TUNE=probe"):
        argv = [*digits_flags(tmp_path), *command, f"-pretrained={trained / 'best.pth'}"]
    called = ranks(2)(run_slowly, [*argv, "-device=cpu"], names)
    assert called[0] == set(names)
