"""The page that a profile is read from."""

from engine.profiling.advice import Profile, bottlenecks
from engine.telemetry.flops import three_digits
from engine.telemetry.phases import BACKWARD, EXCHANGE, FORWARD, PHASES
from utils.tables import markdown_table

_TOP_OPS = 10


def page_of(profile: Profile) -> str:
    """In Markdown."""
    data, gauge = profile.config.data, profile.gauge
    speed = [f"images/s: {three_digits(profile.images_per_second)}", gauge.describe(profile.images_per_second)]
    memory = f"memory: {profile.peak_memory_bytes / 1e9:.2f} GB"
    return "\n\n".join(
        (
            f"# Profile of {profile.config.model.name}, batch size {data.batch_size}",
            f"{profile.title}; {gauge}.",
            f"**{', '.join((*filter(None, speed), memory))}**",
            "\n".join(_advice(profile)),
            f"## Where the time of a step goes\n\n{_phases(profile)}",
            f"## The slowest ops, by their own time\n\n{_ops(profile)}",
        )
    )


def _advice(profile: Profile) -> list[str]:
    found = bottlenecks(profile)
    if not found:
        share = profile.times.share(FORWARD, BACKWARD)
        return [f"Nothing stands out: {share:.0%} of a step is the model's forward and backward pass."]
    return [f"**Bottleneck: {found[0]}**", *(f"Then: {sentence}" for sentence in found[1:])]


def _phases(profile: Profile) -> str:
    """Each with its time; of a GPU also for how long it had nothing to do meanwhile."""
    times = profile.times
    rows = []
    for phase in PHASES:
        busy, idle = times.busy.get(phase, 0.0), times.idle.get(phase, 0.0)
        if busy or idle or phase != EXCHANGE:
            rows.append([phase, busy, idle, times.share(phase)])
    rows.append(["step, with the profiler", sum(times.busy.values()), sum(times.idle.values()), 1.0])
    if profile.device_type == "cuda":
        header = ["phase", "GPU busy (ms)", "GPU idle (ms)", "share"]
        cells = ([phase, _ms(busy), _ms(idle), f"{share:.1%}"] for phase, busy, idle, share in rows)
        busy_share = f"The GPU is busy for {1 - times.idle_share():.1%} of the time."
        return f"{markdown_table(header, cells)}\n\n{busy_share}"
    return markdown_table(["phase", "ms", "share"], ([row[0], _ms(row[1]), f"{row[3]:.1%}"] for row in rows))


def _ops(profile: Profile) -> str:
    seconds = profile.times.seconds
    rows = (
        [f"`{op.name}`", _ms(op.seconds), f"{op.seconds / seconds:.1%}", f"{op.calls:g}"]
        for op in profile.ops[:_TOP_OPS]
    )
    return markdown_table(["op", "ms", "share", "calls"], rows)


def _ms(seconds: float) -> str:
    return three_digits(1000 * seconds)
