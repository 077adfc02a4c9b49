"""The cost of a run: FLOPs of a model, peaks, TFLOP/s and MFU; the times of micro-steps on a simulated GPU; a rank that
is slower than the others is found with its cause, once."""

import math
from collections import deque
from itertools import islice
from types import SimpleNamespace

import numpy as np
import torch
from conftest import cells_of, config_for, each_value, model_for, train
from pytest import approx, fixture, mark
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter

from configs.schema import Data
from datasets.batch import Batch
from engine.run.cost import (
    FORWARD_PASS,
    LOADING,
    SlowRanks,
    copy_to_meta,
    describe_model,
    flops_per_image,
    peak_flops_per_second,
    timer_of,
)
from engine.run.facts import Model
from engine.run.record import RUN, RunRecord
from models.kernels import EXPLICIT, use_attention
from utils.distributed import ProcessContext
from utils.files import read_json
from utils.tables import read_csv_rows

NOTHING = torch.empty(0)


class SimulatedGpu:
    """A host and a GPU with one queue; the times are in seconds. Launching takes the host `launch`, spread evenly."""

    def __init__(self, monkeypatch):
        self.now = self.free_at = 0.0
        gpu = self

        class Event:
            def __init__(self, enable_timing=False):
                self.time = math.inf

            def record(self):
                self.time = max(gpu.now, gpu.free_at)

            def query(self):
                return self.time <= gpu.now

            def elapsed_time(self, end):
                assert self.query()
                assert end.query()
                return 1000 * (end.time - self.time)

        monkeypatch.setattr(torch.cuda, "Event", Event)

    def compute(self, launch, busy, kernels=100):
        for _ in range(kernels):
            self.now += launch / kernels
            self.free_at = max(self.now, self.free_at) + busy / kernels

    def batches(self, period, copy=0.001):
        """The loader has finished batch n at (n + 1) x period."""
        for number in range(10**6):
            self.now = max(self.now, (number + 1) * period)
            copied = torch.cuda.Event()
            copied.time = self.now + copy
            self.free_at = max(self.free_at, copied.time)  # the computation waits for the copy
            yield Batch(NOTHING, NOTHING, 1, copied=copied)

    def train(self, timer, batches, steps, launch, busy, accum=1):
        """launch, busy: of the two passes of a micro-step; a third is the forward pass. Returns the seconds of all."""
        started = self.now
        self.taken = []
        step_ends = deque()
        for _ in range(steps):
            for batch in islice(iter(lambda: timer.next_batch(batches), None), accum):
                assert batch.copied
                with timer.forward():
                    self.compute(launch / 3, busy / 3)
                self.compute(2 * launch / 3, 2 * busy / 3)
            with timer.launch_check():
                self.compute(launch=0.001, busy=0.0002)
            step_ends.append(self.free_at)
            if len(step_ends) > 2:  # the host is at most two steps ahead
                self.now = max(self.now, step_ends.popleft())
            self.taken.append(timer.take())
        self.now = max(self.now, self.free_at)  # a report reads the metrics
        return self.now - started


@fixture
def simulated(monkeypatch):
    return SimulatedGpu(monkeypatch), timer_of(torch.device("cuda"))


SHARES = """
loader | launch | busy | wait | launch_bound
0.080 | 0.010 | 0.075 | 0.06 | 0  # the host spends 87% of the time in next()
0.300 | 0.010 | 0.075 | 0.75 | 0
0.010 | 0.080 | 0.030 | 0.01 | 1  # the copy is not hidden: the GPU has nothing to compute
"""


@mark.parametrize("accum", [1, 4])
@each_value(SHARES)
def test_shares_of_the_time(simulated, loader, launch, busy, wait, launch_bound, accum):
    gpu, timer = simulated
    batches = gpu.batches(loader)
    gpu.train(timer, batches, 10, launch, busy, accum)
    start = timer.totals()
    timer.take()
    seconds = gpu.train(timer, batches, 40, launch, busy, accum)
    taken = np.sum([*gpu.taken, timer.take()], axis=0)
    times = timer.totals().since(start)
    assert taken == approx((times.data_wait_seconds, times.forward_seconds))
    assert times.data_wait_seconds / seconds == approx(wait, abs=0.015)
    assert times.launch_bound_share == approx(launch_bound, abs=0.05)
    assert times.forward_seconds == approx(40 * accum * max(busy, launch) / 3, rel=0.05)


def test_a_run_compares_the_seconds_of_each_step(digits_argv, monkeypatch):
    found = []
    monkeypatch.setattr(SlowRanks, "add_step", lambda ranks, seconds: found.append(seconds))
    folder = train([*digits_argv, "TRAIN.NUM_EPOCHS=1"])
    assert [seconds.shape for seconds in found] == [(1, 2)] * 5
    (epoch,) = read_csv_rows(folder / "metrics.csv")
    waits, forward_passes = torch.cat(found).sum(0).tolist()
    assert 0 < waits + forward_passes < float(epoch["train_seconds"])


def test_work_between_epochs_is_no_wait(simulated):
    """An evaluation runs while the loader waits for the request of the next batch."""
    gpu, timer = simulated
    batches = gpu.batches(period=0.0)
    gpu.train(timer, batches, 5, launch=0.01, busy=0.075)
    start = timer.totals()
    gpu.compute(launch=1.0, busy=60.0)
    gpu.train(timer, batches, 5, launch=0.01, busy=0.075)
    assert timer.totals().since(start).data_wait_seconds < 0.01


EVEN = (0.01, 0.10)  # waiting for data, forward pass


@fixture
def slow_ranks(cpu, tmp_path):
    """A function that makes a `SlowRanks`; its run.json is in `tmp_path`."""
    (record := RunRecord()).open(tmp_path)
    return lambda compares_forward=True: SlowRanks(compares_forward, cpu, record)


def feed(ranks: SlowRanks, steps: int, *seconds: tuple[float, float]) -> list[tuple[int, str]]:
    """The notes in these equal steps, each with the number of steps done then."""
    times = torch.tensor(seconds, dtype=torch.float64)
    notes = ((step, ranks.add_step(times)) for step in range(1, steps + 1))
    return [(step, str(note)) for step, note in notes if note]


FOUND = f"""
seconds | cause | times
[0.09, 0.10] | {LOADING} | 90 ms per step against 10 ms
[0.01, 0.18] | {FORWARD_PASS} | 180 ms per step against 100
"""


@each_value(FOUND)
def test_found_after_50_steps_with_rank_cause_and_times(slow_ranks, tmp_path, seconds, cause, times):
    ((step, note),) = feed(slow_ranks(), 500, EVEN, EVEN, seconds, EVEN)
    assert step == 50
    assert all(word in note for word in ("rank 2 on", " 73% ", cause, times))  # 0.19 s against 0.11 s
    assert (status := read_json(tmp_path / RUN)["slow_rank"])["rank"] == 2
    assert status["cause"] == cause


def test_told_again_after_recovery_or_for_another_cause(slow_ranks, tmp_path):
    ranks = slow_ranks()
    slow_loading = (0.09, 0.10)
    slow_forward = (0.01, 0.19)
    assert len(feed(ranks, 100, EVEN, EVEN, slow_loading)) == 1
    ((step, note),) = feed(ranks, 100, EVEN, EVEN, slow_forward)
    assert step == 50
    assert FORWARD_PASS in note
    assert feed(ranks, 50, EVEN, EVEN, EVEN) == []
    assert read_json(tmp_path / RUN)["slow_rank"] is None
    assert [step for step, _ in feed(ranks, 100, EVEN, EVEN, slow_forward)] == [50]


NOISE = """
compares_forward | seconds | number
true | [[0.01, 0.10], [0.01, 0.14]] | 1  # one of two ranks
true | [[0.0, 0.004], [0.0, 0.008]] | 0  # twice as long, but 4 ms
false | [[0.01, 0.10], [0.01, 0.10], [0.01, 5.0]] | 0  # the forward pass waits for other ranks
"""


@each_value(NOISE)
def test_noise_is_not_found(slow_ranks, compares_forward, seconds, number):
    notes = feed(slow_ranks(compares_forward), 200, *seconds)
    assert [FORWARD_PASS in note for _, note in notes] == [True] * number


def test_bursts_of_loading_workers_count_as_their_mean_and_single_stalls_do_not(slow_ranks):
    """Four workers: every fourth step waits."""
    ranks = slow_ranks()
    assert feed(ranks, 1, EVEN, (60.0, 0.1), EVEN) == []
    bursts = ((0.0 if step % 4 else 0.4, 0.1) for step in range(99))
    ((_, note),) = (found for seconds in bursts for found in feed(ranks, 1, EVEN, EVEN, seconds))
    assert "rank 2 " in note
    assert LOADING in note


# FLOPs of a forward pass of ViT-Tiny; a multiply-add counts as two.
PATCHES = (224 // 16) ** 2
WIDTH = 192
EMBEDDING = 2 * PATCHES * 3 * 16**2 * WIDTH
HEAD = 2 * WIDTH * 1000
# Linear layers of attention and MLP; then q k^T and its product with v.
BLOCK = 2 * (PATCHES + 1) * 12 * WIDTH**2 + 2 * 2 * (PATCHES + 1) ** 2 * WIDTH
FORWARD = EMBEDDING + 12 * BLOCK + HEAD


def test_flops_of_a_vit_equal_the_closed_form():
    options = config_for("-cfg=configs/vit_tiny_patch16_224.yaml")
    model, _ = model_for(options, "meta")
    assert flops_per_image(model, options.data, trains=False) == FORWARD
    for is_fused in (False, True):
        for block in model.blocks:
            block.attn.fused_attn = is_fused
        assert flops_per_image(model, options.data) == 3 * FORWARD - EMBEDDING  # images have no gradient
    assert model.patch_embed.proj.weight.grad is None


@mark.parametrize("name", ["CaiT", "CoaT", "HaloNet", "SwinTransformer"])
def test_flops_are_those_of_torchs_counter(name):
    """On both devices, and with a frozen first half. torch ignores the groups in the gradients of a convolution."""

    def of_gradients(grad, images, weight, *others, out_shape):
        forward = flop_counter.conv_flop_count(images, weight, grad, others[4])
        return forward * sum(others[7][:2])

    options = config_for(f"-cfg=tests/fixtures/families/{name}/model.yaml")
    model, _ = model_for(options)
    parameters = [*model.parameters()]
    for parameter in parameters[: len(parameters) // 2]:
        parameter.requires_grad_(False)
    copied = copy_to_meta(model)
    use_attention(copied, EXPLICIT)
    mapping = {torch.ops.aten.convolution_backward: of_gradients}
    with flop_counter.FlopCounterMode(display=False, custom_mapping=mapping) as counter, sdpa_kernel(SDPBackend.MATH):
        copied(torch.empty((1, *options.data.image_shape), device="meta")).sum().backward()
    for device in ("meta", "cpu"):
        assert flops_per_image(model, options.data, device=device) == counter.get_total_flops()


@mark.parametrize("kind", [nn.LSTM, nn.TransformerEncoderLayer, nn.MultiheadAttention])
def test_layers_that_are_one_op_on_a_cpu_are_counted(kind, cpu):
    """Those with attention if no gradient is needed, as behind a frozen backbone."""
    layer = kind(8, 4, batch_first=True).requires_grad_(False)

    class OfRows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, rows):
            inputs = [rows] * (3 if kind is nn.MultiheadAttention else 1)
            return self.layer(*inputs)

    images = SimpleNamespace(image_shape=(8, 8))
    expected = flops_per_image(OfRows(), images)
    if kind is nn.LSTM:
        assert expected == 2 * 8 * 4 * (8 + 4) * 4  # 8 rows, 4 gates
    assert describe_model(OfRows(), images, torch.float32, False, cpu).flops_per_image == expected > 0


# GPU, dtype, TFLOP/s
PEAKS = """
NVIDIA A100-SXM4-80GB | bfloat16 | 312
NVIDIA A100-SXM4-80GB | float32 | 19.5
NVIDIA A100-SXM4-80GB | float32 tf32 | 156
Tesla T4 | float16 tf32 | 65
Tesla T4 | bfloat16 |  # no bfloat16 tensor cores
NVIDIA GeForce RTX 3080 Laptop GPU | float16 tf32 |  # similar to one whose peak is known, as all that follow
NVIDIA GeForce RTX 4090 D | float16 tf32 |
NVIDIA A10-24Q | float16 tf32 |
NVIDIA H100 80GB HBM2e | float16 tf32 |
NVIDIA A100-SXM4-40GB MIG 1g.5gb | float16 tf32 |
NVIDIA L40 | float16 tf32 |
Tesla V100-SXM3-32GB | float16 tf32 |
AMD Instinct MI300X | float16 tf32 |
"""


@mark.parametrize("name, kind, tflops", cells_of(PEAKS))
def test_peak_by_device_name_and_dtype(name, kind, tflops):
    dtype, *tf32 = kind.split()
    found = peak_flops_per_second(name, getattr(torch, dtype), bool(tf32))
    assert found == (approx(1e12 * float(tflops)) if tflops else None)


DATA = Data(IMAGE_SIZE=8)


def classifier() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))


PARAMETERS = 3 * 8 * 8 * 10 + 10
FLOPS = 2 * 2 * 3 * 8 * 8 * 10  # forward pass and weight gradient


@mark.parametrize("name, peak", [("NVIDIA H200", 4 * 989.4e12), ("NVIDIA H300", None)])
def test_peak_is_the_sum_over_all_gpus(monkeypatch, name, peak):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    context = ProcessContext(1, 1, 4, 4, torch.device("cuda", 1))
    model = describe_model(classifier(), DATA, torch.bfloat16, False, context)
    assert model == Model(PARAMETERS, FLOPS, peak, PARAMETERS)
    assert model.utilization(1e9) == (peak and approx(1e9 * FLOPS / peak))
    assert model.tflops_per_second(1e9) == approx(FLOPS / 1e3)


def test_model_without_flop_count_has_no_rates(cpu):
    class OfTwoImages(nn.Module):
        def forward(self, images):
            return images * images[1]

    model = describe_model(OfTwoImages(), DATA, torch.float32, False, cpu)
    assert model == Model(0, None, None, 0)
    assert model.utilization(10) is None
    assert model.rates(10) == []
    assert "GFLOP" not in str(model)
