"""Private names of timm, torchvision, transformers, Pillow and Python, each in a function; see `torch_compat.py`.

Checked: timm 1.0.31, torchvision 0.29, transformers 5.24, Pillow 12.2 and 13.0, Python 3.11 to 3.14.
"""

import atexit
import ctypes
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, util
from typing import Any, NoReturn

PythonUnpickler: Any = pickle._Unpickler  # `pickle.Unpickler` in Python, for subclasses


def read_tiff_places_of_8_bytes() -> None:
    """Lets Pillow read IFD8, the type of SubIFDs in BigTIFF files by tifffile, as LONG8."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    loaders = ImageFileDirectory_v2._load_dispatch
    loaders.setdefault(18, loaders[16])


def import_timm_optimizers() -> None:
    """Imports timm's optimizers without torch's sharded tensors, which take a fifth of all imports.

    timm's Muon imports them for its steps on such tensors, which this project does not use. With them if this import
    loads the compiler, too, which would lack them for good: `torch.compile` would fail in a program that imports this.
    """
    from utils.torch_compat import is_dynamo_late  # imports torch

    hidden = ("torch.distributed.tensor",) if is_dynamo_late() else ()
    with _unavailable(*hidden):  # timm is prepared for the ImportError
        import timm.optim  # noqa: F401


def import_tensorboard() -> Any:
    """torch's module of TensorBoard, without the packages by which TensorBoard writes to S3 and other remote places."""
    with _unavailable("botocore", "fsspec"):
        from torch.utils import tensorboard
    return tensorboard


@contextmanager
def _unavailable(*names: str) -> Iterator[None]:
    """The context in which an import of these modules, unless they are loaded, is an ImportError."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules |= dict.fromkeys(hidden)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def register_timm_optimizer(name: str, optimizer: type, **facts: bool) -> None:
    """Adds an optimizer to timm's table. facts: of `timm.optim.OptimInfo`, such as `has_eps`."""
    from timm.optim import OptimInfo
    from timm.optim._optim_factory import default_registry

    default_registry.register(OptimInfo(name, optimizer, **facts))  # type: ignore[arg-type]


def newton_schulz_coefficients(given: Any) -> Any:
    """The coefficients (a, b, c) of each iteration of timm's Muon. given: the name of a preset, or coefficients."""
    from timm.optim import muon

    return muon.resolve_ns_coefficients(given, muon._COEFFICIENTS)


def is_updated_by_muon(state: Mapping[str, Any]) -> bool:
    """Whether timm's Muon updates a parameter by its matrix; it decides in the first step. state: of the parameter."""
    return bool(state.get("use_muon"))


def init_weights_of(model: Any) -> Callable[[Any], None]:
    """The function by which timm's CoaT initializes a module."""
    return model._init_weights


def listed_images(data: Any) -> Iterable[tuple[Any, Any]] | None:
    """Pairs (path, label) of a data set of torchvision that lists them, such as GTSRB; None for others."""
    return getattr(data, "_samples", None)


def pet_images(data: Any) -> Iterable[tuple[Any, Any]]:
    """Pairs (path, label) of torchvision's OxfordIIITPet, which has no argument `loader`."""
    return zip(data._images, data._labels, strict=True)


def has_eager_attention(config: Any) -> bool:
    """Whether a model of transformers with this configuration computes attention without a fused kernel."""
    return bool(config._attn_implementation == "eager")


def set_socket_folder(folder: str) -> None:
    """Sets the folder of multiprocessing's sockets, also of child processes, in place of a new one."""
    multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]


# Of the builds in wheels of numpy and scipy, and of distributions.
_OPENBLAS_SETTERS = [f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_")]


def set_openblas_threads(number: int) -> None:
    """Sets the threads of each OpenBLAS in memory, such as numpy's, which has read OMP_NUM_THREADS. On Linux."""
    paths = set[str]()
    with suppress(OSError), open("/proc/self/maps") as lines:
        paths |= {line.split(maxsplit=5)[5].rstrip() for line in lines if "openblas" in line}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in _OPENBLAS_SETTERS:
            if hasattr(library, name):
                getattr(library, name)(number)


def exit_fork(status: int) -> NoReturn:
    """Exits as Python does: after other threads and the exit handlers.

    Python would then free all objects. In a fork the system would copy the memory of each, which the parent has, too.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


Spawn = Callable[[str, list[str], list[int]], int]  # path, arguments, descriptors to keep -> process id


@contextmanager
def replaced_spawn(replace: Callable[[Spawn], Spawn]) -> Iterator[None]:
    """In the block, multiprocessing starts its server by `replace(its own function)`."""
    module: Any = util
    own = module.spawnv_passfds
    module.spawnv_passfds = replace(own)
    try:
        yield
    finally:
        module.spawnv_passfds = own


def close_server_pipe() -> None:
    """Closes the pipe of this child process to the fork server, which exits when no process has it open."""
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
