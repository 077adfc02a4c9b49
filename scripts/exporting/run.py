"""One export: the model is built, written, read back, and compared with the original."""

import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from configs.reading.command_line import Command
from configs.schema import Amp
from engine.training.eval_model import build_eval_model
from scripts.exporting.compare import TOLERANCE, Reference, make_reference
from scripts.exporting.formats import FORMATS, check_target
from scripts.weights.replacing import replaced
from scripts.weights.trained_model import TrainedModel, locate_weights, open_trained
from utils.distributed import ProcessContext
from utils.errors import UserError, escape_control_characters


def run(source: Path, command: Command, kind: str, output: Path | None) -> int:
    """Exports the weights of `source`, a file or the folder of a run; returns the exit status."""
    started = time.perf_counter()
    weights = locate_weights(source)
    target = output or weights.with_name(weights.stem + FORMATS[kind].suffix)
    check_target(target, kind, weights)
    context = ProcessContext(0, 0, 1, 1, torch.device("cpu"))
    trained = open_trained(command.with_weights(weights), context)
    # In fp32, and without the parts that only training needs.
    config = trained.config.with_model(attention="auto", grad_checkpointing=False, freeze_backbone=False)
    trained = replace(trained, config=config.model_copy(update={"amp": Amp()}))
    built = build_eval_model(trained.config, context)
    for note in (*built.notes, *trained.notes):
        _print(str(note))
    reference = make_reference(built.fp32, trained.samples, trained.config.data)
    difference = export(built.fp32, trained, reference, kind, target)
    sizes = ", ".join(map(str, reference.batch_sizes()))
    _print(
        f"Compared: {len(reference.images)} validation images in batches of {sizes}: the logits differ by at most "
        f"{difference:.1e} (limit {TOLERANCE:.0e}; they range from {reference.logits.min():.2f} to "
        f"{reference.logits.max():.2f})"
    )
    seconds = time.perf_counter() - started
    _print(f"Exported: {target} ({FORMATS[kind].title}), {_size(target) / 1e6:.2f} MB, in {seconds:.1f} s")
    return 0


def export(model: nn.Module, trained: TrainedModel, reference: Reference, kind: str, target: Path) -> float:
    """Writes `target` if the export's logits equal the logits of `model`; returns the largest difference.

    Raises:
        UserError: a logit differs by more than `TOLERANCE`, or the file cannot be written; an old `target` stays.
    """
    program = FORMATS[kind].module()
    with replaced(target) as temporary:
        try:
            program.write(model, trained, temporary)
        except (RuntimeError, SafetensorError) as error:  # torch and safetensors raise them for a full disk, too
            raise UserError(
                f"{target}: cannot be written ({str(error).splitlines()[0]}); free space, or use another format"
            ) from error
        difference = reference.largest_difference(program.load(trained, temporary))
        if not difference <= TOLERANCE:
            raise UserError(
                f"-format {kind}: the logits of the exported model differ by {difference:.2g}, more than "
                f"{TOLERANCE:g}; nothing was written: use another format"
            )
    return difference


def _size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))


def _print(text: str) -> None:
    print(escape_control_characters(text), flush=True)
