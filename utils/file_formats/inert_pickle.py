"""Reads files of `torch.save` with objects of any class beside the tensors. Nothing that a file names is run."""

import pickle
import re
from pathlib import Path
from typing import Any

import torch

from utils.errors import UserError
from utils.file_formats.plain_pickle import ARRAYS

_MAX_NAMES = 256  # of classes and functions in one file; each costs time for every object
# Nothing of a file runs; one that names what starts programs or imports code is malicious. commands: of Python 2.
_HOSTILE = re.compile(
    r"(?:os|posix|nt|sys|subprocess|commands|pty|socket|shutil|importlib|runpy|ctypes|_?pickle|pip)\..*"
    r"|torch\.(?:hub|load)\b.*|builtins\.(?:eval|exec|compile|open|setattr|__import__)"
)


class _InertType(type):
    """The class of `Inert`: equal to dict, since torch sets the items of dicts only, by a comparison of their types."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is dict or isinstance(other, Inert)

    __hash__ = type.__hash__


class Inert(list[Any], metaclass=_InertType):
    """Takes the place of an object of any class. It accepts all that a pickle can do with one, and does nothing.

    A list, since torch appends to lists only. A subclass for each class in the file has its full name. `entries`: the
    items of an object that is a dict, such as a defaultdict.
    """

    entries: dict[Any, Any]

    def __new__(cls, *_: Any, **__: Any) -> "Inert":
        inert = super().__new__(cls if isinstance(cls, type) else Inert)  # of a nested class, `cls` is an object
        inert.entries = {}
        return inert

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> "Inert":
        return Inert()

    def __setstate__(self, state: Any) -> None: ...

    def append(self, item: Any) -> None: ...

    def extend(self, items: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # a key of a dict, such as a member of an Enum


def read_torch_file(file: Path) -> Any:
    """The content, with an `ArrayRecord` for each array, and an `Inert` for each other object that is no plain data.

    Raises:
        UserError: the file names a function that acts on the machine, or too many classes.
        Exception: of almost any type, from a damaged file.
    """
    names, arrays = set[str](), {".".join(name): call for name, call in ARRAYS.items()}
    try:
        names = set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except pickle.UnpicklingError:  # below
        pass
    except ValueError as error:
        if "torchscript" in str(error):
            raise UserError(f"{file}: is a TorchScript program; give the state_dict of the model") from None
        # torch before 1.6 wrote no archives: the names are found one by one
    while True:
        for name in names:
            _check_name(file, name)
        if len(names) > _MAX_NAMES:
            raise UserError(f"{file}: names more than {_MAX_NAMES} classes; give a plain state_dict")
        inert = {name: _InertType(name, (Inert,), {}) for name in names} | arrays
        known: Any = [(call, name) for name, call in inert.items()]
        try:
            with torch.serialization.safe_globals(known):
                return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            if "Only persistent_load of storage" in str(error):  # a module of torch before 1.6, with its source
                raise UserError(f"{file}: {pickled_model(max(names, key=len, default='a module'))}") from None
            if "Unsupported operand" in str(error):
                fix = "save it with torch.save's own protocol"
                raise UserError(f"{file}: has a pickle protocol that torch does not read; {fix}") from None
            if (found := re.search(r"GLOBAL ([\w.]+)", str(error))) is None:
                raise
            name = found[1] if "." in found[1] else f"builtins.{found[1]}"
            _check_name(file, name, "is blocked" in str(error) or name in names)
            names.add(name)


def _check_name(file: Path, name: str, is_refused: bool = False) -> None:
    if is_refused or _HOSTILE.fullmatch(name):
        raise UserError(f"{file}: refers to {name[:80]}, which is not data; give a plain state_dict")


def pickled_model(name: str) -> str:
    return f"contains a pickled object ({name[:80]}), which only its program reads; save model.state_dict() there"
