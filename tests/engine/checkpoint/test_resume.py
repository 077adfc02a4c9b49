"""A run stopped after any step and resumed ends with the weights of an uninterrupted run, bit for bit."""

import os
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from conftest import GREY, TINY_VIT, assert_same_state, rows, states, step_rows, train
from PIL import Image

from configs.reading.command_line import parse_command_line
from datasets.transforms.host import HostTransform
from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.run_folder import lock_run_folder
from engine.commands.run import run
from utils.distributed import ProcessContext
from utils.errors import UserError

# All random operations: dropout, stochastic depth, mixup, CutMix, crops, flips, affine maps.
RANDOM_OPTIONS = [
    "MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.1", "MODEL.DROPPATH=0.1", "TRAIN.MIXUP_ALPHA=0.8",
    "TRAIN.CUTMIX_ALPHA=1.0", "DATA.AFFINE_DEGREES=10", "DATA.AFFINE_TRANSLATE=0.1", "TRAIN.MODEL_EMA=true",
    "TRAIN.MODEL_EMA_DECAY=0.9", "TRAIN.GRAD_CLIP=1.0", "TRAIN.SMOOTHING=0.1",
]  # fmt: skip


# The recipes of DeiT, with what they leave out: a run of 3 steps per epoch sees a third of the images.
RECIPE_OPTIONS = [
    "DATA.REPEATED_AUGMENTATION=3", "MODEL.DROPPATH=0.1", "TRAIN.RANDOM_ERASE_PROB=0.5", "TRAIN.RANDOM_ERASE_COUNT=2",
    "TRAIN.MIXUP_ALPHA=0.8", "TRAIN.CUTMIX_ALPHA=1.0", "TRAIN.MIXUP_MODE=elem", "TRAIN.SMOOTHING=0.1",
    "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_WARMUP=true", "EVAL_RAW=true", "TRAIN.DISTILLATION_TYPE=soft",
    "TRAIN.LR_SCHEDULER.NAME=wsd", "LOSS.NAME=bce", "LOSS.CLASS_WEIGHTS=balanced",
]  # fmt: skip


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    """40 training and 7 validation images of two classes, in the folder layout of ImageNet."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("val", 7)):
        for number in range(count):
            folder = root / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (20, 24), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def argv_for(image_folder, output, workers: int) -> list[str]:
    """Flags of a run with 4 steps per epoch: 10 batches of 4, 3 per step; the last step has one batch."""
    return [
        "-dataset=folder", f"-data_path={image_folder}", "-batch_size=4", "-accum_iter=3", f"-num_workers={workers}",
        f"-output={output}", "-opts", *TINY_VIT, *GREY, *RANDOM_OPTIONS, "REPORT_FREQ=2",
    ]  # fmt: skip


@pytest.mark.parametrize("amp", [[], ["-amp"]], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("workers", "stops"), [(0, range(1, 8)), (2, (2, 4))], ids=["no workers", "two workers"])
def test_resume_after_any_step_is_bit_exact(image_folder, tmp_path, cpu, workers, stops, amp):
    uninterrupted = train([*amp, *argv_for(image_folder, tmp_path / "uninterrupted", workers)], cpu)
    for stop in stops:
        argv = [*amp, *argv_for(image_folder, tmp_path / str(stop), workers)]
        stopped = train([*argv, f"TRAIN.MAX_STEPS={stop}"], cpu)
        assert load_checkpoint(stopped / "last.pth")["epoch"] == stop // 4
        resumed = train([f"-resume={stopped}", *argv], cpu)
        assert resumed == stopped
        assert_same_state(states(resumed), states(uninterrupted), f"stop {stop}")
        assert rows(resumed) == rows(uninterrupted)
        assert step_rows(resumed) == step_rows(uninterrupted)


AUGMENTATION = [
    ["TRAIN.RAND_AUGMENT=true", "TRAIN.MIXUP_MODE=elem", "TRAIN.MIXUP_OFF_EPOCH=1"],
    ["TRAIN.AUGMENT_POLICY=rand-m9-mstd0.5-inc1", "TRAIN.MIXUP_MODE=pair", "TRAIN.CUTMIX_MINMAX=[0.2, 0.8]"],
]


@pytest.mark.parametrize("options", AUGMENTATION, ids=lambda options: options[0])
def test_resume_with_augmentation_is_bit_exact_with_any_number_of_workers(image_folder, tmp_path, cpu, options):
    """With random erasing and repeated augmentation; stopped without workers, resumed with one."""
    options = [
        *options, "TRAIN.RANDOM_ERASE_PROB=0.5", "TRAIN.RANDOM_ERASE_COUNT=3", "DATA.REPEATED_AUGMENTATION=3"
    ]  # fmt: skip
    uninterrupted = train([*argv_for(image_folder, tmp_path / "uninterrupted", 0), *options], cpu)
    stopped = train([*argv_for(image_folder, tmp_path / "stopped", 0), *options, "TRAIN.MAX_STEPS=3"], cpu)
    resumed = train([f"-resume={stopped}", *argv_for(image_folder, tmp_path / "stopped", 1), *options], cpu)
    assert_same_state(states(resumed), states(uninterrupted))
    assert rows(resumed) == rows(uninterrupted)


@pytest.fixture(scope="module")
def teacher(image_folder, tmp_path_factory):
    """The weights of a run of one step; its normalization is not the student's."""
    output = tmp_path_factory.mktemp("teacher")
    argv = [*argv_for(image_folder, output, 0), "DATA.IMAGENET_MEAN=[0.3]", "TRAIN.MAX_STEPS=1"]
    return train(argv, ProcessContext(0, 0, 1, 1, torch.device("cpu"))) / "last.pth"


@pytest.mark.parametrize("policy", ["TRAIN.RAND_AUGMENT=true", "TRAIN.AUGMENT_POLICY=rand-m9-mstd0.5-inc1"])
@pytest.mark.parametrize("level", ["O1", "O3"])
def test_resume_with_all_of_a_recipe_is_bit_exact(image_folder, teacher, tmp_path, cpu, policy, level):
    """With two workers, and without workers after the stop."""

    def argv(output: str, workers: int) -> list[str]:
        options = [*RECIPE_OPTIONS, policy, f"AMP.LEVEL={level}"]
        return [
            "-amp",
            *argv_for(image_folder, tmp_path / output, workers),
            *options,
            f"TRAIN.TEACHER_WEIGHTS={teacher}",
        ]

    uninterrupted = train(argv("uninterrupted", 2), cpu)
    stopped = train([*argv("stopped", 2), "TRAIN.MAX_STEPS=5"], cpu)
    resumed = train([f"-resume={stopped}", *argv("stopped", 0)], cpu)
    assert_same_state(states(resumed), states(uninterrupted))
    assert rows(resumed) == rows(uninterrupted)


@pytest.mark.usefixtures("nondeterministic_after_test")
def test_resume_with_deterministic_algorithms(image_folder, tmp_path, any_device):
    """Two runs, of which one is stopped and resumed; on a GPU in float16 with its loss scaler."""
    options = ["DETERMINISTIC=true", "AMP.INIT_LOSS_SCALING=1e9"]
    uninterrupted = train(["-amp", *argv_for(image_folder, tmp_path / "uninterrupted", 0), *options], any_device)
    argv = ["-amp", *argv_for(image_folder, tmp_path / "stopped", 0), *options]
    stopped = train([*argv, "TRAIN.MAX_STEPS=5"], any_device)
    assert torch.are_deterministic_algorithms_enabled()
    resumed = train([f"-resume={stopped}", *argv], any_device)
    assert_same_state(states(resumed), states(uninterrupted))


def test_number_of_workers_does_not_change_the_result(image_folder, tmp_path, cpu):
    folders = [train(argv_for(image_folder, tmp_path / str(workers), workers), cpu) for workers in (0, 2)]
    assert_same_state(states(folders[0]), states(folders[1]))


def test_resume_restores_the_loss_scale(digits_argv, cpu):
    argv = [*digits_argv, "TRAIN.NUM_EPOCHS=1", "TRAIN.MAX_STEPS=6"]
    fp16 = ["-amp", "-amp_dtype=float16", "-batch_size=8"]
    uninterrupted = train(fp16 + argv, cpu)
    stopped = train([*fp16, *argv, "TRAIN.MAX_STEPS=3"], cpu)
    resumed = train([f"-resume={stopped / 'last.pth'}", *fp16, *argv], cpu)
    assert states(uninterrupted)["precision"]["scaler"]["scale"] == 2.0**16
    assert_same_state(states(resumed), states(uninterrupted))


INVALID_CHANGES = {
    "optimizer": ("TRAIN.OPTIMIZER.NAME=SGD", r"OPTIMIZER.NAME: the checkpoint used AdamW; use it to resume"),
    "average": ("TRAIN.MODEL_EMA=true", r"MODEL_EMA: differs from the checkpoint"),
    "last epoch": ("TRAIN.LAST_EPOCH=1", r"-last_epoch 1: the checkpoint is at epoch 0"),
    "model": ("MODEL.EMBED_DIM=32", r"the checkpoint is of another model: .*cls_token"),
    "seed": ("SEED=5", r"inside an epoch"),
    "repeats": ("DATA.REPEATED_AUGMENTATION=3", r"an epoch with DATA.REPEATED_AUGMENTATION 1, but this run has 3"),
}


def test_resume_rejects_invalid_changes(digits_argv, cpu):
    stopped = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    before = (stopped / "config.yaml").read_text()
    for option, expected in INVALID_CHANGES.values():
        with pytest.raises(UserError, match=f"(?s){expected}"):
            train([f"-resume={stopped}", *digits_argv, option], cpu)
    assert (stopped / "config.yaml").read_text() == before


def test_resume_does_not_need_the_pretrained_file(digits_argv, cpu):
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    argv = [f"-resume={folder}", *digits_argv, "MODEL.PRETRAINED=gone.pth"]
    run(parse_command_line(["-dry_run", *argv]), cpu)
    assert load_checkpoint(folder / "last.pth")["done_steps"] == 3  # a dry run does not train
    assert load_checkpoint(train([*argv, "TRAIN.MAX_STEPS=4"], cpu) / "last.pth")["done_steps"] == 4


def test_dry_run_checks_the_checkpoint(digits_argv, cpu):
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    with pytest.raises(UserError, match="of another model"):
        run(
            parse_command_line(["-dry_run", f"-resume={folder}", *digits_argv, "MODEL.EMBED_DIM=32"]),
            cpu,
        )


def test_resume_from_before_the_best_epoch_discards_the_best(digits_argv, cpu):
    """The run resumes from before its best epoch: that epoch is discarded, and the next evaluation is the best."""
    argv = [*digits_argv, "DATA.BATCH_SIZE=32", "TRAIN.BASE_LR=5e-3"]
    folder = train(argv, cpu)
    assert load_checkpoint(folder / "best.pth")["best"]["epoch"] == 2
    train([f"-resume={folder / 'epoch-001.pth'}", *argv], cpu)
    assert load_checkpoint(folder / "last.pth")["best"] == load_checkpoint(folder / "best.pth")["best"]


def test_resume_rewrites_a_missing_best_checkpoint(digits_argv, cpu):
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=22"], cpu)
    best = load_checkpoint(folder / "best.pth")["best"]
    (folder / "best.pth").unlink()
    train([f"-resume={folder}", *digits_argv, "TRAIN.MAX_STEPS=23"], cpu)
    assert load_checkpoint(folder / "best.pth")["best"] == load_checkpoint(folder / "last.pth")["best"] == best


def test_resume_reads_the_checkpoint_after_locking_the_folder(digits_argv, cpu, monkeypatch):
    """The previous run may still write; the resumed run waits for the lock and then reads the checkpoint."""
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    early = (folder / "last.pth").read_bytes()
    train([f"-resume={folder}", *digits_argv, "TRAIN.MAX_STEPS=5"], cpu)
    late = (folder / "last.pth").read_bytes()
    (folder / "last.pth").write_bytes(early)

    @contextmanager
    def write_then_lock(path):
        (path / "last.pth").write_bytes(late)
        yield

    monkeypatch.setattr("engine.commands.train.lock_run_folder", write_then_lock)
    train([f"-resume={folder}", *digits_argv, "TRAIN.MAX_STEPS=5"], cpu)
    assert "Resume: epoch 1, step 5" in (folder / "log.txt").read_text()


def test_resume_with_another_batch_size(digits_argv, cpu):
    """Allowed if a whole number of new steps covers the same samples in the same order; otherwise an error."""
    argv = [*digits_argv, "SAVE_FREQ_STEPS=1"]
    stopped = train([*argv, "TRAIN.MAX_STEPS=3"], cpu)
    with pytest.raises(UserError, match=r"used 192 samples of its epoch, .* batch size 80; choose .* divides 192"):
        train([f"-resume={stopped}", *argv, "DATA.BATCH_SIZE=80"], cpu)
    with pytest.raises(UserError, match=r"1437 samples with SEED 0, but this run .* SEED 9"):
        train([f"-resume={stopped}", *argv, "SEED=9"], cpu)
    train([f"-resume={stopped}", *argv, "DATA.BATCH_SIZE=32", "TRAIN.ACCUM_ITER=3"], cpu)
    (first, *_) = [row["step"] for row in rows(stopped)]
    assert first == "15"  # 44 batches of 32, 3 per step


def test_resume_with_another_batch_size_keeps_the_order_of_samples(digits_argv, cpu, monkeypatch):
    order = []
    original = HostTransform.generator
    monkeypatch.setattr(HostTransform, "generator", lambda self, *key: (order.append(key[1]), original(self, *key))[1])
    argv = [*digits_argv, "TRAIN.NUM_EPOCHS=1"]
    train(argv, cpu)
    uninterrupted, order[:] = list(order), []
    stopped = train([*argv, "TRAIN.MAX_STEPS=6"], cpu)
    order = order[: 6 * 64]  # without samples prefetched before the stop
    train([f"-resume={stopped}", *argv, "DATA.BATCH_SIZE=32"], cpu)
    assert order == uninterrupted[: len(order)]
    assert len(uninterrupted) == 22 * 64 and len(order) == 44 * 32


def test_differing_options_are_listed(digits_argv, cpu, capsys):
    stopped = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    train([f"-resume={stopped}", *digits_argv, "TRAIN.MAX_STEPS=4", "REPORT_FREQ=2"], cpu)
    expected = "options that differ from the checkpoint: REPORT_FREQ: 20, now 2; TRAIN.MAX_STEPS: 3, now 4\n"
    assert expected in capsys.readouterr().out


def test_two_runs_cannot_use_the_same_folder(digits_argv, cpu, monkeypatch):
    stopped = train([*digits_argv, "TRAIN.MAX_STEPS=3"], cpu)
    monkeypatch.setattr("engine.checkpoint.run_folder._LOCK_SECONDS", 0.2)
    with (
        lock_run_folder(stopped),
        pytest.raises(UserError, match=rf"{stopped}: is in use by process {os.getpid()} on "),
    ):
        train([f"-resume={stopped}", *digits_argv], cpu)
    train([f"-resume={stopped}", *digits_argv, "TRAIN.MAX_STEPS=4"], cpu)
