"""TRAIN.PATIENCE: the run ends like a finished one, at the same epoch after a resume."""

import pytest
from conftest import assert_same_state, read_result, rows, states, train

from utils.files import read_json
from utils.status import STATUS

# The weights never change, so the first evaluation is the best.
CONSTANT = ["TRAIN.BASE_LR=0", "TRAIN.WARMUP_START_LR=0", "TRAIN.NUM_EPOCHS=6", "TRAIN.WARMUP_EPOCHS=0"]


@pytest.fixture
def argv(digits_argv) -> list[str]:
    return [
        *digits_argv,
        *CONSTANT,
        "DATA.BATCH_SIZE=256",
        "TRAIN.MODEL_EMA=true",
        "TRAIN.PATIENCE=2",
    ]  # 5 steps an epoch


def test_a_run_ends_after_its_patience_and_continues_with_a_larger_one(argv, cpu, capsys):
    folder = train(argv, cpu)
    assert [row["epoch"] for row in rows(folder)] == ["1", "2", "3"]
    assert [bool(row["raw_val_top1"]) for row in rows(folder)] == [False, False, True]
    state, result, status = states(folder), read_result(folder), read_json(folder / STATUS)
    assert (state["epoch"], state["done_steps"], state["best"]["epoch"]) == (3, 0, 1)
    reason = result["reason"]
    assert result["finished"] and result["stopped_early"] and result["epoch"] == 1 and "TRAIN.PATIENCE" in reason
    assert (status["state"], status["stopped_early"], status["reason"]) == ("finished", True, reason)
    log = capsys.readouterr().out
    assert reason in log and f" -resume={folder} -opts TRAIN.PATIENCE=null\n" in log
    train([f"-resume={folder}"], cpu)
    assert_same_state(states(folder), state)
    assert read_json(folder / STATUS)["stopped_early"]
    train([f"-resume={folder}", "-opts", "TRAIN.PATIENCE=null"], cpu)
    assert states(folder)["epoch"] == 6
    assert not read_result(folder)["stopped_early"] and not read_json(folder / STATUS)["stopped_early"]


@pytest.mark.parametrize("stop", [7, 10])
def test_a_resumed_run_counts_from_the_best_epoch(argv, cpu, stop):
    folder = train([*argv, f"TRAIN.MAX_STEPS={stop}"], cpu)
    assert not read_result(folder)["stopped_early"] and read_json(folder / STATUS)["state"] == "stopped"
    train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=null"], cpu)
    assert states(folder)["epoch"] == 3 and read_result(folder)["stopped_early"]


@pytest.mark.slow
def test_only_an_evaluation_ends_a_run(argv, cpu):
    """Evaluations follow epochs 2, 4 and 6; a patience of 3 epochs after epoch 2 ends in epoch 5."""
    folder = train([*argv, "VALIDATE_FREQ=2", "TRAIN.PATIENCE=3", "TRAIN.NUM_EPOCHS=7", "TRAIN.MAX_STEPS=25"], cpu)
    assert states(folder)["epoch"] == 5
    train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=null"], cpu)
    assert states(folder)["epoch"] == 6 and states(folder)["best"]["epoch"] == 2
