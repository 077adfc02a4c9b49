"""A state dict with timm's names -> a weight file of any kind that `-pretrained` reads."""

import errno
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from configs.reading.yaml_io import write_yaml
from configs.schema.families.registry import FAMILIES
from configs.schema.model import Model
from scripts.weights.names import State, to_google, to_paddle_family, to_paddlevit
from utils.atomic_file import atomic_save

_PICKLE_PROTOCOL = 4  # PaddlePaddle 3's


def write_safetensors(path: Path, state: State, metadata: dict[str, str]) -> None:
    """Every tensor; one with several names is written under each of them, as `-pretrained` needs.

    Raises:
        OSError: the file cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode
    tensors = {name: tensor.contiguous().clone() for name, tensor in state.items()}
    try:
        save_file(tensors, path, {"format": "pt"} | metadata)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
    path.chmod(mode)  # the library makes a file that only its owner can read


def write_torch(path: Path, state: State, description: dict[str, Any], options: dict[str, Any]) -> None:
    """A checkpoint without optimizer. description, options: as in `to_metadata`; empty if they are not known."""
    known = {"options": write_yaml(options)} if options else {}
    atomic_save(path, {"model": state, **known, **description})


def write_google(path: Path, state: State, num_heads: int) -> None:
    """Raises NoName for a tensor that Google's ViT does not have."""
    np.savez(path, **{name: _to_array(tensor) for name, tensor in to_google(state, num_heads).items()})


def write_paddle(path: Path, state: State, options: Model, linear: set[str]) -> None:
    """A pickle of a dict of arrays, as paddle.save writes it; numpy 1.26.1 or later reads it.

    linear: names of the weights of linear layers.

    Raises:
        NoName: PaddleViT has no name for a tensor, or the names of this family cannot be inverted.
    """
    family = FAMILIES.get(options.type)
    renamed = to_paddle_family(state, family, options, linear) if family else to_paddlevit(state)
    with open(path, "wb") as file:
        pickle.dump({name: _to_array(tensor) for name, tensor in renamed.items()}, file, _PICKLE_PROTOCOL)


def _to_array(tensor: torch.Tensor) -> np.ndarray:
    """bfloat16, which numpy does not have, as the 16-bit integers of its bits."""
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.int16).numpy().view("u2") if tensor.dtype == torch.bfloat16 else tensor.numpy()
