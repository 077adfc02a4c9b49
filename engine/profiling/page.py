"""The page of a profile: speed, advice, time by phase, slowest ops."""

from engine.parallel.strategy import Communication
from engine.profiling.advice import Profile, bottlenecks
from engine.run.timing.step_timer import BACKWARD, COMMUNICATION, FORWARD, PHASES
from utils.tables import markdown_table, three_digits

_TOP_OPS = 10


def profile_page(profile: Profile) -> str:
    """The page in Markdown."""
    figures = [
        f"images/s: {three_digits(profile.images_per_second)}",
        *profile.model.rates(profile.images_per_second),
        f"memory: {profile.peak_memory_bytes / 1e9:.2f} GB",
    ]
    return "\n\n".join(
        (
            f"# Profile of {profile.model_name}, batch size {profile.batch_size}",
            f"{profile.title}; {profile.model.flops}.",
            f"**{', '.join(figures)}**",
            "\n".join(_advice(profile)),
            f"## Time of a step by phase\n\n{_phase_table(profile)}",
            *([_exchange(profile.communication)] if profile.communication else []),
            f"## Slowest ops, without the ops that they call\n\n{_op_table(profile)}",
        )
    )


def _advice(profile: Profile) -> list[str]:
    found = bottlenecks(profile)
    if not found:
        share = profile.times.share(FORWARD, BACKWARD)
        return [f"No bottleneck found: {share:.0%} of a step is the forward and backward pass."]
    return [f"**Bottleneck: {found[0]}**", *(f"Next: {sentence}" for sentence in found[1:])]


def _phase_table(profile: Profile) -> str:
    """The time of each phase; on a GPU, busy and idle time apart."""
    times = profile.times
    rows: list[tuple[str, float, float, float]] = []
    for phase in PHASES:
        busy, idle = times.busy.get(phase, 0.0), times.idle.get(phase, 0.0)
        if busy or idle or phase != COMMUNICATION:
            rows.append((phase, busy, idle, times.share(phase)))
    rows.append(("step, with the profiler", sum(times.busy.values()), sum(times.idle.values()), 1.0))
    if profile.device_type != "cuda":
        return markdown_table(["phase", "ms", "share"], ([row[0], _ms(row[1]), f"{row[3]:.1%}"] for row in rows))
    header = ["phase", "GPU busy (ms)", "GPU idle (ms)", "share"]
    cells = ([phase, _ms(busy), _ms(idle), f"{share:.1%}"] for phase, busy, idle, share in rows)
    return f"{markdown_table(header, cells)}\n\nThe GPU is busy for {1 - times.idle_share():.1%} of the time."


def _exchange(exchange: Communication) -> str:
    """The section about the exchange of gradients between the ranks."""
    seconds, hidden = exchange.seconds, exchange.hidden_seconds
    cells = (
        "unknown" if exchange.buckets is None else str(exchange.buckets),
        f"{three_digits(exchange.bytes_per_step / 1e6)} MB, {exchange.dtype}",
        "unknown" if seconds is None else f"{_ms(seconds)} ms",
        "unknown" if hidden is None or seconds is None else f"{hidden / seconds:.0%}",
    )
    header = ["buckets", "gradients of each rank", "time in one step", "of it during the backward pass"]
    return f"## Exchange of gradients\n\n{markdown_table(header, [cells])}"


def _op_table(profile: Profile) -> str:
    rows = (
        [f"`{op.name}`", _ms(op.seconds), f"{op.seconds / profile.times.seconds:.1%}", f"{op.calls:g}"]
        for op in profile.ops[:_TOP_OPS]
    )
    return markdown_table(["op", "ms", "share", "calls"], rows)


def _ms(seconds: float) -> str:
    return three_digits(1000 * seconds)
