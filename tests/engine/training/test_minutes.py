"""TRAIN.MINUTES: epochs and steps by the time that is left; the run is the one with these values given."""

import pytest
from conftest import assert_same_state, cells_of, digits_flags, rows, states, train

from configs.batch_plan import BatchPlan, EpochLayout
from configs.yaml_io import parse_value
from datasets.loading.sampler import TrainSampler
from engine.training.minutes import epochs_in, evaluation_seconds
from tests.engine.report.run_folders import write_json
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


@pytest.mark.parametrize("figures", cells_of(USED), ids=str)
def test_the_time_is_used(figures):
    """Epochs of 10 steps of a second, and a second between two."""
    seconds, *expected = map(float, figures)
    epochs, steps = epochs_in(seconds, step=1.0, pause=1.0, steps_per_epoch=10)
    assert [epochs, steps] == expected
    assert epochs == 1 or seconds - epochs < epochs * (steps + 1) <= seconds


@pytest.mark.parametrize("steps_per_epoch", [1, 2, 7, 28, 400])
def test_short_epochs_use_the_time(steps_per_epoch):
    """76 epochs of 7 steps, not 77 of 6, which would end 13% early."""
    for seconds in (20.0, 107.0, 288.0):
        epochs, steps = epochs_in(seconds, 0.18, 0.138, steps_per_epoch)
        assert 0.95 * seconds <= epochs * (steps * 0.18 + 0.138) <= seconds
        assert steps <= steps_per_epoch
    assert epochs_in(107.0, 0.18, 0.138, 7) == (76, 7)


@pytest.mark.parametrize("timed", [10, 30, 35])
@pytest.mark.parametrize("images", [4, 40, 5000])
def test_an_evaluation_starts_its_workers_once(timed, images):
    """Three seconds until the first batch of 10 is loaded, 0.1 for each image; one batch does not tell them apart."""
    ends = [5.0, *(8 + 0.1 * min(done, timed) for done in range(10, timed + 10, 10))]
    expected = 0.4 * images if timed == 10 else 3 + 0.1 * images
    assert evaluation_seconds(ends, timed, 10, images) == pytest.approx(expected)


def test_short_epochs_have_the_first_images_of_the_order():
    full, short = (TrainSampler(EpochLayout(100, BatchPlan(8), 1, max_steps=steps), 3) for steps in (None, 5))
    batches = [*full]
    assert [*short] == batches[:5] + batches[12:17] + batches[24:29]
    assert len(short) == 15
    layout = EpochLayout(100, BatchPlan(4, accumulation=2), seed=1, max_steps=5)
    assert (layout.steps_per_epoch, layout.batches_per_epoch) == (5, 10)


@pytest.mark.parametrize("how", ["RUN", "auto", "RUN and its first recipe"])
def test_the_run_is_the_one_with_these_epochs_and_a_resume_keeps_them(how, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.training.minutes.epochs_in", lambda *figures: (2, 7))
    monkeypatch.setattr("engine.training.minutes.seconds_since_start", lambda: 2400)
    stopped = ["TRAIN.MAX_STEPS=9", "TRAIN.NUM_EPOCHS=20", "TRAIN.WARMUP_EPOCHS=5"]
    schedule = ["TRAIN.LR_SCHEDULER.NAME=wsd", "TRAIN.LR_SCHEDULER.DECAY_EPOCHS=10"]
    mixing = ["TRAIN.MIXUP_ALPHA=0.2", "TRAIN.MIXUP_OFF_EPOCH=10"]
    command = [*digits_flags(tmp_path / "timed"), *stopped, *schedule, *mixing, "-minutes=30"]
    folder = train(command)
    options = parse_value((folder / "config.yaml").read_text())["TRAIN"]
    assert [options[key] for key in ("NUM_EPOCHS", "EPOCH_STEPS", "WARMUP_EPOCHS", "MINUTES")] == [2, 7, 0.5, 30]
    monkeypatch.setattr("engine.training.minutes.epochs_in", None)  # a resume does not measure
    same = [option for option in command if "MAX_STEPS" not in option]
    if how == "RUN":
        train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=null"])
    elif how == "auto":
        assert train(["-resume=auto", *same]) == folder
    else:
        (tmp_path / "empty.yaml").write_text("{}")
        train([f"-cfg={tmp_path / 'empty.yaml'}", f"-resume={folder}", *same])
    schedule[1], mixing[1] = "TRAIN.LR_SCHEDULER.DECAY_EPOCHS=1", "TRAIN.MIXUP_OFF_EPOCH=1"
    epochs = ["TRAIN.NUM_EPOCHS=2", "TRAIN.EPOCH_STEPS=7", "TRAIN.WARMUP_EPOCHS=0.5"]
    given = train([*digits_flags(tmp_path / "given"), *schedule, *mixing, *epochs])
    assert rows(folder) == rows(given)
    assert_same_state(states(folder)["model"], states(given)["model"])


def test_a_run_of_a_sweep_takes_over_the_epochs_of_a_run_of_its_speed(tmp_path, monkeypatch):
    """The second seed is not timed; warm-up keeps its own share. A run of another speed decides again."""
    write_json(tmp_path / "sweep.json", {"SEED=0": "", "SEED=1": "", "other": "MODEL.DEPTH=3"})

    def options_of(name, *options):
        options = ["TRAIN.MAX_STEPS=1", "TRAIN.NUM_EPOCHS=40", *options]
        folder = train([*digits_flags(tmp_path), *options, "-minutes=30", f"-name={name}"])
        return parse_value((folder / "config.yaml").read_text())["TRAIN"], read_json(folder / "run.json")["given"]

    monkeypatch.setattr("engine.training.minutes.epochs_in", lambda *figures: (10, 7))
    first, given = options_of("SEED=0", "SEED=0", "TRAIN.WARMUP_EPOCHS=4")
    monkeypatch.setattr("engine.training.minutes.epochs_in", lambda *figures: (3, 5))
    second, _ = options_of("SEED=1", "SEED=1", "TRAIN.WARMUP_EPOCHS=8")
    other, _ = options_of("other", "SEED=1", "TRAIN.WARMUP_EPOCHS=8")
    keys = ("NUM_EPOCHS", "EPOCH_STEPS", "WARMUP_EPOCHS", "MINUTES")
    assert [[of_run[key] for key in keys] for of_run in (first, second)] == [[10, 7, 1, 30], [10, 7, 2, 30]]
    assert [other[key] for key in keys[:2]] == [3, 5]
    assert (given["TRAIN.NUM_EPOCHS"], given["TRAIN.MINUTES"], given["TRAIN.WARMUP_EPOCHS"]) == (40, 30, 4)
    assert "TRAIN.EPOCH_STEPS" not in given
