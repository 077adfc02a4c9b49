"""Weights & Biases. Its environment variables (WANDB_MODE, WANDB_PROJECT, ...) work as documented there."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from configs.reading.yaml_io import parse_value
from engine.run.facts import read_environment
from engine.run.loggers.logger import LoggedRun
from utils.errors import UserError

# Unless the user sets them: no capture of the console, no lines of its own, and an end if the network is down.
_SETTINGS = {"WANDB_CONSOLE": "off", "WANDB_SILENT": "true", "WANDB_FINISH_TIMEOUT": "20"}  # the last in seconds


class WandbLogger:
    """Logs to a run of Weights & Biases; a resumed run continues it.

    wandb drops the steps that it already has, so that repeated steps of a resumed run appear once.

    Args:
        log: logs a line.
    Raises:
        ImportError: wandb is not installed.
        UserError: it has no API key; it would ask for one on the terminal.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        import wandb

        self._log, self._wandb = log, wandb
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        is_online = wandb.setup().settings.mode in ("online", "shared", "run")
        if is_online and not wandb.login(prompt=False, verify=False):
            raise UserError(
                "LOGGERS: wandb has no API key: run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline; or "
                "remove it from LOGGERS"
            )

    def start(self, run: LoggedRun) -> None:
        self._run = self._wandb.init(
            id=run.known_id("wandb"),
            resume="allow",
            name=run.folder.name,
            dir=str(run.folder),
            config=parse_value(run.options) | {"environment": read_environment(run.folder)},
            allow_val_change=True,
        )
        run.store_id("wandb", self._run.id)
        self._log(f"----- wandb: {self._run.url or f'{self._run.id}, offline, in {run.folder}/wandb'}")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._run.summary.update({f"result/{key}": value for key, value in (result or {}).items() if value is not None})
        self._run.finish(exit_code=0 if result else 1)
