"""Loggers of the figures of a run: TensorBoard, and Weights & Biases, MLflow and Trackio on request.

The environment variables of the libraries (WANDB_MODE, MLFLOW_TRACKING_URI, TRACKIO_DIR, ...) work as documented there.
Each library is imported when its logger is made: ImportError if it is not installed.
"""

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from configs.yaml_io import Values, parse_value, write_yaml
from engine.run.log import RunLogger
from engine.run.record import DETAILS, RunRecord
from utils.errors import UserError, error_from, hide_passwords, to_single_line
from utils.files import atomic_write
from utils.library_compat import import_tensorboard
from utils.system import is_installed, require
from utils.threads import DaemonPool

# Unless the user sets them: no capture of the console, no lines of its own, and an end if the network is down.
_WANDB_SETTINGS = {"WANDB_CONSOLE": "off", "WANDB_SILENT": "true", "WANDB_FINISH_TIMEOUT": "20"}  # the last in seconds
_Log = Callable[[str], None]


@dataclass(frozen=True)
class LoggedRun:
    """A training run, new or resumed after `steps_done` steps.

    options: all of them, as YAML. hyperparameters: those that differ from their defaults, by dotted key. environment:
    the fields of the fact `Environment`.
    """

    folder: Path
    steps_done: int
    options: str
    hyperparameters: Mapping[str, str]
    environment: Values

    def id_file(self, library: str) -> Path:
        """The file with the library's id of this run; a resumed run has one."""
        return self.folder / f"{library}_run_id.txt"

    def known_id(self, library: str) -> str | None:
        file = self.id_file(library)
        return file.read_text(encoding="utf-8").strip() if file.is_file() else None


class TensorBoardLogger:
    """Writes event files to the folder `details`: curves, options and environment as text, a row of hyperparameters."""

    def __init__(self, log: _Log) -> None:
        self._library = import_tensorboard()

    def start(self, run: LoggedRun) -> None:
        """Hides events after the position of the checkpoint: a resumed run repeats them.

        The table of hyperparameters has a row per folder. Unlike `SummaryWriter.add_hparams`, this declares no
        experiment, so that its columns are the options and scalars of all runs.
        """
        self._board: Any = self._library.SummaryWriter(run.folder / DETAILS, purge_step=run.steps_done + 1)
        _, session_start, self._session_end = self._library.summary.hparams(dict(run.hyperparameters), {})
        self._board.file_writer.add_summary(session_start)
        # Indented text is a code block: Markdown shows it as it is.
        for name, text in (("options", run.options), ("environment", write_yaml(run.environment))):
            self._board.add_text(name, textwrap.indent(text, "    "), run.steps_done)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        if result and result["finished"]:
            self._board.file_writer.add_summary(self._session_end)
        self._board.close()


class WandbLogger:
    """Logs to a run of Weights & Biases; a resumed run continues it.

    wandb drops the steps that it already has, so that repeated steps of a resumed run appear once. Without an API key
    wandb would ask for one on the terminal: the constructor raises UserError.
    """

    name = "wandb"

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._library = import_module(self.name)
        self._log_in()

    def _log_in(self) -> None:
        for variable, value in _WANDB_SETTINGS.items():
            os.environ.setdefault(variable, value)
        is_online = self._library.setup().settings.mode in ("online", "shared", "run")
        if is_online and not self._library.login(prompt=False, verify=False):
            problem = "LOGGERS: wandb has no API key: run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline"
            raise UserError(f"{problem}; or remove it from LOGGERS")

    def start(self, run: LoggedRun) -> None:
        config = parse_value(run.options) | {"environment": run.environment}
        options = self._options(run.folder, run.known_id(self.name))
        self._run: Any = self._library.init(name=run.folder.name, config=config, **options)
        atomic_write(run.id_file(self.name), f"{self._run.id}\n")
        self._log(f"----- {self.name}: {self._place(run.folder)}")

    def _options(self, folder: Path, known_id: str | None) -> Values:
        return {"id": known_id, "resume": "allow", "dir": str(folder), "allow_val_change": True}

    def _place(self, folder: Path) -> str:
        return self._run.url or f"{self._run.id}, offline, in {folder}/wandb"

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._run.summary.update({f"result/{key}": value for key, value in (result or {}).items() if value is not None})
        self._run.finish(exit_code=0 if result else 1)


class TrackioLogger(WandbLogger):
    """Logs to a run of Trackio, which has wandb's interface.

    A resumed run continues the newest run of the name, and logs the steps that it repeats a second time.
    """

    name = "trackio"

    def _log_in(self) -> None:
        self._project = os.environ.get("TRACKIO_PROJECT", "ampvit")

    def _options(self, folder: Path, known_id: str | None) -> Values:
        # In a notebook `embed` would start a server.
        return {"project": self._project, "resume": "allow" if known_id else "never", "embed": False}

    def _place(self, folder: Path) -> str:
        return f"run {self._run.name}; trackio show --project {self._project}"

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._run.finish()


class MlflowLogger:
    """Logs to a run of MLflow; a resumed run continues it, and logs the steps that it repeats a second time."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._library = import_module("mlflow")

    def start(self, run: LoggedRun) -> None:
        known_id = run.known_id("mlflow")
        started = self._library.start_run(run_id=known_id, run_name=run.folder.name)
        atomic_write(run.id_file("mlflow"), f"{started.info.run_id}\n")
        self._log(f"----- mlflow: run {started.info.run_id}, {hide_passwords(self._library.get_tracking_uri())}")
        if not known_id:  # MLflow refuses to change a parameter
            self._library.log_params(dict(run.hyperparameters))
        self._library.log_text(run.options, "config.yaml")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._library.log_metrics(dict(values), step=step)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        status = "FAILED"
        if result:
            status = "FINISHED" if result["finished"] else "KILLED"
        self._library.end_run(status)


_LOGGERS: dict[str, Callable[[_Log], Any]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
    "trackio": TrackioLogger,
}


class BackgroundLogger:
    """Calls a logger in a thread: training does not wait for a slow one, and does not end if one fails.

    A logger that cannot start is not called again. If a later call fails, its values are lost. One warning says so.

    logger: `start(run)` is called first; `scalars(values, step)` gets values of the host by name, such as train/loss,
    and the optimizer steps since the start of the run; `finish(result)` returns when everything is written.
    """

    def __init__(self, name: str, logger: Any, warn: _Log) -> None:
        self.name = name
        self.logger = logger
        self._warn = warn
        self._thread = DaemonPool(1)
        self._has_warned = self._cannot_start = False

    def submit(self, method: str, *arguments: Any) -> Future[None]:
        return self._thread.submit(self._call, method, *arguments)

    def finish(self, result: Mapping[str, Any] | None, limit_seconds: float = 30.0) -> None:
        """Waits at most `limit_seconds` for the calls that are left."""
        if wait([self.submit("finish", result)], limit_seconds).not_done:
            self._warn_once(f"it did not take the last values within {limit_seconds:g} s")

    def _call(self, method: str, *arguments: Any) -> None:
        if self._cannot_start:
            return
        try:
            getattr(self.logger, method)(*arguments)
        except BaseException as error:  # a library may call sys.exit()
            self._cannot_start = method == "start"
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            self._warn_once(f"{kind}{error}")

    def _warn_once(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            problem = hide_passwords(to_single_line(problem))
            self._warn(f"LOGGERS: {self.name} lacks values: {problem}")


@dataclass(eq=False)
class LoggerGroup:
    """The named loggers, and TensorBoard's if it is installed. Until `start`, and after `finish`, calls do nothing.

    The first figures start the loggers: the first step waits for no library.

    options: all options of the run, as YAML. hyperparameters: those that differ from their defaults.
    log: the log of the run; called in the threads of the loggers.
    """

    names: Sequence[str]
    options: str
    hyperparameters: Mapping[str, str]
    log: RunLogger

    def __post_init__(self) -> None:
        self._loggers: list[BackgroundLogger] = []
        self._run: LoggedRun | None = None  # whose loggers have not started

    def start(self, record: RunRecord, steps_done: int) -> None:
        """For the main process only."""
        environment = record.values["facts"].get("Environment", {})
        self._run = LoggedRun(record.folder, steps_done, self.options, self.hyperparameters, environment)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Raises UserError as `check_loggers`, at the first call."""
        if run := self._run:
            self._run = None
            names = [*(["tensorboard"] if is_installed("tensorboard") else []), *dict.fromkeys(self.names)]
            self._loggers = [BackgroundLogger(name, _make(name, self.log.info), self.log.warn) for name in names]
            for logger in self._loggers:
                logger.submit("start", run)
        for logger in self._loggers:
            logger.submit("scalars", values, step)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """result: the entry of `run.json`; None: the run failed."""
        loggers = self._loggers
        self._loggers = []
        for logger in loggers:
            logger.finish(result)


def check_loggers(names: Sequence[str]) -> None:
    """Imports the libraries of these loggers. Raises UserError if one is not installed, or has no credentials."""
    require("LOGGERS", *names)
    for name in names:
        _make(name, lambda line: None)


def _make(name: str, log: _Log) -> Any:
    try:
        return _LOGGERS[name](log)
    except UserError:
        raise
    except Exception as error:  # a library may fail while it is imported, or be an old version
        reason = hide_passwords(str(error))
        fix = f"install it with `pip install -U {name}`, or remove it"
        raise error_from(error, f"LOGGERS: {name} cannot be used ({reason}); {fix}") from None
