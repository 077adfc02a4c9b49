"""The device of a run: whether this torch supports it, its name, timing on it, its memory.

The memory: the allocator on a CPU, and the exceptions that report a shortage, on the GPU or on the host. Most of these
are plain RuntimeErrors: cuBLAS, cuDNN, NCCL, Triton and the driver allocate memory outside of torch's allocator, and
torch passes their messages on. Checked: the texts in torch 2.10, 2.11 and 2.15 and their libraries.
"""

import ctypes
import os
import platform
import re
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from utils.errors import Unavailable, UserError, exception_chain
from utils.system import EXCLUDES_GPUS, has_nvidia_gpu, lacks_gpus
from utils.torch_compat import WithoutValues

_ON_CPU = 'to run on the CPU: -device cpu (entry scripts), or CUDA_VISIBLE_DEVICES=""'

# parameters of glibc's mallopt
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def visible_gpus(wanted: str | None = None) -> int:
    """The number of GPUs that this process can use; 0 on a machine without one, or if none is wanted.

    Raises UserError if torch cannot use a GPU that is wanted, or any of this machine. wanted: of -device, 'cuda' or
    'cpu'. CUDA_VISIBLE_DEVICES wants the GPUs that it names, and none if it is empty.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    must_have = wanted == "cuda"
    if wanted == "cpu" or (visible in EXCLUDES_GPUS and not must_have):
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the driver
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = list(takewhile(lambda name: name.strip() not in EXCLUDES_GPUS, (visible or "").split(",")))
    if gpus >= max(1, len(named)):
        return gpus
    asked = f"CUDA_VISIBLE_DEVICES {visible or 'not set'}"
    if must_have:
        asked = f"-device cuda, {asked}"
    if gpus:
        raise Unavailable(f"{asked}: torch can use {gpus} of these GPUs; name only GPUs that nvidia-smi -L lists")
    if must_have or named or (torch.version.cuda and has_nvidia_gpu()):
        raise Unavailable(f"{asked}: torch {torch.__version__} can use no GPU: {_why_unusable()}; {_ON_CPU}")
    return 0


def _why_unusable() -> str:
    """The reason why torch can use no GPU, in its words."""
    if not torch.version.cuda:
        return "it is built without CUDA"
    try:
        torch.cuda.init()
    except RuntimeError as error:
        return str(error).partition(". ")[0]
    return "unknown error"


def cpu_warning(device: torch.device) -> str:
    """A text for a run on the CPU of a machine with a GPU, which this build of torch cannot use; '' for others."""
    if device.type != "cpu" or torch.version.cuda or lacks_gpus(None):
        return ""
    return f"this run uses the CPU: torch {torch.__version__} is built without CUDA"


def check_runs_kernels(device: torch.device) -> None:
    """Raises UserError if this torch has no code for the GPU, of which torch itself only warns."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.ones(1, device=device)
    except RuntimeError as error:
        if "no kernel image" not in str(error):
            raise
        raise Unavailable(
            f"GPU {torch.cuda.get_device_name(device)}: torch {torch.__version__} has no code for it; "
            f"install a build for it; {_ON_CPU}"
        ) from None


def device_name(device: torch.device) -> str:
    """The product name: 'NVIDIA H200', 'CPU AMD EPYC 9354'. For a GPU this initializes the driver."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = None
    with suppress(OSError):  # not Linux
        name = re.search(r"^model name\s*:\s*(.*\S)", Path("/proc/cpuinfo").read_text(), re.M)
    return f"CPU {name[1] if name else platform.machine()}"


def peak_memory_bytes(device: torch.device) -> int:
    """Peak of the memory that torch allocated on a GPU; on a CPU the peak resident memory of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes


def gpu_kind(device: torch.device) -> str:
    """The product name and the number of multiprocessors, which differs between parts of a GPU (MIG)."""
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} with {properties.multi_processor_count} multiprocessors"


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds that `work` takes on the device."""
    synchronize(device)
    started = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def use_deterministic_algorithms(enabled: bool) -> None:
    """Makes every op return the same bits for the same inputs on the same device, or raise a RuntimeError.

    Call it before the first matrix product: cuBLAS reads its environment variable then.
    """
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if enabled != torch.are_deterministic_algorithms_enabled():  # the next line imports torch's compiler
        torch.use_deterministic_algorithms(enabled)
    # No op of ours reads uninitialized memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def on_meta_device() -> Iterator[None]:
    """The context in which a model is built without memory."""
    with torch.device("meta"), WithoutValues():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def untimed_convolutions() -> Iterator[None]:
    """The context in which cuDNN chooses algorithms without timing them: for a few passes of a shape of their own.

    `torch.backends.cudnn.flags` would also change the switches that it is not given.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def op_without_deterministic_algorithm(error: Exception) -> str | None:
    """The op that raised `error` because it has no deterministic algorithm; None for any other error."""
    op, found, _ = str(error).partition(" does not have a deterministic implementation")
    return op if found else None


def keep_freed_memory() -> None:
    """Makes glibc reuse freed memory instead of returning it to the operating system.

    Each step allocates activations of the same sizes. The operating system clears new pages, which takes a seventh of
    ViT-Tiny's step on a CPU. The peak memory does not change. With other C libraries this function does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_TRIM_THRESHOLD, -1)  # never
        mallopt(_MMAP_MAX, 0)


# Notes on an exception (`BaseException.add_note`): where it was raised.
IN_EVALUATION = "in the evaluation"
IN_LOADING = "while loading a batch"

# Without Triton's "OutOfMemoryError: out of resource": a kernel needs more shared memory than a multiprocessor has.
_GPU = re.compile(
    r"CUDA (error: |driver error: |ran )?out of memory"
    r"|Triton Error \[CUDA\]: out of memory"
    r"|CU(BLAS|DNN)_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    r"|Cuda failure (\d+ )?'out of memory'|Failed to CUDA [mc]alloc"
)
_HOST = re.compile(
    r"DefaultCPUAllocator|Cannot allocate memory|std::bad_alloc"
    r"|CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"
    r"|Failed to CUDA host alloc|Failed to malloc \d+ bytes"
)


@dataclass(frozen=True)
class Shortage:
    """`reason` is the line of the exception's message that reports the shortage."""

    on_gpu: bool
    reason: str
    in_evaluation: bool
    in_loading: bool


def find_shortage(error: BaseException) -> Shortage | None:
    """The shortage of memory that `error`, or an exception that led to it, reports; None for any other error.

    While a batch is loaded, CUDA allocates pinned host memory only: there a shortage concerns host memory. A
    UserError that a shortage of host memory led to keeps its message: a damaged file may declare any size.
    """
    chain = list(exception_chain(error))
    marks = {mark for cause in chain for mark in getattr(cause, "__notes__", ())}
    in_loading = IN_LOADING in marks
    for cause in chain:
        if isinstance(cause, UserError):
            continue
        lines = str(cause).splitlines()
        for kinds, pattern in ((torch.OutOfMemoryError, _GPU), (MemoryError, _HOST)):
            on_gpu = pattern is _GPU and not in_loading
            found = [line.strip() for line in lines if pattern.search(line)]
            if isinstance(cause, kinds):
                found += lines[:1] or ["no details"]
            if found and (on_gpu or not isinstance(error, UserError)):
                return Shortage(on_gpu, found[0], IN_EVALUATION in marks, in_loading)
    return None
