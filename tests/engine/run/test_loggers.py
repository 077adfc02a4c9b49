"""The log files; loggers: TensorBoard's tables as its own backend reads them, stand-ins for the other libraries."""

import os
import sys
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock, call

from conftest import SMALL_BATCHES, assert_same_state, log_of, refused, states, train
from pytest import approx, fixture, mark
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engine.run.log import RunLogger
from engine.run.loggers import BackgroundLogger, LoggedRun, TrackioLogger, check_loggers
from engine.run.record import read_run

RESULT = {"top1": 90.0, "finished": True}


@fixture
def libraries(monkeypatch) -> tuple[MagicMock, MagicMock]:
    """Stand-ins for wandb and mlflow."""
    wandb = MagicMock()
    mlflow = MagicMock()
    wandb.setup.return_value.settings.mode = "offline"
    wandb.login.return_value = False
    wandb.init.return_value = wandb.run
    wandb.run.id = "wandb-id"
    wandb.run.url = None
    mlflow.start_run.return_value.info.run_id = "mlflow-id"
    mlflow.get_tracking_uri.return_value = "https://me:secret@host:5000/a@b"
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return wandb, mlflow


@mark.slow
def test_runs_in_tensorboard_and_in_the_libraries(digits_argv, libraries):
    """A run that is interrupted and resumed is one row or run everywhere; loggers do not change its weights."""
    wandb, mlflow = libraries
    plain = train([*digits_argv, SMALL_BATCHES, "TRAIN.SMOOTHING=0.1"], pictures=True)
    argv = [*digits_argv, SMALL_BATCHES, "TRAIN.SMOOTHING=0.1", "NAME=logged", "LOGGERS=[wandb,mlflow]"]
    logged = train([*argv, "TRAIN.MAX_STEPS=22"], pictures=True)
    train([f"-resume={logged}", *argv], pictures=True)
    assert_same_state(states(plain), states(logged))

    events = EventAccumulator(str(logged / "details")).Reload()
    assert [event.step for event in events.Scalars("val/top1")] == [22, 44]  # the one at the checkpoint's step stays

    inits = [made.kwargs for made in wandb.init.call_args_list]
    assert [init["id"] for init in inits] == [None, "wandb-id"]
    known = {"resume": "allow", "name": logged.name, "dir": str(logged)}
    assert inits[1].items() >= known.items()
    assert [init["config"]["TRAIN"]["MAX_STEPS"] for init in inits] == [22, None]
    assert [made.kwargs["run_id"] for made in mlflow.start_run.call_args_list] == [None, "mlflow-id"]
    mlflow.log_params.assert_called_once()
    assert inits[1]["config"]["environment"] == read_run(logged)["facts"]["Environment"]
    logs = wandb.run.log.call_args_list
    curves = {made.kwargs["step"]: made.args[0]["train/loss"] for made in logs if "train/loss" in made.args[0]}
    assert curves == {event.step: approx(event.value) for event in events.Scalars("train/loss")}
    assert logs == mlflow.log_metrics.call_args_list
    assert wandb.run.summary.update.call_args.args[0]["result/finished"]
    wandb.run.finish.assert_called_with(exit_code=0)
    assert mlflow.end_run.call_args_list == [call("KILLED"), call("FINISHED")]
    assert "----- mlflow: run mlflow-id, https://***@host:5000/a@b\n" in log_of(logged)


def warnings_of(library: MagicMock, folder, finish_seconds: float = 30.0) -> list[str]:
    """Of a logger that uses it."""
    lines = []
    logger = BackgroundLogger("wandb", library, lines.append)
    logger.submit("start", LoggedRun(folder, 0, "", {}, {}))
    for step in range(3):
        logger.submit("scalars", {"train/loss": 1.0}, step)
    logger.finish(RESULT, finish_seconds)
    return lines


def test_a_failing_logger_warns_once_and_training_continues(tmp_path):
    error = SystemExit("no\nroute to http://me:se@cret@host/api")
    shown = "LOGGERS: wandb lacks values: SystemExit: no route to http://***@host/api"  # without the password
    never_started = MagicMock(**{"start.side_effect": error})
    (warning,) = warnings_of(never_started, tmp_path)
    assert shown in warning
    never_started.scalars.assert_not_called()
    faulty = MagicMock(**{"scalars.side_effect": [error, None, None], "finish.side_effect": error})
    (warning,) = warnings_of(faulty, tmp_path)
    assert shown in warning
    assert faulty.scalars.call_count == 3
    released = threading.Event()
    slow = MagicMock(**{"start.side_effect": lambda run: released.wait()})
    (warning,) = warnings_of(slow, tmp_path, 0.01)
    assert "LOGGERS: wandb lacks values: " in warning
    released.set()


def test_a_library_that_is_missing_ends_the_run_before_data_are_read(digits_argv, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    folder = tmp_path / "missing"
    with refused(r"^LOGGERS: .* pip install mlflow"):
        train(["-dataset=folder", f"-data_path={folder}", *digits_argv[2:], "LOGGERS=mlflow"])
    assert not (tmp_path / "out").exists()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace())  # as Python imports a folder of that name
    with refused(r"^LOGGERS: wandb "):
        check_loggers(["wandb"])


def test_a_resumed_run_continues_in_trackio(tmp_path, monkeypatch):
    """Trackio finds a run by its name; another run of this name, in another folder, is not continued."""
    trackio = MagicMock()
    trackio.init.return_value.id = "trackio-id"
    trackio.init.return_value.name = "a-run"
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    (folder := tmp_path / "a-run").mkdir()
    for steps_done in (0, 22):
        lines = []
        logger = BackgroundLogger("trackio", TrackioLogger(lines.append), lines.append)
        environment = {"parts": {"torch": "2.15"}}
        logger.submit("start", LoggedRun(folder, steps_done, "TRAIN: {BASE_LR: 0.1}", {}, environment))
        logger.submit("scalars", {"train/loss": 1.0}, steps_done + 1)
        logger.finish(RESULT)
        assert lines == ["----- trackio: run a-run; trackio show --project ampvit"]
    config = {"TRAIN": {"BASE_LR": 0.1}, "environment": environment}
    for made, resume in zip(trackio.init.call_args_list, ("never", "allow"), strict=True):
        assert made.kwargs.items() >= {"resume": resume, "name": "a-run", "config": config}.items()
    assert trackio.init().log.call_args_list == [call({"train/loss": 1.0}, step=step) for step in (1, 23)]
    assert trackio.init().finish.call_count == 2


def test_wandb_does_not_ask_for_a_login(libraries):
    check_loggers(["wandb"])
    libraries[0].setup.return_value.settings.mode = "online"
    with refused("WANDB_API_KEY"):
        check_loggers(["wandb"])


@mark.skipif("not __import__('pathlib').Path('/dev/full').exists()")
def test_a_full_disk_prints_no_traceback(tmp_path, cpu, capsys, monkeypatch):
    monkeypatch.setattr("engine.run.log.own_file", lambda path, flags: os.open("/dev/full", os.O_WRONLY))
    logger = RunLogger(cpu)
    logger.open(tmp_path)
    logger.info("a line")
    logger.rank("a line")
    RunLogger(cpu)  # closes the files of the first one
    printed = capsys.readouterr()
    assert printed.out == "a line\n"
    assert printed.err == ""
