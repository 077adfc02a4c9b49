"""A driver that does not work with this torch ends the run in one line; without a GPU it uses the CPU."""

import pytest
import torch
from conftest import train

import main_multi_gpu
from utils import device, distributed
from utils.device import cpu_warning, visible_gpus
from utils.errors import UserError

TOO_OLD = "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver"
NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"
NO_GPU = "No CUDA GPUs are available"
CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A function that makes this machine one on which torch fails with `error`, with a GPU or without."""

    def fake(error: str, visible: str | None, has_gpu: bool = False, cuda: str | None = "13.2") -> None:
        def fail() -> None:
            raise RuntimeError(error)

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cuda, "init", fail)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(device, "DEVICE_FILES", tmp_path)
        if has_gpu:
            (tmp_path / "nvidia0").touch()
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return fake


@pytest.mark.parametrize("start", [
    visible_gpus, distributed.single_process, lambda: main_multi_gpu.num_processes(8),
    lambda: distributed._claim_device(torch.distributed.HashStore(), local_rank=0, local_world_size=1),
])  # fmt: skip
def test_no_command_trains_on_the_cpu_instead_of_the_gpu(machine, start):
    machine(TOO_OLD, visible=None, has_gpu=True)
    with pytest.raises(
        UserError,
        match=r"CUDA 13\.2.*found version 12020.*CUDA_VISIBLE_DEVICES to another GPU",
    ) as caught:
        start()
    assert "\n" not in str(caught.value) and "Please" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "visible", "has_gpu", "refused"),
    [
        (TOO_OLD, "0", False, True),  # Windows' Linux subsystem has no device file
        (TOO_OLD, "", True, False),
        (TOO_OLD, "-1", True, False),
        (NO_GPU, "7", True, True),  # there are fewer
        ("CUDA unknown error", None, True, True),
        (NO_DRIVER, None, False, False),
        (NO_DRIVER, "0,1", False, False),  # PaddleViT's commands on a machine without a GPU
        (NO_GPU, None, False, False),
    ],
)
def test_a_machine_without_a_gpu_is_no_error(machine, error, visible, has_gpu, refused):
    machine(error, visible, has_gpu)
    if refused:
        with pytest.raises(UserError, match=error.partition(" (")[0]):
            visible_gpus()
    else:
        assert visible_gpus() == 0


def test_a_run_that_may_be_meant_for_a_gpu_says_that_it_uses_the_cpu(machine, digits_argv, cpu):
    machine(NO_DRIVER, visible="0,1")
    run = train([*digits_argv, "TRAIN.MAX_STEPS=1"], cpu)
    assert f"Warning: {cpu_warning(CPU)}" in (run / "log.txt").read_text()
    assert "CUDA_VISIBLE_DEVICES is 0,1" in cpu_warning(CPU)
    assert cpu_warning(torch.device("cuda")) is None
    for visible in ("", None):
        machine(NO_DRIVER, visible)
        assert cpu_warning(CPU) is None
    machine("never called", None, has_gpu=True, cuda=None)
    assert visible_gpus() == 0 and "built without CUDA" in cpu_warning(CPU)
    machine("never called", "", cuda=None)
    assert cpu_warning(CPU) is None
