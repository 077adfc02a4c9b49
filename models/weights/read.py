"""Weight files (torch, .safetensors, .npz, .pdparams) -> the dicts of tensors in them. The content tells the format,
the ending only .pdparams.

No code in a file is ever run. An unreadable or malicious file is refused with one line.
"""

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
import torch
from safetensors.torch import load_file
from timm.models import is_model

from configs.schema.train import WEIGHTS_EXTENSIONS
from configs.weights import NPZ, OPTIONS_ENTRY, PADDLE, SAFETENSORS, TORCH, find_weights, format_of
from configs.yaml_io import parse_value
from models.transformers_model import read_folder
from models.tuning import A, merge_adapters
from models.weights.names import State, google_to_timm, summarize_names
from utils.errors import UserError, error_from
from utils.file_formats.hf_folder import CONFIG, LOCAL, SHARDS, WEIGHTS, is_of_timm, read_metadata
from utils.file_formats.pickles import (
    ArrayRecord,
    ForbiddenName,
    Inert,
    checked_archive_bytes,
    pickled_model,
    read_plain_pickle,
    read_torch_file,
)
from utils.files import open_regular_file, read_json, verify_checksum

_GOOGLE_PREFIXES = ("", "params/", "opt/target/")
# u2: bfloat16, which numpy does not have; i4 and i8: tables of indices, such as Swin's
_CODES = ("f2", "f4", "f8", "u2", "i4", "i8")
_PARAMETER_NAMES = "StructuredToParameterName@@"  # a table of PaddlePaddle's parameter names, not a tensor
_PADDLE_ENTRIES = ("model_ema", "model")
_MAX_DEPTH = 3  # of entries in entries
_AVERAGE = re.compile(r"(?:^|[._-])(?:ema|swa|avg|averaged?|shadow)\d*(?:[._-]|$)", re.IGNORECASE)
# States of optimizers, which may have the names and shapes of the model
_OF_OPTIMIZER = re.compile(
    r"(?:^|[._])(?:optim(?:izer)?s?|exp_avg(?:_sq)?|(?:max_)?exp_avg_sqs?|momentum_buffer)(?:$|[._])"
)
LOST = "{}: {} is larger than its data in the file; give another file"
# Entries of programs whose `state_dict` is the average, which they evaluate: mmengine, Lightning
_SWAPPED = ({"message_hub", "ema_state_dict"}, {"current_model_state"})


@dataclass(frozen=True)
class Weights:
    """The dicts of tensors in a file, by the dotted path of their entries; '' is the file itself.

    average: of the paths of averages. is_result: the program of the file evaluates the average. is_paddle: in
    PaddlePaddle's layout. content: the entries of the file. lost: tensors whose data are not in the file, as of
    expanded ones. model: of transformers, for -model.
    """

    states: dict[str, dict[str, Any]]
    file: Path = Path()
    average: re.Pattern[str] = _AVERAGE
    is_result: bool = False
    is_paddle: bool = False
    content: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    model: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """The options of the program that wrote the file: `args` of timm, DeiT, MAE; Lightning's hyperparameters."""
        values = map(self.content.get, ("hyper_parameters", "args"))
        found = [one.entries | one.attributes if isinstance(one, Inert) else one for one in values]
        return {str(key): value for one in found if isinstance(one, dict) for key, value in one.items()}

    @property
    def architecture(self) -> str:
        """-model of the file, by its name in timm or its folder; '' if it names none."""
        if self.model:
            return self.model
        names = (self.content.get("arch"), self.arguments.get("model"), self.arguments.get("arch"))
        return next((name for name in names if isinstance(name, str) and is_model(name)), "")

    def advice(self, name: str) -> str:
        """The model of the file and the flags for it, for an error; '' if the file names none, or the model `name`."""
        with suppress(Exception):  # a file of another program has any content
            own = parse_value(self.content[OPTIONS_ENTRY])["MODEL"]
            stated, is_timm = summarize_names([own["NAME"]]), own["TYPE"] == "timm" and not own["KWARGS"]
            if not is_timm or stated != name:
                fix = f"give -model={stated}" if is_timm else "omit -cfg and -model"
                return f"these are weights of {stated}; {fix}"
        return f"the file names -model={self.architecture}" if self.architecture not in ("", name) else ""

    @property
    def trained_size(self) -> Any:
        """The size of the training images by the arguments: a number, or [height, width]; None if they lack it."""
        stated = (self.arguments.get(name) for name in ("input_size", "img_size", "image_size"))
        size = next(filter(None, stated), None)
        if not isinstance(size, list | tuple):
            return size
        if len(size) == 1:
            return size[0]
        is_channels_last = len(size) > 2 and size[-1] in (1, 3) and size[-3] not in (1, 3)
        return size[-3:-1] if is_channels_last else size[-2:]

    def size_of_positions(self, published: Any = None) -> int | None:
        """The image size of the position embeddings, of a square grid of patches; None if there is none, or several.

        It is the `published` one if that has this grid: 384 leaves a border of 6 pixels beside 27 patches of 14. Models
        whose patches are not of pixels, behind convolutions or of several widths (Hiera), have no size.
        """
        sizes = set[int]()
        for state in self.states.values():
            for prefix in (name.removesuffix("pos_embed") for name in state if name.endswith("pos_embed")):
                positions, patch = state[f"{prefix}pos_embed"], state.get(f"{prefix}patch_embed.proj.weight")
                norm = re.compile(rf"{re.escape(prefix)}blocks\..*\.norm1\.weight")
                widths = {state[name].shape for name in state if norm.fullmatch(name)}
                if patch is None or patch.ndim != 4 or patch.shape[1] not in (1, 3):  # channels of images
                    continue
                if positions.ndim != 3 or len(widths) > 1:
                    continue
                others = [state.get(f"{prefix}{name}") for name in ("cls_token", "dist_token", "reg_token")]
                tokens, length = positions.shape[1], patch.shape[3]
                patches = tokens - sum(one.shape[1] for one in others if one is not None and one.ndim == 3)
                is_square = patches > 0 and math.isqrt(patches) ** 2 == patches
                grid = math.isqrt(patches if is_square else tokens)
                fits = isinstance(published, int) and published // length == grid
                sizes.add(published if fits else grid * length)
        return sizes.pop() if len(sizes) == 1 else None


def read_weights(path: str) -> Weights:
    """The dicts of tensors in a file, on the CPU, with the names in the file; Google's ViT with timm's names.

    Sources: PaddleViT's .pdparams; .npz of Google's vit_jax and big_vision; files of `torch.save` with any ending;
    .safetensors. The last file is kept in memory until `forget_weights`, as a run reads its names, its head and its
    tensors in turn.
    Raises UserError: missing file, unknown format, damaged file, or a pickle that calls a function.
    """
    file = find_weights(path)
    stat = file.stat()
    return _read_file(file, format_of(file), (stat.st_ino, stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=1)
def _read_file(file: Path, kind: str, _version: tuple[Any, ...]) -> Weights:
    if not kind:
        with open_regular_file(file) as stream:
            head = stream.read(16)
        known = f"none of the known formats ({', '.join(WEIGHTS_EXTENSIONS)})"
        problem = f"{file}: is damaged, or of {known}: it begins with {head!r}"
        raise UserError(f"{problem}; download it again or give another")
    try:
        return replace(_READERS[kind](file), file=file)
    except UserError:
        raise
    except Exception as error:  # the libraries raise almost any type for a damaged file
        reason = getattr(error, "strerror", None) or type(error).__name__
        problem = f"{file}: is damaged or not a {kind} file ({reason})"
        raise error_from(error, f"{problem}; download it again or give another") from error


forget_weights = _read_file.cache_clear


def find_states(content: Any, max_array_bytes: int = 0) -> Weights:
    """The dicts with tensors in nested dicts, at most three deep; without tensors that an earlier entry has.

    max_array_bytes: of all numpy arrays; raises ValueError beyond them, as many arrays may share one string.
    """
    states: dict[str, dict[str, Any]] = {}
    found, seen = [("", content, 0)], set[int]()
    for path, value, depth in found:  # grows
        entries = value.entries if isinstance(value, Inert) else value
        if not isinstance(entries, dict) or id(value) in seen:
            continue
        seen.add(id(value))
        records = [one for one in entries.values() if type(one) is ArrayRecord]
        max_array_bytes -= sum(len(one.content) for one in records if isinstance(one.content, bytes | str))
        if records and max_array_bytes < 0:
            raise ValueError("arrays share their data")
        state = dict[str, Any]()
        for name, one in entries.items():
            if _OF_OPTIMIZER.search(str(name)):
                continue
            if type(one) is ArrayRecord:
                with suppress(Exception), catch_warnings(action="ignore"):  # damaged, or not of numbers
                    state[str(name)] = torch.from_numpy(one.array())
            elif isinstance(one, torch.Tensor):
                state[str(name)] = one
            elif isinstance(name, str) and depth < _MAX_DEPTH:
                found.append((f"{path}.{name}" if path else name, one, depth + 1))
        if state:
            states[path] = state
    top = content if isinstance(content, dict) else {}
    if any(names <= top.keys() for names in _SWAPPED):
        return Weights(states, average=re.compile(r"^state_dict\b"), is_result=True, content=top)
    return Weights(states, is_result=isinstance(top.get("format"), int), content=top)


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
    content = read_torch_file(file)
    weights = find_states(content, file_bytes)
    states, lost = dict[str, State](), list[str]()
    for entry, state in weights.states.items():
        lost += (large := [name for name, tensor in state.items() if not has_backing_storage(tensor, file_bytes)])
        if kept := {name: tensor for name, tensor in state.items() if name not in large}:
            if any(name.endswith(f".{A}") for name in kept):  # of MODEL.TUNE lora; the options have their scale
                kept = merge_adapters(kept, parse_value(content["options"])["MODEL"]["LORA"]["ALPHA"])
            states[entry] = kept
    if not states and lost:
        raise UserError(LOST.format(file, summarize_names(lost)))
    if not states:
        objects = [content, *content.values()] if isinstance(content, dict) else [content]
        if inert := [type(one).__name__ for one in objects if isinstance(one, Inert)]:
            raise UserError(f"{file}: {pickled_model(inert[0])}")
        raise UserError(f"{file}: contains no dict of tensors; give a state_dict or a checkpoint with one")
    return replace(weights, states=states, lost=tuple(lost))


def _read_safetensors(file: Path) -> Weights:
    beside = read_json(file.with_name(CONFIG)) if file.name in (*WEIGHTS, SHARDS) else {}
    if is_of_timm(beside):
        options = read_metadata(file).get(OPTIONS_ENTRY)
        return Weights({"": load_file(file, device="cpu")}, content={OPTIONS_ENTRY: options})
    return Weights({"": read_folder(file.parent)}, model=f"{LOCAL}{file.parent}")


def _read_npz(file: Path) -> Weights:
    checked_archive_bytes(file)
    with np.load(file, allow_pickle=False) as archive:
        prefix = next((prefix for prefix in _GOOGLE_PREFIXES if f"{prefix}embedding/kernel" in archive.files), None)
        if prefix is None:
            problem = f"{file}: contains {summarize_names(archive.files)}, which is not a ViT of Google's"
            raise UserError(f"{problem}; give one of its ViT checkpoints")
        names = [name for name in archive.files if name.startswith(prefix)]
        return Weights({"": google_to_timm({name.removeprefix(prefix): _as_tensor(archive[name]) for name in names})})


def _read_pdparams(file: Path) -> Weights:
    """Linear weights are (in, out). Of a training checkpoint, as PaddleViT's scripts, `model_ema` and `model`."""
    with open(file, "rb") as stream:
        try:
            content = read_plain_pickle(stream)
        except ForbiddenName as error:
            name = summarize_names([str(error)])
            raise UserError(f"{file}: refers to {name}, which is not data; give a file you trust") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: contains no dict of weights; give the .pdparams of a model")
    entries = {name: content[name] for name in _PADDLE_ENTRIES if isinstance(content.get(name), dict)} or {"": content}
    return Weights(
        {entry: _to_tensors(file, state) for entry, state in entries.items()}, is_result=True, is_paddle=True
    )


def _to_tensors(file: Path, state: dict[Any, Any]) -> State:
    arrays = dict[str, ArrayRecord]()
    for name, value in state.items():
        if name == _PARAMETER_NAMES:
            continue
        is_pair = isinstance(value, tuple | list) and len(value) == 2  # PaddlePaddle's own name, and the array
        array = value[1] if is_pair else value
        is_array = isinstance(array, ArrayRecord) and isinstance(array.content, bytes | str)
        if not (is_array and array.dtype and array.dtype.code in _CODES):
            problem = f"{summarize_names([name])} is not an array of numbers"
            raise UserError(f"{file}: {problem}; give the .pdparams of a model")
        arrays[name] = array
    if sum(len(array.content) for array in arrays.values()) > file.stat().st_size:
        raise UserError(f"{file}: uses one array for many tensors; give the .pdparams of a model")
    return {name: _as_tensor(array.array().astype(array.dtype.code)) for name, array in arrays.items()}


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same shape. Elements of two bytes without a numpy type are bfloat16."""
    if array.dtype in (np.dtype("u2"), np.dtype("V2")):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


_READERS: dict[str, Callable[[Path], Weights]] = {
    PADDLE: _read_pdparams,
    SAFETENSORS: _read_safetensors,
    TORCH: _read_torch,
    NPZ: _read_npz,
}
