"""A whole step as one CUDA graph: the passes and `precision.step`, which the host launches as one operation.

A replay runs the recorded kernels on the memory that they were recorded with. Thus every value that changes from step to
step must be a tensor at a fixed address: the batch, the learning rates, the decay of the average, the loss scale, the
decision to skip. Dropout draws from torch's generator, which a replay advances as the recorded step did.
"""

from collections.abc import Callable
from typing import Any

import torch

from configs.schema import Config
from engine.parallel.strategy import Strategy
from engine.precision.policy import Precision
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.torch_compat import unscales_in_step

# images (B, C, S, S), targets -> tensors that the step computes
Step = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
_EAGER_STEPS = 11  # kernels, autotuning and DDP, which synchronizes to measure its first ten steps, need them


def build_step_graph(
    config: Config,
    context: ProcessContext,
    strategy: Strategy,
    precision: Precision,
    optimizer: torch.optim.Optimizer,
) -> tuple["StepGraph | None", str]:
    """The graph if `TRAIN.COMPILE` is max, and the end of the log line on compilation. Call it before `Strategy.wrap`.

    With a graph, this thread leaves the default stream: it cannot be recorded, and backward passes use the stream in
    which DistributedDataParallel was built.
    """
    if config.train.compile != "max" or context.device.type == "cpu":
        return None, ""
    if obstacle := graph_obstacle(config, strategy, precision, optimizer):
        return None, f"; no CUDA graph of the step: {obstacle}"
    stream = torch.cuda.Stream(context.device)
    stream.wait_stream(torch.cuda.current_stream(context.device))
    torch.cuda.set_stream(stream)
    return StepGraph(optimizer), "; one CUDA graph per step"


def graph_obstacle(
    config: Config, strategy: Strategy, precision: Precision, optimizer: torch.optim.Optimizer
) -> str | None:
    """The reason why steps of this run cannot be replayed; None if they can."""
    train = config.train
    obstacles = {
        "gradients accumulate": train.accum_iter > 1,
        "weights are sharded": strategy.is_sharded,
        "O3 seeds its rounding on the host": precision.level == "O3",
        f"{train.optimizer.name} is not fused": not unscales_in_step(optimizer),
        "it includes a teacher": train.distillation_type != "none",
        "the average is in host memory": train.model_ema and train.model_ema_force_cpu,
        "PARALLEL.COMM_HOOK uses other streams": config.parallel.comm_hook != "none",
        "MODEL.GRAD_CHECKPOINTING restores random states": config.model.grad_checkpointing,
    }
    return next((obstacle for obstacle, is_given in obstacles.items() if is_given), None)


class CudaGraph:
    """Records the kernels that this thread launches in its stream. Other threads may use the GPU meanwhile."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def record(self, work: Callable[[], Any]) -> Any:
        """The kernels do not run; returns tensors that `replay` computes."""
        with torch.cuda.graph(self._graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        self._graph.replay()


class StepGraph:
    """Runs the first steps eagerly, records the next one, and replays it from then on."""

    def __init__(self, optimizer: torch.optim.Optimizer, new_graph: Callable[[], Any] = CudaGraph) -> None:
        self._optimizer, self._graph = optimizer, new_graph()
        self._steps = 0
        self._inputs: list[torch.Tensor] = []
        self._outputs: tuple[torch.Tensor, ...] = ()
        self._lrs = torch.empty(0)

    def run(self, step: Step, images: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of `step`, valid until the next call. It must read no random number that the host draws.

        A batch of another shape or dtype, such as one that is not mixed, runs eagerly.

        Raises:
            UserError: an operation of the step cannot be recorded.
        """
        self._steps += 1
        if self._steps <= _EAGER_STEPS:
            return step(images, targets)
        if not self._outputs:
            self._record(step, images, targets)
        batch = images, targets
        if any((new.shape, new.dtype) != (old.shape, old.dtype) for new, old in zip(batch, self._inputs, strict=True)):
            return step(images, targets)
        for old, new in zip(self._inputs, batch, strict=True):
            old.copy_(new)
        lrs = torch.tensor([group["lr"] for group in self._optimizer.param_groups], pin_memory=self._lrs.is_cuda)
        self._lrs.copy_(lrs, non_blocking=True)
        self._graph.replay()
        return self._outputs

    def _record(self, step: Step, images: torch.Tensor, targets: torch.Tensor) -> None:
        groups = self._optimizer.param_groups
        self._inputs = [images.clone(), targets.clone()]
        self._lrs = torch.tensor([group["lr"] for group in groups], device=images.device)
        settings = [dict(group) for group in groups]
        for group, lr in zip(groups, self._lrs.unbind(), strict=True):
            group.update(lr=lr, capturable=True)
        try:
            self._outputs = self._graph.record(lambda: step(*self._inputs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error.__context__ or error).partition("\n")[0]
            raise UserError(f"TRAIN.COMPILE max: cannot record a step of this model: {reason}; use model") from error
        finally:
            for group, setting in zip(groups, settings, strict=True):
                group.clear()
                group.update(setting)
