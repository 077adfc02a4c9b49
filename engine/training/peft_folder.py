"""The adapters of a run with LoRA as a folder for peft, beside its checkpoints."""

from pathlib import Path
from typing import Any

from engine.checkpoint.run_folder import BEST
from engine.progress import Observer
from engine.training.record import Record
from engine.training.session import Session
from models.tuning.peft_folder import write_peft_folder


class PeftFolder(Observer):
    """Writes the adapters of the best checkpoint; of the last one until there is a best one."""

    def __init__(self, session: Session, record: Record) -> None:
        self._model, self._lora = session.state.meta_model, session.plan.config.model.lora
        self._logger = record.logger

    def after_save(self, path: Path, content: dict[str, Any]) -> None:
        if content["best"] and path.stem != Path(BEST).stem:
            return
        try:
            write_peft_folder(path, content, self._model, self._lora)
        except OSError as error:  # the checkpoint has the adapters, too
            self._logger.warn(f"Warning: the adapters cannot be written for peft: {error}")
