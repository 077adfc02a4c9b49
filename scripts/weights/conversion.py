"""One conversion: weights are read, written with other names, read back, and compared bit by bit."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from configs.reading.weight_options import options_to_export
from configs.schema import Config
from engine.checkpoint.trained_on import read_trained_on, to_metadata
from models.build import build_model
from models.classifiers import classifiers
from models.weights.families import paddle_converter
from models.weights.names import summarize_names
from models.weights.read import State, read_weights
from scripts.weights.files import write_google, write_paddle, write_safetensors, write_torch
from scripts.weights.names import NoName
from scripts.weights.replacing import replaced
from utils.errors import UserError
from utils.file_formats.checkpoint_folder import SHARDS

_TIMM_NAMES = (".safetensors", ".pth", ".pt", SHARDS)
_CPU = torch.device("cpu")


def write_converted(source: Path, target: Path, config: Config) -> int:
    """Writes `target` from `source`, weights of the model of `config`; returns the number of tensors.

    Raises:
        UserError: the model has no names of this kind; the weights belong to another model.
    """
    kind = target.suffix.lower()
    needs_model = kind not in _TIMM_NAMES or source.suffix.lower() not in _TIMM_NAMES
    model = build_model(config.with_model(pretrained=None).model, config.data, _CPU)[0] if needs_model else None
    converter = paddle_converter(config.model, model)
    state = read_weights(str(source), converter)
    if model is not None and kind not in _TIMM_NAMES:
        _check_model(source, state, model)
    with replaced(target) as temporary:
        try:
            _write(temporary, kind, state, source, config, model)
        except NoName as missing:
            raise UserError(
                f"{target}: weights of MODEL.TYPE {config.model.type} cannot become {kind}: {missing}; convert to "
                ".safetensors or .pth, or name another model with -cfg or -model"
            ) from None
        _check_equal(target, state, read_weights(str(temporary), converter), counters=kind != ".pdparams")
    return len(state)


def _write(path: Path, kind: str, state: State, source: Path, config: Config, model: nn.Module | None) -> None:
    if kind == ".npz":
        if config.model.type not in ("vit", "timm") or not hasattr(model, "blocks"):
            raise NoName("Google has names for a ViT only")
        write_google(path, state, model.blocks[0].attn.num_heads)
    elif kind == ".pdparams":
        linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        write_paddle(path, state, config.model, linear)
    else:
        description, options = _known(source)
        if kind == ".safetensors":
            write_safetensors(path, state, to_metadata(description, options) if options else {})
        else:
            write_torch(path, state, description, options)


def _known(source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Class names and preprocessing, and options, of a checkpoint or an export; empty for other weights."""
    trained_on = read_trained_on(str(source))
    if trained_on is None:
        return {}, {}
    description = {"class_names": trained_on.class_names, "preprocessing": trained_on.preprocessing}
    return description, options_to_export({"MODEL": trained_on.model, "DATA": trained_on.data})


def _check_model(source: Path, state: State, model: nn.Module) -> None:
    """Raises a UserError if the weights belong to another model; heads and position embeddings may differ in size."""
    heads = [name for name, module in model.named_modules() if any(module is head for head in classifiers(model))]
    own = {
        name: tensor.shape
        for name, tensor in model.state_dict().items()
        if name != "pos_embed" and not name.startswith(tuple(f"{head}." for head in heads))
    }
    wrong = [name for name, shape in own.items() if name not in state or state[name].shape != shape]
    if wrong:
        raise UserError(
            f"{source}: is not of this model ({summarize_names(wrong)} missing or of another shape); name its model "
            "with -cfg or -model"
        )


def _check_equal(target: Path, state: State, read: State, counters: bool) -> None:
    """Raises a UserError unless both states are equal; `counters`: also in tensors that are not floating-point."""
    kept = {name for name, tensor in state.items() if counters or tensor.is_floating_point()}
    differing = [name for name in kept if name not in read or not _same(state[name], read[name])]
    differing += [name for name in read.keys() - state.keys() if counters or read[name].is_floating_point()]
    if differing:
        raise UserError(
            f"{target}: {summarize_names(sorted(differing))} cannot be read back unchanged; nothing was written"
        )


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
