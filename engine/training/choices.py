"""What a run chooses by measuring when it starts: alike on all ranks, and alike again when it is resumed."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from configs.schema import Model
from engine.precision.policy import Precision
from models.attention import EXPLICIT, FUSED, attention_seconds, attention_shape, use_attention
from utils.cache import found_once
from utils.device import device_name
from utils.distributed import ProcessContext, broadcast_object
from utils.logger import RunLogger

_NOTABLE = 1.1  # times as fast: less may be noise


class Choices:
    """The choices of one run, by name; `kept` are those of the checkpoint that it goes on from."""

    def __init__(self, context: ProcessContext, logger: RunLogger, kept: dict[str, str] | None = None) -> None:
        self.context, self.logger = context, logger
        self.kept, self.made = kept or {}, {}

    def fastest(
        self,
        name: str,
        alternatives: tuple[str, ...],
        question: Callable[[], dict[str, Any]],
        measure: Callable[[], dict[str, float]],
    ) -> str:
        """The alternative that the checkpoint has, else the fastest one. Every rank must call it.

        `measure` gives the seconds of each, once per machine and `question`, which names all that they depend on
        besides the device; both are asked on the main process. The first alternative is taken unless
        another is a tenth faster.
        """
        choice = self.kept.get(name)
        if choice in alternatives:
            self.logger.info(f"----- {name.capitalize()}: {choice}, as in the checkpoint")
        else:
            seconds = self._seconds(name, question, measure)
            choice = min(alternatives, key=lambda each: seconds[each] * (1 if each == alternatives[0] else _NOTABLE))
            others = [f"{seconds[each] / seconds[choice]:.2f} times as fast as {each}"
                      for each in alternatives if each != choice]  # fmt: skip
            self.logger.info(f"----- {name.capitalize()}: {choice}, {', '.join(others)}")
        self.made[name] = choice
        return choice

    def _seconds(
        self, name: str, question: Callable[[], dict[str, Any]], measure: Callable[[], dict[str, float]]
    ) -> dict[str, float]:
        """As the main process has measured them."""
        seconds = None
        if self.context.is_main:
            device = {"device": device_name(self.context.device), "threads": torch.get_num_threads()}
            asked = {"what": f"median seconds of {name}", "torch": torch.__version__} | device | question()
            seconds = found_once(asked, measure)
        return broadcast_object(seconds, self.context)


def choose_attention(model: nn.Module, options: Model, batch_size: int, precision: Precision, choices: Choices) -> None:
    """Sets how the model, at `batch_size` images per forward pass, computes its attention.

    Only plain ViTs are measured: in other families the layers differ, and `models.place` has a rule for them.
    """
    if options.attention != "auto":
        use_attention(model, options.attention)
    elif precision.lists_softmax:  # a fused attention has none
        use_attention(model, EXPLICIT)
    elif shape := attention_shape(model):
        device = choices.context.device
        measured = shape.batch_size(batch_size, device)
        computing = {"batch_size": measured, "precision": precision.name, "tf32": precision.tf32}
        kind = choices.fastest(
            "attention",
            (EXPLICIT, FUSED) if device.type == "cpu" else (FUSED, EXPLICIT),
            lambda: computing | asdict(shape),
            lambda: attention_seconds(shape, measured, device, precision.dtype, precision.autocast),
        )
        use_attention(model, kind)
