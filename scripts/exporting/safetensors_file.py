"""The format safetensors: the weights, with class names, preprocessing and options in the metadata."""

import errno
import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from engine.checkpoint.weights_record import exported_entry, read_record
from scripts.exporting.run import Forward
from scripts.weights.trained_model import TrainedModel
from utils.errors import UserError


def write(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """Every tensor; one with several names is written under each of them, as `-pretrained` needs.

    Raises:
        OSError: the file cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode
    tensors = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    try:
        split = {entry: json.dumps(value) for entry, value in exported_entry(trained.split).items()}
        save_file(tensors, path, {"format": "pt"} | trained.metadata() | split)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
    path.chmod(mode)  # the library makes a file that only its owner can read


def load(trained: TrainedModel, path: Path) -> Forward:
    """The model of the file, read as `-pretrained` reads it.

    Raises:
        UserError: class names or preprocessing are not read back.
    """
    record = read_record(str(path))
    if record is None or record.class_names != trained.class_names:
        raise UserError(f"{path}: class names and preprocessing cannot be read back; this is a defect, report it")
    return trained.build(path)
