"""Out of GPU memory: one line with model, batch, precision, and what would fit."""

import pytest
import torch
from conftest import train

from configs.command_line import parse_command_line
from engine.training.memory import _peaks, largest_batch, on_line
from utils.distributed import single_process
from utils.errors import UserError


def test_the_line_through_two_measurements():
    def peak(batch: int) -> int:
        return 300 + 7 * batch

    for usable in (307, 1000, 12345):
        fitting = on_line((4, peak(4)), (8, peak(8)), usable)
        assert peak(fitting) <= usable < peak(fitting + 1)
    assert on_line((4, peak(4)), (8, peak(8)), usable=306) is None
    assert on_line((4, 500), (8, 500), usable=1000) is None  # no line


@pytest.mark.parametrize(("peaks", "expected"), [((1300, 1600), "180 would fit"), (None, "not even small batches fit")])
def test_the_message(digits_argv, cpu, monkeypatch, peaks, expected):
    def short(*_) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore of it")

    def measured(*_) -> tuple[int, int]:
        return peaks or short()

    monkeypatch.setattr("engine.training.trainer.train_one_epoch", short)
    monkeypatch.setattr("engine.training.memory._peaks", measured)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (10000, 80000))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 5264)  # 0.95 of both is 1000 + 75 x 180
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 0)
    argv = ["-amp", "-amp_dtype=float16", *digits_argv]
    with pytest.raises(UserError) as caught:
        train(argv, cpu)
    message = str(caught.value)
    assert message.startswith(
        "out of GPU memory with vit at -batch_size 64 (O1: float16 autocast over float32 weights): "
    )
    assert expected in message and message.endswith("(CUDA out of memory. Tried to allocate 2 GiB.)")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_is_said_to_fit_on_a_gpu_does_and_twice_as_much_does_not(digits_argv):
    context = single_process()
    options = ["DATA.IMAGE_SIZE=64", "MODEL.EMBED_DIM=192", "MODEL.DEPTH=12"]
    config = parse_command_line([*digits_argv, "DATA.BATCH_SIZE=512", *options]).config
    free, _ = torch.cuda.mem_get_info(context.device)
    ballast = torch.empty(max(free - (4 << 30), 1), dtype=torch.uint8, device=context.device)
    fitting = largest_batch(config, context)
    _peaks(config, context, (fitting,))
    with pytest.raises(torch.OutOfMemoryError):
        _peaks(config, context, (2 * fitting,))
    del ballast
