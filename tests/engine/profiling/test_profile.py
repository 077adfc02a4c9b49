"""Profiles: step times of synthetic traces, advice for synthetic profiles, and the profile of a tiny run."""

import gzip
import json
import random
import re
import sys
from dataclasses import replace

import pytest
import torch
from conftest import TINY_VIT, only_run, run_script

from configs.command_line import parse_command_line
from engine.commands.run import run
from engine.parallel.strategy import Communication
from engine.profiling.profiler import (
    WINDOW,
    Op,
    Profile,
    StepTimes,
    bottlenecks,
    has_fast_half_precision,
    profile_page,
    step_times,
)
from engine.run.facts import Model
from engine.run.step_timer import LABELLED, Phase
from models.build import build_model
from utils.distributed import single_process
from utils.errors import UserError
from utils.files import read_json
from utils.status import STATUS

DATA_WAIT, COPY, TRANSFORM, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, LOGGING, OTHER = Phase


def event(category: str, name: str, start: float, stop: float, **arguments: int) -> dict:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": stop - start, "args": arguments}


def host_events(*spans: tuple[str, float, float]) -> list[dict]:
    return [event("user_annotation", *span) for span in spans]


def gpu_events(
    start: float, stop: float, launched: float | None, name: str = "gemm", category: str = "kernel"
) -> list[dict]:
    """Events of GPU work and of its launch; `launched` is None if the launch precedes the trace."""
    number = random.getrandbits(60)
    work = [event(category, name, start, stop, correlation=number)]
    if launched is not None:
        work.append(event("cuda_runtime", "cudaLaunchKernel", launched, launched + 1, correlation=number))
    return work


def test_cpu_phases_have_the_time_of_their_labels():
    events = [
        *host_events((WINDOW, 1000, 2000), (DATA_WAIT, 900, 1100), (FORWARD, 1100, 1400), (BACKWARD, 1400, 1900)),
        *host_events(("Optimizer.step#AdamW.step", 1900, 1990), (OPTIMIZER, 1900, 2100)),
        event("cpu_op", "aten::mm", 1100, 1400),
        {"ph": "M", "name": "process_name"},
    ]
    times = step_times(events, steps=2, on_gpu=False)
    expected = {DATA_WAIT: 50e-6, FORWARD: 150e-6, BACKWARD: 250e-6, OPTIMIZER: 50e-6}
    assert times.busy == pytest.approx(expected) and times.idle == {}
    assert times.seconds == pytest.approx(500e-6)
    assert times.share(FORWARD, BACKWARD) == pytest.approx(0.8)


def test_gpu_work_belongs_to_the_phase_that_launched_it():
    """The host runs ahead: the GPU works while the host is in a later phase or outside all phases."""
    labels = ((WINDOW, 0, 1000), (DATA_WAIT, 0, 100), (FORWARD, 100, 200), (BACKWARD, 200, 400), (LOGGING, 400, 410))
    events = [
        *host_events(*labels),
        *gpu_events(20, 60, launched=5, name="Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy"),
        *gpu_events(150, 450, launched=110),  # forward, computed during backward
        *gpu_events(450, 700, launched=390),  # backward; from the thread of autograd
        *gpu_events(600, 800, launched=395, name="ncclDevKernel_AllReduce_Sum_f32"),  # half of it overlaps computation
        *gpu_events(650, 850, launched=50, name="Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy"),
        *gpu_events(900, 950, launched=450, name="Memcpy DtoH", category="gpu_memcpy"),
        *gpu_events(950, 960, launched=None),
    ]
    times = step_times(events, steps=1, on_gpu=True)
    microseconds = {phase: round(1e6 * seconds) for phase, seconds in times.busy.items()}
    assert microseconds == {COPY: 40 + 50, FORWARD: 300, BACKWARD: 250, COMMUNICATION: 100, OTHER: 50 + 10}
    idle = {phase: round(1e6 * seconds) for phase, seconds in times.idle.items()}
    assert idle == {DATA_WAIT: 20 + 40, FORWARD: 50, OTHER: 50 + 40}
    assert times.seconds == pytest.approx(1e-3)
    assert times.idle_share() == pytest.approx(0.2) and times.idle_share(FORWARD) == pytest.approx(0.05)


@pytest.mark.parametrize("seed", range(5))
def test_each_microsecond_belongs_to_one_phase(seed):
    """Compares with a count per microsecond. Priority: computation, communication, copies, then host phases."""
    rng = random.Random(seed)
    bounds = sorted(rng.sample(range(1, 300), 12))
    labels = [(rng.choice(LABELLED), start, stop) for start, stop in zip(bounds[::2], bounds[1::2], strict=True)]
    events = host_events((WINDOW, 10, 290), *labels)
    expected_phase: dict[int, str] = {}
    for kind, name, category in (
        ("compute", "gemm", "kernel"), (COMMUNICATION, "ncclDevKernel", "kernel"), (COPY, "Memcpy HtoD", "gpu_memcpy"),
    ):  # fmt: skip
        for start in sorted(rng.sample(range(300), 8)):
            stop, launched = start + rng.randint(1, 30), rng.randrange(300)
            events += gpu_events(start, stop, launched, name, category)
            launching = next((phase for phase, begin, end in labels if begin <= launched < end), OTHER)
            if any(launched == end for _, _, end in labels):
                launching = next(phase for phase, _, end in labels if launched == end)
            for microsecond in range(start, stop):
                expected_phase.setdefault(microsecond, launching if kind == "compute" else kind)
    times = step_times(events, steps=1, on_gpu=True)
    expected = [expected_phase.get(microsecond) for microsecond in range(10, 290)]
    for phase in Phase:
        assert 1e6 * times.busy.get(phase, 0) == pytest.approx(expected.count(phase), abs=1e-6)
    assert 1e6 * sum(times.idle.values()) == pytest.approx(expected.count(None), abs=1e-6)


GOOD = {DATA_WAIT: 0.01, TRANSFORM: 0.01, FORWARD: 0.28, BACKWARD: 0.62, OPTIMIZER: 0.06, LOGGING: 0.01, OTHER: 0.01}


def profile(busy: dict | None = None, idle: dict | None = None, **changes) -> Profile:
    """A profile without bottlenecks, with these changes; a step takes 1 second."""
    idle = idle or {}
    busy = GOOD | (busy or {})
    busy[BACKWARD] -= sum(busy.values()) + sum(idle.values()) - 1
    good = Profile(
        title="1 process, NVIDIA H200",
        model_name="vit",
        batch_size=256,
        device_type="cuda",
        is_half_precision=True,
        has_fast_half=True,
        is_compiled=True,
        times=StepTimes(busy, idle),
        ops=[],
        images_per_second=3000.0,
        model=Model(10**6, 10**11, 989.4e12),
        peak_memory_bytes=10**9,
    )
    return replace(good, **changes)


CPU = {"device_type": "cpu", "is_compiled": False}
MASKS = [Op("ampvit::random_mask", 0.3, 49)]
ELEMENTWISE = [Op("aten::mm", 0.5, 96), Op("aten::gelu", 0.2, 12), Op("aten::add_", 0.1, 24), Op("aten::copy_", 0.1, 9)]
LAUNCH_WAITS = {"idle": {FORWARD: 0.2, BACKWARD: 0.2}}


@pytest.mark.parametrize(("profiled", "share", "named"), [
    (profile(busy={DATA_WAIT: 0.0, COPY: 0.1}, idle={DATA_WAIT: 0.2}), 30, "-num_workers.*make_shards.py -size N"),
    (profile(**LAUNCH_WAITS, is_compiled=False), 40, "launch .*-compile.*-batch_size"),
    (profile(**LAUNCH_WAITS), 40, "launch .*-batch_size.*COMPILE=max"),
    (profile(is_half_precision=False), 90, "float32.*-amp"),
    (profile(is_half_precision=False, **CPU), 90, "float32.*-amp"),
    (profile(is_compiled=False, ops=ELEMENTWISE), 30, "elementwise .*-compile"),
    (profile(busy={OPTIMIZER: 0.25}), 25, "optimizer.*-batch_size or -accum_iter"),
    (profile(ops=MASKS, **CPU), 30, "MODEL.DROPOUT"),
    (profile(busy={COMMUNICATION: 0.3}), 30, "communication .*COMM_HOOK=bf16.*-accum_iter"),
    (profile(busy={TRANSFORM: 0.15}), 15, "augmentation .*DATA.AFFINE_"),
    (profile(idle={LOGGING: 0.12}), 13, "logging.*REPORT_FREQ"),
])  # fmt: skip
def test_each_bottleneck_has_its_advice(profiled, share, named):
    (sentence,) = bottlenecks(profiled)
    assert re.match(rf"{share}% .*{named}", sentence), sentence
    assert f"**Bottleneck: {sentence}**" in profile_page(profiled)


@pytest.mark.parametrize("good", [
    profile(), profile(**CPU), profile(ops=ELEMENTWISE, **CPU),  # compilation on a CPU
    profile(is_half_precision=False, has_fast_half=False, **CPU),
    profile(is_compiled=False, ops=[Op("aten::gelu", 0.1, 12)]),  # a small share
    profile(ops=ELEMENTWISE),  # already compiled
    profile(is_compiled=False, idle={FORWARD: 0.05}),  # a short launch wait
    profile(ops=MASKS),  # on a GPU
    profile(busy={DATA_WAIT: 0.0, COPY: 0.1}, idle={DATA_WAIT: 0.3}, data_in_memory=True),
])  # fmt: skip
def test_no_advice_without_a_saving(good):
    assert bottlenecks(good) == [] and "No bottleneck found: " in profile_page(good)


def test_largest_expected_saving_is_first():
    profiled = profile(busy={OPTIMIZER: 0.2}, idle={DATA_WAIT: 0.5})
    assert [sentence.partition(":")[0] for sentence in bottlenecks(profiled)] == [
        "51% of a step is waiting for data", "20% of a step is the optimizer",
    ]  # fmt: skip
    page = profile_page(profiled)
    assert "The GPU is busy for 50.0% of the time." in page and "Next: 20% of a step is the optimizer" in page


def test_devices_with_fast_half_precision(monkeypatch):
    flags = ""
    monkeypatch.setattr("pathlib.Path.exists", lambda path: True)
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: f"processor\t: 0\nflags\t\t: {flags}\n")
    expected = {"avx2 avx512_vnni": False, "avx2 avx512_bf16": True, "amx_tile amx_bf16": True, "asimd bf16": True}
    for flags, is_fast in expected.items():
        assert has_fast_half_precision(torch.device("cpu")) is is_fast, flags
    for capability, is_fast in {(6, 1): False, (7, 0): True}.items():
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device, found=capability: found)
        assert has_fast_half_precision(torch.device("cuda", 0)) is is_fast


def test_the_exchange_of_gradients_is_unknown_without_torchs_figures():
    page = profile_page(profile(communication=Communication("float32", 10**8, None, None, None)))
    assert "| unknown | 100 MB, float32 | unknown | unknown |" in page


def shares(page: str) -> dict[str, float]:
    rows = re.findall(r"^\| ([^|]+) \| .* \| ([\d.]+)% \|$", page, re.MULTILINE)
    return {name: float(share) for name, share in rows}


def test_profile_of_a_run(digits_argv, cpu, tmp_path, capsys, monkeypatch):
    """The profile spans several short epochs, writes no checkpoints, and goes to no logger besides TensorBoard."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    argv = ["-amp", "-profile", "-epochs=1", *digits_argv, "DATA.VAL_FRACTION=0.97", "DATA.BATCH_SIZE=8"]
    more = ["TRAIN.ACCUM_ITER=3", "MODEL.DROPOUT=0.1", "SAVE_FREQ_STEPS=1", "LOGGERS=wandb"]
    assert run(parse_command_line([*argv, *more]), cpu) == 0
    folder = only_run(tmp_path / "out", "profile")
    page = (folder / "profile.md").read_text()
    assert page in capsys.readouterr().out
    parts = shares(page)
    assert parts.pop("step, with the profiler") == 100.0
    assert parts.keys() == set(Phase) - {COMMUNICATION}
    assert sum(parts.values()) == pytest.approx(100, abs=0.5)
    assert parts[COPY] == 0 and parts[OTHER] < 20
    assert all(parts[phase] > 0 for phase in (DATA_WAIT, TRANSFORM, FORWARD, BACKWARD, OPTIMIZER, LOGGING))
    assert re.search(r"\*\*images/s: [\d.]+, TFLOP/s: [\d.e-]+, memory: [\d.]+ GB\*\*", page)
    ops = [float(share) for share in re.findall(r"^\| `aten::.*\| ([\d.]+)% \| [\d.]+ \|$", page, re.MULTILINE)]
    assert len(ops) > 5 and ops == sorted(ops, reverse=True) and sum(ops) < 100
    with gzip.open(folder / "trace.json.gz") as file:
        names = [entry.get("name") for entry in json.load(file)["traceEvents"]]
    assert names.count(OPTIMIZER) == 10 and names.count(FORWARD) == 30
    epochs = re.findall(r"Epoch\[(\d+)/(\d+)\]", (folder / "log.txt").read_text())
    assert int(epochs[-1][0]) > 4 and all(done <= total for done, total in epochs)  # more than NUM_EPOCHS
    assert not list(folder.glob("*.pth")) and read_json(folder / STATUS)["state"] == "finished"


@pytest.mark.gpu
def test_gpu_work_is_assigned_to_its_phase(digits_argv, tmp_path):
    command = parse_command_line(["-amp", "-profile", *digits_argv, "MODEL.EMBED_DIM=192"])
    assert run(command, single_process()) == 0
    page = (only_run(tmp_path / "out", "profile") / "profile.md").read_text()
    parts = shares(page)
    assert sum(parts.values()) == pytest.approx(200, abs=0.5)  # 100 for the phases and 100 for the row of the step
    assert "| phase | GPU busy (ms) | GPU idle (ms) | share |" in page and "The GPU is busy for" in page
    for phase in (COPY, FORWARD, BACKWARD, OPTIMIZER):
        (busy,) = re.findall(rf"^\| {phase} \| ([\d.e-]+) \|", page, re.MULTILINE)
        assert float(busy) > 0, phase
    assert parts[OTHER] < 20


@pytest.mark.slow
def test_profile_of_two_ranks(tmp_path):
    argv = ("-dataset=fake", "-batch_size=8", "-ngpus=2", "-num_workers=1", f"-output={tmp_path}", "-profile")
    options = (*TINY_VIT, "MODEL.NUM_CLASSES=1000", "PARALLEL.COMM_HOOK=bf16", "PARALLEL.BUCKET_MB=0")
    printed = run_script("main_multi_gpu.py", *argv, "-opts", *options)
    page = (only_run(tmp_path, "profile") / "profile.md").read_text()
    assert page in printed and "2 processes" in page and shares(page)[DATA_WAIT] > 0
    config = parse_command_line(["-dataset=fake", "-opts", *options]).config
    parameters = list(build_model(config.model, config.data, torch.device("cpu"))[0].parameters())
    megabytes = 2 * sum(parameter.numel() for parameter in parameters) / 1e6
    cells = rf"\| {len(parameters)} \| {megabytes:.3g} MB, bfloat16 \| [\d.e-]+ ms \| \d+% \|"
    assert re.search(rf"## Exchange of gradients\n\n.*\n.*\n{cells}\n", page), page


@pytest.mark.parametrize("flags", [["-dry_run"], ["-eval", "-pretrained=x.pth"], ["-resume=auto"]])
def test_flags_that_contradict_profile(flags):
    with pytest.raises(UserError, match=f"^-profile .* cannot be combined with {flags[0].partition('=')[0]}"):
        parse_command_line(["-profile", *flags])
