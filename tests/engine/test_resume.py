"""A run stopped after any step and resumed ends with the weights of an unbroken one, bit for bit."""

import csv

import numpy as np
import pytest
from conftest import GREY, TINY_VIT, assert_same_state, train
from PIL import Image

from configs.load import load
from engine.checkpoint import load_checkpoint
from engine.run import run
from utils.errors import UserError

# All chance there is: dropout, stochastic depth, mixup, CutMix, crops, flips, affine maps.
CHANCE = [
    "MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.1", "MODEL.DROPPATH=0.1", "TRAIN.MIXUP_ALPHA=0.8",
    "TRAIN.CUTMIX_ALPHA=1.0", "DATA.AFFINE_DEGREES=10", "DATA.AFFINE_TRANSLATE=0.1", "TRAIN.MODEL_EMA=true",
    "TRAIN.MODEL_EMA_DECAY=0.9", "TRAIN.GRAD_CLIP=1.0", "TRAIN.SMOOTHING=0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """40 small pictures in two classes, as an ImageNet folder has them."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("val", 7)):
        for number in range(count):
            folder = root / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (20, 24), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def states(folder) -> dict:
    state = load_checkpoint(folder / "last.pth")
    del state["train_seconds"], state["options"]
    return state


def rows(folder) -> list[dict]:
    measured = {"images_per_second", "data_wait_share", "peak_memory_bytes", "train_seconds"}
    with open(folder / "metrics.csv", newline="") as file:
        return [{key: row[key] for key in row.keys() - measured} for row in csv.DictReader(file)]


def argv_for(pictures, output, workers: int) -> list[str]:
    """Flags of a run with 4 steps an epoch: 10 batches of 4, 3 to a step, the last step of a single batch."""
    return [
        "-dataset=folder", f"-data_path={pictures}", "-batch_size=4", "-accum_iter=3", f"-num_workers={workers}",
        f"-output={output}", "-opts", *TINY_VIT, *GREY, *CHANCE, "REPORT_FREQ=2",
    ]  # fmt: skip


@pytest.mark.parametrize("amp", [[], ["-amp"]], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("workers", "stops"), [(0, range(1, 8)), (2, (2, 4))], ids=["alone", "workers"])
def test_stopped_after_any_step(pictures, tmp_path, cpu, workers, stops, amp):
    unbroken = train([*amp, *argv_for(pictures, tmp_path / "unbroken", workers)], cpu)
    for stop in stops:
        argv = [*amp, *argv_for(pictures, tmp_path / str(stop), workers)]
        stopped = train([*argv, f"TRAIN.MAX_STEPS={stop}"], cpu)
        assert load_checkpoint(stopped / "last.pth")["epoch"] == stop // 4
        resumed = train([f"-resume={stopped}", *argv], cpu)
        assert resumed == stopped
        assert_same_state(states(resumed), states(unbroken), f"stop {stop}")
        assert rows(resumed) == rows(unbroken)
        assert (resumed / "steps.csv").read_text() == (unbroken / "steps.csv").read_text()


def test_workers_do_not_matter(pictures, tmp_path, cpu):
    folders = [train(argv_for(pictures, tmp_path / str(workers), workers), cpu) for workers in (0, 2)]
    assert_same_state(states(folders[0]), states(folders[1]))


def test_fp16_scaler_resumes(digits_argv, cpu):
    argv = [*digits_argv, "TRAIN.NUM_EPOCHS=1", "TRAIN.MAX_STEPS=6"]
    fp16 = ["-amp", "-amp_dtype=float16", "-batch_size=8"]
    unbroken = train(fp16 + argv, cpu)
    stopped = train([*fp16, *argv, "TRAIN.MAX_STEPS=3"], cpu)
    resumed = train([f"-resume={stopped / 'last.pth'}", *fp16, *argv], cpu)
    assert states(unbroken)["precision"]["scaler"]["scale"] == 2.0**16
    assert_same_state(states(resumed), states(unbroken))


MISTAKES = {
    "optimizer": ("TRAIN.OPTIMIZER.NAME=SGD", r"OPTIMIZER.NAME: the checkpoint was trained with AdamW; set it alike"),
    "average": ("TRAIN.MODEL_EMA=true", r"MODEL_EMA: is not what the checkpoint was trained with"),
    "last epoch": ("TRAIN.LAST_EPOCH=1", r"-last_epoch 1: the checkpoint has 0"),
    "model": ("MODEL.EMBED_DIM=32", r"the checkpoint is of another model: .*cls_token"),
    "seed": ("SEED=5", r"inside an epoch"),
}


def test_mistakes_on_resuming(digits_argv, cpu):
    stopped = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    before = (stopped / "config.yaml").read_text()
    for option, expected in MISTAKES.values():
        with pytest.raises(UserError, match=f"(?s){expected}"):
            train([f"-resume={stopped}", *digits_argv, option], cpu)
    assert (stopped / "config.yaml").read_text() == before


def test_the_pretrained_file_may_be_gone(digits_argv, cpu):
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    argv = [f"-resume={folder}", *digits_argv, "MODEL.PRETRAINED=gone.pth"]
    run(load(["-dry_run", *argv]), cpu, "main_single_gpu.py")
    assert load_checkpoint(folder / "last.pth")["done_steps"] == 3  # looked at, not trained
    assert load_checkpoint(train([*argv, "TRAIN.MAX_STEPS=4"], cpu) / "last.pth")["done_steps"] == 4


def test_a_dry_run_finds_what_would_stop_a_resumed_run(digits_argv, cpu):
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    with pytest.raises(UserError, match="of another model"):
        run(load(["-dry_run", f"-resume={folder}", *digits_argv, "MODEL.EMBED_DIM=32"]), cpu, "main_single_gpu.py")


def test_an_abandoned_best_is_no_best(digits_argv, cpu):
    """Resumed from before its own best: that epoch is undone, and the next evaluation is the best."""
    argv = [*digits_argv, "DATA.BATCH_SIZE=32", "TRAIN.BASE_LR=5e-3"]
    folder = train(argv, cpu)
    assert load_checkpoint(folder / "best.pth")["best"]["epoch"] == 2
    train([f"-resume={folder / 'epoch-001.pth'}", *argv], cpu)
    assert load_checkpoint(folder / "last.pth")["best"] == load_checkpoint(folder / "best.pth")["best"]


def test_resume_into_another_geometry(digits_argv, cpu):
    stopped = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    with pytest.raises(UserError, match="inside an epoch"):
        train([f"-resume={stopped}", *digits_argv, "DATA.BATCH_SIZE=32"], cpu)
    at_epoch_end = train([*digits_argv, "TRAIN.MAX_STEPS=22", "SEED=9"], cpu)
    train([f"-resume={at_epoch_end}", *digits_argv, "DATA.BATCH_SIZE=32", "SEED=9"], cpu)
    assert [row["epoch"] for row in rows(at_epoch_end)] == ["1", "2"]
