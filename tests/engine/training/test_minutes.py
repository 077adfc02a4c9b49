"""TRAIN.MINUTES: epochs and steps by the time that is left; the run is the one with these values given."""

import shutil
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conftest import (
    SMALL_BATCHES,
    assert_same_state,
    cells_of,
    cli,
    digits_flags,
    only_run,
    read_result,
    rows,
    slow,
    states,
    train,
)
from pytest import MonkeyPatch, approx, mark

from configs.batch_plan import BatchPlan, EpochLayout
from configs.command_line import parse_command_line
from configs.schema import Config
from configs.yaml_io import parse_value
from datasets.loading.sampler import TrainSampler
from engine.checkpoint.files import load_checkpoint
from engine.commands import train as commands
from engine.commands.run import run
from engine.training.minutes import NextPlans, epochs_in, evaluation_seconds
from engine.training.trainer import Trainer
from tests.engine.report.run_folders import write_json
from utils.distributed import ProcessContext
from utils.files import read_json

# Seconds, epochs, steps
USED = """
-5 | 1 | 1  # the probe, or one step, is the result
3.5 | 1 | 2  # a second of it is the evaluation
11 | 1 | 10
12 | 2 | 5  # two short epochs rather than a long one: the last evaluation is after the last step
22 | 2 | 10
1100 | 100 | 10
"""


@mark.parametrize("figures", cells_of(USED), ids=str)
def test_the_time_is_used(figures):
    """Epochs of 10 steps of a second, and a second between two."""
    seconds, *expected = map(float, figures)
    epochs, steps = epochs_in(seconds, step=1.0, pause=1.0, steps_per_epoch=10)
    assert [epochs, steps] == expected
    assert epochs == 1 or seconds - epochs < epochs * (steps + 1) <= seconds


@mark.parametrize("steps_per_epoch", [1, 2, 7, 28, 400])
def test_short_epochs_use_the_time(steps_per_epoch):
    """76 epochs of 7 steps, not 77 of 6, which would end 13% early."""
    for seconds in (20.0, 107.0, 288.0):
        epochs, steps = epochs_in(seconds, 0.18, 0.138, steps_per_epoch)
        assert 0.95 * seconds <= epochs * (steps * 0.18 + 0.138) <= seconds
        assert steps <= steps_per_epoch
    assert epochs_in(107.0, 0.18, 0.138, 7) == (76, 7)


@mark.parametrize("timed", [10, 30, 35])
@mark.parametrize("images", [4, 40, 5000])
def test_an_evaluation_starts_its_workers_once(timed, images):
    """Three seconds until the first batch of 10 is loaded, 0.1 for each image; one batch does not tell them apart."""
    ends = [5.0, *(8 + 0.1 * min(done, timed) for done in range(10, timed + 10, 10))]
    expected = 0.4 * images if timed == 10 else 3 + 0.1 * images
    assert evaluation_seconds(ends, timed, 10, images) == approx(expected)


def test_short_epochs_have_the_first_images_of_the_order():
    full, short = (TrainSampler(EpochLayout(100, BatchPlan(8), 1, max_steps=steps), 3) for steps in (None, 5))
    batches = [*full]
    assert [*short] == batches[:5] + batches[12:17] + batches[24:29]
    assert len(short) == 15
    layout = EpochLayout(100, BatchPlan(4, accumulation=2), seed=1, max_steps=5)
    assert (layout.steps_per_epoch, layout.batches_per_epoch) == (5, 10)


def train_options(folder: Path) -> dict:
    return parse_value((folder / "config.yaml").read_text())["TRAIN"]


@mark.parametrize("how", ["RUN", slow("auto"), slow("RUN and its first recipe")])
def test_the_run_is_the_one_with_these_epochs_and_a_resume_keeps_them(how, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.training.minutes.epochs_in", lambda *figures: (2, 4))
    monkeypatch.setattr(NextPlans, "epochs", lambda plans, *figures: plans._position.horizon.num_epochs)
    monkeypatch.setattr("engine.training.minutes.seconds_since_start", lambda: 2400)
    constant = "TRAIN.LR_SCHEDULER.NAME=wsd TRAIN.MIXUP_ALPHA=0.2 TRAIN.LR_SCHEDULER.DECAY_EPOCHS={0} "
    constant += "TRAIN.MIXUP_OFF_EPOCH={0}"
    stopped = cli("TRAIN.MAX_STEPS=5 TRAIN.NUM_EPOCHS=20 TRAIN.WARMUP_EPOCHS=5")
    command = [*digits_flags(tmp_path / "timed"), *stopped, *cli(constant.format(10)), "-minutes=30"]
    folder = train(command)
    options = train_options(folder)
    assert [options[key] for key in ("NUM_EPOCHS", "EPOCH_STEPS", "WARMUP_EPOCHS", "MINUTES")] == [2, 4, 0.5, 30]
    monkeypatch.setattr("engine.training.minutes.epochs_in", None)  # a resume does not measure
    same = [option for option in command if "MAX_STEPS" not in option]
    (tmp_path / "empty.yaml").write_text("{}")
    words = {
        "RUN": cli(f"-resume={folder} -opts TRAIN.MAX_STEPS=null"),
        "auto": ["-resume=auto", *same],
        "RUN and its first recipe": [f"-cfg={tmp_path / 'empty.yaml'}", f"-resume={folder}", *same],
    }
    assert train(words[how]) == folder
    epochs = cli("TRAIN.NUM_EPOCHS=2 TRAIN.EPOCH_STEPS=4 TRAIN.WARMUP_EPOCHS=0.5")
    given = train([*digits_flags(tmp_path / "given"), *cli(constant.format(1)), *epochs])
    assert rows(folder) == rows(given)
    assert_same_state(states(folder)["model"], states(given)["model"])


def test_a_run_of_a_sweep_takes_over_the_epochs_of_a_run_of_its_speed(tmp_path, monkeypatch):
    """The second seed is not timed; warm-up keeps its own share. A run of another speed decides again."""
    write_json(tmp_path / "sweep.json", {"SEED=0": "", "SEED=1": "", "other": "MODEL.DEPTH=3"})

    def options_of(name, *options):
        options = ["TRAIN.MAX_STEPS=1", "TRAIN.NUM_EPOCHS=40", *options]
        folder = train([*digits_flags(tmp_path), *options, "-minutes=30", f"-name={name}"])
        return train_options(folder), read_json(folder / "run.json")["given"]

    monkeypatch.setattr("engine.training.minutes.epochs_in", lambda *figures: (10, 4))
    first, given = options_of("SEED=0", "SEED=0", "TRAIN.WARMUP_EPOCHS=4")
    monkeypatch.setattr("engine.training.minutes.epochs_in", lambda *figures: (3, 2))
    second, _ = options_of("SEED=1", "SEED=1", "TRAIN.WARMUP_EPOCHS=8")
    other, _ = options_of("other", "SEED=1", "TRAIN.WARMUP_EPOCHS=8")
    keys = ("NUM_EPOCHS", "EPOCH_STEPS", "WARMUP_EPOCHS", "MINUTES", "PLANS")  # no plans: the epochs stay equal
    found = [[of_run[key] for key in keys] for of_run in (first, second, other)]
    assert found == [[10, 4, 1, 30, []], [10, 4, 2, 30, []], [3, 2, 0.6, 30, []]]
    known = {"TRAIN.NUM_EPOCHS": 40, "TRAIN.MINUTES": 30, "TRAIN.WARMUP_EPOCHS": 4}
    assert given.items() >= known.items()
    assert "TRAIN.EPOCH_STEPS" not in given


class SlowMachine:
    """A clock: a step takes a second, an evaluation half of one, and `factor` times as long from second `middle` on."""

    def __init__(self, patch: MonkeyPatch, factor: float, middle: float = 20.0):
        start = time.perf_counter()
        self.seconds = 0.0
        own = SimpleNamespace(perf_counter=lambda: start + self.seconds, monotonic=time.monotonic)
        for module in ("engine.progress", "engine.training.trainer"):
            patch.setattr(f"{module}.time", own)
        patch.setattr("engine.training.minutes.seconds_since_start", lambda: self.seconds)
        patch.setattr("engine.training.minutes.epochs_in", lambda *figures: (10, 4))
        self.factor = factor
        self.middle = middle
        after_step = Trainer.after_step
        evaluate = Trainer.after_eval_batch
        patch.setattr(Trainer, "after_step", lambda trainer, *given: (self.wait(1), after_step(trainer, *given)))
        patch.setattr(Trainer, "after_eval_batch", lambda trainer, *given: (self.wait(0.25), evaluate(trainer, *given)))

    def wait(self, seconds: float):
        self.seconds += seconds * (1 if self.seconds < self.middle else self.factor)


MINUTES = f"-minutes={(10 * 4.5 + 4.5) / 60}"  # ten epochs of four steps, and the end
OPTIONS = [
    SMALL_BATCHES,
    *cli(
        "TRAIN.NUM_EPOCHS=10 TRAIN.WARMUP_EPOCHS=1.5 TRAIN.MIXUP_ALPHA=0.2 TRAIN.MIXUP_OFF_EPOCH=7 "
        "SAVE_FREQ=1 KEEP_CHECKPOINTS=99"
    ),
    MINUTES,
]


def copies_of_config(patch: MonkeyPatch) -> list[str]:
    """The places in a training that copy a Config, but for its plan and its end."""
    copies: list[str] = []
    copy = Config.model_copy

    def copied(config: Config, **changes: Any) -> Config:
        stack = traceback.extract_stack()
        is_training = any(frame.filename == commands.__file__ for frame in stack)
        if is_training and not {frame.name for frame in stack} & {"plan_training", "fit_into_minutes", "finish_run"}:
            copies.append(str(stack[-4:]))
        return copy(config, **changes)

    patch.setattr(Config, "model_copy", copied)
    return copies


def test_no_options_are_copied_after_the_plan(tmp_path, monkeypatch):
    copies = copies_of_config(monkeypatch)
    folder = train([*digits_flags(tmp_path), "TRAIN.MAX_STEPS=1"])
    train(cli(f"-resume={folder} -opts TRAIN.MAX_STEPS=2"))
    assert copies == []


@mark.parametrize("factor", [slow(0.5), 2, slow(4)])
def test_the_time_is_kept_when_the_speed_changes(factor, tmp_path, monkeypatch):
    """Within 5% of the time or half an epoch; the rate falls to the end of its decay, and mixup ends before it.

    The horizon alone changes: all others ask it; the checkpoint and config.yaml have its plans.
    """
    copies = copies_of_config(monkeypatch)
    machine = SlowMachine(monkeypatch, factor)
    folder = train([*digits_flags(tmp_path), *OPTIONS])
    options = train_options(folder)
    assert copies == []
    assert len(options["PLANS"]) > 1
    assert parse_value(load_checkpoint(folder / "last.pth")["options"])["TRAIN"] == options
    table = rows(folder)
    assert abs(machine.seconds - 45) <= max(0.05 * 45, 4.5 * factor / 2)
    assert [row["epoch"] for row in table] == [str(1 + row) for row in range(options["NUM_EPOCHS"])]
    rates = [float(row["lr"]) for row in table[1:]]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0] / 3
    assert read_result(folder)["finished"]


@mark.slow
@mark.parametrize("how", ["RUN", "auto"])
def test_a_killed_run_repeats_its_plans_and_then_follows_the_clock(how, tmp_path, monkeypatch):
    """The checkpoint is older than the last plan: equal to the bit up to it, with a much faster clock."""
    argv = [*digits_flags(tmp_path / "out"), *OPTIONS]
    with monkeypatch.context() as patch:
        SlowMachine(patch, 2)
        folder = train(argv)
    whole = shutil.copytree(folder, tmp_path / "whole")
    plans = train_options(folder)["PLANS"]
    last = int(plans[-1][0])
    assert last > 4
    for checkpoint in {*folder.glob("*.pth")} - {folder / "epoch-004.pth"}:
        checkpoint.unlink()
    SlowMachine(monkeypatch, 0.25, middle=0)
    assert train([f"-resume={folder}"] if how == "RUN" else ["-resume=auto", *argv]) == folder
    for name in (f"epoch-{epoch:03d}.pth" for epoch in range(5, last + 1)):
        assert_same_state(states(folder, name), states(whole, name))
    assert train_options(folder)["PLANS"][: len(plans)] == plans
    assert len(rows(folder)) > len(rows(whole))


@mark.slow
def test_given_epochs_replace_the_plans_which_a_new_run_without_minutes_repeats(tmp_path, monkeypatch):
    SlowMachine(monkeypatch, 2)
    folder = train([*digits_flags(tmp_path), *OPTIONS])
    again = train(cli(f"-cfg={folder}/config.yaml -name=again -opts TRAIN.MINUTES=null"))
    assert_same_state(states(again)["model"], states(folder)["model"])
    assert train_options(again)["PLANS"] == train_options(folder)["PLANS"]
    done = len(rows(folder))
    train([f"-resume={folder}", f"-epochs={done + 3}"])
    assert len(rows(folder)) == done + 3


@mark.slow
def test_a_resumed_run_with_other_minutes_plans_for_them(tmp_path, monkeypatch):
    SlowMachine(monkeypatch, 1)
    folder = train([*digits_flags(tmp_path), "TRAIN.MAX_STEPS=20", *OPTIONS])
    machine = SlowMachine(monkeypatch, 1)
    train(cli(f"-resume={folder} -minutes=1.5 -opts TRAIN.MAX_STEPS=null"))
    assert abs(22.5 + machine.seconds + 4.5 - 90) <= 0.05 * 90, "five epochs of 4.5 s before, and the end"
    assert train_options(folder)["NUM_EPOCHS"] == len(rows(folder))


def run_on_a_rank(context: ProcessContext, flags: list[str]) -> tuple[dict, str]:
    """Each rank has its own clock; the one of the main process counts."""
    with MonkeyPatch.context() as patch:
        SlowMachine(patch, 2 + 5 * context.rank)
        run(parse_command_line(flags), context)
    return train_options(only_run(Path(flags[2].partition("=")[2])))


@mark.slow
def test_two_ranks_have_the_plans_of_the_first(tmp_path, ranks):
    flags = [*digits_flags(tmp_path), *OPTIONS]
    one, other = ranks(2)(run_on_a_rank, flags)
    assert one == other
    assert len(one["PLANS"]) > 1
    assert len(rows(only_run(tmp_path))) == one["NUM_EPOCHS"]
