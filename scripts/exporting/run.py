"""One export: the model is built, written, read back, and compared with the original on validation images, or on
images and logits of another program. Legend: N images, C channels, S pixels on a side."""

import argparse
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from configs.command_line import Command
from configs.schema import Amp, Config, Data
from configs.schema.operating_point import UNDECIDED
from datasets.batch import is_padding
from datasets.loading.loader import BatchReader
from datasets.sources.samples import Samples
from datasets.transforms.device import Normalize
from datasets.transforms.host import build_eval_host_transform
from engine.evaluation.fast import speed_up
from engine.evaluation.session import EvalModel, build_eval_model
from engine.run.cost import count_parameters
from scripts.exporting import files
from scripts.exporting.deploy import write_deploy
from scripts.exporting.formats import FORMATS, check_target
from scripts.weights.trained_model import Forward, TrainedModel, locate_weights, open_trained, without_images
from utils.distributed import single_process
from utils.errors import UserError, error_from, first_line, print_escaped
from utils.file_formats.pickles import checked_archive_bytes
from utils.files import file_fix, fsync_path

TOLERANCE = 1e-3  # of logits in fp32, absolute
HALF_TOLERANCE = 1e-2  # of onnx_float16, absolute and of the largest logit
RELATIVE = 1e-5  # of logits, of the largest one: what float32 rounds away
MIN_SPREAD = 100  # of the logits of a class over the images, in limits: with less, the limit proves nothing
NUM_IMAGES = 32
_MANY = 1000  # images, for which an exported program is used

# A writer of the model, its description, and the path; a reader of the description and the path, as users read it.
_PROGRAMS = {
    "safetensors": (files.write_safetensors, lambda trained, path: trained.build(path)),
    "hf": (files.write_hf, files.load_hf),
    "onnx": (files.write_onnx, files.load_onnx),
    "onnx_float16": (files.write_onnx_float16, files.load_onnx),
    "web": (files.write_web, lambda trained, path: files.load_onnx(trained, path / "model.onnx")),
    "deploy": (write_deploy, lambda trained, path: files.load_onnx(trained, path / "model-batch.onnx")),
    "torch_export": (files.write_torch_export, lambda _, path: torch.export.load(path).module()),
}


@dataclass(frozen=True)
class Reference:
    """Normalized images float32 (N, C, S, S), and their logits float32 (N, classes). title: of the images."""

    images: Tensor
    logits: Tensor
    title: str = "validation images"
    tolerance: float = TOLERANCE
    relative: float = RELATIVE

    @property
    def limit(self) -> float:
        """Of a difference of logits."""
        return max(self.tolerance, self.relative * self.logits.abs().max().item())

    def check_spread(self) -> None:
        """Raises UserError if the logits hardly depend on the image."""
        spread = (self.logits.amax(0) - self.logits.amin(0)).max().item()
        least = MIN_SPREAD * self.limit
        if not spread >= least:
            raise UserError(
                f"the logits of {len(self.images)} {self.title} differ by at most {spread:.2g}, less than {least:g}:"
                " a comparison would prove nothing; give trained weights (with MODEL_EMA: their average is exported)"
            )

    @torch.no_grad()
    def check(self, forward: Forward, subject: str, fix: str) -> float:
        """The largest difference of a logit, over a batch of one image and a batch of the others.

        Raises UserError: a logit differs by more than `limit`.
        """
        logits = torch.cat([forward(self.images[:1]), forward(self.images[1:])])
        found = (logits - self.logits).abs().nan_to_num(nan=float("inf")).max().item()
        if not found <= self.limit:
            raise UserError(
                f"{subject}: the logits differ by {found:.2g}, more than {self.limit:.2g}; nothing was written: {fix}"
            )
        return found


@torch.inference_mode()
def make_reference(model: nn.Module, samples: Samples, data: Data) -> Reference:
    """The logits of `model` for images that are spread evenly over the validation samples.

    Raises UserError: an image is unreadable, or the logits hardly depend on the image, as with an untrained head.
    """
    count = min(NUM_IMAGES, len(samples))
    keys = [(0, position * len(samples) // count, 0) for position in range(count)]
    batch = BatchReader(samples, data, build_eval_host_transform(data)).__getitems__(keys)
    if isinstance(batch, UserError):
        raise batch
    images = Normalize(data)(batch.images[~is_padding(batch.targets)])
    if len(images) < 2:
        raise UserError(f"{data.data_path}: has {len(images)} readable validation images; give two or more")
    reference = Reference(images, model.eval()(images))
    reference.check_spread()
    return reference


@torch.inference_mode()
def read_reference(file: Path, model: nn.Module, config: Config) -> Reference:
    """The arrays `images` (N, C, S, S), normalized, and `logits` (N, classes) of another program, in an .npz file.

    Raises UserError: no such arrays, or of other shapes than the model's; logits that hardly depend on the image, or
    that differ from the logits of `model` by more than the limit.
    """
    shape = config.data.image_shape
    classes = config.model.num_logits
    try:
        checked_archive_bytes(file)
        with np.load(file, allow_pickle=False) as arrays:
            images, logits = (torch.from_numpy(arrays[name]).float() for name in ("images", "logits"))
    except Exception as error:  # numpy raises almost any type for a damaged file
        reason = getattr(error, "strerror", None) or error
        raise error_from(
            error, f"-check {file}: cannot be read ({reason}); give an .npz file with images and logits"
        ) from None
    if images.shape[1:] != shape or logits.shape != (len(images), classes) or len(images) < 2:
        raise UserError(
            f"-check {file}: images are {tuple(images.shape)}, logits {tuple(logits.shape)}; "
            f"the model needs (N, *{shape}) and (N, {classes}), N at least 2: set DATA.IMAGE_SIZE, or give others"
        )
    reference = Reference(images, logits, f"images of {file}")
    reference.check_spread()
    reference.check(model.eval(), f"-check {file}", "give the images and logits of these weights")
    return reference


def run_export(source: Path, command: Command, flags: argparse.Namespace) -> int:
    """Exports the weights of `source`, a file or the folder of a run, by the flags of scripts/export.py."""
    weights = locate_weights(source)
    kind = flags.format
    target = flags.output or weights.with_name(weights.stem + FORMATS[kind].suffix)
    check_target(target, kind, weights)
    context = single_process("cpu")
    # In fp32, without test-time augmentation and the parts that only training needs.
    given = command.config.changed(amp=Amp(), eval=command.config.eval.changed(tta="none"))
    command = replace(command, config=given).with_weights(weights)
    needs_images = not (flags.check or flags.no_check)
    trained = open_trained(command, context) if needs_images else without_images(command)
    if flags.no_paths:
        trained = replace(trained, names_data_path=False)
    data = trained.config.data
    if data.resize != "crop" and data.crop_pct != 1:
        raise UserError(
            f"-format {kind}: the weights were published for RESIZE {data.resize} with CROP_PCT {data.crop_pct:g}"
            ", and an export shows whole images; set DATA.CROP_PCT=1"
        )
    config = trained.config.with_model(attention="auto", grad_checkpointing=False, tune="full")
    trained = replace(trained, config=config)
    built = build_eval_model(config, context, record=trained.record)
    for note in (*built.notes, *trained.notes):
        print_escaped(str(note))
    model = built.fp32
    speed_up(model, config, built.evaluator.precision, _MANY, keeps_weights=True)
    reference = None  # with -no_check
    if flags.check:
        reference = read_reference(flags.check, model, config)
    elif trained.samples:
        reference = make_reference(model, trained.samples, config.data)
    if trained.others:
        trained = _with_own_figures(trained, built)
    print_escaped(export(model, trained, reference, kind, target))
    print_escaped(f"Exported: {target} ({FORMATS[kind].title}; {count_parameters(model)[0]:,} parameters)")
    return 0


def _with_own_figures(trained: TrainedModel, built: EvalModel) -> TrainedModel:
    """The model with its own thresholds and figures, none without images: the run has evaluated another one."""
    reason = f"figures and thresholds of the run are not of this export ({', '.join(trained.others)})"
    if trained.samples is None:
        print_escaped(f"Left out: {reason}; without -no_check and -check, validation images choose and measure them")
        return replace(trained, decision=UNDECIDED)
    print_escaped(f"Measured on {len(trained.samples)} validation images: {reason}")
    return trained.measure(built)


def export(model: nn.Module, trained: TrainedModel, reference: Reference | None, kind: str, target: Path) -> str:
    """Writes `target` if the export's logits equal the logits of `model`, which loses its memory; returns a line on the
    comparison.

    reference: None writes without a comparison.
    Raises UserError: as `Reference.check`, or the file cannot be written; an old `target` stays.
    """
    write, load = _PROGRAMS[kind]
    with replaced(target) as temporary:
        try:
            write(model, trained, temporary)
        except (RuntimeError, SafetensorError) as error:  # torch and safetensors raise them for a full disk, too
            reason = first_line(error)
            raise error_from(
                error, f"{target}: cannot be written ({reason}); {file_fix(reason)}, or use another format"
            ) from error
        model.to("meta")  # frees the weights before the export is read
        if not reference:
            return "Not checked: the exported model was not run (-no_check)"
        if kind == "onnx_float16":
            reference = replace(reference, tolerance=HALF_TOLERANCE, relative=HALF_TOLERANCE)
        found = reference.check(load(trained, temporary), f"-format {kind}: the exported model", "use another format")
    low, high = reference.logits.aminmax()
    return (
        f"Compared: {len(reference.images)} {reference.title}: the logits differ by at most {found:.1e} "
        f"(limit {reference.limit:.0e}; they range from {low:.2f} to {high:.2f})"
    )


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A temporary path beside `target` to write a file or a folder to; it replaces `target` at the end of the block.

    Raises UserError if it cannot be written. After any exception `target` is unchanged, and nothing else is left.
    """
    folder = target.with_name(f".new-{target.name}")
    temporary = folder / target.name
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of an export that was killed
        folder.mkdir(parents=True)
        yield temporary
        for file in [temporary, *temporary.glob("*")]:
            fsync_path(file)
        if target.is_dir():  # a folder cannot be replaced in one operation
            shutil.rmtree(target)
        os.replace(temporary, target)
        fsync_path(target.parent)
    except OSError as error:
        raise error_from(
            error,
            f"{target}: cannot be written ({error.strerror or error}); {file_fix(error)}, or choose another path",
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
