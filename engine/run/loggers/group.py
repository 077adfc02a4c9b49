"""All loggers of a run, and the table of those that `LOGGERS` can name."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.run.log import RunLogger
from engine.run.loggers.logger import BackgroundLogger, LoggedRun, MetricLogger
from engine.run.loggers.mlflow import MlflowLogger
from engine.run.loggers.tensorboard import TensorBoardLogger
from engine.run.loggers.wandb import WandbLogger
from utils.errors import UserError, error_from, hide_passwords
from utils.packages import is_installed, require

_TENSORBOARD = "tensorboard"
_LOGGERS: dict[str, Callable[[Callable[[str], None]], MetricLogger]] = {
    _TENSORBOARD: lambda log: TensorBoardLogger(),
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}


class LoggerGroup:
    """The named loggers, and TensorBoard's if it is installed. Until `start`, and after `finish`, calls do nothing.

    Args:
        options: all options of the run, as YAML. hyperparameters: those that differ from their defaults.
        log: the log of the run; called in the threads of the loggers.
    """

    def __init__(self, names: Sequence[str], options: str, hyperparameters: Mapping[str, str], log: RunLogger) -> None:
        self.names, self.options, self.hyperparameters, self._log = names, options, hyperparameters, log
        self._loggers: list[BackgroundLogger] = []

    def start(self, folder: Path, steps_done: int) -> None:
        """Starts the loggers; for the main process only. Raises UserError as `check_loggers`."""
        run = LoggedRun(folder, steps_done, self.options, self.hyperparameters)
        names = [*([_TENSORBOARD] if is_installed(_TENSORBOARD) else []), *dict.fromkeys(self.names)]
        self._loggers = [BackgroundLogger(name, _make(name, self._log.info), self._log.warn) for name in names]
        for logger in self._loggers:
            logger.start(run)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for logger in self._loggers:
            logger.scalars(values, step)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """result: the content of `result.json`; None: the run failed."""
        loggers, self._loggers = self._loggers, []
        for logger in loggers:
            logger.finish(result)


def check_loggers(names: Sequence[str]) -> None:
    """Imports the libraries of these loggers.

    Raises:
        UserError: a library is not installed, or has no credentials.
    """
    require("LOGGERS", *names)
    for name in names:
        _make(name, lambda line: None)


def _make(name: str, log: Callable[[str], None]) -> MetricLogger:
    try:
        return _LOGGERS[name](log)
    except UserError:
        raise
    except Exception as error:  # a library may fail while it is imported, or be an old version
        reason = hide_passwords(str(error))
        raise error_from(
            error, f"LOGGERS: {name} cannot be used ({reason}); install it with `pip install -U {name}`, or remove it"
        ) from None
