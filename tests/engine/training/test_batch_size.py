"""-batch_size=auto: the largest size that fits, and a run that equals one with the size given."""

import math
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import torch
from conftest import (
    ROOT,
    assert_same_run,
    cli,
    config_for,
    digits_flags,
    each_row,
    environment,
    read_result,
    refused,
    train,
)
from hypothesis import given
from hypothesis import strategies as st
from pytest import fixture, mark

from configs.yaml_io import parse_value
from engine.training import batch_size
from engine.training.batch_size import find_batch_size, largest_size
from utils.device import peak_memory_bytes

AUTO = ["DATA.BATCH_SIZE=auto", "DATA.GLOBAL_BATCH_SIZE=96"]


@given(sizes=st.sets(st.integers(1, 5000), min_size=1, max_size=60).map(sorted), limit=st.integers(0, 5000))
def test_the_largest_size_that_fits_is_found_without_sizes_far_above_it(sizes, limit):
    tried = []
    found = largest_size(sizes, lambda size: tried.append(size) or size <= limit)
    assert found == max((size for size in sizes if size <= limit), default=0)
    assert len({*tried}) == len(tried)
    above = sorted(size for size in tried if size > found)
    next_size = min((size for size in sizes if size > found), default=0)
    assert all(size <= max(2 * found, next_size) for size in above)
    assert len(tried) - len(above) <= 13


@fixture
def fits_16(monkeypatch):
    """Each image takes 1 MB: 16 fit. Returns the trials."""
    trials = []

    def measure(config, device):
        trials.append(config)
        return 1e6 * config.data.batch_size

    monkeypatch.setattr(batch_size, "_measure_in_child", measure)
    monkeypatch.setattr(batch_size, "peak_memory_bytes", lambda device: 0)
    return trials


def test_a_run_equals_one_with_the_size_and_its_resume_keeps_it(tmp_path, fits_16):
    flags = [*digits_flags(tmp_path / "auto"), *AUTO, "TRAIN.EPOCH_STEPS=2", "DATA.BATCH_SIZE_EVAL=auto"]
    auto = train([*flags, "DATA.MEMORY_GB=0.018", "TRAIN.MAX_STEPS=3"])
    sizes = [AUTO[1], "DATA.BATCH_SIZE=16", "DATA.BATCH_SIZE_EVAL=16"]
    fixed = [*digits_flags(tmp_path / "fixed"), *sizes, "TRAIN.EPOCH_STEPS=2"]
    options = parse_value((auto / "config.yaml").read_text())
    assert (options["DATA"]["BATCH_SIZE"], options["TRAIN"]["ACCUM_ITER"]) == (16, 6)
    trials = len(fits_16)
    assert trials
    assert {trial.train.accum_iter for trial in fits_16} == {2}
    train(["-resume=auto", *flags])  # needs no -memory_gb
    assert len(fits_16) == trials
    assert_same_run(auto, train(fixed))


def test_all_ranks_take_the_smallest(cpu, fits_16, monkeypatch):
    monkeypatch.setattr(batch_size, "gather_objects", lambda found, context: [found, 4])
    config = config_for("-opts", *AUTO, "DATA.MEMORY_GB=0.018")
    assert find_batch_size(config, replace(cpu, world_size=2))[0] == 4
    assert [trial.data.batch_size for trial in fits_16] == [1, 2, 4, 8, 16, 24]


def test_memory_that_other_processes_use_on_a_gpu_does_not_count(cpu, fits_16, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (9_000_000, 80_000_000_000))
    config = config_for("-opts", *AUTO)
    assert find_batch_size(config, replace(cpu, device=torch.device("cuda:0")))[0] == 8


@mark.slow
def test_the_run_needs_no_more_than_the_limit(tmp_path, cpu):
    flags = [*digits_flags(tmp_path), *AUTO, "DATA.IMAGE_SIZE=128", "TRAIN.MAX_STEPS=2", "DATA.GLOBAL_BATCH_SIZE=16"]
    flags += ["DATA.VAL_FRACTION=0.01", "MODEL.ATTENTION=explicit"]  # whose memory grows with the batch
    with refused("not one image fits"):
        train([*flags, "DATA.MEMORY_GB=0.1"])
    single = config_for(*flags, "DATA.BATCH_SIZE=1", "DATA.GLOBAL_BATCH_SIZE=null", "TRAIN.ACCUM_ITER=2")
    least = (peak_memory_bytes(cpu.device) + batch_size._measure_in_child(single, cpu.device)) / 1e9
    limit = (least + 0.3) / 0.9
    run = train([*flags, f"DATA.MEMORY_GB={limit}"])
    assert 1 < parse_value((run / "config.yaml").read_text())["DATA"]["BATCH_SIZE"] < 16
    assert read_result(run)["peak_memory_bytes"] < 1e9 * limit


@mark.slow
def test_a_trial_ends_with_its_killed_run():
    """On a GPU it would keep its memory."""
    flags = cli("-cfg=configs/vit_base_patch16_224.yaml -dataset=fake -batch_size=auto -memory_gb=30 -dry_run")
    command = [sys.executable, "main_single_gpu.py", *flags, "-opts", "DATA.GLOBAL_BATCH_SIZE=256"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, start_new_session=True)
    while len(processes_in(process.pid)) < 4:  # the run, a tracker of resources, the server and the trial
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    ends = time.monotonic() + 20
    while (others := processes_in(process.pid)) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not others


def processes_in(session: int) -> list[str]:
    """Their folders in /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
            found += [str(path.parent)] * (state != "Z" and int(number) == session)
    return found


def test_a_trial_out_of_memory_is_no_error(cpu, monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    monkeypatch.setattr(batch_size, "build_state", MagicMock(side_effect=error))
    config = config_for("-batch_size=1", "-opts", "DATA.IMAGE_SIZE=16")
    assert batch_size._train_two_steps(config, cpu.device) == math.inf


REFUSED = """
options | ranks | named
 | 1 | -memory_gb
DATA.MEMORY_GB=0.0001 | 1 | not one image
DATA.MEMORY_GB=1 PARALLEL.STRATEGY=fsdp | 2 | fsdp
"""


@each_row(REFUSED)
def test_what_cannot_be_searched_is_refused(options, ranks, named, cpu, fits_16):
    config = config_for("-opts", *AUTO, *cli(options))
    with refused(named):
        find_batch_size(config, replace(cpu, world_size=int(ranks)))
