"""What mixed precision does to a model: one real forward and backward pass of a run's next batch, looked at closely.

    python scripts/amp_report/report.py -cfg=configs/vit_digits.yaml -amp -json report.json
    python scripts/amp_report/report.py -cfg=output/.../config.yaml -resume=output/...         (a run on its way)
    torchrun --nproc_per_node=2 scripts/amp_report/report.py -cfg=...                          (rank 0's part of it)

prints which ops ran how often in which type and where; for each block the largest activation against float16's maximum
and the share of gradients that would underflow in float16, without and with the present loss scale (both from a pass in
fp32); and where the first inf or NaN arises, if one does. With `-compiled` the ops are those of the compiled model.
"""

import io
import sys
from collections import defaultdict
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from utils.launch import detect_launcher, exit_with_launcher

if detect_launcher():
    exit_with_launcher()

from torch import nn

from configs.command_line import parse_command_line
from configs.schema import Amp, Config
from engine.checkpoint.checkpoint import find_checkpoint
from engine.precision.non_finite import block_of, first_non_finite
from engine.precision.op_lists import OPS
from engine.training.step import micro_step_pass
from engine.training.trainer import Trainer
from models.build import set_training
from scripts.amp_report.inspection import (
    COMPOSED,
    FP16_MAX,
    OpRecorder,
    activation_peaks,
    gradient_underflow,
    listed_name,
)
from scripts.benchmarks.common import add_flag, flag_parser, markdown_table, split_flags, write_json
from utils.distributed import ProcessContext, process_group, single_process
from utils.errors import run_and_report_errors
from utils.logger import RunLogger

SCRIPT = "amp_report.py"


def main(argv: list[str]) -> int:
    parser = flag_parser(SCRIPT, "What mixed precision does to a model, seen in one training pass.")
    add_flag(parser, "compiled", action="store_true", help="look at the model as torch.compile runs it")
    flags, rest = split_flags(parser, argv)
    config = parse_command_line(rest, SCRIPT).config
    with process_group() if detect_launcher() else nullcontext(single_process()) as context:
        found = inspect(config, context, flags.compiled)
        if context.is_main:
            print(*texts(found), sep="\n\n")
            write_json(flags.json, found)
    return 0


def inspect(config: Config, context: ProcessContext, compiled: bool) -> dict[str, Any]:
    """All that the report tells; every rank must call it."""
    run_pass = NextPass(config, context)
    precision, model = run_pass.learner.precision, run_pass.learner.weights.computing
    recorder, origin = OpRecorder(model), None
    if compiled:
        model.compile(backend=recorder.backend)
        run_pass()
    else:
        with recorder:
            run_pass()
        origin = first_non_finite(model, run_pass)
    scale = precision.scaler.get_scale() if precision.scales else config.amp.init_loss_scaling
    paths = [path for path, _ in model.named_modules()]
    del run_pass, model, recorder.model  # the next pass has a model of its own
    return {
        "precision": precision.describe(),
        "batch_size": config.data.batch_size,
        "compiled": compiled,
        "loss_scale": scale,
        "ops": op_table(recorder, paths),
        "never_ran": never_ran(recorder, config.amp),
        "first_non_finite": None if origin is None else str(origin),
        "blocks": in_fp32(config, context, scale),
    }


def in_fp32(config: Config, context: ProcessContext, scale: float) -> list[dict[str, Any]]:
    """The table of the blocks: what the same pass gives where nothing overflows or underflows."""
    with redirect_stdout(io.StringIO()):  # what the log says is said already
        run_pass = NextPass(config.model_copy(update={"amp": Amp()}), context)
    model = run_pass.learner.weights.full
    recorder = OpRecorder(model)
    with recorder:
        run_pass()
    return block_table(recorder, model, scale)


def never_ran(recorder: OpRecorder, amp: Amp) -> list[str]:
    """Listed ops that the pass had none of: softmax, where it is part of a fused attention."""
    ran = {listed_name(run.op) for run in recorder.counts}
    return [op for op in (*amp.custom_black_list, *amp.custom_white_list) if op in {*OPS} - COMPOSED - ran]


class NextPass:
    """The forward and backward pass of the batch that the run would take next; it can be repeated."""

    def __init__(self, config: Config, context: ProcessContext) -> None:
        found = find_checkpoint(config.model.resume, Path(config.save)) if config.model.resume else None
        if found:
            config = config.with_model(pretrained=None)
        config = config.model_copy(update={"train": config.train.model_copy(update={"compile": "none"})})  # see inspect
        state = found.state if found else None
        trainer = Trainer(config, context, Path(config.save), RunLogger(None, context), state)
        self.learner, self.step = trainer.learner, trainer.progress.step
        self.window = trainer.progress.window(config.train.accum_iter)
        self.batch = next(trainer.batches())
        set_training(self.learner.weights.computing, config.model.freeze_backbone)

    def __call__(self) -> None:
        self.learner.weights.computing.zero_grad()
        micro_step_pass(self.learner, self.batch, self.step, 0, self.window)


def op_table(recorder: OpRecorder, paths: list[str]) -> list[dict[str, Any]]:
    """A row for each op and type, the busiest first."""
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
    """Modules alike in all but a number in one word: `blocks.*.attn` where all are meant, `blocks.0,11.attn` else."""
    numbers_of, known = _by_pattern(modules), _by_pattern(paths)
    words = []
    for pattern, numbers in sorted(numbers_of.items()):
        everywhere = numbers == known.get(pattern)
        words.append(pattern if everywhere else pattern.replace("*", ",".join(map(str, sorted(numbers))), 1))
    return " ".join(word or "(outside)" for word in words)


def _by_pattern(paths: list[str]) -> dict[str, set[int]]:
    """The first number of each path, by what the path is without it."""
    found = defaultdict(set)
    for path in paths:
        parts = path.split(".")
        place = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
        if place is None:
            found[path] = set()
        else:
            found[".".join([*parts[:place], "*", *parts[place + 1 :]])].add(int(parts[place]))
    return found


def block_table(recorder: OpRecorder, model: nn.Module, scale: float) -> list[dict[str, Any]]:
    """A row for each block, in the model's order."""
    peaks, underflow = activation_peaks(recorder.peaks), gradient_underflow(model, scale)
    blocks = dict.fromkeys(block_of(path) for path, _ in model.named_modules() if path)
    return [
        {
            "block": block,
            "largest_activation": peaks[block].value if block in peaks else None,
            "largest_at": f"{peaks[block].op} of {peaks[block].module}" if block in peaks else None,
            "underflow_unscaled": underflow[block].unscaled if block in underflow else None,
            "underflow_scaled": underflow[block].scaled if block in underflow else None,
        }
        for block in blocks
        if block in peaks or block in underflow
    ]


def texts(found: dict[str, Any]) -> list[str]:
    """The report in Markdown."""
    ops = [
        [row["op"], row["listed_as"], row["type"], str(row["forward"]), str(row["backward"]), row["where"]]
        for row in found["ops"]
    ]
    scale = f"with loss scale {found['loss_scale']:g}"
    blocks = [
        [
            row["block"],
            _number(row["largest_activation"], "{:.4g}"),
            _number(row["largest_activation"], "{:.2%}", 1 / FP16_MAX),
            row["largest_at"] or "",
            _number(row["underflow_unscaled"], "{:.2%}"),
            _number(row["underflow_scaled"], "{:.2%}"),
        ]
        for row in found["blocks"]
    ]
    block_header = ["block", "largest activation", "/ float16's maximum", "where", "underflow, unscaled", scale]
    parts = [
        f"{found['precision']}; batch size {found['batch_size']}{'; compiled' if found['compiled'] else ''}",
        "Ops of a training pass (the optimizer's are in fp32 always):",
        markdown_table(["op", "in the lists", "type of its result", "forward", "backward", "modules"], ops),
        "Range, from a pass in fp32. Underflow: the share of the gradients of a block's parameters, of those not 0, "
        "that float16 rounds to 0. (A new ViT's head of zeros passes no gradient on; see a run on its way.)",
        markdown_table(block_header, blocks),
    ]
    if found["never_ran"]:
        parts.append(f"Listed, but never run as an op of its own: {', '.join(found['never_ran'])}.")
    if not found["compiled"]:
        parts.append(f"First inf or NaN: {found['first_non_finite'] or 'none'}.")
    return parts


def _number(value: float | None, form: str, factor: float = 1.0) -> str:
    return "" if value is None else form.format(value * factor)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
