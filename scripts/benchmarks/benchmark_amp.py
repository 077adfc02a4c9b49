"""Speed and memory of training in each precision, as tables in Markdown.

    python scripts/benchmarks/benchmark_amp.py -cfg=configs/vit_base_patch16_224.yaml -batch_size 64 -json a.json

prints the seconds per 100 iterations of each mode and repeat (PaddleViT's AMP table), memory and throughput of each
mode (Colossal-AI's), and what it ran on. An iteration is a forward and backward pass; -accum_iter of them make a step.
`-max_batch` finds instead the largest batch that fits in the memory there is, or in `-memory_gb` of it;
`-workload linear` trains PaddlePaddle's AMP tutorial's three linear layers, without and with gradient accumulation.

Each measurement has a process of its own: the peak of memory is that mode's, and to run out of it is an answer. The
modes take turns, so that a machine's drift falls on all; a speedup is the median of the ratios within the rounds.
"""

import argparse
import json
import math
import resource
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.schema import Config
from datasets.batch import Batch
from datasets.loading.batches import build_train_batches
from datasets.registry import read_samples
from engine.checkpoint.epoch_layout import EpochLayout
from engine.precision.policy import Precision
from engine.progress import EpochProgress
from engine.telemetry.flops import forward_flops, matmul_flops_per_second
from engine.telemetry.reporter import peak_memory_bytes
from engine.training.step import TrainState, train_one_epoch
from engine.training.trainer import build_train_state
from models.build import build_model
from scripts.benchmarks.common import (
    add_flag,
    add_modes_flag,
    baseline_of,
    chosen_modes,
    environment,
    environment_line,
    flag_parser,
    interleaved,
    last_error,
    markdown_table,
    mode_config,
    new_file,
    positive,
    ready_batches,
    split_flags,
    tell,
    timed,
    write_json,
)
from utils.distributed import ProcessContext, single_process, visible_gpus
from utils.errors import UserError, run_and_report_errors
from utils.logger import RunLogger
from utils.metrics import Metrics, MetricSums, to_metrics

SCRIPT = "benchmark_amp.py"
WARMUP_ITERATIONS = 5
PROBE_STEPS = 2  # the optimizer makes its state in the first
LARGEST_BATCH = 65536
# As in PaddlePaddle's AMP tutorial: 5 epochs of 50 batches, SGD, MSE.
LINEAR_WIDTH, LINEAR_BATCH, LINEAR_LR, LINEAR_ACCUMULATION = 4096, 512, 1e-4, 10
ITERATIONS = {"vit": 100, "linear": 250}
OUT_OF_MEMORY = "out of memory"

Answers = dict[str, list[dict[str, Any]]]  # by mode, what the worker of each repeat found


class Report(NamedTuple):
    """What a kind of measurement found: for the JSON file, for the terminal, for the picture (title -> bars)."""

    result: dict[str, Any]
    texts: list[str]
    bars: dict[str, dict[str, float]]


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    if flags.worker:
        print(json.dumps(work(mode_config(rest, flags.worker), flags)))
        return 0
    modes = _checked_modes(flags)
    configs = [mode_config(rest, mode) for mode in modes]  # a mistake in the options shows now
    if flags.max_batch:
        report = report_largest_batches(modes, argv, flags, configs[0])
    elif flags.workload == "linear":
        report = report_linear(measure(modes, argv, flags.repeats), flags)
    else:
        report = report_training(measure(modes, argv, flags.repeats), flags, configs[0])
    found = environment(SCRIPT, argv, configs[0])
    if flags.workload == "linear":
        found |= {"model": f"three linear layers of {LINEAR_WIDTH}", "batch_size": LINEAR_BATCH}
    print(environment_line(found), *report.texts, sep="\n\n")
    write_json(flags.json, {"environment": found} | report.result)
    if flags.picture:
        draw(flags.picture, report.bars)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Speed and memory of training in each precision.")
    add_modes_flag(parser)
    add_flag(parser, "repeats", type=positive, default=5, metavar="N", help="measurements of each mode (default: 5)")
    add_flag(parser, "iterations", type=positive, metavar="N", help="of each measurement (default: 100; linear: 250)")
    add_flag(parser, "loader", action="store_true", help="batches from the data set, not ready on the device")
    add_flag(parser, "max_batch", action="store_true", help="find the largest batch size that fits, to within 5%%")
    add_flag(parser, "memory_gb", type=gigabytes, metavar="X", help="allow this much memory (10^9 bytes) only")
    add_flag(parser, "workload", choices=list(ITERATIONS), default="vit", help="the model of -cfg, or linear layers")
    add_flag(parser, "picture", type=new_file, metavar="FILE", help="draw images/s and memory there")
    add_flag(parser, "worker", help=argparse.SUPPRESS)  # a mode: measure it once, in this process
    return parser


def gigabytes(text: str) -> float:
    """An argparse type."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be greater than 0")
    return number


def _checked_modes(flags: argparse.Namespace) -> list[str]:
    """The modes to measure. Raises UserError for flags that contradict."""
    modes = chosen_modes(flags.modes)
    if flags.loader and flags.max_batch:
        raise UserError("-loader: -max_batch takes ready batches; leave one of them out")
    if flags.workload == "linear" and (flags.loader or flags.max_batch):
        raise UserError("-workload linear: has neither -loader nor -max_batch; leave them out")
    return modes


# The measuring processes, seen from outside


def measure(modes: list[str], argv: list[str], repeats: int) -> Answers:
    answers: Answers = {mode: [] for mode in modes}
    for number, mode in interleaved(modes, repeats):
        answer = ask(argv, mode)
        answers[mode].append(answer)
        tell(f"repeat {number + 1} of {repeats}, {mode}: {answer.get('failed') or _seconds(answer['seconds']) + ' s'}")
    if not measured(answers):
        raise UserError(f"no mode could be measured; {modes[0]}: {failure(answers[modes[0]])}")
    return answers


def ask(argv: list[str], mode: str, *more: str) -> dict[str, Any]:
    """What a process of its own finds for the same command line, `more` added; why it 'failed' if it did."""
    command = [sys.executable, __file__, *argv, f"-worker={mode}", *more]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode == 0:
        return json.loads(process.stdout.splitlines()[-1])
    if process.returncode == -signal.SIGKILL:  # so a system that is short of memory ends processes
        return {"failed": OUT_OF_MEMORY}
    if not process.stderr.startswith("error: "):
        tell(process.stderr)
    return {"failed": last_error(process)}


def measured(answers: Answers) -> Answers:
    """Without the modes that failed."""
    return {mode: repeats for mode, repeats in answers.items() if not failure(repeats)}


def failure(repeats: list[dict[str, Any]]) -> str | None:
    return next((answer["failed"] for answer in repeats if "failed" in answer), None)


# What is made of their answers


def report_training(answers: Answers, flags: argparse.Namespace, config: Config) -> Report:
    iterations = flags.iterations or ITERATIONS["vit"]
    figures = mode_figures(answers, iterations, config.data.batch_size)
    good = {mode: one for mode, one in figures.items() if "failed" not in one}
    texts = [
        f"Seconds per 100 iterations ({iterations} measured):",
        seconds_table({mode: one["seconds_per_100_iterations"] for mode, one in good.items()}),
        mode_table(figures),
        _memory_meaning() + " A speedup is the median of the ratios within the rounds. The measured peak is that of a "
        "square matrix product in the mode's type; 3 forward passes count as a step's work.",
        *(f"{mode}: the loss is not finite." for mode, one in good.items() if one["loss"] is None),
    ]
    bars = {
        "images/s": {mode: one["images_per_second"] for mode, one in good.items()},
        "peak memory (GB)": {mode: one["peak_memory_bytes"] / 1e9 for mode, one in good.items()},
    }
    return Report({"iterations": iterations, "repeats": flags.repeats, "modes": figures}, texts, bars)


def mode_figures(answers: Answers, iterations: int, batch_size: int) -> dict[str, dict[str, Any]]:
    """Of each mode the figures of the tables, or why it 'failed'."""
    good = measured(answers)
    seconds = {mode: [answer["seconds"] for answer in repeats] for mode, repeats in good.items()}
    memory = {mode: max(answer["peak_memory_bytes"] for answer in repeats) for mode, repeats in good.items()}
    baseline = baseline_of(good)
    figures = {}
    for mode, repeats in answers.items():
        if reason := failure(repeats):
            figures[mode] = {"failed": reason, "out_of_memory": reason == OUT_OF_MEMORY}
            continue
        average = statistics.mean(seconds[mode])
        images_per_second = iterations * batch_size / average
        flops_per_second = 3 * repeats[0]["forward_flops"] * images_per_second
        peak = max(answer["matmul_flops_per_second"] for answer in repeats)
        figures[mode] = {
            "seconds_per_100_iterations": [value * 100 / iterations for value in seconds[mode]],
            "average_seconds_per_100_iterations": average * 100 / iterations,
            "speedup": {over: speedup(seconds[over], seconds[mode]) for over in baselines(good)},
            "peak_memory_bytes": memory[mode],
            "memory_ratio": memory[mode] / memory[baseline],
            "iterations_per_second": iterations / average,
            "images_per_second": images_per_second,
            "flops_per_second": flops_per_second,
            "matmul_flops_per_second": peak,
            "share_of_peak": flops_per_second / peak,
            "loss": repeats[-1]["loss"],
        }
    return figures


def baselines(names: dict[str, Any]) -> list[str]:
    """What speedups are given over: strict fp32, or the first mode in its place, and TF32 where it was measured."""
    return [baseline for baseline in dict.fromkeys((baseline_of(names), "tf32")) if baseline in names]


def speedup(baseline: list[float], seconds: list[float]) -> float:
    return statistics.median(slow / fast for slow, fast in zip(baseline, seconds, strict=True))


def seconds_table(seconds: dict[str, list[float]]) -> str:
    """A row per repeat, the averages, the speedups."""
    repeats = [[str(number), *map(_seconds, row)] for number, row in enumerate(zip(*seconds.values(), strict=True), 1)]
    averages = ["average", *(_seconds(statistics.mean(values)) for values in seconds.values())]
    speedups = [
        [f"speedup over {over}", *(f"{speedup(seconds[over], values):.2f}" for values in seconds.values())]
        for over in baselines(seconds)
    ]
    return markdown_table(["repeat", *seconds], [*repeats, averages, *speedups])


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def mode_table(figures: dict[str, dict[str, Any]]) -> str:
    good = {mode: one for mode, one in figures.items() if "failed" not in one}
    overs = baselines(good)
    header = ["mode", "peak memory (GB)", f"/ {overs[0]}", "iterations/s", "images/s"]
    header += [*(f"speedup over {over}" for over in overs), "share of measured peak"]
    rows = []
    for mode, one in figures.items():
        if mode not in good:
            rows.append([mode, one["failed"], *[""] * (len(header) - 2)])
            continue
        cells = [f"{one['peak_memory_bytes'] / 1e9:.2f}", f"{one['memory_ratio']:.2f}"]
        cells += [f"{one['iterations_per_second']:.3g}", f"{one['images_per_second']:.1f}"]
        cells += [*(f"{one['speedup'][over]:.2f}" for over in overs), f"{one['share_of_peak']:.1%}"]
        rows.append([mode, *cells])
    return markdown_table(header, rows)


def _memory_meaning() -> str:
    if visible_gpus():
        return "Memory is the peak of what torch had allocated on the GPU."
    return "Memory is the process's peak in the host's memory, some 0.5 GB of Python and torch included."


def report_linear(answers: Answers, flags: argparse.Namespace) -> Report:
    iterations = flags.iterations or ITERATIONS["linear"]
    good = measured(answers)
    accumulating = f"x{LINEAR_ACCUMULATION}"
    seconds = {
        f"{mode}{suffix}": [answer[key] for answer in repeats]
        for key, suffix in (("seconds", ""), ("accumulating_seconds", f" {accumulating}"))
        for mode, repeats in good.items()
    }
    texts = [
        f"Three linear layers of {LINEAR_WIDTH}, seconds per {iterations} batches of {LINEAR_BATCH}"
        f" ({accumulating}: a step every {LINEAR_ACCUMULATION} batches):",
        seconds_table(seconds),
        "PaddlePaddle's tutorial has, for 250 batches on a GPU of its own: 2.943 s in fp32, 1.222 s in O1 (2.4 times), "
        "1.006 s in O1 with accumulation.",
        *(f"{mode}: {failure(repeats)}." for mode, repeats in answers.items() if mode not in good),
    ]
    average = {name: statistics.mean(values) for name, values in seconds.items()}
    speedups = {over: {name: speedup(seconds[over], seconds[name]) for name in seconds} for over in baselines(seconds)}
    result = {"iterations": iterations, "seconds": seconds, "average_seconds": average, "speedup": speedups}
    return Report(result, texts, {f"seconds per {iterations} batches": average})


def report_largest_batches(modes: list[str], argv: list[str], flags: argparse.Namespace, config: Config) -> Report:
    memory_gb = flags.memory_gb
    if memory_gb is None and not visible_gpus():
        memory_gb = _gigabytes_in("/proc/meminfo", "MemAvailable")
    limit = [] if memory_gb is None else [f"-memory_gb={memory_gb}"]

    def fits(mode: str, batch_size: int) -> bool:
        failed = ask(argv, mode, *limit, "-opts", f"DATA.BATCH_SIZE={batch_size}").get("failed")
        tell(f"{mode}, batch size {batch_size}: {failed or 'fits'}")
        if failed not in (None, OUT_OF_MEMORY):
            raise UserError(f"{mode}: {failed}")
        return not failed

    largest = {mode: largest_batch(lambda size, mode=mode: fits(mode, size), config.data.batch_size) for mode in modes}
    baseline = baseline_of(modes)
    ratios = {mode: size / largest[baseline] if largest[baseline] else None for mode, size in largest.items()}
    rows = [[mode, str(size), f"{ratios[mode]:.2f}" if largest[baseline] else ""] for mode, size in largest.items()]
    within = "the GPU's memory" if memory_gb is None else f"{memory_gb:.3g} GB"
    texts = [
        f"Within {within}, to 5%, at most {LARGEST_BATCH}:",
        markdown_table(["mode", "largest batch size", f"/ {baseline}"], rows),
    ]
    result = {"memory_gb": memory_gb, "largest_batch": largest, "ratio": ratios}
    return Report(result, texts, {"largest batch size": largest})


def largest_batch(fits: Callable[[int], bool], start: int) -> int:
    """The largest size that fits, or up to 5% less; 0 if none does. Doubles from `start`, then bisects."""
    low, high = 0, min(start, LARGEST_BATCH)
    while low < LARGEST_BATCH and fits(high):
        low, high = high, min(2 * high, LARGEST_BATCH)
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _gigabytes_in(file: str, key: str) -> float:
    lines = Path(file).read_text().splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
    return kilobytes * 1024 / 1e9


def draw(path: Path, bars: dict[str, dict[str, float]]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(bars), 4), layout="constrained")
    for axes, (title, values) in zip(figure.subplots(1, len(bars), squeeze=False)[0], bars.items(), strict=True):
        axes.bar_label(axes.bar(list(values), list(values.values())), fmt="%.4g")
        axes.set_ylabel(title)
        axes.tick_params(axis="x", rotation=30)
    FigureCanvasAgg(figure).print_figure(path)


# Inside a measuring process


def work(config: Config, flags: argparse.Namespace) -> dict[str, Any]:
    """One measurement of one mode. What is found, or that it 'failed' for want of memory."""
    context = single_process()
    if flags.memory_gb:
        limit_memory(flags.memory_gb, context.device)
    try:
        if flags.max_batch:
            batches = cycle(ready_batches(config, context))
            train(_learner(config, context), batches, PROBE_STEPS * config.train.accum_iter)
            return {}
        if flags.workload == "linear":
            return linear_figures(config, context, flags.iterations or ITERATIONS["linear"])
        return training_figures(config, context, flags.iterations or ITERATIONS["vit"], flags.loader)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error, limited=flags.memory_gb is not None):
            raise
        return {"failed": OUT_OF_MEMORY}


def _is_out_of_memory(error: RuntimeError | MemoryError, limited: bool) -> bool:
    texts = [OUT_OF_MEMORY, "can't allocate memory", "not enough memory", "bad_alloc", "alloc_failed"]
    if limited:
        texts.append("could not create a")  # all that oneDNN says of it
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in texts)


def limit_memory(gigabytes: float, device: torch.device) -> None:
    """Lets this process have so much more memory than it has now: a smaller machine, or card."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gigabytes * 1e9 / total), device)
        return
    torch.ones(512, 512) @ torch.ones(512, 512)  # starts torch's threads, whose stacks are not the model's
    limit = int(_gigabytes_in("/proc/self/status", "VmData") * 1e9 + gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def training_figures(config: Config, context: ProcessContext, iterations: int, with_loader: bool) -> dict[str, Any]:
    learner = _learner(config, context)
    batches = _loaded_batches(config, context) if with_loader else cycle(ready_batches(config, context))
    train(learner, batches, WARMUP_ITERATIONS)
    seconds, metrics = train(learner, batches, iterations)
    memory = peak_memory_bytes(context.device)
    del learner, batches  # where memory is short, the matrices need theirs
    plain_model, _ = build_model(config.with_model(pretrained=None), torch.device("cpu"))
    return {
        "seconds": seconds,
        "peak_memory_bytes": memory,
        "loss": metrics.loss if math.isfinite(metrics.loss) else None,
        "forward_flops": forward_flops(plain_model, config),
        "matmul_flops_per_second": matmul_flops_per_second(Precision(config.amp, context.device)),
    }


def _learner(config: Config, context: ProcessContext) -> TrainState:
    geometry = EpochLayout(10**6, config.data.batch_size, config.train.accum_iter, config.seed)
    return build_train_state(config, context, geometry, RunLogger(None, context))


def _loaded_batches(config: Config, context: ProcessContext) -> Iterator[Batch]:
    (samples,) = read_samples(config.data, config.model.num_classes, context, "train")
    batches = build_train_batches(config.data, config.train, samples, config.seed, context, config.timeout_seconds)
    return batches.iterate(epoch=0, batch=0, num_epochs=10**6)


def train(learner: TrainState, batches: Iterator[Batch], iterations: int) -> tuple[float, Metrics]:
    """The seconds it took, and the loss."""
    device = learner.context.device
    steps = math.ceil(iterations / learner.config.train.accum_iter)
    progress = EpochProgress(0, steps, iterations, MetricSums(device))
    seconds = timed(lambda: train_one_epoch(learner, batches, progress, steps, lambda _: None), device)
    return seconds, to_metrics(progress.sums.sums)


def linear_figures(config: Config, context: ProcessContext, iterations: int) -> dict[str, float]:
    def seconds(accumulation: int) -> float:
        return _linear_seconds(Precision(config.amp, context.device), iterations, accumulation)

    return {"seconds": seconds(1), "accumulating_seconds": seconds(LINEAR_ACCUMULATION)}


def _linear_seconds(precision: Precision, iterations: int, accumulation: int) -> float:
    torch.manual_seed(0)
    layers = [nn.Linear(LINEAR_WIDTH, LINEAR_WIDTH) for _ in range(3)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).to(precision.device)
    precision.prepare(model)
    weights = precision.weights(model)
    optimizer = torch.optim.SGD(weights.full.parameters(), lr=LINEAR_LR, fused=True)
    inputs, targets = torch.randn(2, LINEAR_BATCH, LINEAR_WIDTH, device=precision.device)

    def run(batches: int) -> None:
        for batch in range(1, batches + 1):
            with precision.autocast():
                outputs = weights.computing(inputs)
            loss = F.mse_loss(outputs.float(), targets)
            precision.scaler.scale(loss / accumulation).backward()
            if batch % accumulation == 0 or batch == batches:
                weights.copy_grads_to_master()
                precision.scaler.step(optimizer)
                precision.scaler.update()
                optimizer.zero_grad()
                weights.copy_master_to_model(seed=batch)

    run(WARMUP_ITERATIONS)
    return timed(lambda: run(iterations), precision.device)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
