"""A shortage of memory is one line with the batch size, the peak memory, and the options that reduce it."""

import pytest
import torch
from timm.models import VisionTransformer

from configs.reading.command_line import parse_command_line
from engine.commands.run import run
from utils.device import IN_LOADING
from utils.errors import UserError


def raise_error(error: Exception):
    def fail(*args, **kwargs):
        raise error

    return fail


def test_out_of_gpu_memory_while_the_state_is_loaded(digits_argv, cpu, monkeypatch, tmp_path):
    """The caller of the function that fails takes any RuntimeError for a checkpoint of another model."""
    run(parse_command_line([*digits_argv, "TRAIN.MAX_STEPS=1"]), cpu)
    error = torch.AcceleratorError("CUDA error: out of memory")
    monkeypatch.setattr("engine.parallel.strategy.Strategy.load_optimizer_state", raise_error(error))
    with pytest.raises(UserError, match=r"^out of GPU memory .* \(CUDA error: out of memory\)$"):
        run(parse_command_line(["-resume=auto", *digits_argv]), cpu)


@pytest.mark.parametrize(
    ("flags", "fixes"),
    [
        ([], "lower -num_workers or -batch_size"),
        (["-num_workers=0"], "lower -batch_size"),
        (["-eval", "-pretrained=weights.safetensors"], "lower -num_workers or -batch_size_eval"),
    ],
)
def test_out_of_pinned_host_memory(digits_argv, cpu, monkeypatch, flags, fixes):
    error = torch.AcceleratorError("CUDA error: out of memory")
    error.add_note(IN_LOADING)
    for command in ("train.train", "evaluate.evaluate"):
        monkeypatch.setattr(f"engine.commands.{command}", raise_error(error))
    with pytest.raises(UserError, match=rf"^out of host memory with vit at .*: {fixes} \(CUDA error: out of memory\)$"):
        run(parse_command_line([*flags, *digits_argv]), cpu)


@pytest.mark.parametrize(
    "message", ["a bug", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm()`"]
)
def test_other_errors_keep_their_traceback(digits_argv, cpu, monkeypatch, message):
    error = RuntimeError(message)
    monkeypatch.setattr("engine.training.trainer.train_steps", raise_error(error))
    with pytest.raises(RuntimeError) as raised:
        run(parse_command_line(digits_argv), cpu)
    assert raised.value is error


@pytest.mark.usefixtures("nondeterministic_after_test")
def test_op_without_a_deterministic_algorithm(digits_argv, cpu, monkeypatch):
    def put(*args, **kwargs):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))

    monkeypatch.setattr("engine.training.trainer.train_steps", put)
    with pytest.raises(UserError, match=r"^DETERMINISTIC: put_ has no deterministic algorithm here; set it to false$"):
        run(parse_command_line([*digits_argv, "DETERMINISTIC=true"]), cpu)


def exhaust(device: torch.device) -> None:
    """Asks for a petabyte of the device's memory."""
    torch.empty(2**50, dtype=torch.uint8, device=device)


@pytest.mark.parametrize("place", ["forward", "backward", "optimizer", "evaluation"])
def test_real_shortage_of_memory(digits_argv, any_device, monkeypatch, place):
    device, forward = any_device.device, VisionTransformer.forward

    def exhausting_forward(model, images):
        logits = forward(model, images)
        if place == "forward":
            exhaust(device)
        if place == "backward" and logits.requires_grad:
            logits.register_hook(lambda gradient: exhaust(device))
        return logits

    monkeypatch.setattr(VisionTransformer, "forward", exhausting_forward)
    if place == "optimizer":
        monkeypatch.setattr(torch.optim.AdamW, "step", lambda *args, **options: exhaust(device))
    if place == "evaluation":
        monkeypatch.setattr("engine.evaluation.evaluate._rank_classes", lambda *args, **options: exhaust(device))
    memory = "GPU" if device.type == "cuda" else "host"
    flag = "-batch_size_eval" if place == "evaluation" else "-batch_size"
    with pytest.raises(UserError, match=rf"^out of {memory} memory with vit at {flag} 64, .*: lower {flag}"):
        run(parse_command_line(digits_argv), any_device)
