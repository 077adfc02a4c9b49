"""The format onnx: images float32 (B, C, S, S) -> logits (B, classes) with a dynamic batch."""

import contextlib
import io
import logging
from pathlib import Path

import torch
from torch import nn

from scripts.exporting.formats import OPSET
from scripts.exporting.run import Forward
from scripts.exporting.torch_export_file import export_program
from scripts.weights.trained_model import TrainedModel
from utils.errors import UserError
from utils.files import tensor_bytes

_MAX_BYTES = 2_000_000_000  # of a file: protobuf's limit is 2 GiB


def write(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """One file; class names and preprocessing are in its metadata.

    Raises:
        UserError: the weights exceed the size of one file.
    """
    size = tensor_bytes(model.state_dict())
    if size > _MAX_BYTES:
        raise UserError(f"-format onnx: the weights have {size:,} bytes, a file at most 2 GiB; use torch_export")
    program = export_program(model, trained)
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


def load(trained: TrainedModel, path: Path) -> Forward:
    """The model in onnxruntime, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])
