"""Out-of-memory errors are one line with the batch size, the peak memory, and the options that reduce it."""

import pytest
import torch

from configs.command_line import parse_command_line
from engine.commands.run import run
from utils.errors import UserError


def raise_error(error: Exception):
    def train_steps(*args):
        raise error

    return train_steps


@pytest.mark.parametrize(
    ("flags", "fixes"),
    [
        ([], r"lower -batch_size and raise -accum_iter, or set MODEL.GRAD_CHECKPOINTING=true, or use -amp"),
        (["-amp"], r"lower -batch_size and raise -accum_iter, or set MODEL.GRAD_CHECKPOINTING=true"),
    ],
)
def test_out_of_gpu_memory_in_training(digits_argv, cpu, monkeypatch, flags, fixes):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore lines.")
    monkeypatch.setattr("engine.training.trainer.train_steps", raise_error(error))
    size = r"out of GPU memory with vit at -batch_size 64, DATA.IMAGE_SIZE 8, (float32|O1: .*); peak \d+\.\d\d GB: "
    with pytest.raises(UserError, match=rf"^{size}{fixes} \(CUDA out of memory. Tried to allocate 2 GiB\.\)$"):
        run(parse_command_line([*flags, *digits_argv]), cpu)


def test_out_of_gpu_memory_in_an_evaluation(digits_argv, cpu, monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr("engine.training.evaluation.eval_loss", raise_error(error))
    with pytest.raises(UserError, match=r"at -batch_size_eval 64, .*: lower -batch_size_eval, or use -amp"):
        run(parse_command_line(digits_argv), cpu)


def test_out_of_host_memory(digits_argv, cpu, monkeypatch):
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory")
    monkeypatch.setattr("engine.training.trainer.train_steps", raise_error(error))
    with pytest.raises(UserError, match=r"^out of host memory with vit at -batch_size 64 .*; lower -batch_size"):
        run(parse_command_line(digits_argv), cpu)
    monkeypatch.setattr("engine.training.trainer.train_steps", raise_error(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        run(parse_command_line(digits_argv), cpu)
