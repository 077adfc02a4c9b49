"""A GPU that this torch has no code for is refused in one line."""

import warnings

import pytest
import torch

from utils import distributed
from utils.device import check_compute_capability
from utils.errors import UserError

GPU = torch.device("cuda", 0)
CUDA_126 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
CUDA_132 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"


@pytest.fixture
def gpu(monkeypatch):
    """A function that makes torch find a GPU of this capability and be built for these architectures."""

    def fake(capability: tuple[int, int], architectures: str) -> None:
        def capability_of(device):
            warnings.warn("Found GPU0 V100 which is of compute capability (CC) 7.0.\nMore lines.", stacklevel=1)
            return capability

        monkeypatch.setattr(torch.cuda, "get_device_capability", capability_of)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
        monkeypatch.setattr(torch.cuda, "get_arch_list", architectures.split)
        monkeypatch.setattr(torch, "__version__", "2.15.0+cu132")

    return fake


@pytest.mark.parametrize(
    ("capability", "architectures"),
    [
        ((7, 5), CUDA_132),
        ((8, 9), CUDA_132),
        ((10, 3), CUDA_132),
        ((12, 1), CUDA_132),
        ((7, 0), CUDA_126),
        ((9, 0), "sm_80 sm_90a"),
        ((10, 3), "sm_100f"),
        ((13, 0), f"{CUDA_132} compute_120"),
        ((8, 0), "compute_70"),
        ((9, 4), "gfx90a gfx942"),
        ((7, 0), ""),
    ],
)
def test_supported_gpu(gpu, capability, architectures):
    gpu(capability, architectures)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_compute_capability(GPU)


@pytest.mark.parametrize(
    ("capability", "architectures"),
    [((7, 0), CUDA_132), ((12, 0), CUDA_126), ((8, 0), "sm_86 sm_90"), ((13, 0), CUDA_132)],
)
def test_unsupported_gpu(gpu, capability, architectures):
    gpu(capability, architectures)
    name = rf"GPU Tesla V100 \(compute capability {capability[0]}\.{capability[1]}\)"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            UserError, match=rf"^{name}: .* {', '.join(architectures.split())}; install .* CUDA_VISIBLE_"
        ):
            check_compute_capability(GPU)


def test_both_entry_scripts_check_the_gpu(gpu, monkeypatch):
    gpu((7, 0), CUDA_132)
    monkeypatch.setattr(distributed, "visible_gpus", lambda: 1)
    with pytest.raises(UserError, match=r"compute capability 7\.0"):
        distributed.single_process()
    with pytest.raises(UserError, match=r"compute capability 7\.0"):
        distributed._claim_device(torch.distributed.HashStore(), local_rank=0, local_world_size=1)
