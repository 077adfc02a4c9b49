"""A run stopped after any step and resumed ends with the weights of an unbroken one, bit for bit."""

import os
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import GREY, TINY_VIT, assert_same_state, rows, states, step_rows, train
from PIL import Image

from configs.command_line import parse_command_line
from datasets.transforms.host import HostTransform
from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.run_folder import lock_run_folder
from engine.commands.run import run
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
        assert step_rows(resumed) == step_rows(unbroken)


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
    "optimizer": ("TRAIN.OPTIMIZER.NAME=SGD", r"OPTIMIZER.NAME: the checkpoint used AdamW; use it to resume"),
    "average": ("TRAIN.MODEL_EMA=true", r"MODEL_EMA: differs from the checkpoint"),
    "last epoch": ("TRAIN.LAST_EPOCH=1", r"-last_epoch 1: the checkpoint is at epoch 0"),
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
    run(parse_command_line(["-dry_run", *argv]), cpu, "main_single_gpu.py")
    assert load_checkpoint(folder / "last.pth")["done_steps"] == 3  # looked at, not trained
    assert load_checkpoint(train([*argv, "TRAIN.MAX_STEPS=4"], cpu) / "last.pth")["done_steps"] == 4


def test_a_dry_run_finds_what_would_stop_a_resumed_run(digits_argv, cpu):
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    with pytest.raises(UserError, match="of another model"):
        run(
            parse_command_line(["-dry_run", f"-resume={folder}", *digits_argv, "MODEL.EMBED_DIM=32"]),
            cpu,
            "main_single_gpu.py",
        )


def test_an_abandoned_best_is_no_best(digits_argv, cpu):
    """Resumed from before its own best: that epoch is undone, and the next evaluation is the best."""
    argv = [*digits_argv, "DATA.BATCH_SIZE=32", "TRAIN.BASE_LR=5e-3"]
    folder = train(argv, cpu)
    assert load_checkpoint(folder / "best.pth")["best"]["epoch"] == 2
    train([f"-resume={folder / 'epoch-001.pth'}", *argv], cpu)
    assert load_checkpoint(folder / "last.pth")["best"] == load_checkpoint(folder / "best.pth")["best"]


def test_killed_before_the_best_was_there(digits_argv, cpu):
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=22"], cpu)
    best = load_checkpoint(folder / "best.pth")["best"]
    (folder / "best.pth").unlink()
    train([f"-resume={folder}", *digits_argv, "TRAIN.MAX_STEPS=23"], cpu)
    assert load_checkpoint(folder / "best.pth")["best"] == load_checkpoint(folder / "last.pth")["best"] == best


def test_what_the_run_before_still_saved_is_what_is_resumed(digits_argv, cpu, monkeypatch):
    """A run that starts while the one before is ending waits for its folder, and reads only then."""
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    early = (folder / "last.pth").read_bytes()
    train([f"-resume={folder}", *digits_argv, "TRAIN.MAX_STEPS=5"], cpu)
    late = (folder / "last.pth").read_bytes()
    (folder / "last.pth").write_bytes(early)

    @contextmanager
    def held_at_last(path):
        (path / "last.pth").write_bytes(late)
        yield

    monkeypatch.setattr("engine.commands.open_run.lock_run_folder", held_at_last)
    train([f"-resume={folder}", *digits_argv, "TRAIN.MAX_STEPS=5"], cpu)
    assert "Resume: epoch 1, step 5" in (folder / "log.txt").read_text()


def test_resume_into_another_geometry(digits_argv, cpu):
    """Where a whole number of the new steps goes through the same samples, in the same order; else it is refused."""
    argv = [*digits_argv, "SAVE_FREQ_STEPS=1"]
    stopped = train([*argv, "TRAIN.MAX_STEPS=3"], cpu)
    with pytest.raises(UserError, match=r"used 192 samples of its epoch, .* batch size 80; choose .* divides 192"):
        train([f"-resume={stopped}", *argv, "DATA.BATCH_SIZE=80"], cpu)
    with pytest.raises(UserError, match=r"1437 samples with SEED 0, but this run .* SEED 9"):
        train([f"-resume={stopped}", *argv, "SEED=9"], cpu)
    train([f"-resume={stopped}", *argv, "DATA.BATCH_SIZE=32", "TRAIN.ACCUM_ITER=3"], cpu)
    (first, *_) = [row["step"] for row in rows(stopped)]
    assert first == "15"  # 44 batches of 32, three to a step


def test_the_order_of_samples_outlives_a_change_of_devices(digits_argv, cpu, monkeypatch):
    seen = []
    original = HostTransform.generator
    monkeypatch.setattr(
        HostTransform, "generator", lambda self, epoch, index: (seen.append(index), original(self, epoch, index))[1]
    )
    argv = [*digits_argv, "TRAIN.NUM_EPOCHS=1"]
    train(argv, cpu)
    unbroken, seen[:] = list(seen), []
    stopped = train([*argv, "TRAIN.MAX_STEPS=6"], cpu)
    seen = seen[: 6 * 64]  # what was read ahead of the stop is not counted
    train([f"-resume={stopped}", *argv, "DATA.BATCH_SIZE=32"], cpu)
    assert seen == unbroken[: len(seen)]
    assert len(unbroken) == 22 * 64 and len(seen) == 44 * 32


def test_differing_options_are_listed(digits_argv, cpu, capsys):
    stopped = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    train([f"-resume={stopped}", *digits_argv, "TRAIN.MAX_STEPS=4", "REPORT_FREQ=2"], cpu)
    expected = "options that differ from the checkpoint: REPORT_FREQ: 20, now 2; TRAIN.MAX_STEPS: 3, now 4\n"
    assert expected in capsys.readouterr().out


def test_two_runs_never_share_a_folder(digits_argv, cpu, monkeypatch):
    stopped = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    monkeypatch.setattr("engine.checkpoint.run_folder._LOCK_SECONDS", 0.2)
    with (
        lock_run_folder(stopped),
        pytest.raises(UserError, match=rf"{stopped}: is in use by process {os.getpid()} on "),
    ):
        train([f"-resume={stopped}", *digits_argv], cpu)
    train([f"-resume={stopped}", *digits_argv, "TRAIN.MAX_STEPS=4"], cpu)
