"""A run stopped after any step, by its options or by a signal, and resumed ends as one that was not, bit for bit."""

import json
import os
import shutil
import signal
from pathlib import Path

import torch
from conftest import (
    GREY,
    SMALL_BATCHES,
    TINY_VIT,
    assert_same_run,
    assert_same_state,
    cli,
    images_of,
    noise_folder,
    of_module,
    only_run,
    run_here,
    slow,
    states,
    train,
    training_samples,
    values_of,
)
from pytest import mark, raises

from datasets.decoding.images import BadImage
from engine.checkpoint.files import LARGE, load_checkpoint
from engine.run.record import read_run
from engine.run.reporter import Reporter
from engine.training.snapshot import SaveTrigger
from engine.training.trainer import Trainer
from utils.files import read_json, tensors_in
from utils.notes import STATUS

pytestmark = mark.usefixtures("handlers_after_test")
# All random operations: dropout, stochastic depth, mixup, CutMix, crops, flips, affine maps.
RANDOM_OPTIONS = cli(
    "MODEL.DROPOUT=0.1 MODEL.ATTENTION_DROPOUT=0.1 MODEL.DROPPATH=0.1 TRAIN.MIXUP_ALPHA=0.8 "
    "TRAIN.CUTMIX_ALPHA=1.0 DATA.AFFINE_DEGREES=10 DATA.AFFINE_TRANSLATE=0.1 "
    "TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_DECAY=0.9 TRAIN.GRAD_CLIP=1.0 TRAIN.SMOOTHING=0.1"
)


# The recipes of DeiT, with what they leave out: a run of 3 steps per epoch sees a third of the images.
RECIPE_OPTIONS = cli(
    "DATA.REPEATED_AUGMENTATION=3 MODEL.DROPPATH=0.1 TRAIN.RANDOM_ERASE_PROB=0.5 "
    "TRAIN.RANDOM_ERASE_COUNT=2 TRAIN.MIXUP_ALPHA=0.8 TRAIN.CUTMIX_ALPHA=1.0 "
    "TRAIN.SMOOTHING=0.1 TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_WARMUP=true EVAL_RAW=true "
    "TRAIN.DISTILLATION_TYPE=soft TRAIN.LR_SCHEDULER.NAME=wsd LOSS.NAME=bce "
    "LOSS.CLASS_WEIGHTS=balanced TRAIN.LAYER_DECAY=0.7 TRAIN.OPTIMIZER.NAME=AdamWDL "
    "TRAIN.LINEAR_SCALED_LR=32"
)


@of_module
def image_folder(tmp_path_factory):
    return noise_folder(tmp_path_factory.mktemp("images"), 40, 7, (20, 24))


def argv_for(image_folder, output, workers: int) -> list[str]:
    """Flags of a run with 4 steps per epoch: 10 batches of 4, 3 per step; the last step has one batch."""
    return [
        *cli(
            f"-dataset=folder -data_path={image_folder} -batch_size=4 -accum_iter=3 "
            f"-num_workers={workers} -output={output} -opts"
        ),
        *TINY_VIT,
        *GREY,
        *RANDOM_OPTIONS,
        "REPORT_FREQ=2",
    ]


@mark.parametrize(
    "workers, stops, amp",
    [(0, (2, 4), []), slow(0, (1, 3, 5, 6, 7), ["-amp"]), slow(2, (2, 4), ["-amp"])],
    ids=["fp32", "bf16", "bf16, two workers"],
)
def test_a_run_stopped_at_several_steps_is_bit_exact(image_folder, tmp_path, workers, stops, amp):
    """One run, stopped and resumed again and again; an epoch has four steps."""
    uninterrupted = train([*amp, *argv_for(image_folder, tmp_path / "uninterrupted", workers)])
    argv = [*amp, *argv_for(image_folder, tmp_path / "stopped", workers)]
    resume = []
    for stop in (*stops, "null"):
        stopped = train([*resume, *argv, f"TRAIN.MAX_STEPS={stop}"])
        position = load_checkpoint(stopped / "last.pth")
        assert stop == "null" or divmod(stop, 4) == (position["epoch"], position["done_steps"])
        resume = [f"-resume={stopped}"]
    assert_same_run(stopped, uninterrupted)


@of_module
def teacher(image_folder, tmp_path_factory):
    """The weights of a run of one step; its normalization is not the student's."""
    output = tmp_path_factory.mktemp("teacher")
    argv = [*argv_for(image_folder, output, 0), "DATA.IMAGENET_MEAN=[0.3]", "TRAIN.MAX_STEPS=1"]
    return train(argv) / "last.pth"


@mark.slow
@mark.parametrize(
    "more",
    [
        cli("AMP.LEVEL=O1 TRAIN.RAND_AUGMENT=true TRAIN.MIXUP_OFF_EPOCH=1"),
        ["AMP.LEVEL=O3", "TRAIN.AUGMENT_POLICY=rand-m9-mstd0.5-inc1"],
        ["AMP.LEVEL=O1", "TRAIN.CUTMIX_MINMAX=[0.2, 0.8]"],
    ],
    ids=str,
)
def test_resume_with_all_of_a_recipe_is_bit_exact(image_folder, teacher, tmp_path, more):
    """With two workers, and without workers after the stop."""

    def argv(output, workers):
        run = argv_for(image_folder, tmp_path / output, workers)
        return ["-amp", *run, *RECIPE_OPTIONS, *more, f"TRAIN.TEACHER_WEIGHTS={teacher}"]

    uninterrupted = train(argv("uninterrupted", 2))
    stopped = train([*argv("stopped", 2), "TRAIN.MAX_STEPS=5"])
    resumed = train([f"-resume={stopped}", *argv("stopped", 0)])
    assert_same_run(resumed, uninterrupted)


@mark.gpu
@mark.usefixtures("nondeterministic_after_test")
def test_resume_with_deterministic_algorithms(image_folder, tmp_path, gpu):
    """Two runs in float16 with its loss scaler, of which one is stopped and resumed."""
    options = ["DETERMINISTIC=true", "AMP.INIT_LOSS_SCALING=1e9"]
    uninterrupted = train(["-amp", *argv_for(image_folder, tmp_path / "uninterrupted", 0), *options], gpu)
    argv = ["-amp", *argv_for(image_folder, tmp_path / "stopped", 0), *options]
    stopped = train([*argv, "TRAIN.MAX_STEPS=5"], gpu)
    assert torch.are_deterministic_algorithms_enabled()
    resumed = train([f"-resume={stopped}", *argv], gpu)
    assert_same_run(resumed, uninterrupted)


def test_resume_with_another_batch_size_keeps_the_order_of_samples(digits_argv, monkeypatch):
    order = training_samples(monkeypatch)
    argv = [*digits_argv, "TRAIN.NUM_EPOCHS=1"]
    train([*argv, "TRAIN.MAX_STEPS=4"])
    uninterrupted = order[: 4 * 32]  # without samples prefetched before the stop
    order[:] = []
    stopped = train([*argv, "TRAIN.MAX_STEPS=2"])
    del order[2 * 32 :]
    train([f"-resume={stopped}", *argv, "DATA.BATCH_SIZE=16", "TRAIN.MAX_STEPS=8"])  # 4 + 4 steps of 16
    assert order[: len(uninterrupted)] == uninterrupted


OPTIONS = [
    SMALL_BATCHES, "DATA.BATCH_SIZE_EVAL=64", "TRAIN.MODEL_EMA=true", "MODEL.DROPOUT=0.1",
    "TRAIN.ACCUM_ITER=3",  # 22 batches per epoch: the last of 8 steps has one batch
]  # fmt: skip


def interrupt(monkeypatch, method: str, count: int, number: int, owner: type = Trainer):
    """Sends signal `number` at call `count` of the method of `owner`."""
    calls = iter(range(1, 10**6))
    original = getattr(owner, method)

    def with_signal(self, *arguments):
        if next(calls) == count:
            os.kill(os.getpid(), number)
        original(self, *arguments)

    monkeypatch.setattr(owner, method, with_signal)


def test_a_checkpoint_is_mapped_and_closed_before_the_first_step(digits_argv, monkeypatch):
    """Else a resume has a second copy of it in memory, and files that the run replaces keep their place on the disk."""
    folder = train([*digits_argv, "TRAIN.MODEL_EMA=true", "TRAIN.MAX_STEPS=3"])
    state = load_checkpoint(folder / "last.pth")
    for entry, content in state.items():
        is_mapped = {not tensor.untyped_storage().resizable() for tensor in tensors_in(content)}
        assert is_mapped <= {entry in LARGE}
    del state
    open_files = []
    original = Trainer.train

    def record(self):
        open_files.append(Path("/proc/self/maps").read_text())
        original(self)

    monkeypatch.setattr(Trainer, "train", record)
    assert train([f"-resume={folder}", *digits_argv, "TRAIN.MODEL_EMA=true", "TRAIN.MAX_STEPS=4"]) == folder
    assert folder.name not in open_files[0]


@of_module
def uninterrupted(trained_digits) -> Path:
    return trained_digits(*OPTIONS)


STOPS = """
after_step | 5 | SIGTERM | [0, 5]
after_step | 16 | SIGUSR1 | [1, 8]  # at the last step
after_eval_batch | 1 | SIGINT | [0, 8]
after_eval_batch | 8 | SIGUSR2 | [1, 8]  # in the last evaluation
"""


@mark.parametrize("method, count, name, position", [slow(*row) if row[3][0] else row for row in values_of(STOPS)])
def test_interrupted_run_resumes_bit_for_bit(
    digits_argv, tmp_path, monkeypatch, uninterrupted, method, count, name, position
):
    number = signal.Signals[name]
    argv = [*digits_argv, *OPTIONS]
    with monkeypatch.context() as patch:
        interrupt(patch, method, count, number)
        assert run_here(*argv) == 128 + number
    interrupted = only_run(tmp_path / "out")
    status = read_run(interrupted)
    assert (status["state"], status["signal"]) == ("interrupted", name)
    assert status["checkpoint"] == str(interrupted / "last.pth")
    is_partial = status["facts"]["ImagesRead"]["digest"].startswith("partial: ")
    assert is_partial == (position[0] == 0)  # the first epoch and its evaluation read all images
    assert any(row.sha256 for row in images_of(interrupted) if row.split == "train")
    saved = states(interrupted)
    assert [saved["epoch"], saved["done_steps"]] == position
    # Open MPI kills a fourth of a second after SIGTERM: the run is still stopping, and a file is half written.
    (interrupted / STATUS).write_text(json.dumps(status | {"state": "stopping", "exit_status": None}))
    (half := interrupted / ".last.pth.host.123.tmp").write_bytes(b"PK")
    other = shutil.copytree(interrupted, tmp_path / "other-20260101-12-00")
    before = contents(other)
    assert train(["-resume=auto", *argv]) == interrupted
    assert not half.exists()
    assert contents(other) == before
    assert read_json(interrupted / STATUS)["state"] == "finished"
    assert_same_run(interrupted, uninterrupted)


@mark.parametrize(
    "owner, method, status, state",
    [(SaveTrigger, "after_last_batch", 143, "interrupted"), slow(Reporter, "finish", 0, "finished")],
)
def test_a_signal_ends_the_last_evaluation_and_a_later_one_changes_nothing(
    digits_argv, tmp_path, monkeypatch, uninterrupted, owner, method, status, state
):
    """Neither saves, though it is due: the weights are freed by then."""
    argv = [*digits_argv, *OPTIONS, "SAVE_FREQ_MINUTES=1e-9"]
    with monkeypatch.context() as patch:
        interrupt(patch, method, 1, signal.SIGTERM, owner)
        assert run_here(*argv) == status
    folder = only_run(tmp_path / "out")
    assert read_run(folder)["state"] == state
    assert_same_state(states(folder), states(uninterrupted))
    train([f"-resume={folder}"])
    assert read_run(folder)["state"] == "finished"
    assert_same_run(folder, uninterrupted)


@mark.parametrize("more, count", [([], 2), slow(["VALIDATE_FREQ=2"], 1)])
def test_a_validation_that_fails_costs_no_epoch(digits_argv, trained_digits, tmp_path, monkeypatch, more, count):
    argv = [*digits_argv, *OPTIONS, *more]
    monkeypatch.setattr("engine.training.trainer._WRITE_TIMES", 0)
    evaluate = Trainer._evaluate
    calls = iter(range(1, 10**6))

    def fail(self, *given):
        if next(calls) == count:
            raise BadImage("x.jpg", "is damaged", "remove it")
        return evaluate(self, *given)

    argv[2] = f"-output={tmp_path / 'failed'}"
    with monkeypatch.context() as patch, raises(BadImage):
        patch.setattr(Trainer, "_evaluate", fail)
        run_here(*argv)
    failed = only_run(tmp_path / "failed")
    saved = states(failed)
    assert (saved["epoch"], saved["done_steps"]) == (1, 8)
    assert train(["-resume=auto", *argv]) == failed
    assert_same_run(failed, trained_digits(*OPTIONS, *more))


def test_a_step_that_ends_an_epoch_replaces_no_earlier_checkpoint(digits_argv):
    folder = train([*digits_argv, "SAVE_FREQ_STEPS=5"])  # 5 steps per epoch
    last = states(folder)
    previous = states(folder, "previous.pth")
    assert (last["epoch"], previous["epoch"], previous["done_steps"]) == (2, 1, 0)


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """The content of each file, and when it was written."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
