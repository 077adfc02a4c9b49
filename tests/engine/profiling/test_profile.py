"""Where the time of a step goes: from made-up traces whose answer is known, and of a tiny run."""

import gzip
import json
import random
import re
from dataclasses import replace

import pytest
import torch
from conftest import TINY_VIT, only_run, run_script

from configs.command_line import parse_command_line
from engine.commands.run import run
from engine.profiling.advice import Op, Profile, bottlenecks
from engine.profiling.page import page_of
from engine.profiling.step_times import WINDOW, StepTimes, step_times
from engine.telemetry.flops import MFUMeter
from engine.telemetry.phases import (  # fmt: skip
    BACKWARD,
    COPY,
    DATA_WAIT,
    EXCHANGE,
    FORWARD,
    LABELLED,
    LOGGING,
    OPTIMIZER,
    PHASES,
    REST,
    TRANSFORM,
)
from utils.distributed import single_process
from utils.errors import UserError
from utils.status import read_status


def event(category: str, name: str, start: float, stop: float, **arguments: int) -> dict:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": stop - start, "args": arguments}


def host(*spans: tuple[str, float, float]) -> list[dict]:
    return [event("user_annotation", *span) for span in spans]


def gpu(start: float, stop: float, launched: float | None, name: str = "gemm", category: str = "kernel") -> list[dict]:
    """Device work, and the call that launched it unless that lies before the trace."""
    number = random.getrandbits(60)
    work = [event(category, name, start, stop, correlation=number)]
    if launched is not None:
        work.append(event("cuda_runtime", "cudaLaunchKernel", launched, launched + 1, correlation=number))
    return work


def test_on_a_cpu_the_labels_are_the_time():
    events = [
        *host((WINDOW, 1000, 2000), (DATA_WAIT, 900, 1100), (FORWARD, 1100, 1400), (BACKWARD, 1400, 1900)),
        *host(("Optimizer.step#AdamW.step", 1900, 1990), (OPTIMIZER, 1900, 2100)),
        event("cpu_op", "aten::mm", 1100, 1400),
        {"ph": "M", "name": "process_name"},
    ]
    times = step_times(events, steps=2, on_gpu=False)
    expected = {DATA_WAIT: 50e-6, FORWARD: 150e-6, BACKWARD: 250e-6, OPTIMIZER: 50e-6}
    assert times.busy == pytest.approx(expected) and times.idle == {}
    assert times.seconds == pytest.approx(500e-6)
    assert times.share(FORWARD, BACKWARD) == pytest.approx(0.8)


def test_a_gpus_work_belongs_to_the_phase_that_launched_it():
    """The host runs ahead: what it launches is computed while it is in other phases, or has left them all."""
    labels = ((WINDOW, 0, 1000), (DATA_WAIT, 0, 100), (FORWARD, 100, 200), (BACKWARD, 200, 400), (LOGGING, 400, 410))
    events = [
        *host(*labels),
        *gpu(20, 60, launched=5, name="Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy"),
        *gpu(150, 450, launched=110),  # forward, computed during backward
        *gpu(450, 700, launched=390),  # backward; from the thread of autograd
        *gpu(600, 800, launched=395, name="ncclDevKernel_AllReduce_Sum_f32"),  # half of it beside a computation
        *gpu(650, 850, launched=50, name="Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy"),
        *gpu(900, 950, launched=450, name="Memcpy DtoH", category="gpu_memcpy"),
        *gpu(950, 960, launched=None),
    ]
    times = step_times(events, steps=1, on_gpu=True)
    microseconds = {phase: round(1e6 * seconds) for phase, seconds in times.busy.items()}
    assert microseconds == {COPY: 40 + 50, FORWARD: 300, BACKWARD: 250, EXCHANGE: 100, REST: 50 + 10}
    idle = {phase: round(1e6 * seconds) for phase, seconds in times.idle.items()}
    assert idle == {DATA_WAIT: 20 + 40, FORWARD: 50, REST: 50 + 40}
    assert times.seconds == pytest.approx(1e-3)
    assert times.idle_share() == pytest.approx(0.2) and times.idle_share(FORWARD) == pytest.approx(0.05)


@pytest.mark.parametrize("seed", range(20))
def test_each_moment_has_one_phase(seed):
    """Against painting microsecond by microsecond: computing over exchanging over copying over the host's phases."""
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, 300), 12))
    labels = [(rng.choice(LABELLED), start, stop) for start, stop in zip(cuts[::2], cuts[1::2], strict=True)]
    events = host((WINDOW, 10, 290), *labels)
    painted: dict[int, str] = {}
    for kind, name, category in (
        ("compute", "gemm", "kernel"), (EXCHANGE, "ncclDevKernel", "kernel"), (COPY, "Memcpy HtoD", "gpu_memcpy"),
    ):  # fmt: skip
        for start in sorted(rng.sample(range(300), 8)):
            stop, launched = start + rng.randint(1, 30), rng.randrange(300)
            events += gpu(start, stop, launched, name, category)
            launching = next((phase for phase, begin, end in labels if begin <= launched < end), REST)
            if any(launched == end for _, _, end in labels):
                launching = next(phase for phase, _, end in labels if launched == end)
            for moment in range(start, stop):
                painted.setdefault(moment, launching if kind == "compute" else kind)
    times = step_times(events, steps=1, on_gpu=True)
    expected = [painted.get(moment) for moment in range(10, 290)]
    for phase in PHASES:
        assert 1e6 * times.busy.get(phase, 0) == pytest.approx(expected.count(phase), abs=1e-6)
    assert 1e6 * sum(times.idle.values()) == pytest.approx(expected.count(None), abs=1e-6)


WELL = {DATA_WAIT: 0.01, TRANSFORM: 0.01, FORWARD: 0.28, BACKWARD: 0.62, OPTIMIZER: 0.06, LOGGING: 0.01, REST: 0.01}


def profile(*argv: str, busy: dict | None = None, idle: dict | None = None, **changes) -> Profile:
    """Of steps of a second in which all is well, but for what is given."""
    idle = idle or {}
    busy = WELL | (busy or {})
    busy[BACKWARD] -= sum(busy.values()) + sum(idle.values()) - 1
    times = StepTimes(busy, idle)
    config = parse_command_line(["-amp", *argv]).config
    made_up = Profile(config, "1 process(es)", "cuda", True, True, times, [], 3000.0, MFUMeter(10**11, 8e14), 10**9)
    return replace(made_up, **changes)


def test_where_all_is_well_nothing_is_advised():
    assert bottlenecks(profile()) == []
    assert "Nothing stands out: 90% of a step is the model's forward and backward pass." in page_of(profile())


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (profile(busy={DATA_WAIT: 0.0}, idle={DATA_WAIT: 0.3}), r"30% .* waiting for data: raise -num_workers; .*pack"),
        (profile(busy={COPY: 0.2}), r"20% .* copying to the GPU.*: raise -num_workers"),
        (profile(idle={FORWARD: 0.2, BACKWARD: 0.2}), r"40% .* host to launch its work: .*-compile.*-batch_size"),
        (profile("-opts", "AMP.ENABLED=false"), r"90% .* in float32: .*-amp"),
        (profile(is_compiled=False), r"90% .* not compiled: .*-compile"),
        (profile(busy={OPTIMIZER: 0.25}), r"25% .* the optimizer: .*-batch_size or -accum_iter"),
        (profile(busy={OPTIMIZER: 0.25}, has_fused_optimizer=False), r"25% .* not fused: .*TRAIN.OPTIMIZER.NAME AdamW"),
        (profile(ops=[Op("ampvit::random_mask", 0.3, 49)], device_type="cpu"), r"30% .* dropout .*: set MODEL.DROPOUT"),
        (profile(busy={EXCHANGE: 0.3}), r"30% .* exchanging gradients.*: .*-accum_iter"),
        (profile(busy={TRANSFORM: 0.15}), r"15% .* augmentation .*DATA.AFFINE_"),
        (profile(idle={LOGGING: 0.12}), r"13% .* logging: .*REPORT_FREQ"),
    ],
    ids=str,
)
def test_each_bottleneck_has_its_cure(found, expected):
    (sentence,) = bottlenecks(found)
    assert re.match(expected, sentence), sentence
    assert f"**Bottleneck: {sentence}**" in page_of(found)


def test_the_bottleneck_with_most_to_win_comes_first():
    found = bottlenecks(profile(busy={OPTIMIZER: 0.2}, idle={DATA_WAIT: 0.5}, is_compiled=False))
    assert [sentence.partition(":")[0] for sentence in found] == [
        "51% of a step is waiting for data", "20% of a step is the optimizer",
    ]  # fmt: skip
    page = page_of(profile(busy={OPTIMIZER: 0.2}, idle={DATA_WAIT: 0.5}))
    assert "The GPU is busy for 50.0% of the time." in page and "Then: 20% of a step is the optimizer" in page


def shares(page: str) -> dict[str, float]:
    rows = re.findall(r"^\| ([^|]+) \| .* \| ([\d.]+)% \|$", page, re.MULTILINE)
    return {name: float(share) for name, share in rows}


def test_a_run_is_profiled(digits_argv, cpu, tmp_path, capsys):
    """Over the ends of its short epochs, and without a checkpoint."""
    argv = ["-amp", "-profile", *digits_argv, "DATA.VAL_FRACTION=0.97", "DATA.BATCH_SIZE=8", "TRAIN.ACCUM_ITER=3"]
    assert run(parse_command_line([*argv, "MODEL.DROPOUT=0.1", "SAVE_FREQ_STEPS=1"]), cpu, "main_single_gpu.py") == 0
    folder = only_run(tmp_path / "out", "profile")
    page = (folder / "profile.md").read_text()
    assert page in capsys.readouterr().out
    parts = shares(page)
    assert parts.pop("step, with the profiler") == 100.0
    assert parts.keys() == set(PHASES) - {EXCHANGE}
    assert sum(parts.values()) == pytest.approx(100, abs=0.5)
    assert parts[COPY] == 0 and parts[REST] < 20
    assert all(parts[phase] > 0 for phase in (DATA_WAIT, TRANSFORM, FORWARD, BACKWARD, OPTIMIZER, LOGGING))
    assert re.search(r"\*\*images/s: [\d.]+, TFLOP/s: [\d.e-]+ \([\d.e-]+% of peak\), memory: [\d.]+ GB\*\*", page)
    ops = [float(share) for share in re.findall(r"^\| `aten::.*\| ([\d.]+)% \| [\d.]+ \|$", page, re.MULTILINE)]
    assert len(ops) > 5 and ops == sorted(ops, reverse=True) and sum(ops) < 100
    with gzip.open(folder / "trace.json.gz") as file:
        names = [entry.get("name") for entry in json.load(file)["traceEvents"]]
    assert names.count(OPTIMIZER) == 10 and names.count(FORWARD) == 30
    assert "Epoch[005/" in (folder / "log.txt").read_text()
    assert not list(folder.glob("*.pth")) and read_status(folder)["state"] == "finished"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_work_is_found_in_its_phases(digits_argv, tmp_path):
    assert (
        run(
            parse_command_line(["-amp", "-profile", *digits_argv, "MODEL.EMBED_DIM=192"]),
            single_process(),
            "main_single_gpu.py",
        )
        == 0
    )
    page = (only_run(tmp_path / "out", "profile") / "profile.md").read_text()
    parts = shares(page)
    assert sum(parts.values()) == pytest.approx(200, abs=0.5)  # the step's own row is 100
    assert "| phase | GPU busy (ms) | GPU idle (ms) | share |" in page and "The GPU is busy for" in page
    for phase in (COPY, FORWARD, BACKWARD, OPTIMIZER):
        (busy,) = re.findall(rf"^\| {phase} \| ([\d.e-]+) \|", page, re.MULTILINE)
        assert float(busy) > 0, phase
    assert parts[REST] < 20


def test_two_ranks_are_profiled_together(tmp_path):
    argv = ("-dataset=fake", "-batch_size=8", "-ngpus=2", "-num_workers=1", f"-output={tmp_path}", "-profile")
    printed = run_script("main_multi_gpu.py", *argv, "-opts", *TINY_VIT, "MODEL.NUM_CLASSES=1000")
    page = (only_run(tmp_path, "profile") / "profile.md").read_text()
    assert page in printed and "2 process(es)" in page and shares(page)[DATA_WAIT] > 0


@pytest.mark.parametrize(("flag", "named"), [("-dry_run", "-dry_run"), ("-eval", "-eval"), ("-resume=auto", "-resume")])
def test_what_a_profile_is_not(flag, named):
    weights = ["-pretrained=x.pth"] if flag == "-eval" else []
    with pytest.raises(UserError, match=f"^-profile trains a few steps of a run of its own; leave {named} out"):
        parse_command_line(["-profile", flag, *weights])
