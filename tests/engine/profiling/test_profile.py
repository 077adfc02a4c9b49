"""Profiles: the phases of synthetic events, advice for synthetic profiles, and the profile of a tiny run."""

import gzip
import json
import re
import sys
from dataclasses import replace

from conftest import ALL_DIGITS, cli, each_value, log_of, only_run, run_here
from pytest import approx, mark
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from configs.command_line import parse_command_line
from engine.commands.run import run
from engine.profiling.profiler import TRACE, Profile, advice, phase_seconds, profile_text
from engine.run.cost import Phase
from utils.distributed import single_process
from utils.files import read_json
from utils.notes import STATUS
from utils.tables import read_csv_rows

DATA_WAIT, TRANSFORM, FORWARD, BACKWARD, OPTIMIZER, LOGGING = Phase


def event(name: str, start: int, end: int, *kernels: int, device=DeviceType.CPU, label: bool = False) -> FunctionEvent:
    """An event of torch's profiler, in microseconds. kernels: the durations of the kernels that it launched."""
    span = {"thread": 1, "start_us": start, "end_us": end}
    found = FunctionEvent(0, name, **span, device_type=device, is_user_annotation=label, use_device="cuda")
    for duration in kernels:
        found.append_kernel("gemm", 0, duration)
    return found


def test_gpu_work_belongs_to_the_phase_that_launched_it():
    events = [
        event("data wait", 0, 100, label=True),
        event("aten::copy_", 20, 30, 60),
        event("forward", 100, 200, label=True),
        event("forward", 110, 700, device=DeviceType.CUDA, label=True),  # torch's span of the same label on the GPU
        event("aten::mm", 110, 190, 300, 40),
        event("backward", 200, 400, label=True),
        event("MmBackward0", 390, 450, 250),  # in the thread of autograd
        event("aten::mul", 450, 460, 1000),  # outside of all phases
        event("Optimizer.step#AdamW.step", 500, 590, label=True),
        event("optimizer", 500, 600, label=True),
    ]
    host, gpu = phase_seconds(events, steps=2)
    assert host == approx(dict.fromkeys(Phase, 0.0) | {DATA_WAIT: 5e-5, FORWARD: 5e-5, BACKWARD: 1e-4, OPTIMIZER: 5e-5})
    assert gpu == approx(dict.fromkeys(Phase, 0.0) | {DATA_WAIT: 3e-5, FORWARD: 1.7e-4, BACKWARD: 1.25e-4})


NO_TIME = dict.fromkeys(Phase, 0.0)
SECONDS = {DATA_WAIT: 0.01, TRANSFORM: 0.01, FORWARD: 0.28, BACKWARD: 0.62, OPTIMIZER: 0.06, LOGGING: 0.01}
GOOD = Profile(1.0, NO_TIME, SECONDS, "", 0.01, 0.0, False, True, False)  # on a GPU, compiled
GOOD_CPU = replace(GOOD, host_seconds=SECONDS, gpu_seconds=NO_TIME, launch_bound_share=None, is_compiled=False)


# on_gpu: else on a CPU; slow: seconds of phases
ADVICE = """
on_gpu | changes | slow | share | option
true | {data_wait_share: 0.3} | {} | 30 | -num_workers
true | {launch_bound_share: 0.6, is_compiled: false} | {} | 60 | -compile
true | {launch_bound_share: 0.6} | {} | 60 | TRAIN.COMPILE=max
true | {is_slow_float32: true} | {} | 90 | -amp
true | {} | {optimizer: 0.25} | 25 | -accum_iter
false | {} | {transform and mixup: 0.15} | 15 | DATA.AFFINE_
true | {} | {} | |
false | {} | {} | |
true | {data_wait_share: 0.3, data_in_memory: true} | {} | |
"""


@each_value(ADVICE)
def test_a_part_that_takes_long_has_its_advice(on_gpu, changes, slow, share, option):
    seconds = "gpu_seconds" if on_gpu else "host_seconds"
    profile = replace(GOOD if on_gpu else GOOD_CPU, **{seconds: SECONDS | slow}, **changes)
    sentences = advice(profile)
    assert len(sentences) == (share is not None)
    assert all(line in profile_text(profile) for line in sentences)
    assert all(line.startswith(f"{share}% ") and option in line for line in sentences)


def shares(text: str) -> dict[str, float]:
    """The share of each row of the tables, in percent."""
    return {
        name: float(share) for name, share in re.findall(r"^(\S.*?)  .* ([\d.]+)%(?: +[\d.]+)?$", text, re.MULTILINE)
    }


def test_profile_of_a_run(digits_argv, tmp_path, monkeypatch):
    """It spans several short epochs, has the AMP report and all its ops, writes no checkpoints, and goes to no logger
    besides TensorBoard.
    """
    monkeypatch.setitem(sys.modules, "wandb", None)
    argv = [*cli("-amp -amp_dtype=float16 -profile -epochs=1"), *digits_argv, ALL_DIGITS, "DATA.VAL_FRACTION=0.97"]
    more = cli("TRAIN.ACCUM_ITER=2 MODEL.DEPTH=1 MODEL.DROPOUT=0.1 SAVE_FREQ_STEPS=1 LOGGERS=wandb")
    more += ["DATA.BATCH_SIZE=8", "AMP.INIT_LOSS_SCALING=1024"]
    assert run_here(*argv, *more) == 0
    folder = only_run(tmp_path / "out", "profile")
    log = log_of(folder)
    text = log[log.index("images/s: ") :]
    found = shares(text)
    parts = [found[phase] for phase in Phase]
    assert min(parts) > 0
    assert sum(parts) == approx(found["step, with the profiler"], abs=0.5)
    assert 80 < found["step, with the profiler"] <= 100
    with gzip.open(folder / TRACE) as file:
        names = [entry.get("name") for entry in json.load(file)["traceEvents"]]
    assert (names.count(OPTIMIZER), names.count(FORWARD)) == (10, 20)
    assert not list(folder.glob("*.pth"))
    assert read_json(folder / STATUS)["state"] == "finished"
    assert "float16 is safe at loss scale" in log[log.index("----- AMP report: O1: float16") :]
    ops = read_csv_rows(folder / "half_values.csv")
    assert {"qkv", "head"} <= {row["module"].rpartition(".")[2] for row in ops if row["op"] == "linear"}
    assert all(float(row["gradient"]) > 0 for row in ops if row["op"] == "weight")


@mark.gpu
def test_gpu_work_is_assigned_to_its_phase(digits_argv, tmp_path):
    command = parse_command_line(["-amp", "-profile", *digits_argv, "MODEL.EMBED_DIM=192"])
    assert run(command, single_process()) == 0
    log = log_of(only_run(tmp_path / "out", "profile"))
    found = shares(log[log.index("GPU (ms)") :])
    assert all(found[phase] > 0 for phase in (DATA_WAIT, FORWARD, BACKWARD, OPTIMIZER))
    assert sum(found[phase] for phase in Phase) == approx(found["step, with the profiler"], abs=0.5)
