"""One export: the model is built, written, read back, and compared with the original."""

import argparse
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from configs.reading.command_line import Command
from configs.schema import Amp
from engine.run.mfu.flops import count_parameters
from engine.training.eval_model import build_eval_model
from scripts.exporting.compare import TOLERANCE, Reference, make_reference, read_reference
from scripts.exporting.formats import FORMATS, check_target
from scripts.weights.trained_model import TrainedModel, locate_weights, open_trained, without_images
from utils.atomic_file import fsync_path
from utils.distributed import single_process
from utils.errors import UserError, error_from, print_escaped


def run(source: Path, command: Command, flags: argparse.Namespace) -> int:
    """Exports the weights of `source`, a file or the folder of a run; returns the exit status.

    flags: of scripts/export.py.
    """
    weights, kind = locate_weights(source), flags.format
    target = flags.output or weights.with_name(weights.stem + FORMATS[kind].suffix)
    check_target(target, kind, weights)
    context = single_process("cpu")
    command = command.with_weights(weights)
    if flags.check or flags.no_check:
        trained, samples = without_images(command), None
    else:
        trained, samples = open_trained(command, context)
    if flags.no_paths:
        trained = replace(trained, split=None, names_data_path=False)
    # In fp32, and without the parts that only training needs.
    config = trained.config.with_model(attention="auto", grad_checkpointing=False, freeze_backbone=False, tune="full")
    trained = replace(trained, config=config.model_copy(update={"amp": Amp()}))
    built = build_eval_model(trained.config, context)
    for note in (*built.notes, *trained.notes):
        print_escaped(str(note))
    model, config = built.fp32, trained.config
    reference = read_reference(flags.check, model, config) if flags.check else None
    reference = make_reference(model, samples, config.data) if samples else reference
    difference = export(model, trained, reference, kind, target)
    if reference:
        print_escaped(
            f"Compared: {len(reference.images)} {reference.title}: the logits differ by at most {difference:.1e} "
            f"(limit {TOLERANCE:.0e}; they range from {reference.logits.min():.2f} to {reference.logits.max():.2f})"
        )
    else:
        print_escaped("Not checked: the exported model was not run (-no_check)")
    print_escaped(f"Exported: {target} ({FORMATS[kind].title}; {count_parameters(model)[0]:,} parameters)")
    return 0


def export(model: nn.Module, trained: TrainedModel, reference: Reference | None, kind: str, target: Path) -> float:
    """Writes `target` if the export's logits equal the logits of `model`; returns the largest difference.

    reference: None writes without a comparison; the result is then NaN.

    Raises:
        UserError: a logit differs by more than `TOLERANCE`, or the file cannot be written; an old `target` stays.
    """
    program = FORMATS[kind].module()
    with replaced(target) as temporary:
        try:
            program.write(model, trained, temporary)
        except (RuntimeError, SafetensorError) as error:  # torch and safetensors raise them for a full disk, too
            raise error_from(
                error, f"{target}: cannot be written ({str(error).splitlines()[0]}); free space, or use another format"
            ) from error
        if not reference:
            return math.nan
        difference = reference.largest_difference(program.load(trained, temporary))
        if not difference <= TOLERANCE:
            raise UserError(
                f"-format {kind}: the logits of the exported model differ by {difference:.2g}, more than "
                f"{TOLERANCE:g}; nothing was written: use another format"
            )
    return difference


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A temporary path beside `target` to write a file or a folder to; it replaces `target` at the end of the block.

    After an exception in the block `target` is unchanged, and nothing else is left.

    Raises:
        UserError: it cannot be written.
    """
    temporary = target.with_name(f".new-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        yield temporary
        for file in [temporary, *temporary.glob("*")]:
            fsync_path(file)
        if target.is_dir():  # a folder cannot be replaced in one operation
            _remove(target)
        os.replace(temporary, target)
        fsync_path(target.parent)
    except OSError as error:
        raise error_from(
            error, f"{target}: cannot be written ({error.strerror or error}); free space, or choose another path"
        ) from None
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
