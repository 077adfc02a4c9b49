"""Runs of FSDP at two and three ranks: their checkpoints are files, which any number of ranks and DDP resume."""

import shutil
from pathlib import Path

from conftest import (
    GREY,
    TINY_VIT,
    assert_same_state,
    cli,
    config_for,
    each_value,
    of_module,
    only_run,
    states,
    train,
    values_of,
)
from pytest import MonkeyPatch, mark

from engine.plan.training import find_on_all_ranks
from engine.run.log import RunLogger
from utils.distributed import ProcessContext

pytestmark = mark.slow
# steps; an epoch has 14
BROKEN = 17
END = 22
OPTIONS = [
    *TINY_VIT,
    *GREY,
    *cli(
        "DATA.NUM_WORKERS=0 TRAIN.BASE_LR=1e-3 TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_DECAY=0.9 "
        f"SAVE_FREQ_STEPS={BROKEN} TRAIN.MAX_STEPS={END} DATA.GLOBAL_BATCH_SIZE=96 "
        "DATA.REPEATED_AUGMENTATION=2"
    ),
]
# Ranks that saved, ranks that resume, and their strategy
CASES = """
saved | by | strategy
3 | 3 | fsdp
3 | 2 | fsdp
2 | 3 | fsdp
3 | 2 | hsdp
3 | 1 | fsdp
3 | 3 | ddp
ddp | 3 | fsdp
ddp | 2 | ddp
ddp | 1 | ddp  # two micro-steps a step
"""


@of_module
def unbroken(tmp_path_factory, ranks) -> dict[int | str, Path]:
    root = tmp_path_factory.mktemp("unbroken")
    for name, number, strategy in values_of("3 | 3 | fsdp\n2 | 2 | fsdp\nddp | 2 | ddp"):
        batch = f"-batch_size={96 // number}"
        flags = ["-dataset=digits", batch, f"-output={root / str(name)}", "-opts", *OPTIONS]
        ranks(number).run([*flags, f"PARALLEL.STRATEGY={strategy}"])
    return {name: only_run(root / str(name)) for name in (3, 2, "ddp")}


def copy_as_broken(run: Path, target: Path) -> Path:
    """A copy of the run as it was when step BROKEN was saved."""
    copy = Path(shutil.copytree(run, target / run.name))
    (copy / "previous.pth").rename(copy / "last.pth")
    return copy


def assert_close(one: dict, other: dict):
    """Leaves out the bias of the keys: its gradient is zero but for rounding, which AdamW scales up to its rate."""
    for entry in ("model", "state_dict_ema"):
        for name, tensor in one[entry].items():
            difference = (other[entry][name] - tensor).abs()
            if name.endswith("qkv.bias"):
                difference.chunk(3)[1].zero_()
            assert difference.max() < 1e-6, name


@each_value(CASES)
def test_resumed_it_ends_as_unbroken(unbroken, tmp_path, ranks, saved, by, strategy):
    folder = copy_as_broken(unbroken[saved], tmp_path)
    flags = cli(f"-resume={folder} -batch_size={96 // max(by, 2)} -opts PARALLEL.STRATEGY={strategy}")
    if by == 1:
        train(flags)
    else:
        ranks(by).run(flags)
    expected = states(unbroken[saved])
    resumed = states(folder)
    assert (resumed["epoch"], resumed["done_steps"]) == (1, END - 14)
    if (saved == by and strategy == "fsdp") or (saved == strategy and by == 2):
        assert_same_state(expected, resumed)
    assert_close(expected, resumed)


def found_on(context: ProcessContext, folder: Path) -> list:
    """The path, the folder and the notes of the checkpoint that the rank finds, and the device of its weights."""
    with MonkeyPatch.context() as patch:
        if not context.is_main:  # for which files move while it looks
            patch.setattr("engine.checkpoint.files.is_run_folder", lambda folder: False)
        found = find_on_all_ranks(config_for(f"-resume={folder}"), context, RunLogger(context))
    return [found.path.name, found.run_folder, found.notes, found.state["model"]["cls_token"].device.type]


def test_all_ranks_skip_a_damaged_checkpoint_and_one_holds_the_other(unbroken, tmp_path, ranks):
    folder = Path(shutil.copytree(unbroken[2], tmp_path / "run-1"))
    (folder / "last.pth").write_bytes((folder / "last.pth").read_bytes()[:-100])
    (*main, device), (*other, of_other) = ranks(2)(found_on, folder)
    assert main == other
    assert main[:2] == ["previous.pth", folder]
    assert "last.pth" in main[2][0]
    assert (device, of_other) == ("cpu", "meta")
