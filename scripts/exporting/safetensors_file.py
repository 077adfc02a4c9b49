"""The format safetensors: the weights, with class names, preprocessing and options in the metadata."""

from pathlib import Path

import torch
from torch import nn

from engine.checkpoint.trained_on import read_trained_on
from models.build import build_model
from scripts.exporting.compare import Forward
from scripts.weights.files import write_safetensors
from scripts.weights.trained_model import TrainedModel
from utils.errors import UserError


def write(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    write_safetensors(path, model.state_dict(), trained.metadata())


def load(trained: TrainedModel, path: Path) -> Forward:
    """The model of the file, read as `-pretrained` reads it.

    Raises:
        UserError: class names or preprocessing are not read back.
    """
    trained_on = read_trained_on(str(path))
    if trained_on is None or trained_on.class_names != trained.class_names:
        raise UserError(f"{path}: class names and preprocessing cannot be read back; this is a defect, report it")
    options = trained.config.model.model_copy(update={"pretrained": str(path)})
    return build_model(options, trained.config.data, torch.device("cpu"), needs_head=True)[0].eval()
