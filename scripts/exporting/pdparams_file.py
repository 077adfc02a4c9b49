"""The format pdparams: the weights with PaddleViT's names and layouts, by the inverse of the rules that read them."""

import pickle
import re
from pathlib import Path

from torch import nn

from models.weights.paddle import family_of, is_computed, linear_weights
from scripts.exporting.compare import Forward
from scripts.weights.trained_model import TrainedModel
from utils.errors import UserError

_PICKLE_PROTOCOL = 4  # PaddlePaddle 3's
_STATISTICS = ((r"\.running_mean$", "._mean"), (r"\.running_var$", "._variance"))


def write(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """A pickle of a dict of arrays, as paddle.save writes it; numpy 1.26.1 or later reads it.

    Raises:
        UserError: PaddleViT does not have this model, or the names of its family cannot be inverted.
    """
    options = trained.config.model
    family = family_of(options)
    renames = [_inverted(pattern, replacement) for pattern, replacement in reversed(family.renames_for(options))]
    if options.type == "timm" or family.split or None in renames:
        raise UserError(
            f"-format pdparams: MODEL.TYPE {options.type} has no table from timm's names to PaddleViT's; use another "
            "format"
        )
    linear, arrays = linear_weights(model), {}
    for name, tensor in model.state_dict().items():
        if not is_computed(name, tensor, family):
            renamed = name
            for pattern, replacement in filter(None, (*renames, *_STATISTICS)):
                renamed = re.sub(pattern, replacement, renamed)
            is_transposed = name in linear and tensor.ndim == 2
            arrays[renamed] = (tensor.t() if is_transposed else tensor).contiguous().numpy()
    with open(path, "wb") as file:
        pickle.dump(arrays, file, _PICKLE_PROTOCOL)


def load(trained: TrainedModel, path: Path) -> Forward:
    """The model of the file, read as `-pretrained` reads it."""
    return trained.build(path)


def _inverted(pattern: str, replacement: object) -> tuple[str, str] | None:
    """The inverse of a rename of plain text, such as '^a\\.b\\.' -> 'c.'; None for one with groups or a function."""
    text = pattern.removeprefix("^").removesuffix("$")
    plain = re.sub(r"\\(.)", r"\1", text)
    if not isinstance(replacement, str) or re.escape(plain) != text:
        return None
    return pattern.replace(text, re.escape(replacement)), plain
