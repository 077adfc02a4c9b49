"""What a profile means: where the time goes, and which option would help."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from configs.schema import Config
from engine.profiling.step_times import StepTimes
from engine.telemetry.flops import MFUMeter
from engine.telemetry.phases import BACKWARD, COPY, DATA_WAIT, EXCHANGE, FORWARD, LOGGING, OPTIMIZER, REST, TRANSFORM


class Op(NamedTuple):
    """An op's own time, without that of the ops it calls."""

    name: str
    seconds: float  # per step
    calls: float  # per step


@dataclass(frozen=True)
class Profile:
    """A run's steps, measured. Speed is that over all devices without a profiler, which slows a step down."""

    config: Config
    title: str  # on what was measured, and how it computes
    device_type: str
    is_compiled: bool
    has_fused_optimizer: bool
    times: StepTimes
    ops: list[Op]  # the slowest first
    images_per_second: float
    gauge: MFUMeter
    peak_memory_bytes: int

    def op_share(self, *parts_of_names: str) -> float:
        """Of a step, 0 to 1: the ops with one of these in their names."""
        seconds = sum(op.seconds for op in self.ops if any(part in op.name for part in parts_of_names))
        return seconds / self.times.seconds


class Rule(NamedTuple):
    """A part of the step that takes more than its `limit`, and the cure, where it `holds` of the profile.

    `gain` is the part of that share that the cure may be expected to win; it puts the findings into their order.
    """

    what: str
    share: Callable[[Profile], float]
    limit: float
    cure: str
    gain: float = 1.0
    holds: Callable[[Profile], bool] = lambda profile: True


def _of_phases(*phases: str) -> Callable[[Profile], float]:
    return lambda profile: profile.times.share(*phases)


def _launching(profile: Profile) -> float:
    return profile.times.idle_share(TRANSFORM, FORWARD, BACKWARD, EXCHANGE, OPTIMIZER, REST)


RULES = (
    Rule(
        "waiting for data",
        _of_phases(DATA_WAIT),
        0.05,
        "raise -num_workers; or read data that fit as a packed file (scripts/pack_dataset.py, -dataset=packed)",
    ),
    Rule(
        "copying to the GPU, with nothing to compute meanwhile",
        _of_phases(COPY),
        0.05,
        "raise -num_workers, so that the next batch lies ready in time",
    ),
    Rule(
        "a GPU that waits for the host to launch its work",
        _launching,
        0.10,
        "compile the model (-compile, or -opts TRAIN.COMPILE=max), or raise -batch_size",
    ),
    Rule(
        "the forward and backward pass, in float32",
        _of_phases(FORWARD, BACKWARD),
        0.5,
        "train in mixed precision (-amp)",
        0.5,
        lambda profile: not profile.config.amp.enabled,
    ),
    Rule(
        "the forward and backward pass, not compiled",
        _of_phases(FORWARD, BACKWARD),
        0.5,
        "compile the model (-compile), which pays after the minute it takes",
        0.15,
        lambda profile: profile.config.amp.enabled and not profile.is_compiled,
    ),
    Rule(
        "drawing the masks of dropout on one core",
        lambda profile: profile.op_share("random_mask", "aten::random_", "bernoulli"),
        0.05,
        "set MODEL.DROPOUT and MODEL.ATTENTION_DROPOUT to 0; MODEL.DROPPATH regularizes for less",
        1.0,
        lambda profile: profile.device_type == "cpu",
    ),
    Rule(
        "an optimizer that is not fused",
        _of_phases(OPTIMIZER),
        0.10,
        "take one that is (TRAIN.OPTIMIZER.NAME AdamW or SGD)",
        0.5,
        lambda profile: not profile.has_fused_optimizer,
    ),
    Rule(
        "the optimizer",
        _of_phases(OPTIMIZER),
        0.10,
        "take fewer steps for as many images: a larger -batch_size or -accum_iter",
        0.5,
        lambda profile: profile.has_fused_optimizer,
    ),
    Rule(
        "exchanging gradients, with nothing to compute meanwhile",
        _of_phases(EXCHANGE),
        0.10,
        "exchange them less often: a larger -batch_size or -accum_iter",
        0.5,
    ),
    Rule(
        "augmentation on the device",
        _of_phases(TRANSFORM),
        0.10,
        "do without what you need least: DATA.AFFINE_*, TRAIN.MIXUP_ALPHA, TRAIN.CUTMIX_ALPHA",
        0.5,
    ),
    Rule("logging", _of_phases(LOGGING), 0.05, "log less often: raise REPORT_FREQ"),
)


def bottlenecks(profile: Profile) -> list[str]:
    """A sentence for each rule that the profile breaks, the one with most to win first."""
    shares = [(rule.share(profile), rule) for rule in RULES if rule.holds(profile)]
    broken = [(share, rule) for share, rule in shares if share > rule.limit]
    broken.sort(key=lambda found: -found[0] * found[1].gain)
    return [f"{share:.0%} of a step is {rule.what}: {rule.cure}." for share, rule in broken]
