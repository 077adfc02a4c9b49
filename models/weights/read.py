"""Weight files (.safetensors, .pth, .bin, .npz, .pdparams, .shards) -> one state dict with timm's names.

No code in a file is ever run. An unreadable or malicious file is refused with one line.
"""

import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from configs.reading.yaml_io import parse_value
from configs.schema.train import WEIGHTS_EXTENSIONS
from configs.weights import PADDLE, find_weights
from models.tuning import A, merge_adapters
from models.weights.names import Converter, State, find_entry, google_to_timm, summarize_names
from models.weights.shards import open_shards, read_stored
from utils.errors import UserError, error_from
from utils.file_formats.checkpoint_folder import SHARDS, StoredTensor
from utils.file_formats.plain_pickle import ArrayRecord, ForbiddenName, read_plain_pickle
from utils.file_formats.torch_file import checked_archive_bytes
from utils.files import verify_checksum

_MAX_DEPTH = 3  # of entries in entries, because a pickle may contain itself
_GOOGLE_PREFIXES = ("", "params/", "opt/target/")
# The loss object that a checkpoint may have beside the weights becomes a record: no class of torch is used.
_LOSSES: Any = [(SimpleNamespace, f"torch.nn.modules.loss.{name}") for name in torch.nn.modules.loss.__all__]
# u2: bfloat16, which numpy does not have; i4 and i8: tables of indices, such as Swin's
_CODES = ("f2", "f4", "f8", "u2", "i4", "i8")
_PARAMETER_NAMES = "StructuredToParameterName@@"  # a table of PaddlePaddle's parameter names, not a tensor


class Weights(NamedTuple):
    """The tensors of a file, and the entry of the file that has them; '' if the file has no entries."""

    state: State
    entry: str


def read_weights(path: str, from_paddle: Converter = lambda file, state: state) -> Weights:
    """The tensors of a file on the CPU, with timm's names (.pth and .safetensors: the names in the file).

    Sources: PaddleViT's .pdparams, whose names and layouts `from_paddle` converts, see `paddle_converter`;
    .npz of Google's vit_jax and big_vision; torch's .pth, .pt or .bin; .safetensors; .shards, the checkpoint folder of
    a sharded run. Of a checkpoint, also PaddleViT's and timm's, the average of the weights is read if it has one.

    Raises:
        UserError: missing file, unknown extension, damaged file, or a pickle that calls a function.
    """
    file = find_weights(path)
    extension = file.suffix.lower()
    if extension not in WEIGHTS_EXTENSIONS:
        raise UserError(f"{file}: unknown file extension; give one of {', '.join(WEIGHTS_EXTENSIONS)}")
    try:
        weights = _READERS[extension](file)
        return weights._replace(state=from_paddle(file, weights.state)) if extension == PADDLE else weights
    except UserError:
        raise
    except Exception as error:  # the libraries raise almost any type for a damaged file
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise error_from(
            error, f"{file}: is damaged or not a {extension} file ({reason}); download it again or give another"
        ) from error


def has_backing_storage(tensor: torch.Tensor, file_bytes: int) -> bool:
    """Returns whether the file can contain all elements of the tensor; if not, the tensor must not be used.

    A stride of 0 makes 10^12 elements from four bytes, meta and sparse tensors need no storage, and torch allocates a
    storage of any size that a file of its old format states.
    """
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes() <= file_bytes


def _read_torch(file: Path) -> Weights:
    verify_checksum(file)
    file_bytes = checked_archive_bytes(file)
    try:
        with torch.serialization.safe_globals(_LOSSES):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        forbidden = re.search(r"GLOBAL ([\w.]+)", str(error))
        if forbidden is None:
            raise
        raise UserError(f"{file}: refers to {forbidden[1]}, which is not data; give a plain state_dict") from None
    state, entry = _find_state(file, content)
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    for name, tensor in tensors.items():
        if not has_backing_storage(tensor, file_bytes):
            raise UserError(f"{file}: {summarize_names([name])} is larger than its data in the file; give another file")
    return Weights(_merged(_strip_wrapper_prefixes(tensors), content), entry)


def _find_state(file: Path, content: Any) -> tuple[dict[Any, Any], str]:
    entry = ""
    for _ in range(_MAX_DEPTH):
        content, inner = find_entry(content)
        entry = inner or entry
    tensor_types = torch.Tensor | StoredTensor
    if not isinstance(content, dict) or not any(isinstance(value, tensor_types) for value in content.values()):
        raise UserError(f"{file}: contains no dict of tensors; give a state_dict or a checkpoint with one")
    return content, entry


def _strip_wrapper_prefixes(state: State) -> State:
    """Removes DDP's leading 'module.' and every '_orig_mod.' of torch.compile."""
    return {re.sub(r"^(module\.)+", "", str(name).replace("_orig_mod.", "")): tensor for name, tensor in state.items()}


def _read_safetensors(file: Path) -> Weights:
    return Weights(_strip_wrapper_prefixes(load_file(file, device="cpu")), "")


def _read_shards(folder: Path) -> Weights:
    state, entry = _find_state(folder, open_shards(folder))
    return Weights(read_stored({name: one for name, one in state.items() if isinstance(one, StoredTensor)}), entry)


def _merged(state: State, content: dict[str, Any]) -> State:
    """The weights with the adapters of MODEL.TUNE lora in them; the options in the checkpoint have their scale."""
    if not any(name.endswith(f".{A}") for name in state):
        return state
    return merge_adapters(state, parse_value(content["options"])["MODEL"]["LORA"]["ALPHA"])


def _read_npz(file: Path) -> Weights:
    checked_archive_bytes(file)
    with np.load(file, allow_pickle=False) as archive:
        prefix = next((prefix for prefix in _GOOGLE_PREFIXES if f"{prefix}embedding/kernel" in archive.files), None)
        if prefix is None:
            raise UserError(
                f"{file}: contains {summarize_names(archive.files)}, which is not a ViT of Google's; "
                "give one of its ViT checkpoints"
            )
        names = [name for name in archive.files if name.startswith(prefix)]
        return Weights(google_to_timm({name.removeprefix(prefix): _as_tensor(archive[name]) for name in names}), "")


def _read_pdparams(file: Path) -> Weights:
    """Linear weights are (in, out). Of a training checkpoint, as PaddleViT's scripts: `model_ema`, else `model`."""
    with open(file, "rb") as stream:
        try:
            content = read_plain_pickle(stream)
        except ForbiddenName as error:
            name = summarize_names([str(error)])
            raise UserError(f"{file}: refers to {name}, which is not data; give a file you trust") from None
    state, entry = find_entry(content)
    if not isinstance(state, dict):
        raise UserError(f"{file}: contains no dict of weights; give the .pdparams of a model")
    arrays = {name: _to_record(file, name, value) for name, value in state.items() if name != _PARAMETER_NAMES}
    if sum(len(array.content) for array in arrays.values()) > file.stat().st_size:
        raise UserError(f"{file}: uses one array for many tensors; give the .pdparams of a model")
    return Weights({name: _as_tensor(array.array().astype(array.dtype.code)) for name, array in arrays.items()}, entry)


def _to_record(file: Path, name: Any, value: Any) -> ArrayRecord:
    if isinstance(value, tuple | list) and len(value) == 2:
        value = value[1]  # (PaddlePaddle's own name, array)
    is_array = isinstance(value, ArrayRecord) and isinstance(value.content, bytes | str)
    if not (is_array and value.dtype and value.dtype.code in _CODES):
        raise UserError(f"{file}: {summarize_names([name])} is not an array of numbers; give the .pdparams of a model")
    return value


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same shape. Elements of two bytes without a numpy type are bfloat16."""
    if array.dtype in (np.dtype("u2"), np.dtype("V2")):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


_READERS = {
    PADDLE: _read_pdparams,
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".pth", ".pt", ".bin"), _read_torch),
    ".npz": _read_npz,
    SHARDS: _read_shards,
}
