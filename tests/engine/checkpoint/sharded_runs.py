"""Functions that the ranks of test_sharded_run.py call: sharded runs, resumed, and folders of checkpoint parts."""

import errno
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import GREY, TINY_VIT
from shard_files import content
from torch import nn
from torch.distributed.fsdp import fully_shard

from configs.command_line import parse_command_line
from engine.checkpoint.reader import open_checkpoint
from engine.checkpoint.writer import ShardWriter
from engine.commands.run import run
from engine.plan.training import find_on_all_ranks
from engine.run.log import RunLogger
from models.weights.shards import read_model_state, read_optimizer_state
from utils.distributed import ProcessContext
from utils.errors import UserError

BROKEN, END = 17, 22  # steps; an epoch has 14
OPTIONS = [
    *TINY_VIT, *GREY, "DATA.NUM_WORKERS=0", "TRAIN.BASE_LR=1e-3", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9",
    f"SAVE_FREQ_STEPS={BROKEN}", f"TRAIN.MAX_STEPS={END}",
]  # fmt: skip


def runs(context: ProcessContext, folder: Path) -> dict[str, Path]:
    """An unbroken run, and copies of it as it was at step BROKEN; some of them are resumed."""
    unbroken = train(folder / "unbroken", context)
    copies = {name: copy(unbroken, folder / name, context) for name in ("sharded", "ddp", "alone", "damaged")}
    resume(copies["sharded"], context)
    resume(copies["ddp"], context, "PARALLEL.STRATEGY=ddp", f"TRAIN.MAX_STEPS={BROKEN + 2}")
    back = folder / "back" / unbroken.name
    if context.is_main:
        shutil.copytree(copies["ddp"], back)
    dist.barrier()
    resume(back, context, "PARALLEL.STRATEGY=fsdp", f"TRAIN.MAX_STEPS={END}")
    return {"unbroken": unbroken, "back": back, **copies}


def train(output: Path, context: ProcessContext, *options: str) -> Path:
    batch_size = f"-batch_size={96 // context.world_size}"
    argv = ["-dataset=digits", batch_size, f"-output={output}", "-opts", *OPTIONS, "PARALLEL.STRATEGY=fsdp", *options]
    assert run(parse_command_line(argv), context) == 0
    (folder,) = output.iterdir()
    return folder


def resume(folder: Path, context: ProcessContext, *options: str) -> None:
    argv = [f"-resume={folder}", "-opts", *options] if options else [f"-resume={folder}"]
    assert run(parse_command_line(argv), context) == 0


def copy(source: Path, target: Path, context: ProcessContext) -> Path:
    """A copy of the run as it was when step BROKEN was saved."""
    target = target / source.name
    if context.is_main:
        shutil.copytree(source, target)
        shutil.rmtree(target / "last.shards")
        (target / "previous.shards").rename(target / "last.shards")
    dist.barrier()
    return target


class Odd(nn.Module):
    """Parameters that three ranks cannot share evenly, one that two of them have no part of, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 1)
        self.register_buffer("count", torch.tensor(2**53 + 1))
        self.register_buffer("brain", torch.arange(3, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs))


def check_writer(context: ProcessContext, folder: Path) -> tuple[bool, str]:
    """Whether the files have the state at the time of the save; and the error where the disk of rank 1 is full."""
    model = fully_shard(Odd())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    if context.is_main:
        folder.mkdir()
    writer = ShardWriter(folder, 2, lambda *_: None, context, 60)
    state = content(model=model.state_dict(), optimizer=optimizer.state_dict(), epoch=1)
    before = [tensor.clone() for tensor in tensors(state)]
    writer.save(state, is_best=True, periodic="epoch-001")
    with torch.no_grad():
        for tensor in tensors(state):
            tensor.zero_()  # training continues while files are written
    writer.wait()
    opened = open_checkpoint(folder / "last.shards", context)
    read = content_like(opened, model, optimizer)
    is_snapshot = all(equal(*pair) for pair in zip(before, tensors(read), strict=True))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError) as error:
        if context.rank == 1:
            patch.setattr("torch.distributed.checkpoint.HuggingFaceStorageWriter.write_data", full_disk)
        writer.save(state, is_best=False, periodic=None)
        writer.wait()
    return is_snapshot, str(error.value)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of a sharded tensor, this rank's part."""
    return torch.equal(*(tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in (one, other)))


def tensors(state: dict) -> list[torch.Tensor]:
    moments = state["optimizer"]["state"]
    return [*state["model"].values(), *(value for values in moments.values() for value in values.values())]


def content_like(opened: dict, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    return {
        "model": read_model_state(opened["model"], model.state_dict()),
        "optimizer": read_optimizer_state(opened["optimizer"], optimizer.param_groups),
    }


def check_fallback(context: ProcessContext, folder: Path) -> list[str]:
    """A damaged shard, which one rank verifies: all ranks read the previous checkpoint: its name, folder and notes."""
    if context.is_main:
        shutil.copytree(folder / "last.shards", folder / "previous.shards")
        shard = sorted((folder / "last.shards").glob("*.safetensors"))[2]
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.unlink()  # not the file that other folders link to
        shard.write_bytes(data)
    dist.barrier()
    config = parse_command_line([f"-resume={folder}"]).config
    with pytest.MonkeyPatch.context() as patch:
        if not context.is_main:  # for which files move while it looks
            patch.setattr("engine.checkpoint.reader.is_run_folder", lambda folder: False)
        found = find_on_all_ranks(config, context, RunLogger(None, context))
    return [found.path.name, str(found.run_folder), *found.notes]
