"""A trial: a training state that is measured and thrown away, before a run (TRAIN.MINUTES, -batch_size=auto)."""

import math
import time
from collections.abc import Callable, Iterator
from itertools import chain

import torch

from configs.batch_plan import EpochLayout, plan_batches
from configs.resolve import Facts, follow_facts
from configs.schema import Config
from datasets.batch import Batch
from engine.training.session import build_train_state, initial_model
from engine.training.step import TrainState, train_steps
from utils.device import peak_memory_bytes, synchronize
from utils.distributed import ProcessContext, broadcast_object

_ENDLESS = 10**6  # samples: more than any trial without data trains
_WARM_STEPS = 2


class Trial:
    """The state that `build` makes, the time of its steps, and the memory that they take.

    state_seconds: until the first batch is there. first_step_seconds: until the first step ends.
    """

    def __init__(self, context: ProcessContext, build: Callable[[], TrainState]) -> None:
        self._bytes_before = peak_memory_bytes(context.device)
        self._started = time.perf_counter()
        self._ends = list[float]()
        self._context = context
        self.state = build()

    def train(self, batches: Iterator[Batch], steps: int, max_seconds: float = math.inf) -> None:
        """Trains up to `steps` steps, fewer once those after the first have taken `max_seconds`; a collective call."""
        batches = chain([next(batches)], batches)
        self.state_seconds = time.perf_counter() - self._started
        progress = self.state.new_progress(0)
        for _ in range(steps):
            if progress.done_steps == progress.steps:
                progress = self.state.new_progress(progress.epoch + 1)
            train_steps(self.state, batches, progress, progress.done_steps + 1, lambda progress: None)
            synchronize(self._context.device)
            self._ends.append(time.perf_counter())
            if broadcast_object(self._ends[-1] - self._ends[0] > max_seconds, self._context):
                break
        self.first_step_seconds = self._ends[0] - self._started

    def step_seconds(self) -> float:
        """Of a step, without the first two ones if there are others."""
        ends = self._ends[min(_WARM_STEPS, len(self._ends) - 1) :]
        if len(ends) == 1:
            return self.first_step_seconds
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    def peak_bytes(self) -> int:
        """The peak memory that the trial has added to the memory of the process."""
        return peak_memory_bytes(self._context.device) - self._bytes_before


def build_state(config: Config, context: ProcessContext) -> TrainState:
    """Model, optimizer and precision of a training run, without data set, log file or checkpoints."""
    config = follow_facts(config, Facts(context.world_size))
    layout = EpochLayout(_ENDLESS, plan_batches(config, context.world_size), config.seed)
    return state_without_data(config, context, layout)


def state_without_data(config: Config, context: ProcessContext, layout: EpochLayout) -> TrainState:
    """As `build_state`, with the options as they are and this layout."""
    model, _ = initial_model(config, context.device)
    state, _ = build_train_state(config, context, layout, model)
    return state


def ready_batches(config: Config, context: ProcessContext) -> list[Batch]:
    """Four batches of random uint8 images (B, C, S, S) and targets (B,) on the device."""
    data = config.data
    shape = (data.micro_batch, *data.image_shape)
    generator = torch.Generator().manual_seed(0)
    return [
        Batch(
            torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(context.device),
            torch.randint(0, config.model.num_logits, shape[:1], generator=generator).to(context.device),
            data.micro_batch,
        )
        for _ in range(4)
    ]
