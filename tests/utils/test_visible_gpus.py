"""A wanted GPU that torch cannot use ends the run in one line; without a GPU, or with -device cpu, it uses the CPU."""

from unittest.mock import Mock

import torch
from conftest import cli, each_row, each_value, refused
from pytest import fixture

import main_multi_gpu
from configs.command_line import parse_command_line
from configs.flags import requested_device
from utils import distributed
from utils.device import check_runs_kernels, cpu_warning, visible_gpus

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")

TOO_OLD = "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver"
NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"
NO_GPU = "No CUDA GPUs are available"


def test_gpu_without_code_in_this_torch(monkeypatch):
    error = torch.AcceleratorError("CUDA error: no kernel image is available for execution\nMore lines.")
    monkeypatch.setattr("torch.ones", Mock(side_effect=error))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "Tesla V100")
    with refused(r"^GPU Tesla V100: "):
        check_runs_kernels(GPU)


@fixture
def machine(monkeypatch, tmp_path):
    """A function that makes this machine one on which torch fails with `error`, with a GPU or without."""

    def fake(error, visible="unset", has_gpu=False, cuda="13.2"):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        monkeypatch.setattr("torch.cuda.init", Mock(side_effect=RuntimeError(error)))
        monkeypatch.setattr("torch.version.cuda", cuda)
        monkeypatch.setattr("utils.system.DEVICE_FILES", tmp_path)
        if has_gpu:
            (tmp_path / "nvidia0").touch()
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible != "unset":
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return fake


WANTED = f"""
error | visible | has_gpu | wanted | reason
{TOO_OLD} | 0 | yes | cpu |
{NO_GPU} | 7 | yes | | No CUDA GPUs  # there are fewer
{NO_GPU} | unset | | cuda | -device cuda.*No CUDA GPUs are available
{TOO_OLD} | unset | yes | | too old
{NO_GPU} | -1 | yes | cuda | device cuda
{NO_DRIVER} | unset | | |
"""


@each_row(WANTED)
def test_a_wanted_gpu_is_used_or_refused(machine, error, visible, has_gpu, wanted, reason):
    machine(error, visible, bool(has_gpu))
    if reason:
        with refused(reason):
            visible_gpus(wanted)
    else:
        assert visible_gpus(wanted) == 0


WITHOUT_CUDA = """
visible | has_gpu | warned
unset | |
unset | yes | yes
 | yes |
"""


@each_row(WITHOUT_CUDA)
def test_a_build_without_cuda_uses_the_cpu_and_warns_beside_a_gpu(machine, visible, has_gpu, warned):
    machine("never called", visible, bool(has_gpu), cuda=None)
    assert visible_gpus() == 0
    assert ("built without CUDA" in cpu_warning(CPU)) == bool(warned)
    assert cpu_warning(GPU) == ""


def test_a_build_without_cuda_cannot_use_a_visible_gpu(machine):
    machine("never called", "0", cuda=None)
    with refused("built without CUDA"):
        visible_gpus()


VISIBLE = """
visible | usable
unset | true
'1,-1,0' | true
'0,1,2,-1' | false
"""


@each_value(VISIBLE)
def test_a_machine_with_two_gpus(monkeypatch, machine, visible, usable):
    machine("never called", visible)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert visible_gpus("cpu") == 0
    assert distributed.single_process("cpu").device == CPU
    assert main_multi_gpu.num_processes(None, 0, 1e8) == 1
    assert main_multi_gpu.num_processes(3, 0, 1e8) == 3
    with refused("-ngpus 1000000: .* lower -ngpus"):
        main_multi_gpu.num_processes(10**6, 0, 1e8)
    store = torch.distributed.HashStore()
    assert distributed._claim_device(store, local_rank=0, local_world_size=1, wanted="cpu") == CPU
    if usable:
        assert visible_gpus() == visible_gpus("cuda") == 2
    else:
        with refused("can use 2 of these GPUs"):
            visible_gpus()


def test_ranks_and_parser_read_the_same_device():
    for argv in (["--device=cpu"], cli("-opts SEED=1 -device=cpu -debug")):
        assert requested_device(argv) == parse_command_line(argv).flags.device == "cpu"
    assert requested_device(["-debug"]) is parse_command_line([]).flags.device is None
