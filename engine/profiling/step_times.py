"""From a profiler's trace to where the time of a step went."""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.telemetry.phases import COPY, EXCHANGE, LABELLED, PHASES, REST

WINDOW = "profiled steps"  # the label around all of them
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


class Span(NamedTuple):
    """Microseconds from `start` to `stop` that belong to a phase."""

    start: float
    stop: float
    phase: str


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by phase, its mean over the profiled ones. Each moment is in one of them: they sum to a step.

    `busy`: a GPU worked on what the host gave it in that phase; of a run on a CPU it is the host's time. `idle`: a GPU
    had nothing to do while the host was in that phase.
    """

    busy: dict[str, float]
    idle: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.busy.values()) + sum(self.idle.values())

    def share(self, *phases: str) -> float:
        """Of a step, 0 to 1: these phases, busy or idle."""
        return sum(part.get(phase, 0.0) for part in (self.busy, self.idle) for phase in phases) / self.seconds

    def idle_share(self, *phases: str) -> float:
        """The same, idle only; without phases of all."""
        return sum(self.idle.get(phase, 0.0) for phase in phases or PHASES) / self.seconds


def step_times(events: list[dict[str, Any]], steps: int, on_gpu: bool) -> StepTimes:
    """Of the `traceEvents` of torch's Chrome trace, labelled with `WINDOW` and the phases.

    A GPU's work belongs to the phase in which the host launched it, in whatever thread. What is computed counts before
    what is exchanged between GPUs at the same time, that before copies to the device: of those two, only what was
    waited for shows.
    """
    host = [_span(event, event["name"]) for event in events if event.get("cat") == "user_annotation"]
    (window,) = (span for span in host if span.phase == WINDOW)
    labelled = sorted(span for span in host if span.phase in LABELLED)
    unclaimed = [(window.start, window.stop)]
    busy: Counter[str] = Counter()
    if on_gpu:
        work = _device_work(events, labelled)
        for layer in (_other_than(work, COPY, EXCHANGE), _only(work, EXCHANGE), _only(work, COPY)):
            unclaimed = _claim(unclaimed, layer, busy)
    of_host: Counter[str] = Counter()
    for start, stop in _claim(unclaimed, labelled, of_host):
        of_host[REST] += stop - start
    per_step = 1e-6 / steps
    busy, idle = (busy, of_host) if on_gpu else (of_host, Counter())
    return StepTimes(*({phase: per_step * part[phase] for phase in PHASES if part[phase]} for part in (busy, idle)))


def _span(event: dict[str, Any], phase: str) -> Span:
    return Span(event["ts"], event["ts"] + event["dur"], phase)


def _device_work(events: list[dict[str, Any]], labelled: list[Span]) -> list[Span]:
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    starts = [span.start for span in labelled]

    def phase_of(event: dict[str, Any]) -> str:
        if event["cat"] == "gpu_memcpy" and "HtoD" in event["name"]:
            return COPY
        if event["name"].startswith("nccl"):
            return EXCHANGE
        moment = launched.get(event["args"].get("correlation"))
        place = bisect_right(starts, moment) - 1 if moment is not None else -1
        return labelled[place].phase if place >= 0 and moment <= labelled[place].stop else REST

    return [_span(event, phase_of(event)) for event in events if event.get("cat") in _DEVICE_WORK]


def _only(spans: list[Span], phase: str) -> list[Span]:
    return [span for span in spans if span.phase == phase]


def _other_than(spans: list[Span], *phases: str) -> list[Span]:
    return [span for span in spans if span.phase not in phases]


def _claim(gaps: list[tuple[float, float]], spans: Iterable[Span], claimed: Counter[str]) -> list[tuple[float, float]]:
    """Adds to `claimed` what each phase's spans cover of the gaps, in order and without overlap; returns what is left.

    Where spans overlap, the one that began first has it.
    """
    left = []
    pending = deque(sorted(spans))
    for start, stop in gaps:
        while pending and pending[0].start < stop:
            span = pending[0]
            begin, end = max(span.start, start), min(span.stop, stop)
            if begin < end:
                if start < begin:
                    left.append((start, begin))
                claimed[span.phase] += end - begin
                start = end
            if span.stop > stop:
                break  # it may reach into the next gap
            pending.popleft()
        if start < stop:
            left.append((start, stop))
    return left
