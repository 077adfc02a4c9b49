"""Shortages of memory are recognized by the messages of torch and its libraries; other errors of a GPU are not.

The messages come from torch 2.15, CUDA 13.2, cuDNN 9.26, NCCL 2.30 and Triton, from their sources and reports.
"""

import re

import pytest
import torch
import torch.distributed as dist
from torch._inductor.exc import InductorError

from utils.device import IN_EVALUATION, IN_LOADING, find_shortage
from utils.errors import UserError

OUT_OF_MEMORY = "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' for more information."
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.30.7\nncclUnhandledCudaError: Call to CUDA function failed.\n"
)
SDPA = 'cuDNN SDPA execution failed with error code ["CUDNN_BACKEND_API_FAILED"]: err 2 != CUDA_SUCCESS'
NO_CONFIG = "No valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 294912"

# The type of the exception, and its message; the part in braces is in the reason.
GPU_SHORTAGES = [
    (torch.OutOfMemoryError, "CUDA out of memory. {Tried to allocate 2.00 GiB.}"),
    (torch.AcceleratorError, OUT_OF_MEMORY),
    (RuntimeError, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_{DEVICE_ALLOCATION_FAILED}"),
    (RuntimeError, f"{SDPA}\n{{CUDA ran out of memory outside}} PyTorch's allocator."),
    (dist.DistBackendError, f"{NCCL}{{Cuda failure 2 'out of memory'}}"),
    (lambda text: InductorError(torch.OutOfMemoryError(text), None), "{CUDA out of memory. Tried}"),
]
HOST_SHORTAGES = [
    (MemoryError, ""),
    (RuntimeError, "err == 0. {DefaultCPUAllocator: can't allocate memory}: you tried to allocate 34359738368 bytes."),
    (RuntimeError, "{unable to mmap} 1024 bytes from file </torch_1>: Cannot allocate memory (12)"),
    (RuntimeError, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_{HOST_ALLOCATION_FAILED}"),
]
OTHER_ERRORS = [
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k )`"),
    torch.AcceleratorError("CUDA error: device-side assert triggered"),
    dist.DistBackendError(f"{NCCL}Cuda failure 1 'invalid argument'"),
    InductorError(RuntimeError(NO_CONFIG), None),
    UserError("out of host memory; lower -num_workers"),
]


def chained(error: Exception, *, hidden: bool = False, outer: Exception | None = None) -> Exception:
    """`outer`, raised while `error` is handled."""
    try:
        try:
            raise error
        except Exception as inner:
            raise (outer or RuntimeError("wrapped")) from (None if hidden else inner)
    except Exception as wrapped:
        return wrapped


def noted(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


@pytest.mark.parametrize(
    ("on_gpu", "kind", "message"),
    [*((True, *one) for one in GPU_SHORTAGES), *((False, *one) for one in HOST_SHORTAGES)],
)
def test_shortage_of_memory(on_gpu, kind, message):
    part = re.search(r"{(.*?)}", message)
    shortage = find_shortage(kind(message.replace("{", "").replace("}", "")))
    assert shortage.on_gpu == on_gpu and "\n" not in shortage.reason
    assert (part[1] if part else message.partition("\n")[0]) in shortage.reason
    assert not shortage.in_evaluation and not shortage.in_loading


@pytest.mark.parametrize("error", OTHER_ERRORS, ids=str)
def test_other_errors_are_no_shortage(error):
    assert find_shortage(error) is None
    assert find_shortage(chained(error)) is None
    assert find_shortage(noted(error, IN_LOADING)) is None


@pytest.mark.parametrize("hidden", [False, True])
def test_shortage_that_another_exception_wraps(hidden):
    inner = noted(torch.AcceleratorError(OUT_OF_MEMORY), IN_EVALUATION)
    shortage = find_shortage(chained(inner, hidden=hidden, outer=ValueError("a failed clean-up")))
    assert shortage.on_gpu and shortage.in_evaluation and shortage.reason == "CUDA error: out of memory"


@pytest.mark.parametrize("where", ["", "Caught AcceleratorError in pin memory thread for device 0.\nTraceback:\n"])
def test_pinned_memory_is_host_memory(where):
    """With workers, a thread of torch allocates it; without workers, the main thread."""
    message = f"{where}torch.AcceleratorError: {OUT_OF_MEMORY}"
    shortage = find_shortage(noted(torch.AcceleratorError(message), IN_LOADING))
    assert not shortage.on_gpu and shortage.in_loading and "CUDA error: out of memory" in shortage.reason


def test_user_errors_with_a_cause():
    """A file that declares a huge size is damaged; a checkpoint that meets a full GPU is not."""
    outer = UserError("last.pth: is damaged")
    assert find_shortage(chained(MemoryError(), outer=outer)) is None
    assert find_shortage(chained(torch.OutOfMemoryError("CUDA out of memory"), outer=outer)).on_gpu
