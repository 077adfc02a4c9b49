"""A whole step as one CUDA graph: the passes and `precision.step`, which the host launches as one operation.

A replay runs the recorded kernels on the same memory. Thus every value that changes from step to step must be a tensor
at a fixed address: the batch, the learning rates, the decay of the average, the loss scale, the decision to skip.
Dropout draws from torch's generator, which a replay advances as an eager step does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

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
    """The graph if `TRAIN.COMPILE` is max and nothing prevents it, and the end of the log line on compilation.

    NCCL requires that all ranks record and replay the same steps, so their batches must be of one kind. Call it before
    `Strategy.wrap`: with a graph, this thread leaves the default stream. That stream cannot be recorded, and backward
    passes use the stream in which DistributedDataParallel was built.
    """
    train = config.train
    if train.compile != "max" or context.device.type == "cpu":
        return None, ""
    mixes = train.mixup_mode == "batch" and (train.mixup_alpha or train.cutmix_alpha or train.cutmix_minmax)
    obstacles = {
        "gradients accumulate": train.accum_iter > 1,
        "weights are sharded": strategy.is_sharded,
        "O3 seeds its rounding on the host": precision.level == "O3",
        f"{train.optimizer.name} is not fused": not unscales_in_step(optimizer),
        "TRAIN.MIXUP_MODE batch: ranks may differ": context.world_size > 1 and mixes,
        "DATA.ON_BAD_IMAGE skip: ranks may differ": context.world_size > 1 and config.data.on_bad_image == "skip",
        "DETERMINISTIC: NCCL may sum in another order in a graph": context.world_size > 1 and config.deterministic,
        "a teacher takes part": train.distillation_type != "none",
        "the average is in host memory": train.model_ema and train.model_ema_force_cpu,
        "PARALLEL.COMM_HOOK uses other streams": config.parallel.comm_hook != "none",
        "MODEL.GRAD_CHECKPOINTING restores random states": config.model.grad_checkpointing,
    }
    if found := [obstacle for obstacle, is_given in obstacles.items() if is_given]:
        return None, f"; no CUDA graph of the step: {found[0]}"
    stream = torch.cuda.Stream(context.device)
    stream.wait_stream(torch.cuda.current_stream(context.device))
    torch.cuda.set_stream(stream)
    pool = torch.cuda.graph_pool_handle()
    return StepGraph(optimizer, lambda: CudaGraph(pool)), "; one CUDA graph per step"


class CudaGraph:
    """Records the kernels that this thread launches in its stream. Other threads may use the GPU meanwhile.

    Graphs with one memory pool share it: only one of them runs at a time.
    """

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool

    def record(self, work: Callable[[], Any]) -> Any:
        """The kernels do not run; returns the tensors that `replay` computes."""
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(self._graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        self._graph.replay()


class _Recording(NamedTuple):
    graph: Any
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


class StepGraph:
    """Runs the first steps eagerly, records the next one, and replays it from then on.

    Batches of each kind (shapes and dtypes: mixed ones have other targets) have a recording, after an eager step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, new_graph: Callable[[], Any]) -> None:
        self._optimizer, self._new_graph = optimizer, new_graph
        self._steps = 0
        self._recordings: dict[Any, _Recording | None] = {}  # None: such a batch ran eagerly
        device = optimizer.param_groups[0]["params"][0].device
        self._lrs = torch.zeros(len(optimizer.param_groups), device=device)

    def run(self, step: Step, images: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of `step`, valid until the next call.

        Raises:
            UserError: an operation of the step cannot be recorded.
        """
        groups, batch = self._optimizer.param_groups, (images, targets)
        lrs = torch.tensor([group["lr"] for group in groups], pin_memory=self._lrs.is_cuda)
        for group, lr in zip(
            groups, lrs.tolist(), strict=True
        ):  # float32, as in a replay: a resumed run begins eagerly
            group["lr"] = lr
        self._steps += 1
        kind = tuple((tensor.shape, tensor.dtype) for tensor in batch)
        if self._steps <= _EAGER_STEPS or kind not in self._recordings:
            self._recordings.setdefault(kind)
            return step(*batch)
        self._lrs.copy_(lrs, non_blocking=True)
        recording = self._recordings[kind] or self._record(step, batch)
        self._recordings[kind] = recording
        for old, new in zip(recording.inputs, batch, strict=True):
            old.copy_(new)
        recording.graph.replay()
        return recording.outputs

    def _record(self, step: Step, batch: tuple[torch.Tensor, ...]) -> _Recording:
        groups, graph, inputs = self._optimizer.param_groups, self._new_graph(), tuple(map(torch.clone, batch))
        settings = [dict(group) for group in groups]
        for group, lr in zip(groups, self._lrs.unbind(), strict=True):
            group.update(lr=lr, capturable=True)
        try:
            return _Recording(graph, inputs, graph.record(lambda: step(*inputs)))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error.__context__ or error).partition("\n")[0]
            raise UserError(f"TRAIN.COMPILE max: cannot record a step of this model: {reason}; use model") from error
        finally:
            for group, setting in zip(groups, settings, strict=True):
                group.clear()
                group.update(setting)
