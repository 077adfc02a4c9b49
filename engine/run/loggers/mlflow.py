"""MLflow. Its environment variables (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ...) work as documented there."""

from collections.abc import Callable, Mapping
from threading import Timer
from typing import Any

from engine.run.facts import read_environment
from engine.run.loggers.logger import LoggedRun
from utils.errors import hide_passwords

_ANSWER_SECONDS = 5.0  # MLflow itself tries again for four minutes


class MlflowLogger:
    """Logs to a run of MLflow; a resumed run continues it, and logs the steps that it repeats a second time.

    All calls must be made in one thread: MLflow's active run belongs to the thread.

    Args:
        log: logs a line.
    Raises:
        ImportError: mlflow is not installed.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        import mlflow

        self._log, self._mlflow = log, mlflow

    def start(self, run: LoggedRun) -> None:
        known_id, server = run.known_id("mlflow"), hide_passwords(self._mlflow.get_tracking_uri())
        problem = f"{server} has not answered for {_ANSWER_SECONDS:g} s; check the server; training continues meanwhile"
        warning = Timer(_ANSWER_SECONDS, self._log, [f"----- Warning: LOGGERS: mlflow: {problem}"])
        warning.daemon = True
        warning.start()
        try:
            started = self._mlflow.start_run(run_id=known_id, run_name=run.folder.name)
        finally:
            warning.cancel()
        run.store_id("mlflow", started.info.run_id)
        self._log(f"----- mlflow: run {started.info.run_id}, {server}")
        if not known_id:  # MLflow refuses to change a parameter
            self._mlflow.log_params(dict(run.hyperparameters))
        self._mlflow.log_text(run.options, "config.yaml")
        self._mlflow.log_dict(read_environment(run.folder), "environment.json")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        if result:
            self._mlflow.log_dict(dict(result), "result.json")
        self._mlflow.end_run("FAILED" if not result else "FINISHED" if result["finished"] else "KILLED")
