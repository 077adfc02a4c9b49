"""The time of a step by phase, from the trace of torch's profiler."""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.run.step_timer import COMMUNICATION, COPY, LABELLED, OTHER, PHASES

WINDOW = "profiled steps"  # label around all profiled steps
_LAUNCHES = ("cuda_runtime", "cuda_driver")  # categories of events in the trace
_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


class Span(NamedTuple):
    """A time span in microseconds, and its phase."""

    start: float
    stop: float
    phase: str


@dataclass(frozen=True)
class StepTimes:
    """Seconds per step by phase, mean over the profiled steps. All values together are the time of a step.

    busy: on a GPU, the time of the work that the host launched in the phase; on a CPU, the time of the phase.
    idle: on a GPU, the time without GPU work while the host was in the phase; empty on a CPU.
    """

    busy: dict[str, float]
    idle: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.busy.values()) + sum(self.idle.values())

    def share(self, *phases: str) -> float:
        """Share of these phases in a step, 0 to 1, busy and idle together."""
        return sum(part.get(phase, 0.0) for part in (self.busy, self.idle) for phase in phases) / self.seconds

    def idle_share(self, *phases: str) -> float:
        """Share of the idle time in these phases, 0 to 1; without arguments, in all phases."""
        return sum(self.idle.get(phase, 0.0) for phase in phases or PHASES) / self.seconds


def step_times(events: list[dict[str, Any]], steps: int, on_gpu: bool) -> StepTimes:
    """Computes the times from the `traceEvents` of torch's Chrome trace, which has the labels `WINDOW` and `LABELLED`.

    GPU work belongs to the phase in which the host launched it, from any thread. Work that overlaps is counted once:
    computation before communication between GPUs, communication before copies to the device. So the times of the
    latter two are those that computation does not hide.
    """
    labels = [_span(event, event["name"]) for event in events if event.get("cat") == "user_annotation"]
    (window,) = (span for span in labels if span.phase == WINDOW)
    phases = sorted(span for span in labels if span.phase in LABELLED)
    gaps = [(window.start, window.stop)]
    gpu_times: dict[str, float] = defaultdict(float)
    if on_gpu:
        work = _gpu_work(events, phases)
        computation = [span for span in work if span.phase not in (COPY, COMMUNICATION)]
        for layer in (computation, _of_phase(work, COMMUNICATION), _of_phase(work, COPY)):
            gaps = _add_covered(gaps, layer, gpu_times)
    host_times: dict[str, float] = defaultdict(float)
    for start, stop in _add_covered(gaps, phases, host_times):
        host_times[OTHER] += stop - start
    busy, idle = (gpu_times, host_times) if on_gpu else (host_times, defaultdict(float))
    per_step = 1e-6 / steps
    return StepTimes(*({phase: per_step * part[phase] for phase in PHASES if part[phase]} for part in (busy, idle)))


def _span(event: dict[str, Any], phase: str) -> Span:
    return Span(event["ts"], event["ts"] + event["dur"], phase)


def _gpu_work(events: list[dict[str, Any]], phases: list[Span]) -> list[Span]:
    """The GPU's work. A correlation number links it to its launch on the host; launches may precede the trace."""
    launch_times = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    starts = [span.start for span in phases]

    def phase_of(event: dict[str, Any]) -> str:
        if event["cat"] == "gpu_memcpy" and "HtoD" in event["name"]:
            return COPY
        if event["name"].startswith("nccl"):
            return COMMUNICATION
        launched = launch_times.get(event["args"].get("correlation"))
        if launched is None:
            return OTHER
        index = bisect_right(starts, launched) - 1
        return phases[index].phase if index >= 0 and launched <= phases[index].stop else OTHER

    return [_span(event, phase_of(event)) for event in events if event.get("cat") in _GPU_WORK]


def _of_phase(spans: list[Span], phase: str) -> list[Span]:
    return [span for span in spans if span.phase == phase]


def _add_covered(
    gaps: list[tuple[float, float]], spans: Iterable[Span], times: dict[str, float]
) -> list[tuple[float, float]]:
    """Adds to `times` the parts of the gaps that the spans cover, by phase; returns the parts that they do not cover.

    The gaps are sorted and do not overlap. Where spans overlap, the one that starts first counts.
    """
    uncovered = []
    pending = deque(sorted(spans))
    for start, stop in gaps:
        while pending and pending[0].start < stop:
            span = pending[0]
            covered_start, covered_stop = max(span.start, start), min(span.stop, stop)
            if covered_start < covered_stop:
                if start < covered_start:
                    uncovered.append((start, covered_start))
                times[span.phase] += covered_stop - covered_start
                start = covered_stop
            if span.stop > stop:
                break  # it may reach into the next gap
            pending.popleft()
        if start < stop:
            uncovered.append((start, stop))
    return uncovered
