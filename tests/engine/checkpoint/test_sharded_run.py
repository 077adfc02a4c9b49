"""Sharded runs at three ranks, resumed bit for bit, by DDP, and by one process; the folders that ShardWriter writes."""

from pathlib import Path

import pytest
import sharded_runs
from conftest import assert_same_state, only_run, read_result, states, train

from configs.command_line import parse_command_line
from engine.checkpoint.reader import load_checkpoint
from engine.commands.run import run

pytestmark = pytest.mark.slow
RANKS = 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ranks) -> dict[str, Path]:
    return ranks(RANKS)(sharded_runs.runs, tmp_path_factory.mktemp("sharded"))[0]


def assert_close(one: dict, other: dict) -> None:
    """Leaves out the bias of the keys: its gradient is zero but for rounding, which AdamW scales up to its rate."""
    for entry in ("model", "state_dict_ema"):
        for name, tensor in one[entry].items():
            difference = (other[entry][name] - tensor).abs()
            if name.endswith("qkv.bias"):
                difference.chunk(3)[1].zero_()
            assert difference.max() < 1e-6, name


def test_resumed_at_three_ranks_it_ends_bit_for_bit_as_unbroken(runs):
    unbroken, resumed = (states(runs[name], "last.shards") for name in ("unbroken", "sharded"))
    assert unbroken["epoch"] * 14 + unbroken["done_steps"] == 22
    assert_same_state(unbroken, resumed)


def test_ddp_resumes_it_and_writes_one_file_which_fsdp_resumes(runs):
    names = {path.name for path in runs["ddp"].iterdir() if path.suffix in (".pth", ".shards")}
    assert names == {"last.pth", "previous.shards", "best.shards", "epoch-001.shards"}
    assert_close(states(runs["unbroken"], "last.shards"), states(runs["back"], "last.shards"))


def test_one_process_resumes_it(runs, cpu):
    folder = runs["alone"]
    options = ["DATA.BATCH_SIZE=96", "PARALLEL.STRATEGY=fsdp"]
    assert train([f"-resume={folder}", "-opts", *options], cpu) == folder
    assert_close(states(runs["unbroken"], "last.shards"), states(folder))


def test_a_save_writes_the_state_at_the_time_of_the_call(tmp_path, ranks):
    """The disk of one rank is full in the second save: it ends all ranks and leaves no part."""
    for is_snapshot, error in ranks(RANKS)(sharded_runs.check_writer, tmp_path / "written"):
        assert is_snapshot and "last.shards" in error and "(rank 1)" in error
    names = {path.name for path in (tmp_path / "written").iterdir()}
    assert names == {"best.shards", "epoch-001.shards", "last.shards"}


def test_a_damaged_part_makes_all_ranks_read_the_previous_checkpoint(runs, ranks):
    for name, folder, note in ranks(RANKS)(sharded_runs.check_fallback, runs["damaged"]):
        assert name == "previous.shards" and folder == str(runs["damaged"]) and "checksum" in note


def test_an_evaluation_of_the_folder_takes_the_best(runs, cpu, tmp_path):
    folder = runs["unbroken"]
    weights = {"one": f"-resume={folder}", "two": f"-pretrained={folder / 'best.shards'}"}
    for name, flag in weights.items():
        assert run(parse_command_line(["-eval", flag, f"-output={tmp_path / name}"]), cpu) == 0
    by_run, by_path = (read_result(only_run(tmp_path / name, "eval")) for name in weights)
    assert by_run["top1"] == by_path["top1"] == load_checkpoint(folder / "best.shards")["best"]["top1"]
    assert by_run["checkpoint"].endswith("best.shards")
