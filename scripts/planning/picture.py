"""A picture of predicted images/s by the number of devices."""

from pathlib import Path

from engine.telemetry.plots import write_png
from scripts.planning.layout import DDP, FSDP, HSDP, layouts
from scripts.planning.plan import Plan
from scripts.planning.speed import predict
from utils.packages import require

SIZES = tuple(2**power for power in range(11))  # 1 to 1,024 devices
_STYLES = {DDP: ("tab:blue", "-"), FSDP: ("tab:orange", "--"), HSDP: ("tab:green", ":")}


def predicted_rates(plan: Plan) -> dict[str, list[tuple[int, float]]]:
    """(devices, images/s) by strategy, at the batch size per device and without checkpointing unless it is on."""
    checkpointing = plan.config.model.grad_checkpointing
    rates: dict[str, list[tuple[int, float]]] = {DDP: [], FSDP: [], HSDP: []}
    for size in SIZES:
        cluster = plan.cluster.of_size(size)
        options = plan.config.parallel.model_copy(update={"shards_per_group": None})  # the devices of a host
        for layout in layouts(plan.workload, options, cluster):
            step = predict(plan.workload, layout, plan.batch_size, plan.accumulation, plan.mfu, checkpointing)
            rates[layout.strategy].append((size, step.images_per_second))
    return {strategy: points for strategy, points in rates.items() if points}


def draw(plan: Plan, path: Path) -> None:
    """Writes a PNG: images/s with their uncertainty, and the efficiency, that is images/s per device / those of one.

    Raises:
        OSError: the file cannot be written. UserError: matplotlib is not installed.
    """
    require("-picture", "matplotlib")
    from matplotlib.figure import Figure  # imported late: it takes about a second

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    speed, efficiency = figure.subplots(1, 2)
    rates = predicted_rates(plan)
    one = rates[DDP][0][1]
    for strategy, points in rates.items():
        color, style = _STYLES[strategy]
        devices, values = zip(*points, strict=True)
        speed.plot(devices, values, style, color=color, label=strategy.upper())
        shares = [100 * value / (one * size) for size, value in points]
        efficiency.plot(devices, shares, style, color=color, marker=".", label=strategy.upper())
    devices, values = zip(*rates[DDP], strict=True)
    bounds = zip(*map(plan.range_of, values), strict=True)
    speed.fill_between(devices, *bounds, color="tab:blue", alpha=0.15, label="uncertainty of DDP")
    speed.set_yscale("log")
    for axes in (speed, efficiency):
        axes.set_xscale("log", base=2)
        axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
        axes.set_xlabel(f"devices ({plan.cluster.per_node} per host)")
        axes.grid(alpha=0.3)
        axes.legend()
    speed.set_ylabel("images/s")
    efficiency.set_ylabel("images/s per device, % of one device")
    efficiency.set_ylim(0, 110)
    speed.set_title(f"{plan.workload.name} on {plan.cluster.device}, batch size {plan.batch_size} per device")
    efficiency.set_title("efficiency")
    figure.suptitle("Predicted, not measured")
    write_png(figure, path)
