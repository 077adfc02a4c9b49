"""Memory of a device: the state of the model, and the passes of a micro-step.

FSDP's part is from torchtitan's and torch's memory trackers: besides its shards a rank holds the parameters outside of
all blocks and `GATHERED_BLOCKS` whole blocks (one that computes, one that is prefetched, one whose gradient is summed).
"""

from dataclasses import dataclass

from scripts.planning.layout import Layout
from scripts.planning.workload import Workload

GATHERED_BLOCKS = 3
_FP32, _HALF = 4, 2


@dataclass(frozen=True)
class Memory:
    """Bytes on each device.

    Attributes:
        parameters: with the half copy of O2. gathered: whole parameters while they are computed with.
        update: what the optimizer step takes when the activations are free.
        activations: of one image. fixed: of the passes, for any batch size.
    """

    parameters: float
    gradients: float
    moments: float
    average: float
    gathered: float
    update: float
    activations: float
    fixed: float

    @property
    def state(self) -> float:
        return self.parameters + self.gradients + self.moments + self.average

    def total(self, batch_size: int) -> float:
        """The peak of a step."""
        return self.state + max(self.gathered + self.fixed + self.activations * batch_size, self.update)

    def largest_batch(self, available: float) -> int:
        """The largest batch size that fits; 0: not even one image."""
        if self.total(1) > available:
            return 0
        return int((available - self.state - self.gathered - self.fixed) / self.activations)


def memory_of(workload: Workload, layout: Layout, checkpointing: bool) -> Memory:
    trained = workload.trained
    weight, gradient, update = _bytes_per_trained(workload, layout)
    gathered = 0.0
    if layout.is_sharded:
        whole = workload.rest + (GATHERED_BLOCKS * workload.block if workload.block else 0)
        gathered = layout.gather_bytes * (workload.parameters if layout.keeps_gathered else whole)
    average = _FP32 * workload.parameters if workload.has_average else 0
    # The update of the average takes the difference of all weights.
    update += _FP32 if workload.has_average else 0
    passes = workload.passes[checkpointing]
    return Memory(
        parameters=weight * workload.parameters / layout.shards,
        gradients=gradient * trained / layout.shards,
        moments=_FP32 * workload.moments * trained / layout.shards,
        average=average / layout.shards,
        gathered=gathered,
        update=update * trained / layout.shards,
        activations=passes.per_image,
        fixed=passes.fixed,
    )


def _bytes_per_trained(workload: Workload, layout: Layout) -> tuple[int, int, int]:
    """Bytes per trained parameter: (weights, gradients, what the update takes besides)."""
    if layout.is_sharded or not workload.is_half:  # O2 under FSDP: fp32 shards, gathered in half
        return _FP32, _FP32, 0
    if workload.level == "O2":
        return _FP32 + _HALF, _HALF, _FP32
    return _HALF, _HALF, 2 * _FP32
