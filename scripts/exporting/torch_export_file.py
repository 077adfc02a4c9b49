"""The format torch_export: a program of torch.export (.pt2) with a dynamic batch; torch alone runs it."""

import copy
from pathlib import Path

import torch
from torch import nn

from models.kernels import FUSED, use_attention
from scripts.exporting.run import Forward
from scripts.weights.trained_model import TrainedModel
from utils.errors import UserError


def export_program(model: nn.Module, trained: TrainedModel) -> torch.export.ExportedProgram:
    """The program of `model`: images float32 (B, C, S, S) -> logits (B, classes), for any B.

    Raises:
        UserError: torch cannot trace the model.
    """
    data = trained.config.data
    images = torch.zeros((2, data.image_channels, data.image_size, data.image_size))  # with 1, torch fixes the batch
    try:
        program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # of many types, by the operation
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"MODEL.TYPE {trained.config.model.type}: torch.export cannot trace this model ({reason}); use safetensors"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names the folders of this machine
    return program


def write(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """Class names and preprocessing are in the extra files `class_names` and `preprocessing`."""
    model = copy.deepcopy(model)
    use_attention(model, FUSED)  # the kernel is chosen where the program runs
    torch.export.save(export_program(model, trained), path, extra_files=trained.metadata())


def load(trained: TrainedModel, path: Path) -> Forward:
    return torch.export.load(path).module()
