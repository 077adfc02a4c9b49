"""The AMP report of `-profile`: whether a batch fits into half precision, and which options mend it if it does not."""

import math
from dataclasses import dataclass

import torch

from configs.schema import Amp
from datasets.batch import Batch
from engine.precision.non_finite import block_of
from engine.precision.op_lists import OPS
from engine.precision.policy import Precision
from engine.profiling.half_values import Pair, Passes, Values, lost_share
from engine.training.step import TrainState
from utils import torch_compat
from utils.tables import aligned_table, table_text, three_digits

LARGEST = torch.finfo(torch.float16).max  # 65504
MIN_MARGIN = 2.0  # from the largest value to the largest number of the dtype
MAX_LOST_SHARE = 0.01  # of the values of the gradients in a block
_MAX_LISTED = 3  # entries that are tried on the black list
_MAX_COLUMN_CHARS = 60
_COLUMNS = ("module", "op", "dtype", "largest", "largest_float32", "gradient", "gradient_float32", "lost", "values")


@dataclass(frozen=True)
class PrecisionProblem:
    """changes: options that may mend it, the loss scale with them, and their words; in the order to try."""

    text: str
    changes: list[tuple[Amp, float, str]]


def report_amp(state: TrainState, batch: Batch) -> tuple[list[str], str]:
    """The report, in lines for the screen, and a CSV table of all ops and weights. The state stays as it is."""
    passes = Passes(state, batch)
    values = passes.values(state.precision.options, float(torch_compat.loss_scale(state.precision.scaler)))
    title = f"AMP report: {state.precision.name}; {len(passes.images)} images, torch's ops"
    moved = ", ".join(f"{op} ({calls} calls)" for op, calls in values.recorder.moved.items())
    lines = [title, block_table(values), f"Ops that the lists move: {moved or 'none'}."]
    problem = find_problem(values)
    if not problem:
        return [*lines, *describe_safe(values)], ops_table(values)
    lines.append(problem.text)
    if problem.changes:
        lines.append(first_mend(passes, problem))
    return lines, ops_table(values)


def block_table(values: Values) -> str:
    """A row for each part of the model with weights; of its blocks for the first, the middle and the last one."""
    blocks = [name for name in values.groups if name.rpartition(".")[2].isdecimal()]
    shown = {blocks[0], blocks[len(blocks) // 2], blocks[-1]} if blocks else set()
    rows = []
    for name, pairs in values.groups.items():
        dtypes = values.recorder.dtypes.get(name, ("-", "-", "-"))  # a list of blocks is not called
        is_part = name and name not in blocks and dtypes[1] != "-"
        if name in shown or is_part:
            largest = max(pairs, key=lambda pair: pair.peak)
            value = f"{three_digits(largest.peak)} ({largest.half.op})"
            lost = f"{lost_share(pairs):.2%}" if any(pair.values for pair in pairs) else "-"
            rows.append([name, *dtypes, value, margin(largest.peak), lost])
    header = ["part", "inputs", "weights", "outputs", "largest value", "margin", "gradients lost"]
    return aligned_table(header, rows, _MAX_COLUMN_CHARS)


def margin(largest: float) -> str:
    """The factor from the largest value to the largest number of float16, as a power of 2."""
    return f"2^{math.log2(LARGEST / largest):.1f}" if largest else "-"


def ops_table(values: Values) -> str:
    rows = []
    for pair in (*values.ops, *values.weights):
        half = pair.half
        exact = pair.exact
        sizes = half.size, exact.size, half.gradient, exact.gradient, pair.lost, pair.values
        rows.append([half.module, half.op, half.dtype, *sizes])
    return table_text(_COLUMNS, rows)


def describe_safe(values: Values) -> list[str]:
    largest = max(values.ops, key=lambda pair: pair.peak)
    where = f"{three_digits(largest.peak)} in {place(largest)}"
    fits = f"the largest value, {where}, is {margin(largest.peak)} below 65504"
    if values.precision.dtype == torch.bfloat16:
        return [f"bfloat16 is safe: it has the range of float32. For float16, {fits}."]
    steepest = max((*values.ops, *values.weights), key=lambda pair: pair.half.gradient)
    gradient = steepest.half.gradient
    lost = max(map(lost_share, values.groups.values()))
    gradients = f"the largest gradient, {three_digits(gradient)} in {place(steepest)}, {margin(gradient)}"
    safe = f"float16 is safe at loss scale {values.scale:g}: {fits},"
    lost_gradients = f"at most {lost:.2%} of the gradients of a block are lost."
    return [safe, f"{gradients}; {lost_gradients}"]


def place(pair: Pair) -> str:
    return pair.half.module or "the model"


def find_problem(values: Values) -> PrecisionProblem | None:
    """The first value that overflows, else the first gradient, else the block that loses most of its gradients."""
    if not math.isfinite(values.loss):
        return PrecisionProblem(
            "The loss is not finite in float32 either: lower TRAIN.BASE_LR, and check the images.", []
        )
    dtype = str(values.precision.dtype).removeprefix("torch.")
    bfloat16, words = values.precision.with_bfloat16()
    other = (bfloat16, 1.0, words)
    limit = torch.finfo(values.precision.dtype).max / MIN_MARGIN
    overflowing = [pair for pair in values.ops if math.isfinite(pair.exact.size) > math.isfinite(pair.half.size)]
    close = [pair for pair in values.ops if pair.half.largest > limit]
    if overflowing or close:
        first = (overflowing + close)[0]
        verb = "overflows" if overflowing else "nearly overflows"
        text = f"{dtype} {verb} in {place(first)}: the result of {first.half.op} is up to {three_digits(first.peak)}."
        too_large = [pair for pair in values.ops if pair.exact.largest > limit]
        entries = dict.fromkeys(map(entry_of, (first, *too_large)))
        if len(entries) > _MAX_LISTED or not all(entries):
            return PrecisionProblem(text, [other])
        listed, words = values.precision.with_black_list(entries)
        return PrecisionProblem(text, [(listed, values.scale, words), other])
    scaled, words = values.precision.with_scale(best_scale(values))
    changes = [(scaled, Precision(scaled, values.precision.device).scaler.initial_scale, words), other]
    for pair in (*reversed(values.ops), *values.weights):
        if not math.isfinite(pair.half.gradient):
            text = f"The gradients overflow in {place(pair)} at loss scale {values.scale:g}"
            return PrecisionProblem(f"{text}; a dynamic scale falls by itself.", changes)
    name, worst = max(values.groups.items(), key=lambda group: lost_share(group[1]))
    if lost_share(worst) <= MAX_LOST_SHARE:
        return None
    text = f"{lost_share(worst):.1%} of the gradients in {name or 'the model'} are zero in {dtype} at loss scale"
    return PrecisionProblem(f"{text} {values.scale:g}, and not in float32.", changes)


def entry_of(pair: Pair) -> str:
    """The entry of the black list for an overflow: its block; outside of modules its op, '' if no list takes it."""
    if pair.half.module:
        return f"{block_of(pair.half.module)}.*"
    return pair.half.op if pair.half.op in OPS else ""


def best_scale(values: Values) -> float:
    """The power of 2 with which the largest gradient is 2 to 4 times below float16's largest number."""
    largest = max(pair.exact.gradient for pair in (*values.ops, *values.weights))
    return 2.0 ** (math.floor(math.log2(LARGEST / largest)) - 1) if largest else values.scale


def first_mend(passes: Passes, problem: PrecisionProblem) -> str:
    """The first change that leaves no problem, as words of a command line."""
    for options, scale, words in problem.changes:
        if not find_problem(passes.values(options, scale)):
            return f"Mended, tried on these images, by {words}"
    return "No list, loss scale or dtype of AMP mends it: train without -amp."
