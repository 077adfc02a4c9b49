"""Weight files (torch, .safetensors, .npz, .pdparams) -> the dicts of tensors in them. The content tells the format,
the ending only .pdparams.

No code in a file is ever run. An unreadable or malicious file is refused with one line.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch
from safetensors.torch import load_file
from timm.models import is_model
from torch import Tensor

from configs.schema.families.family import OWN_KEYS
from configs.weights import NPZ, OPTIONS_ENTRY, PADDLE, SAFETENSORS, TORCH, Header, open_weights
from configs.yaml_io import Values, parse_value
from models.transformers_model import read_folder
from models.tuning import A, merge_adapters
from models.weights.names import State, google_to_timm, summarize_names
from models.weights.programs import OPEN_CLIP, fixed_arguments, open_clip_arguments
from utils.errors import UserError
from utils.file_formats.hf_folder import LOCAL, SHARDS
from utils.file_formats.pickles import (
    ArrayRecord,
    Inert,
    TensorRecord,
    checked_archive_bytes,
    pickled_model,
    verify_archive,
)
from utils.files import read_json
from utils.torch_compat import tree_map_only

_GOOGLE_PREFIXES = ("", "params/", "params/img/", "opt/target/")
_MAX_DEPTH = 3  # of entries in entries
_AVERAGE = re.compile(r"(?:^|[._-])(?:ema|swa|avg|averaged?|shadow)\d*(?:[._-]|$)", re.IGNORECASE)
# States of optimizers, which may have the names and shapes of the model
_OF_OPTIMIZER = re.compile(
    r"(?:^|[._])(?:optim(?:izer)?s?|exp_avg(?:_sq)?|(?:max_)?exp_avg_sqs?|momentum_buffer)(?:$|[._])"
)
_ADAPTER = re.compile(r"(?:^|[._])lora_|\.base_layer\.")  # of peft, loralib
# Entries of programs whose `state_dict` is the average, which they evaluate: mmengine, Lightning
_SWAPPED = ({"message_hub", "ema_state_dict"}, {"current_model_state"})
LOST = (
    "{}: is damaged, quantized, sparse or a part: it has not all numbers of {}; save plain tensors (of DeepSpeed's "
    "parts, with its zero_to_fp32.py), or give another file"
)
_RESULT = re.compile(r"^state_dict\b")
_OF_NETWORK = {"gp": "global_pool", "bn_eps": "bn_eps"}  # arguments of timm's train.py and of its models


@dataclass(frozen=True)
class Tensors:
    """states: the dicts of tensors in a file, by the dotted path of their entries; '' is the file itself.

    lost: tensors whose data are not in the file, as of expanded ones.
    """

    states: dict[str, Values]
    lost: list[str] = field(default_factory=list)


class WeightsFile(Header):
    """A weight file that is open: its header is read once, its tensors when they are used.

    Tensors of torch and .safetensors files stay on the disk until then; all are given back with this object.
    Sources: PaddleViT's .pdparams; .npz of Google's vit_jax and big_vision; files of `torch.save` with any ending;
    .safetensors. Names are the file's, of Google's ViT timm's; tensors of PaddlePaddle are in its layout.
    """

    @cached_property
    def tensors(self) -> Tensors:
        """Raises UserError: a damaged file, without tensors, or a pickle that calls a function."""
        with self.explained():
            tensors = _READERS[self.kind](self)
        adapters = [name for state in tensors.states.values() for name in state if _ADAPTER.search(name)]
        if adapters:
            raise UserError(
                f"{self.file}: has adapters beside the weights ({summarize_names(adapters)}); "
                "save the weights with them merged, as peft's merge_and_unload() returns the model"
            )
        return tensors

    @property
    def entries(self) -> Mapping[str, Any]:
        """The entries of the file, or of its metadata."""
        return self.content if isinstance(self.content, dict) else {}

    @cached_property
    def own_options(self) -> Values:
        """The sections of options in a checkpoint or export of this program; empty in a file of another one."""
        parse = json.loads if self.kind == SAFETENSORS else parse_value
        with suppress(Exception):  # a file of another program has any content
            options = parse(self.entries[OPTIONS_ENTRY])
            if isinstance(options["MODEL"], dict) and isinstance(options["DATA"], dict):
                return options
        return {}

    @property
    def is_result(self) -> bool:
        """Returns whether the program of the file evaluates the average."""
        return self.kind == PADDLE or self._is_swapped or isinstance(self.entries.get("format"), int)

    @property
    def average(self) -> re.Pattern[str]:
        """Of the paths of averages."""
        return _RESULT if self._is_swapped else _AVERAGE

    @property
    def _is_swapped(self) -> bool:
        return any(names <= self.entries.keys() for names in _SWAPPED)

    @property
    def program_arguments(self) -> Values:
        """The entry `args`: the options of the program that wrote the file: timm, DeiT, MAE, torchvision.

        With what the program fixes without an option, by the names of timm's arguments.
        """
        arguments = _named(self.entries.get("args"))
        sections = {name: _named(section) for name, section in _named(self.entries.get("config")).items()}
        stated = {name: value for name, value in arguments.items() if value not in (None, "")}
        return fixed_arguments(self.entries, sections | arguments) | stated | self.of_open_clip

    @cached_property
    def of_open_clip(self) -> Values:
        """What OpenCLIP's file beside its weights states, by the names of timm's arguments; empty for other weights."""
        if not self.file.name.startswith(OPEN_CLIP):
            return {}
        return open_clip_arguments(read_json(self.file.with_name(f"{OPEN_CLIP}_config.json")))

    @property
    def arguments(self) -> Values:
        """The options of the training: `program_arguments`, else Lightning's hyperparameters."""
        return _named(self.entries.get("hyper_parameters")) | self.program_arguments

    @property
    def architecture(self) -> str:
        """-model of the file, by its name in timm or its folder; '' if it names none."""
        if self.is_of_transformers:
            return f"{LOCAL}{self.file.parent}"
        stated = [self.entries.get("arch"), *map(self.arguments.get, ("model", "arch", "model_name"))]
        names = [name for name in stated if isinstance(name, str)]
        of_mae = [f"{name}_224" for name in names]
        return next(filter(is_model, [*names, *of_mae]), "")

    def network_arguments(self, name: str) -> Values:
        """The arguments of timm's model `name` by the arguments of timm's train.py; empty for another architecture."""
        is_named = name.partition(".")[0] == self.architecture.partition(".")[0]
        if not is_named and not self.of_open_clip:
            return {}
        stated = {argument: self.program_arguments.get(key) for key, argument in _OF_NETWORK.items()}
        stated |= entries_of(self.program_arguments.get("model_kwargs"))
        return {name: value for name, value in stated.items() if value is not None and name not in OWN_KEYS}

    @property
    def model_section(self) -> Values:
        """The keys of MODEL that the file states by `architecture`."""
        return {"TYPE": "timm", "NAME": self.architecture} if self.architecture else {}

    def advice(self, name: str) -> str:
        """The flags for the model of the file, for an error; '' if the file names none, or the model `name`."""
        own = self.own_options.get("MODEL", {}).get("NAME")
        if own:
            return f"these are weights of {summarize_names([own])}; omit -cfg, -model and MODEL"
        return f"the file names -model={self.architecture}" if self.architecture not in ("", name) else ""

    @property
    def trained_size(self) -> Any:
        """The size of the training images by the arguments: a number, or [height, width]; None if they lack it."""
        stated = (self.arguments.get(name) for name in ("input_size", "img_size", "image_size"))
        match next(filter(None, stated), None):
            case int(side) | [side]:
                return side
            case [*_, 1 | 3, height, width] | [height, width, 1 | 3] | [height, width]:
                return [height, width]
        return None


def entries_of(content: Any) -> dict[Any, Any]:
    """The entries of a dict, or of an object of another program with its attributes; none of anything else."""
    if isinstance(content, Inert):
        return content.entries | content.attributes
    return content if isinstance(content, dict) else {}


def _named(options: Any) -> Values:
    return {str(key): value for key, value in entries_of(options).items()}


def size_of_positions(states: Iterable[State], published: Any = None) -> int | None:
    """The image size of the position embeddings, of a square grid of patches; None if there is none, or several.

    It is the `published` one if that has this grid: 384 leaves a border of 6 pixels beside 27 patches of 14. Models
    whose patches are not of pixels, behind convolutions or of several widths (Hiera), have no size.
    """
    sizes = set[int | None]()
    for state in states:
        prefixes = [name.removesuffix("pos_embed") for name in state if name.endswith("pos_embed")]
        sizes.update(_size_of_positions(state, prefix, published) for prefix in prefixes)
    sizes.discard(None)
    return sizes.pop() if len(sizes) == 1 else None


def _size_of_positions(state: State, prefix: str, published: Any) -> int | None:
    positions = state[f"{prefix}pos_embed"]
    patch = state.get(f"{prefix}patch_embed.proj.weight")
    norm = re.compile(rf"{re.escape(prefix)}blocks\..*\.norm1\.weight")
    widths = {state[name].shape for name in filter(norm.fullmatch, state)}
    if positions.ndim != 3 or len(widths) > 1:
        return None
    if patch is None or patch.ndim != 4 or patch.shape[1] not in (1, 3):  # channels of images
        return None
    tokens = positions.shape[1]
    length = patch.shape[3]
    others = [state.get(f"{prefix}{name}", positions[:0, :0]) for name in ("cls_token", "dist_token", "reg_token")]
    patches = tokens - sum(token.shape[1] for token in others if token.ndim == 3)
    grid = math.isqrt(max(patches, 0))
    if grid == 0 or grid**2 != patches:
        grid = math.isqrt(tokens)
    fits = isinstance(published, int) and published // length == grid
    return published if fits else grid * length


def read_weights(path: str) -> WeightsFile:
    """Opens a weight file. Raises UserError as `open_weights`."""
    return WeightsFile(**vars(open_weights(path)))


def find_tensors(content: Any, max_array_bytes: int, from_numpy: Callable[[Any], Tensor]) -> Tensors:
    """The dicts with tensors in nested dicts, at most three deep; without tensors that an earlier entry has.

    max_array_bytes: of all numpy arrays; raises ValueError beyond them, as many arrays may share one string.
    """
    tensors = Tensors({}, [])
    found = [("", content, 0)]
    seen = set()
    for path, value, depth in found:  # grows
        entries = value.entries if isinstance(value, Inert) else value
        if not isinstance(entries, dict) or id(value) in seen:
            continue
        seen.add(id(value))
        state = State()
        for key in [key for key in entries if not _OF_OPTIMIZER.search(str(key))]:
            one = _unnamed(entries[key])
            if type(one) is ArrayRecord:
                max_array_bytes -= len(one.content)
                if max_array_bytes < 0:
                    raise ValueError("arrays share their data")
            elif not isinstance(one, TensorRecord):
                if isinstance(key, str) and depth < _MAX_DEPTH:
                    found.append((f"{path}.{key}" if path else key, one, depth + 1))
                continue
            tensor = _tensor_of(one, from_numpy)
            if tensor is None:
                tensors.lost.append(str(key))
            else:
                state[str(key)] = tensor
        if state:
            tensors.states[path] = state
    return tensors


def _tensor_of(record: ArrayRecord | TensorRecord, from_numpy: Callable[[Any], Tensor]) -> Tensor | None:
    """None for one without all its elements, or not of numbers."""
    with suppress(Exception):  # of many types, for a damaged one
        if isinstance(record, ArrayRecord):
            return from_numpy(record.array())
        if 0 not in record.shape:
            return map_tensor(record)
    return None


def _unnamed(value: Any) -> Any:
    """The array of PaddlePaddle's pair of a name of its own and an array; another value itself."""
    match value:
        case (str(), ArrayRecord() as array):
            return array
    return value


def with_tensors(content: Any) -> Any:
    """The content of a file with tensors in place of their records. Raises as `map_tensor`."""
    return tree_map_only(TensorRecord, map_tensor, content)


def map_tensor(record: TensorRecord) -> Tensor:
    """The tensor, whose elements stay in the file. Raises an exception of any type for a damaged record.

    Also for one whose elements the file does not contain: a stride of 0 makes 10^12 of them from four bytes.
    """
    elements = torch.empty(0, dtype=getattr(torch, record.storage.dtype))
    if len(record.storage.data):
        elements = torch.frombuffer(record.storage.data, dtype=elements.dtype)
    if math.prod(record.shape) > len(elements):
        raise ValueError("elements that are not in the file")
    return elements.as_strided(record.shape, record.strides, record.offset)


def _read_pickled(weights: WeightsFile) -> Tensors:
    file = weights.file
    content = weights.content
    if weights.own_options and is_zipfile(file):  # another program may have told torch to write no CRC-32
        verify_archive(file)
    from_numpy = _as_tensor if weights.kind == PADDLE else torch.from_numpy
    tensors = find_tensors(content, checked_archive_bytes(file), from_numpy)
    for entry, state in tensors.states.items():
        is_adapted = any(name.endswith(f".{A}") for name in state)
        if is_adapted and OPTIONS_ENTRY in weights.entries:  # of MODEL.TUNE lora
            scale = weights.own_options["MODEL"]["LORA"]["ALPHA"]
            tensors.states[entry] = merge_adapters(state, scale)
    if tensors.states:
        return tensors
    if tensors.lost:
        raise UserError(LOST.format(file, summarize_names(tensors.lost)))
    inert = [type(one).__name__ for one in (content, *weights.entries.values()) if isinstance(one, Inert)]
    if inert:
        raise UserError(f"{file}: {pickled_model(inert[0])}")
    raise UserError(f"{file}: contains no dict of tensors; give a state_dict or a checkpoint with one")


def _read_safetensors(weights: WeightsFile) -> Tensors:
    if weights.is_of_transformers:
        return Tensors({"": read_folder(weights.file.parent)})
    names = read_json(weights.file)["weight_map"].values() if weights.file.name == SHARDS else [weights.file.name]
    files = [weights.file.with_name(name) for name in sorted({*names})]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UserError(f"{weights.file}: names {summarize_names(missing)}, which is missing; download it, too")
    return Tensors({"": {name: one for file in files for name, one in load_file(file, device="cpu").items()}})


def _read_npz(weights: WeightsFile) -> Tensors:
    file = weights.file
    checked_archive_bytes(file)
    with np.load(file, allow_pickle=False) as archive:
        prefixes = [prefix for prefix in _GOOGLE_PREFIXES if f"{prefix}embedding/kernel" in archive.files]
        if not prefixes:
            raise UserError(
                f"{file}: contains {summarize_names(archive.files)}, which is not a ViT of Google's; "
                "give one of its ViT checkpoints"
            )
        names = [name for name in archive.files if name.startswith(prefixes[0])]
        state = {name.removeprefix(prefixes[0]): _as_tensor(archive[name]) for name in names}
    return Tensors({"": google_to_timm(state)})


def _as_tensor(array: np.ndarray) -> Tensor:
    """A tensor of the same shape. Elements of two bytes without a numpy type are bfloat16."""
    if array.dtype in ("u2", "V2"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


_READERS = {PADDLE: _read_pickled, SAFETENSORS: _read_safetensors, TORCH: _read_pickled, NPZ: _read_npz}
