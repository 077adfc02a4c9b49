"""-batch_size=auto: the largest size that fits, and a run that equals one with the size given."""

import math
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import (
    ROOT,
    assert_same_state,
    config_for,
    digits_flags,
    environment,
    read_result,
    refused,
    rows,
    states,
    train,
)
from hypothesis import example, given
from hypothesis import strategies as st

from configs.yaml_io import parse_value
from engine.training import batch_size
from engine.training.batch_size import find_batch_size, largest_size

AUTO = ["DATA.BATCH_SIZE=auto", "DATA.GLOBAL_BATCH_SIZE=96"]


@given(
    sizes=st.sets(st.integers(1, 5000), min_size=1, max_size=60).map(sorted),
    fixed=st.floats(0.5, 5),
    per_image=st.floats(0.05, 1),
    limit=st.floats(1, 500),
)
@example(sizes=[46, 47, 81], fixed=2.0, per_image=0.25, limit=23.0)
def test_the_largest_size_that_fits_is_found_without_sizes_far_above_it(sizes, fixed, per_image, limit):
    measured = {}

    def peak(size):
        measured[size] = fixed + per_image * size
        return measured[size]

    found = largest_size(sizes, peak, limit)
    fitting = [size for size in sizes if fixed + per_image * size <= limit]
    at_least = [size for size in fitting if fixed + per_image * size <= 0.97 * limit]
    assert found in [0, *fitting]
    assert found >= max(at_least, default=0)
    too_large = [size for size in measured if size > found]
    assert len(too_large) <= 2
    assert len(measured) <= 10 + len(sizes) // 20


def test_a_size_that_does_not_fit_is_followed_by_the_next_smaller_one():
    peaks = {1: 1.0, 2: 2.0, 4: 3.0, 8: math.inf, 16: math.inf}
    assert largest_size([*peaks], peaks.__getitem__, 100.0) == 4
    assert largest_size([1, 7], {1: 1.0, 7: 50.0}.__getitem__, 100.0) == 7
    assert largest_size([1, 7], {1: 101.0}.__getitem__, 100.0) == 0


@pytest.fixture
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
    flags = [*digits_flags(tmp_path / "auto"), *AUTO, "TRAIN.EPOCH_STEPS=4", "DATA.BATCH_SIZE_EVAL=auto"]
    auto = train([*flags, "DATA.MEMORY_GB=0.018", "TRAIN.NUM_EPOCHS=1"])
    fixed = [
        *digits_flags(tmp_path / "fixed"),
        AUTO[1],
        "TRAIN.EPOCH_STEPS=4",
        "DATA.BATCH_SIZE=16",
        "DATA.BATCH_SIZE_EVAL=16",
    ]
    given_size = train([*fixed, "TRAIN.NUM_EPOCHS=1"])
    assert_same_state(states(auto), states(given_size))
    assert rows(auto) == rows(given_size)
    options = parse_value((auto / "config.yaml").read_text())
    assert (options["DATA"]["BATCH_SIZE"], options["TRAIN"]["ACCUM_ITER"]) == (16, 6)
    trials = len(fits_16)
    assert trials
    assert {trial.train.accum_iter for trial in fits_16} == {2}
    train(["-resume=auto", *flags, "TRAIN.NUM_EPOCHS=2"])  # needs no -memory_gb
    train([f"-resume={given_size}", *fixed, "TRAIN.NUM_EPOCHS=2"])
    assert len(fits_16) == trials
    assert_same_state(states(auto), states(given_size))


@pytest.mark.parametrize("mode, more", [("false", "cheap"), ("cheap", "true"), ("true", "")])
def test_all_ranks_take_the_smallest(cpu, fits_16, monkeypatch, mode, more):
    monkeypatch.setattr(batch_size, "gather_objects", lambda found, context: [found, 4])
    config = config_for("-opts", *AUTO, "DATA.MEMORY_GB=0.018", f"MODEL.GRAD_CHECKPOINTING={mode}")
    size, note = find_batch_size(config, replace(cpu, world_size=2))
    assert size == 4
    assert "16: 0.02 GB" in note.text
    assert note.text.partition("GRAD_CHECKPOINTING=")[2].partition(")")[0] == more
    assert max(trial.data.batch_size for trial in fits_16) == 16


def test_memory_that_other_processes_use_on_a_gpu_does_not_count(cpu, fits_16, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (9_000_000, 80_000_000_000))
    config = config_for("-opts", *AUTO)
    size, note = find_batch_size(config, replace(cpu, device=torch.device("cuda:0")))
    assert size == 8
    assert "fits into 0.009 GB" in note.text


@pytest.mark.slow
def test_the_run_needs_no_more_than_the_limit(tmp_path):
    flags = [*digits_flags(tmp_path), *AUTO, "DATA.IMAGE_SIZE=128", "TRAIN.MAX_STEPS=2", "DATA.GLOBAL_BATCH_SIZE=16"]
    with refused("not one image fits") as error:
        train([*flags, "DATA.MEMORY_GB=0.1"])
    least = float(str(error.value).partition("peaks: 1: ")[2].partition(" ")[0])
    limit = (least + 0.3) / 0.9
    run = train([*flags, f"DATA.MEMORY_GB={limit}"])
    assert 1 < parse_value((run / "config.yaml").read_text())["DATA"]["BATCH_SIZE"] < 16
    assert read_result(run)["peak_memory_bytes"] < 1e9 * limit


@pytest.mark.slow
def test_a_trial_ends_with_its_killed_run():
    """On a GPU it would keep its memory."""
    flags = ["-cfg=configs/vit_base_patch16_224.yaml", "-dataset=fake", "-batch_size=auto", "-memory_gb=30", "-dry_run"]
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
    def build(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(batch_size, "build_state", build)
    config = config_for("-batch_size=1", "-opts", "DATA.IMAGE_SIZE=16")
    assert batch_size._train_two_steps(config, cpu.device) == math.inf


def test_what_cannot_be_searched_is_refused(cpu, fits_16):
    def find(*options, ranks=1):
        find_batch_size(config_for("-opts", *AUTO, *options), replace(cpu, world_size=ranks))

    for options, ranks, said in (
        ([], 1, "-memory_gb"),
        (["DATA.MEMORY_GB=0.0001"], 1, "not one image"),
        (["DATA.MEMORY_GB=1", "PARALLEL.STRATEGY=fsdp"], 2, "fsdp"),
    ):
        with refused(said):
            find(*options, ranks=ranks)
