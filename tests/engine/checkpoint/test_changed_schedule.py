"""A resumed run with more epochs or another learning rate: the schedule continues, or restarts once."""

import pytest
from conftest import assert_same_state, states, step_rows, train


def rates(folder) -> dict[int, float]:
    return {int(row["step"]): float(row["lr"]) for row in step_rows(folder)}


def test_more_epochs_continue_the_longer_cosine(digits_argv, cpu, capsys):
    """22 steps per epoch; the schedule equals the schedule of a run that had the larger number from the start."""
    folder = train([*digits_argv, "REPORT_FREQ=1"], cpu)
    train([f"-resume={folder}"], cpu)
    assert "----- Resume: all 2 epochs are done; a larger -epochs continues the training" in capsys.readouterr().out
    train([f"-resume={folder}", "-epochs=4", "-opts", "TRAIN.MAX_STEPS=66"], cpu)
    expected = r"from epoch 3, step 0: the cosine of 4 epochs with the peak 0.001, now at 0.000"
    assert expected in capsys.readouterr().out
    longer = train([*digits_argv, "REPORT_FREQ=1", "TRAIN.NUM_EPOCHS=4", "TRAIN.MAX_STEPS=66"], cpu)
    assert {step: rate for step, rate in rates(folder).items() if step > 44} == {
        step: rate for step, rate in rates(longer).items() if step > 44
    }


def test_another_decay_continues_from_the_same_step(digits_argv, cpu, capsys):
    folder = train([*digits_argv, "REPORT_FREQ=1", "TRAIN.MAX_STEPS=23"], cpu)
    wsd = ["TRAIN.LR_SCHEDULER={NAME: wsd, DECAY_EPOCHS: 1}", "TRAIN.MAX_STEPS=26"]
    train([f"-resume={folder}", "-epochs=4", "-opts", *wsd], cpu)
    log = capsys.readouterr().out
    assert "from epoch 2, step 1: the WSD schedule of 4 epochs with the peak 0.001, now at 0.001; TRAIN.RESTART_" in log
    assert rates(folder)[26] == 1e-3
    step = ["TRAIN.LR_SCHEDULER={NAME: step, DECAY_EPOCHS: 1.5}", "TRAIN.RESTART_SCHEDULE=true"]
    train([f"-resume={folder}", "-opts", *step, "TRAIN.MAX_STEPS=60"], cpu)
    log = capsys.readouterr().out
    assert "from epoch 2, step 4: warm-up in 0.5 epochs to 0.001, then a step decay to epoch 4" in log
    assert "TRAIN.LR_SCHEDULER.NAME: wsd, now step" in log
    assert [rates(folder)[number] for number in (27, 59, 60)] == [1e-6, 1e-3, 1e-4]  # after 33 steps


@pytest.mark.slow
def test_restarted_schedule_reaches_the_given_rate_and_resumes_exactly(digits_argv, cpu, tmp_path, capsys):
    argv = [*digits_argv, "REPORT_FREQ=1", "TRAIN.MAX_STEPS=25"]
    restart = ["-epochs=4", "-lr=2e-4", "-opts", "TRAIN.RESTART_SCHEDULE=true"]
    whole = train(argv, cpu)
    train([f"-resume={whole}", *restart, "TRAIN.MAX_STEPS=50"], cpu)
    expected = "from epoch 2, step 3: warm-up in 0.5 epochs to 0.0002, then a cosine to epoch 4"
    assert expected in capsys.readouterr().out
    assert rates(whole)[26] == 1e-6 and rates(whole)[37] == 2e-4
    for number, continued in enumerate(([], restart)):  # the folder alone, and the command of a requeued job
        argv[2] = f"-output={tmp_path / str(number)}"
        folder = train(argv, cpu)
        train([f"-resume={folder}", *restart, "TRAIN.MAX_STEPS=31"], cpu)
        assert "RESTART_SCHEDULE: false" in (folder / "config.yaml").read_text()
        train([f"-resume={folder}", *continued, *(["-opts"] if not continued else []), "TRAIN.MAX_STEPS=50"], cpu)
        assert_same_state(states(folder), states(whole))
        assert rates(folder) == rates(whole)
    train([f"-resume={whole}", "-epochs=5", "-opts", "TRAIN.MAX_STEPS=52"], cpu)
    assert rates(whole)[52] > 1.5e-4  # no second warm-up


@pytest.mark.slow
def test_a_run_that_started_at_a_later_epoch_resumes_by_its_folder(digits_argv, cpu):
    folder = train([*digits_argv, "TRAIN.LAST_EPOCH=1", "TRAIN.MAX_STEPS=24"], cpu)
    train([f"-resume={folder}", "-epochs=3", "-opts", "TRAIN.MAX_STEPS=46"], cpu)
    train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=null"], cpu)
    assert states(folder)["epoch"] == 3
