"""The formats of an export that are one file: `write_FORMAT` writes a model.

onnx and torch_export are programs: images float32 (B, C, S, S) -> logits (B, classes), for any B.
"""

import contextlib
import copy
import errno
import io
import json
import logging
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from engine.checkpoint.weights_record import exported_entry
from models.kernels import FUSED, use_attention
from scripts.exporting.formats import OPSET
from scripts.weights.trained_model import Forward, TrainedModel
from utils.errors import UserError
from utils.files import tensor_bytes

_MAX_ONNX_BYTES = 2_000_000_000  # of a file: protobuf's limit is 2 GiB


def write_safetensors(
    model: nn.Module, trained: TrainedModel, path: Path, state: dict[str, torch.Tensor] | None = None
) -> None:
    """The weights, with class names, preprocessing and options in the metadata; raises OSError for a full disk.

    A tensor with several names is written under each of them, as `-pretrained` needs. state: under other names.
    """
    path.touch()
    mode = path.stat().st_mode
    tensors = {name: tensor.contiguous().clone() for name, tensor in (state or model.state_dict()).items()}
    try:
        split = {entry: json.dumps(value) for entry, value in exported_entry(trained.split).items()}
        save_file(tensors, path, {"format": "pt"} | trained.metadata() | split)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
    path.chmod(mode)  # the library makes a file that only its owner can read


def _export_program(model: nn.Module, trained: TrainedModel) -> torch.export.ExportedProgram:
    """Raises UserError if torch cannot trace the model."""
    data = trained.config.data
    images = torch.zeros((2, data.image_channels, *data.input_size))  # with 1, torch fixes the batch
    try:
        program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # of many types, by the operation
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        problem = f"MODEL.TYPE {trained.config.model.type}: torch.export cannot trace this model ({reason})"
        raise UserError(f"{problem}; use safetensors") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names the folders of this machine
    return program


def write_torch_export(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """A program of torch.export; class names and preprocessing are in its extra files of these names."""
    model = copy.deepcopy(model)
    use_attention(model, FUSED)  # the kernel is chosen where the program runs
    torch.export.save(_export_program(model, trained), path, extra_files=trained.metadata())


def write_onnx(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """One file; class names and preprocessing are in its metadata. Raises UserError if the weights are too large."""
    size = tensor_bytes(model.state_dict())
    if size > _MAX_ONNX_BYTES:
        raise UserError(f"-format onnx: the weights have {size:,} bytes, a file at most 2 GiB; use torch_export")
    program = _export_program(model, trained)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()):  # progress of each step
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: "batch"},),  # the name of the axis: torch forgets the program's
            external_data=False,
        )
    exported.model.metadata_props.update(trained.metadata())
    exported.save(str(path), external_data=False)


def load_onnx(trained: TrainedModel, path: Path) -> Forward:
    """The model in onnxruntime, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])
