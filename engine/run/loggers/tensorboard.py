"""TensorBoard: curves, options and environment as text, and the table of hyperparameters."""

import textwrap
from collections.abc import Mapping
from typing import Any

from configs.reading.yaml_io import write_yaml
from engine.run.facts import read_environment
from engine.run.loggers.logger import LoggedRun


class TensorBoardLogger:
    """Writes event files to the run's folder. Raises ImportError if tensorboard is not installed."""

    def __init__(self) -> None:
        from torch.utils import tensorboard
        from torch.utils.tensorboard.summary import hparams

        self._writer_type: Any = tensorboard.SummaryWriter
        self._hparams: Any = hparams

    def start(self, run: LoggedRun) -> None:
        """Hides events after the position of the checkpoint: a resumed run repeats them.

        The table of hyperparameters has a row per folder, with the options of the run's first start. Its columns are
        the options of all runs, and all scalars, if no run declares an experiment; TensorBoard uses the declaration of
        one run for all of them. So this differs from `SummaryWriter.add_hparams`, which besides makes a new row for
        each call.
        """
        self._board: Any = self._writer_type(run.folder, purge_step=run.steps_done + 1)
        _, session_start, self._session_end = self._hparams(dict(run.hyperparameters), {})
        self._board.file_writer.add_summary(session_start)
        # Indented text is a code block: Markdown shows it as it is.
        for name, text in (("options", run.options), ("environment", write_yaml(read_environment(run.folder)))):
            self._board.add_text(name, textwrap.indent(text, "    "), run.steps_done)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        if result and result["finished"]:
            self._board.file_writer.add_summary(self._session_end)
        self._board.close()
