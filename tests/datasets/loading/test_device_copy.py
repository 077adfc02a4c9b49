"""Batches on a GPU: copies on a stream of their own, from pinned memory, of all tensors of a batch."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from conftest import assert_same_state, samples_for

from configs.batch_plan import plan_batches
from configs.command_line import parse_command_line
from datasets.loading.loader import TrainBatches, epoch_layout
from utils.distributed import ProcessContext

OPTIONS = ["DATA.AFFINE_DEGREES=10", "TRAIN.RANDOM_ERASE_PROB=0.9", "DATA.IMAGE_SIZE=16", "DATA.BATCH_SIZE=4"]
TENSORS = 5  # of a batch: images, targets, affine maps; positions and boxes of random erasing


def batches_on(context: ProcessContext, *flags: str):
    config = parse_command_line(["-dataset=fake", *flags, "-opts", *OPTIONS]).config
    host = ProcessContext(0, 0, 1, 1, torch.device("cpu"))
    (samples,) = samples_for(config, host, "train")
    layout = epoch_layout(config, samples, plan_batches(config, context.world_size))
    return TrainBatches(config, samples, context, layout).iterate(0, 0, 1)


def test_a_batch_is_used_after_its_copies(monkeypatch):
    """Stands for a GPU: streams and copies are recorded. The next batch is copied while this one is in use."""
    events: list[str] = []

    def copy(tensor: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        events.append("copy" if non_blocking else "blocking copy")
        return tensor.clone()

    @contextmanager
    def on_stream(stream: SimpleNamespace):
        events.append("copy stream")
        yield
        events.append("main stream")

    stream = SimpleNamespace(wait_stream=lambda other: events.append("wait"))
    event = SimpleNamespace(record=lambda: events.append("copied"))
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event if enable_timing else None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: events.append("record"))
    batch = next(batches_on(ProcessContext(0, 0, 1, 1, torch.device("cuda:0")), "-num_workers=0"))
    assert batch.copied is event
    assert batch.images.shape == (4, 3, 16, 16) and set(batch.drawn) == {"affine", "erase"}
    assert events == ["copy stream", *["copy"] * TENSORS, "copied", "main stream", "wait", *["record"] * TENSORS]


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_a_gpu_equal_those_on_the_cpu(cpu, gpu, workers):
    flags = [f"-num_workers={workers}"]
    for _, on_cpu, on_gpu in zip(range(20), batches_on(cpu, *flags), batches_on(gpu, *flags), strict=False):
        for tensor in (on_gpu.images, on_gpu.targets, *on_gpu.drawn["affine"], *on_gpu.drawn["erase"]):
            assert tensor.device == gpu.device
        assert_same_state(on_gpu.images.cpu(), on_cpu.images)
        assert on_gpu.copied.query() and on_cpu.copied is None
        assert_same_state(on_gpu.targets.cpu(), on_cpu.targets)
        for name, drawn in on_cpu.drawn.items():
            assert_same_state([tensor.cpu() for tensor in on_gpu.drawn[name]], list(drawn))
