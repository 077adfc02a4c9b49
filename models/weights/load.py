"""Weights from .safetensors, .pth, .npz and .pdparams -> one state dict with timm's names, checked before use.

No code in a file ever runs. Whatever is wrong with a file is told in one line, and the model is then unchanged.
"""

import math
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from timm.layers import resample_abs_pos_embed
from torch import nn

from models.weights.names import google_to_timm, paddlevit_to_timm, summarize_names
from models.weights.pdparams import as_tensor, read_pdparams
from utils.atomic_file import verify_checksum
from utils.errors import UserError

State = dict[str, torch.Tensor]

_CONTAINERS = ("ema", "model", "state_dict")  # the first that is there holds the weights
_GOOGLE_PREFIXES = ("", "params/", "opt/target/")
_FREE_BYTES, _MOST_GROWTH = 1 << 26, 20  # what an archive may unpack to: zeros shrink, trained numbers do not
_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def find_weights(path: str) -> Path:
    """The file at `path`, or at `path` with an ending added: .pdparams first, which PaddleViT's users leave out.

    Raises:
        UserError: there is none; names what was tried.
    """
    for candidate in (path, *(f"{path}{ending}" for ending in _READERS)):
        if os.path.isfile(candidate):
            return Path(candidate)
    raise UserError(f"{path}: no such file, nor one with the ending {', '.join(_READERS)} added; check the path")


def read_weights(path: str) -> State:
    """The tensors of a file by timm's names (.pth and .safetensors: by the names in the file), on the CPU.

    Sources: PaddleViT's .pdparams, Google's vit_jax and big_vision .npz, torch's .pth or .pt (a checkpoint of ours
    gives its average weights where it has them), .safetensors.

    Raises:
        UserError: no such file, one of another kind, damaged, or asking for code to be run.
    """
    file = find_weights(path)
    kind = file.suffix.lower()
    if kind not in _READERS:
        raise UserError(f"{file}: the ending says no kind of weights; give one of {', '.join(_READERS)}")
    try:
        return _READERS[kind](file)
    except UserError:
        raise
    except Exception as error:  # a damaged file makes the libraries raise almost anything
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise UserError(f"{file}: is damaged or no {kind} file ({reason}); fetch it again or give another") from error


def load_pretrained(model: nn.Module, path: str, needs_head: bool = False) -> list[str]:
    """Loads the weights of a file into a bare `model`: all of it, save a head of another class count, which stays new.

    Position embeddings (1, N, D) of another grid are interpolated. Returns lines for the log on what was done.

    Raises:
        UserError: as `read_weights`; a tensor missing, of another shape, not finite; a new head where `needs_head`
            says that it will not be trained. The model is then unchanged.
    """
    file = find_weights(path)
    found, own = read_weights(str(file)), model.state_dict()
    if not found.keys() & own.keys():
        raise UserError(
            f"{file}: has {summarize_names(found)}, none of which this model has ({summarize_names(own)}); "
            "give weights of this kind of model"
        )
    lines = [f"weights: {file}, {len(found)} tensors"]
    lines += _drop_pre_logits(found, own)
    lines += _fit_pos_embed(model, found, own)
    new_heads = _keep_new_heads(model, found, own)
    if new_heads and needs_head:
        raise UserError(f"{file}: cannot be evaluated, {new_heads[0]}; set MODEL.NUM_CLASSES to the file's")
    lines += new_heads
    unused = [name for name in found if name not in own]
    if unused:
        lines.append(f"not used: {summarize_names(unused, most=8)}")
    model.load_state_dict(_checked(file, found, own), strict=True)
    return lines


def checked_archive_bytes(file: Path) -> int:
    """How much a ZIP archive, or another file, holds.

    Raises:
        UserError: it is an archive that unpacks to many times its size, as no weights do.
    """
    size = file.stat().st_size
    if not zipfile.is_zipfile(file):
        return size
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > _FREE_BYTES + _MOST_GROWTH * size:
        raise UserError(f"{file}: would unpack from {size} to {unpacked} bytes, which no weights do; give another file")
    return unpacked


def _read_torch(file: Path) -> State:
    verify_checksum(file)
    held_bytes = checked_archive_bytes(file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        forbidden = re.search(r"GLOBAL ([\w.]+)", str(error))
        if forbidden is None:
            raise
        raise UserError(f"{file}: asks for {forbidden[1]}, which no weights need; give a plain state_dict") from None
    state = _unwrapped(file, content)
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    for name, tensor in tensors.items():
        if not has_backing_storage(tensor, held_bytes):
            raise UserError(
                f"{file}: {summarize_names([name])} claims numbers that the file does not hold; give another file"
            )
    return _without_wrapper_prefixes(tensors)


def _unwrapped(file: Path, content: Any) -> dict:
    for _ in range(len(_CONTAINERS)):  # bounded: a pickle may contain itself
        if not isinstance(content, dict):
            break
        content = next((content[key] for key in _CONTAINERS if isinstance(content.get(key), dict)), content)
    if not isinstance(content, dict) or not any(isinstance(value, torch.Tensor) for value in content.values()):
        raise UserError(f"{file}: holds no dict of tensors; give a state_dict or a checkpoint with one")
    return content


def has_backing_storage(tensor: torch.Tensor, held_bytes: int) -> bool:
    """Stride 0 makes 10^12 numbers of four bytes, meta or sparse tensors need none, and torch makes a storage as large
    as a tensor says: do not touch such."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes() <= held_bytes


def _without_wrapper_prefixes(state: State) -> State:
    """DDP's 'module.' in front and torch.compile's '_orig_mod.' anywhere."""
    return {re.sub(r"^(module\.)+", "", str(name).replace("_orig_mod.", "")): tensor for name, tensor in state.items()}


def _read_safetensors(file: Path) -> State:
    return _without_wrapper_prefixes(load_file(file, device="cpu"))


def _read_npz(file: Path) -> State:
    checked_archive_bytes(file)
    with np.load(file, allow_pickle=False) as archive:
        prefix = next((prefix for prefix in _GOOGLE_PREFIXES if f"{prefix}embedding/kernel" in archive.files), None)
        if prefix is None:
            raise UserError(
                f"{file}: holds {summarize_names(archive.files)}, not Google's ViT; give one of its ViT checkpoints"
            )
        names = [name for name in archive.files if name.startswith(prefix)]
        return google_to_timm({name.removeprefix(prefix): as_tensor(archive[name]) for name in names})


def _read_paddlevit(file: Path) -> State:
    return paddlevit_to_timm(file, read_pdparams(file))


_READERS = {
    ".pdparams": _read_paddlevit,
    ".safetensors": _read_safetensors,
    ".pth": _read_torch,
    ".pt": _read_torch,
    ".npz": _read_npz,
}


def _drop_pre_logits(found: State, own: State) -> list[str]:
    names = [name for name in found if name.startswith("pre_logits.") and name not in own]
    for name in names:
        del found[name]
    return ["pre_logits: dropped, the model has no representation layer"] if names else []


def _fit_pos_embed(model: nn.Module, found: State, own: State) -> list[str]:
    """Interpolates a square grid; what cannot be interpolated is left for the check of shapes to refuse."""
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    theirs, ours = found.get("pos_embed"), own.get("pos_embed")
    if grid is None or theirs is None or ours is None or theirs.shape == ours.shape:
        return []
    if theirs.ndim != 3 or theirs.shape[2] != ours.shape[2] or theirs.dtype not in _FLOATING:
        return []
    extra_tokens = ours.shape[1] - math.prod(grid)  # class token and the like, which have no place in the grid
    patches = theirs.shape[1] - extra_tokens
    side = math.isqrt(max(patches, 0))
    if side == 0 or side * side != patches or theirs.shape[0] != 1:
        return []
    found["pos_embed"] = resample_abs_pos_embed(theirs, list(grid), [side, side], extra_tokens)
    return [f"pos_embed: interpolated from {side}x{side} to {grid[0]}x{grid[1]}"]


def _keep_new_heads(model: nn.Module, found: State, own: State) -> list[str]:
    """Where the file has no head or one of another class count, the model's own takes its place in `found`."""
    lines = []
    for head in _head_names(model):
        names = [name for name in own if name.startswith(f"{head}.")]
        theirs = [name for name in names if name in found]
        weights = [name for name in theirs if own[name].ndim > 1 and found[name].shape[1:] == own[name].shape[1:]]
        counts = [(len(found[name]), len(own[name])) for name in weights if len(found[name]) != len(own[name])]
        if counts:
            lines.append(f"{head}: {counts[0][0]} classes in the file, {counts[0][1]} in the model: new head")
        elif names and not theirs:
            lines.append(f"{head}: none in the file: new head")
        if counts or not theirs:
            found.update({name: own[name] for name in names})
    return lines


def _head_names(model: nn.Module) -> list[str]:
    """'head', 'fc', 'head.fc' or, distilled, two of them: whichever modules timm calls the classifier."""
    classifier = model.get_classifier() if hasattr(model, "get_classifier") else ()
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    return [name for name, module in model.named_modules() if any(module is head for head in heads)]


def _checked(file: Path, found: State, own: State) -> State:
    """The tensors of `found` that the model has, in its types; every one of the model's must be there and right."""

    def refuse(names: list[str], what: str, remedy: str = "give weights of this model or make MODEL fit them") -> None:
        if names:
            raise UserError(f"{file}: {what}: {summarize_names(names)}; {remedy}")

    refuse([name for name in own if name not in found], "tensors missing")
    misfits = [name for name in own if found[name].shape != own[name].shape]
    refuse([f"{name} {_sides(found[name])}, not {_sides(own[name])}" for name in misfits], "shapes unlike the model's")
    kinds = [name for name in own if own[name].is_floating_point() != (found[name].dtype in _FLOATING)]
    refuse([f"{name} {found[name].dtype}" for name in kinds], "numbers of a kind the model cannot use")
    cast = {name: found[name].to(own[name].dtype) for name in own}
    refuse([name for name in own if not cast[name].isfinite().all()], "NaN or infinite values", "give other weights")
    return cast


def _sides(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
