"""Exceptions that report a shortage of memory, on the GPU or on the host.

Most of them are plain RuntimeErrors: cuBLAS, cuDNN, NCCL, Triton and the driver allocate memory outside of torch's
allocator, and torch passes their messages on. Checked: the texts in torch 2.10, 2.11 and 2.15 and their libraries.
"""

import re
from dataclasses import dataclass

import torch

from utils.errors import UserError, exception_chain

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
    notes = {note for cause in chain for note in getattr(cause, "__notes__", ())}
    in_loading = IN_LOADING in notes
    for cause in chain:
        for kinds, pattern in ((torch.OutOfMemoryError, _GPU), (MemoryError, _HOST)):
            reason = _reason(cause, kinds, pattern)
            on_gpu = pattern is _GPU and not in_loading
            if reason and (on_gpu or not isinstance(error, UserError)):
                return Shortage(
                    on_gpu=on_gpu, reason=reason, in_evaluation=IN_EVALUATION in notes, in_loading=in_loading
                )
    return None


def _reason(error: BaseException, kinds: type[BaseException], pattern: re.Pattern[str]) -> str | None:
    """The line of the message that reports a shortage; None if there is none. Only causes of a UserError count."""
    lines = str(error).splitlines()
    if not isinstance(error, UserError):
        for line in lines:
            if pattern.search(line):
                return line.strip()
    return next(iter(lines), "no details") if isinstance(error, kinds) else None
