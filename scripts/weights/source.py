"""Finds the trained weights for a script. This file needs no torch, so that a wrong path is reported at once."""

from pathlib import Path

from configs.reading.command_line import parse_command_line
from configs.reading.option_layers import find_run_options
from models.weights.find import find_weights
from utils.errors import UserError
from utils.file_formats.checkpoint_folder import SHARDS, is_checkpoint_folder


def find_source(path: str) -> Path:
    """`path` if it is the folder of a run with a checkpoint, else the weight file at `path`.

    Raises:
        UserError: no such file or folder, or no checkpoint in it.
    """
    folder = Path(path)
    if not folder.is_dir() or is_checkpoint_folder(folder):
        return find_weights(path)
    if not any(folder.glob("*.pth")) and not any(folder.glob(f"*{SHARDS}")):
        if weights := _evaluated_weights(folder):
            raise UserError(f"{path}: has no checkpoint: it is the folder of an evaluation of {weights}; give that")
        raise UserError(f"{path}: has no checkpoint; give the folder of a run, or a weight file")
    return folder


def _evaluated_weights(folder: Path) -> Path | str | None:
    """The weights that -eval or -predict has read, if it made `folder`."""
    options = find_run_options(str(folder), None)
    config = parse_command_line([f"-cfg={options}"]).config if options else None
    return (config.model.resume or config.model.pretrained) if config and config.eval.enabled else None
