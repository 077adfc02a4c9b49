"""What a step costs: its time until a rank waits for others, ranks that are slower, FLOPs, and the peaks of GPUs.

The time is that for a batch, and in the forward pass. On a GPU, events measure it. They are read only when they are
complete, so that the host never waits: a time may be added a few steps late, but before the host reads a result of its
step. The time of a whole step is the same on all ranks: the exchange of gradients waits for the slowest.

FLOPs are counted and not measured. A multiply-add counts as two. Only matrix products and convolutions count.
Recomputation for activation checkpointing does not count, and stochastic depth does not reduce the count: these are the
model FLOPs of Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (2022), appendix B.

The peak FLOP/s of a GPU by the dtype of the matrix products come from NVIDIA's datasheets, in `gpu_peaks.yaml`.
A GPU or dtype without a figure has no MFU: a missing MFU is better than a wrong one.
"""

import copy
import operator
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from configs.schema import Config, Data
from datasets.batch import Batch
from engine.run.facts import Model
from engine.run.record import RunRecord
from models.kernels import EXPLICIT, use_attention
from utils.distributed import ProcessContext
from utils.notes import Note
from utils.torch_compat import ProductCounter


class Phase(StrEnum):
    """The phases of a step in the profile, in the order of its table."""

    DATA_WAIT = "data wait"
    TRANSFORM = "transform and mixup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    LOGGING = "logging"


_Span = tuple[torch.cuda.Event, torch.cuda.Event]


class TimerTotals(NamedTuple):
    """Sums since the start.

    data_wait_seconds: on a GPU, from the end of the work before a batch to the end of the batch's copy, if that is
    later; on a CPU, until the host has the batch. checks: steps on a GPU. launch_bound: those in which the GPU had
    executed the passes before the host had launched the optimizer's kernels.
    """

    data_wait_seconds: float
    forward_seconds: float
    checks: int
    launch_bound: int

    def since(self, start: "TimerTotals") -> "TimerTotals":
        return TimerTotals(*map(operator.sub, self, start))

    @property
    def launch_bound_share(self) -> float | None:
        return self.launch_bound / self.checks if self.checks else None


class StepTimer:
    """Of a CPU. Its methods are for the loop of the steps."""

    def __init__(self) -> None:
        self._wait_seconds = self._forward_seconds = 0.0
        self._taken = self.totals()

    def next_batch(self, batches: Iterator[Batch]) -> Batch:
        started = time.perf_counter()
        batch = next(batches)
        self._wait_seconds += time.perf_counter() - started
        return batch

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Around the forward pass."""
        started = time.perf_counter()
        yield
        self._forward_seconds += time.perf_counter() - started

    def launch_check(self) -> AbstractContextManager[None]:
        """Around the launches of the optimizer. A GPU that meanwhile ends the backward pass waits for the host."""
        return nullcontext()

    def totals(self) -> TimerTotals:
        return TimerTotals(self._wait_seconds, self._forward_seconds, 0, 0)

    def take(self) -> tuple[float, float]:
        """The seconds of the data wait and of the forward passes since the last call."""
        totals = self.totals()
        new = totals.since(self._taken)
        self._taken = totals
        return new.data_wait_seconds, new.forward_seconds


class GpuTimer(StepTimer):
    """Of a GPU: events measure the times."""

    def __init__(self) -> None:
        self._waits: deque[_Span] = deque()
        self._passes: deque[_Span] = deque()
        self._checks = self._launch_bound = 0
        super().__init__()

    def next_batch(self, batches: Iterator[Batch]) -> Batch:
        previous_end = _recorded_event()
        batch = next(batches)
        if batch.copied:
            self._waits.append((previous_end, batch.copied))
        return batch

    @contextmanager
    def forward(self) -> Iterator[None]:
        start = _recorded_event()
        yield
        self._passes.append((start, _recorded_event()))

    @contextmanager
    def launch_check(self) -> Iterator[None]:
        backward_end = _recorded_event()
        yield
        self._checks += 1
        self._launch_bound += backward_end.query()

    def totals(self) -> TimerTotals:
        self._wait_seconds += _pop_complete(self._waits)
        self._forward_seconds += _pop_complete(self._passes)
        return TimerTotals(self._wait_seconds, self._forward_seconds, self._checks, self._launch_bound)


def timer_of(device: torch.device) -> StepTimer:
    return GpuTimer() if device.type == "cuda" else StepTimer()


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _pop_complete(spans: deque[_Span]) -> float:
    """Removes the spans that have ended; returns their seconds. A span that ends before it starts counts as 0."""
    seconds = 0.0
    while spans and all(event.query() for event in spans[0]):
        start, end = spans.popleft()
        seconds += max(0.0, start.elapsed_time(end) / 1000)
    return seconds


SLOWER = 0.2  # than the median
MIN_SECONDS = 0.005
BLOCK_STEPS = 10
BLOCKS = 5
STEPS = BLOCK_STEPS * BLOCKS
LOADING = "loading the data"
FORWARD_PASS = "the forward pass"


class SlowRanks:
    """Finds a rank that is 20% slower than the median for 50 steps, from the times of all ranks; on the main process.

    The steps count in five blocks of ten, each of which must be slower: loading workers deliver batches in bursts, so
    that the waits of single steps differ. A difference below 5 ms per step is noise of tiny steps, and does not count.
    The median is the lower one of two, so that one of two ranks can be slow. run.json has the rank of the last 50 steps
    that is the slowest one; a change of it, or of its cause, is a warning.

    compares_forward: False if the forward pass itself waits for other ranks, as in sharded models.
    """

    def __init__(self, compares_forward: bool, context: ProcessContext, record: RunRecord) -> None:
        self.causes = (LOADING, FORWARD_PASS) if compares_forward else (LOADING,)
        self.context = context
        self.record = record
        self._steps: list[Tensor] = []
        self._known: dict[str, int | str] | None = None

    def add_step(self, seconds: Tensor) -> Note | None:
        """A warning, if a rank has become slow. seconds: of one step, (ranks, 2): data wait, forward pass."""
        if self.context.is_main:
            self._steps.append(seconds[:, : len(self.causes)])
        if len(self._steps) < STEPS:
            return None
        blocks = torch.stack(self._steps).unflatten(0, (BLOCKS, BLOCK_STEPS)).mean(1)  # (BLOCKS, ranks, causes)
        self._steps.clear()
        of_ranks = blocks.sum(2)
        median = of_ranks.median(1, keepdim=True).values  # the lower one of two
        excess = of_ranks - median
        mean = blocks.mean(0)
        slower = excess.clamp(min=0) / median
        is_slow = ((slower > SLOWER) & (excess > MIN_SECONDS)).all(0)
        rank = int((is_slow * slower.mean(0)).argmax())
        column = int((mean[rank] - mean.median(0).values).argmax())  # exceeds its median most
        host = self.context.hosts[rank] if self.context.hosts else self.context.host
        found: dict[str, int | str] = {"rank": rank, "host": host, "cause": self.causes[column]}
        slow = found if is_slow.any() else None
        if slow == self._known:
            return None
        self._known = slow
        self.record.update(slow_rank=slow)
        times = f"{1000 * mean[rank, column]:.0f} ms per step against {1000 * mean[:, column].median():.0f} ms"
        problem = (
            f"rank {rank} on {host} was {slower[:, rank].mean():.0%} slower than the median rank for {STEPS} steps"
        )
        return Note("warning", f"{problem}; cause: {self.causes[column]} ({times})") if slow else None


_PEAKS = Path(__file__).with_name("gpu_peaks.yaml")
_BRANDS_AND_MEMORY = re.compile(r"\b(NVIDIA|TESLA|QUADRO|GEFORCE|\d+GB?|HBM3E?)\b")


def peak_flops_per_second(device_name: str, dtype: torch.dtype, tf32: bool) -> float | None:
    """Datasheet peak of one GPU for matrix products of this dtype; None where `gpu_peaks.yaml` has no figure.

    device_name: as `torch.cuda.get_device_name` gives it. The whole name must match an entry, apart from brand and
    memory size: laptop GPUs, MIG slices and virtual GPUs are slower than their namesakes.
    tf32: whether float32 matrix products may use TF32; GPUs without TF32 then compute in float32.
    """
    words = _BRANDS_AND_MEMORY.sub(" ", device_name.upper().replace("-", " ")).split()
    tables = yaml.safe_load(_PEAKS.read_text(encoding="utf-8"))
    peaks = tables["of dtypes"]
    # Since Ampere, a GeForce computes TF32 as fast as float32, and 16-bit types twice as fast.
    peaks |= {f"RTX {name}": [fp32, fp32, 2 * fp32, 2 * fp32] for name, fp32 in tables["GeForce"].items()}
    found = peaks.get(" ".join(words))  # 'A100 SXM4' of 'NVIDIA A100-SXM4-80GB'
    if found is None:
        return None
    fp32, with_tf32, fp16, bf16 = found
    by_dtype = {torch.float32: (tf32 and with_tf32) or fp32, torch.float16: fp16, torch.bfloat16: bf16}
    tflops = by_dtype[dtype]
    return None if tflops is None else 1e12 * tflops


def describe_model(model: nn.Module, data: Data, dtype: torch.dtype, tf32: bool, context: ProcessContext) -> Model:
    """Counts parameters and FLOPs, and looks up the peak of the devices. dtype, tf32: as `peak_flops_per_second`."""
    flops = None
    for device in ("cpu", "meta") if context.device.type == "cpu" else ("meta",):
        with suppress(Exception):  # a model may do anything that tensors without memory, or one image, do not support
            flops = flops_per_image(model, data, device=device)
            break
    peak = None
    if context.device.type == "cuda":
        peak = peak_flops_per_second(torch.cuda.get_device_name(context.device), dtype, tf32)
    parameters, trainable = count_parameters(model)
    return Model(parameters, flops, peak and peak * context.world_size, trainable)


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """All parameters, and the trainable ones."""
    parameters = list(model.parameters())
    trainable = (parameter.numel() for parameter in parameters if parameter.requires_grad)
    return sum(map(torch.numel, parameters)), sum(trainable)


def flops_per_image(model: nn.Module, data: Data, trains: bool = True, device: str = "meta") -> int:
    """FLOPs of the forward and, if it `trains`, of the backward pass. Frozen parameters have no weight gradients.

    A copy without memory runs, with explicit attention and without gradient checkpointing: recomputed values do not
    count as model FLOPs. device: torch imports sympy (40 MB) for "meta"; on "cpu" the pass takes the time of an image.
    """
    counted = copy_to_meta(model, device)
    if not trains:
        counted.requires_grad_(False)
    use_attention(counted, EXPLICIT)
    for module in counted.modules():
        vars(module)["grad_checkpointing"] = False
    counter = ProductCounter()  # type: ignore[no-untyped-call]
    with counter, sdpa_kernel(SDPBackend.MATH):
        counted(torch.zeros((1, *data.image_shape), device=device))
    return counter.flops


def copy_to_meta(model: nn.Module, device: str = "meta") -> nn.Module:
    """A copy in evaluation mode whose tensors have no memory: on another `device` they are views of one zero.

    The model itself stays as it is.
    """

    def without_memory(tensor: Tensor) -> Tensor:
        return torch.zeros((), dtype=tensor.dtype, device=device).expand(tensor.shape)

    memo: dict[int, Tensor] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(without_memory(parameter), requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = without_memory(buffer)
    return copy.deepcopy(model, memo).eval()


def model_line(config: Config, meta_model: nn.Module, more: str) -> str:
    """The line of the screen about a model."""
    parameters, trained = (f"{number / 1e6:.3f} M" for number in count_parameters(meta_model))
    trained = f", {trained} trained" if trained != parameters and not config.eval.enabled else ""
    size = " x ".join(map(str, dict.fromkeys(config.data.input_size)))
    return f"Model: {config.model.name}, {parameters} parameters{trained}, {size} pixels, {more}"
