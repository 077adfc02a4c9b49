"""`train_batch.png`: images of a training batch as the model gets them, and their targets."""

import math
from collections.abc import Sequence
from typing import Any
from unicodedata import combining
from unicodedata import normalize as decompose

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from datasets.batch import is_padding
from datasets.transforms.device import Normalize
from engine.evaluation.files import save_picture, to_picture
from engine.progress import EpochProgress, Observer
from engine.run.record import TRAIN_BATCH
from engine.training.outputs import RunOutputs
from engine.training.session import Session
from utils.errors import on_one_line, shortened

# classes of an image: the largest shares
_MAX_IMAGES = 16
_COLUMNS = 4
_MAX_CLASSES = 4
_MAX_NAME_CHARS = 18
_LETTERS = str.maketrans({"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "ı": "i"})
# pixels: of an image, between images, of a line of text
_SIDE = 160
_GAP = 4
_LINE = 16
_FONT = 12


class TrainBatch(Observer):
    """Draws a grid of the next batch of the main process after its step, unless the run has the picture."""

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        self._plan = session.plan
        self._logger = outputs.logger
        self._path = outputs.folder / TRAIN_BATCH
        self._kept = list[Tensor]()
        if session.state.context.is_main and not self._path.is_file():  # a hook: nothing is augmented or mixed twice
            self._hook = session.state.transform.register_forward_hook(self._keep)

    def _keep(self, transform: Any, inputs: Any, outputs: tuple[Tensor, Tensor]) -> None:
        self._hook.remove()
        self._kept = [tensor[:_MAX_IMAGES].to("cpu", copy=True) for tensor in outputs]

    def after_step(self, progress: EpochProgress) -> None:
        """Warns if the file cannot be written: the run is more important."""
        if not self._kept:
            return
        images, targets = self._kept
        self._kept = []
        font = ImageFont.load_default(_FONT)
        normalize = Normalize(self._plan.config.data)
        values = (images.float() - normalize.offset) / normalize.factor
        pixels = values.round().nan_to_num(0).clamp(0, 255).to(torch.uint8)
        is_sample = ~is_padding(targets)  # other positions of the batch are left out
        texts = [target_text(target, self._plan.class_names) for target in targets[is_sample]]
        width = _SIDE + _GAP
        height = _SIDE + _GAP + _LINE * max((text.count("\n") + 1 for text in texts), default=0)
        grid = Image.new("RGB", (_COLUMNS * width - _GAP, _LINE + math.ceil(len(texts) / _COLUMNS) * height), "white")
        ImageDraw.Draw(grid).text((0, 0), f"Epoch {progress.epoch + 1}, step {progress.done_steps}", "black", font)
        for number, (crop, text) in enumerate(zip(pixels[is_sample], texts, strict=True)):
            cell = Image.new("RGB", (_SIDE, height), "white")  # a wide name ends at its edge
            cell.paste(to_picture(crop, _SIDE))
            ImageDraw.Draw(cell).text((0, _SIDE), text, "black", font)
            grid.paste(cell, (number % _COLUMNS * width, _LINE + number // _COLUMNS * height))
        try:
            save_picture(grid, self._path)
        except OSError as error:
            self._logger.warn(f"{self._path}: cannot be drawn ({error.strerror or error})")


def target_text(target: Tensor, names: Sequence[str] | None) -> str:
    """A line per class of a target, () or (classes,), with its share unless it is 1."""
    shares = enumerate(target.tolist()) if target.ndim else [(int(target), 1.0)]
    lines = []
    for label, share in sorted(shares, key=lambda item: -item[1])[:_MAX_CLASSES]:
        name = _in_ascii(names[label]) if names and label < len(names) else ""
        name = shortened(on_one_line(name or f"class {label}"), _MAX_NAME_CHARS)
        if math.isclose(share, 1, rel_tol=1e-6):
            lines.append(name)
        elif share > 0:
            lines.append(f"{name} {share:.2f}")
    return "\n".join(lines) or "no label"


def _in_ascii(name: str) -> str:
    """The name without accents, since Pillow's font has only ASCII: 'Hute' of 'Hüte'; '' of another script."""
    letters = decompose("NFKD", name.translate(_LETTERS))  # which decomposes none of these
    plain = "".join(letter for letter in letters if not combining(letter))
    return plain if plain.isascii() else ""
