"""Validation and test images are decoded beside the training, which never waits for it; evaluations find the others."""

import multiprocessing
import os
import re
import shutil
import signal
import struct
import time
from pathlib import Path

from conftest import TINY_VIT, cli, log_of, noise_folder, only_run, read_result, refused, slow, states, train
from pytest import MonkeyPatch, fixture, mark
from slow_decoder import decode_slowly

from configs.command_line import parse_command_line
from datasets.loading.loader import TrainBatches
from datasets.loading.workers import call_in_background
from datasets.sources.samples import ImageFiles
from engine.checkpoint.files import CheckpointWriter
from engine.commands.run import run
from engine.evaluation import evaluate
from utils.errors import UserError

BATCH = 4
TRAINED = 32


@fixture
def data(tmp_path) -> Path:
    """30 images for validation and for the test."""
    root = noise_folder(tmp_path / "data", train=TRAINED, val=30, shape=(40, 50, 3))
    shutil.copytree(root / "val", root / "test")
    return root


def damage(path: Path):
    """The pixels of a PNG whose first and last bytes look whole."""
    content = path.read_bytes()
    path.write_bytes(content[:2000] + bytes(400) + content[2400:])


def flags(data: Path, workers: int, *options: str) -> list[str]:
    given = cli(f"-dataset=folder -data_path={data} -batch_size={BATCH} -num_workers={workers}")
    return [*given, f"-output={data.parent / 'out'}", "-opts", *TINY_VIT, "TRAIN.NUM_EPOCHS=1", *options]


def error_of(context, argv: list[str], is_slow: bool) -> str:
    """The error of a training; '' without one."""
    with MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "usable_cores", lambda: {0, 1})
        if is_slow:
            patch.setattr(evaluate, "decode_images", decode_slowly)
        try:
            train(argv, context)
        except UserError as error:
            return str(error)
    return ""


RUNS = [(1, 8, 120), (2, 0, 20), (3, 1, 120)]  # ranks, workers, TIMEOUT_SECONDS: loading workers start


@fixture
def errors_of(cpu, ranks):
    """`error_of` on each of so many ranks; a single one is this process."""

    def call(count, *arguments):
        return ranks(count)(error_of, *arguments) if count > 1 else [error_of(cpu, *arguments)]

    return call


@mark.slow
@mark.parametrize("count, workers, limit", RUNS)
def test_no_rank_waits_for_the_decoder(count, workers, limit, data, errors_of):
    damage(data / "test/class1/5.png")
    errors = errors_of(count, flags(data, workers, f"TIMEOUT_SECONDS={limit}"), True)
    assert errors == [""] * count
    folder = only_run(data.parent / "out")
    test = read_result(folder)["test"]
    assert (test["samples"], test["unreadable"]) == (29, 1)
    assert test["unreadable_images"] == [str(data / "test/class1/5.png")]  # scripts read it
    assert "1 of 30 test images cannot be read and do not count" in log_of(folder)
    assert any("/test/class1/5.png" in table.read_text() for table in folder.glob("bad_images_*.csv"))


@mark.slow
@mark.parametrize("count, workers, limit", RUNS)
def test_an_evaluation_names_all_unreadable_images_on_all_ranks(count, workers, limit, data, errors_of):
    names = ["class0/2.png", "class1/29.png", "class1/5.png"]
    for name in names:
        damage(data / "val" / name)
    first, *others = errors_of(count, flags(data, workers, f"TIMEOUT_SECONDS={limit}"), True)
    assert first.startswith("3 images cannot be read; to skip such images: -opts DATA.ON_BAD_IMAGE=skip")
    assert re.findall(r"\S*/val/(\S+\.png):", first) == names
    assert others == [first] * (count - 1)
    folder = only_run(data.parent / "out")
    assert states(folder)["done_steps"] == TRAINED // BATCH // count  # it was saved before the evaluation


def is_saved_at_the_error(context, argv: list[str], output: Path) -> bool:
    write = CheckpointWriter._write

    def write_slowly(*given):
        time.sleep(1)
        write(*given)

    with MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "usable_cores", lambda: {0, 1})
        patch.setattr(CheckpointWriter, "_write", write_slowly)
        with refused("cannot be decoded"):
            train(argv, context)
    return (only_run(output) / "last.pth").is_file()


@mark.slow
@mark.parametrize("epochs, workers", [(4000, 1), (1, 0)], ids=["at a step", "in an evaluation"])
def test_no_rank_ends_before_the_checkpoint_is_written(epochs, workers, data, ranks):
    """The launcher ends all ranks after the first one."""
    damage(data / "val/class0/2.png")
    argv = flags(data, workers, f"TRAIN.NUM_EPOCHS={epochs}", "VALIDATE_FREQ=4000", "SAVE_FREQ=4000")
    assert ranks(2)(is_saved_at_the_error, argv, data.parent / "out") == [True, True]


@mark.parametrize("image", [3, 14])
def test_sigterm_is_served_after_the_batch_of_an_evaluation(
    image, data, cpu, monkeypatch, without_pictures, handlers_after_test
):
    opened = []
    open_image = ImageFiles.open

    def opens(samples, index, channels):
        if "/train/" not in samples.name(index):
            opened.append(index)
            if len(opened) == image:
                os.kill(os.getpid(), signal.SIGTERM)
        return open_image(samples, index, channels)

    monkeypatch.setattr(ImageFiles, "open", opens)
    assert run(parse_command_line(flags(data, 0)), cpu) == 128 + signal.SIGTERM
    assert len(opened) == -(-image // BATCH) * BATCH
    assert states(only_run(data.parent / "out"))["done_steps"] == TRAINED // BATCH


def stopped(*arguments):
    before = {*multiprocessing.active_children()}
    answer = call_in_background(*arguments)
    (child,) = {*multiprocessing.active_children()} - before
    os.kill(child.pid, signal.SIGSTOP)
    return answer


def stopped_while_it_sends(*arguments):
    answer, sender = multiprocessing.Pipe(duplex=False)
    os.write(sender.fileno(), struct.pack("!i", 10**6) + b"of a million bytes")
    answer.sender = sender  # open
    return answer


def dead(*arguments):
    answer, sender = multiprocessing.Pipe(duplex=False)
    sender.close()
    return answer


@fixture
def has_workers(monkeypatch):
    """For the images of evaluations; the training of the test has none, which would take seconds to start."""
    monkeypatch.setattr(evaluate, "usable_cores", lambda: {0, 1})
    monkeypatch.setattr(TrainBatches, "prefetched_batches", property(lambda _: 6, lambda *_: None), raising=False)


@mark.parametrize("process", [stopped_while_it_sends, slow(dead), slow(stopped)])
def test_a_process_that_does_not_answer_delays_nothing(process, data, monkeypatch, has_workers):
    """A resumed run has no such process: it would decode all images once more."""
    answers = []
    monkeypatch.setattr(evaluate, "call_in_background", lambda *given: answers.append(process(*given)) or answers[0])
    folder = train(flags(data, 0, "TRAIN.MAX_STEPS=2"))
    train([f"-resume={folder}", *flags(data, 0)])
    assert len(answers) == 1
    assert read_result(folder)["finished"]
    for child in multiprocessing.active_children():
        child.kill()
