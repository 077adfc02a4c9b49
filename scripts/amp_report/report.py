"""Reports the effects of mixed precision on a model, from one forward and backward pass on a run's next batch.

    python scripts/amp_report/report.py -cfg=configs/vit_digits.yaml -amp -json report.json
    python scripts/amp_report/report.py -cfg=output/.../config.yaml -resume=output/...         (a run in progress)

Prints the ops with dtype and modules, the largest activation and the underflow of the gradients of each block, and the
first module that produces inf or NaN: see docs/amp.md.
"""

import io
import re
import sys
from collections import defaultdict
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from torch import nn

from configs.reading.command_line import Command, parse_command_line
from configs.schema import Amp
from engine.plan.training import plan_training
from engine.precision.non_finite import block_of, first_non_finite
from engine.precision.op_lists import OPS
from engine.run.log import RunLogger
from engine.training.batch_size import find_batch_size
from engine.training.session import build_session
from engine.training.step import forward_backward
from models.tuning import set_training
from scripts.amp_report.inspection import FP16_MAX, OpRecorder, gradient_underflow, listed_name
from scripts.benchmarks.turns import write_json
from scripts.flags import flag_parser, split_flags
from utils.distributed import ProcessContext, single_process
from utils.processes.entry import run_and_report_errors
from utils.tables import markdown_table

SCRIPT = "amp_report/report.py"


def main(argv: list[str]) -> int:
    parser = flag_parser(SCRIPT, "Reports the effects of mixed precision on a model, from one training pass.")
    flags, rest = split_flags(parser, argv)
    report = inspect(parse_command_line(rest, SCRIPT), single_process())
    print(*texts(report), sep="\n\n")
    write_json(flags.json, report)
    return 0


def inspect(command: Command, context: ProcessContext) -> dict[str, Any]:
    """The content of the JSON file. The blocks are from the same pass in fp32, in which nothing overflows."""
    config, run_pass = command.config, NextPass(command, context)
    precision, model = run_pass.precision, run_pass.model
    with OpRecorder(model) as recorder:
        run_pass()
    origin = first_non_finite(model, run_pass)
    scale = precision.scaler.get_scale() if precision.scales_loss else config.amp.init_loss_scaling
    report = {
        "precision": precision.describe(),
        "batch_size": config.data.batch_size,
        "loss_scale": scale,
        "ops": op_table(recorder, [path for path, _ in model.named_modules()]),
        "first_non_finite": None if origin is None else str(origin),
    }
    del run_pass, model, recorder  # frees memory for the model of the fp32 pass
    with redirect_stdout(io.StringIO()):  # the first pass has printed these log lines
        run_pass = NextPass(replace(command, config=config.model_copy(update={"amp": Amp()})), context)
    with OpRecorder(run_pass.model) as recorder:
        run_pass()
    return report | {"blocks": block_table(recorder, run_pass.model, scale)}


class NextPass:
    """The forward and backward pass on the next batch of a run; a call runs it, and can be repeated."""

    def __init__(self, command: Command, context: ProcessContext) -> None:
        logger = RunLogger(None, context)
        # The recorder sees no op of a compiled model.
        command = replace(command, config=command.config.with_train(compile="none"))
        session = build_session(plan_training(command, context, logger, find_batch_size), context, logger)
        progress, self.state = session.position.progress, session.state
        self.step, self.window = progress.step, progress.window
        self.precision, self.model = self.state.precision, self.state.precision.weights.compute
        done_batches = progress.done_batches
        self.batch = next(session.batches.iterate(progress.epoch, done_batches, progress.epoch + 2))
        set_training(self.model, session.plan.config.model)

    def __call__(self) -> None:
        self.model.zero_grad()
        forward_backward(self.state, self.batch, self.step, 0, self.window)


def op_table(recorder: OpRecorder, paths: list[str]) -> list[dict[str, Any]]:
    """A row for each op and dtype, the most frequent first."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for run, count in recorder.counts.items():
        name = listed_name(run.op) if listed_name(run.op) in OPS else ""
        row = rows.setdefault((run.op, run.dtype), {"op": run.op, "listed_as": name, "type": run.dtype,
                                                    "forward": 0, "backward": 0, "modules": {}})  # fmt: skip
        row["backward" if run.backward else "forward"] += count
        row["modules"][run.module] = row["modules"].get(run.module, 0) + count
    for row in rows.values():
        row["where"] = summary(list(row["modules"]), paths)
    return sorted(rows.values(), key=lambda row: (-row["forward"] - row["backward"], row["op"], row["type"]))


def summary(modules: list[str], paths: list[str]) -> str:
    """Joins modules that differ in one number: `blocks.*.attn` for all blocks, `blocks.0,11.attn` for some of them."""
    numbers_of, all_numbers_of = _by_pattern(modules), _by_pattern(paths)
    words = []
    for pattern, numbers in sorted(numbers_of.items()):
        everywhere = numbers == all_numbers_of.get(pattern)
        words.append(pattern if everywhere else pattern.replace("*", ",".join(map(str, sorted(numbers))), 1))
    return " ".join(word or "(outside)" for word in words)


def _by_pattern(paths: list[str]) -> dict[str, set[int]]:
    """Replaces the first number of each path by `*`: 'blocks.3.attn' -> {'blocks.*.attn': {3}}."""
    numbers_of = defaultdict(set)
    for path in paths:
        number = re.search(r"(?<![^.])\d+(?![^.])", path)
        pattern = f"{path[: number.start()]}*{path[number.end() :]}" if number else path
        numbers_of[pattern] |= {int(number[0])} if number else set()
    return numbers_of


def block_table(recorder: OpRecorder, model: nn.Module, scale: float) -> list[dict[str, Any]]:
    """A row for each block, in the order of the model."""
    underflow, rows = gradient_underflow(model, scale), []
    for block in dict.fromkeys(block_of(path) for path, _ in model.named_modules() if path):
        peak, (unscaled, scaled) = recorder.peaks.get(block), underflow.get(block, (None, None))
        if peak or block in underflow:
            largest = {"largest_activation": peak and peak.value, "largest_at": peak and f"{peak.op} of {peak.module}"}
            rows.append({"block": block, **largest, "underflow_unscaled": unscaled, "underflow_scaled": scaled})
    return rows


def texts(report: dict[str, Any]) -> list[str]:
    """The report in Markdown."""
    keys = ("op", "listed_as", "type", "forward", "backward", "where")
    ops = [[str(row[key]) for key in keys] for row in report["ops"]]
    header = ["block", "largest activation", "/ float16's maximum", "where", "underflow, unscaled"]
    header.append(f"with loss scale {report['loss_scale']:g}")
    blocks = []
    for row in report["blocks"]:
        largest = row["largest_activation"]
        cells = ["", "", ""] if largest is None else [f"{largest:.4g}", f"{largest / FP16_MAX:.2%}", row["largest_at"]]
        shares = (row["underflow_unscaled"], row["underflow_scaled"])
        blocks.append([row["block"], *cells, *("" if share is None else f"{share:.2%}" for share in shares)])
    return [
        f"{report['precision']}; batch size {report['batch_size']}",
        "Ops of a training pass (the optimizer always computes in fp32):",
        markdown_table(["op", "in the lists", "dtype of its result", "forward", "backward", "modules"], ops),
        "Range, from a pass in fp32. Underflow: the share of a block's non-zero parameter gradients that float16 "
        "rounds to 0.",
        markdown_table(header, blocks),
        f"First inf or NaN: {report['first_non_finite'] or 'none'}.",
    ]


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
