"""What a run chooses by measuring when it starts: alike on all ranks, and alike again when it is resumed."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from configs.schema import Config, Model
from datasets.decoding.device_decode import DEVICE, HOST, DecodeTrial
from datasets.loading.loader import num_workers
from datasets.sources.samples import Samples
from datasets.transforms.host import TrainTransform
from engine.precision.policy import Precision
from models.attention import AUTO, EXPLICIT, use_attention
from utils.cache import found_once
from utils.device import device_name
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError
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


def choose_attention(model: nn.Module, options: Model, precision: Precision) -> None:
    """An op list that names softmax needs explicit attention: fused kernels contain no softmax op."""
    if options.attention == AUTO and precision.lists_softmax:
        use_attention(model, EXPLICIT)


def choose_decode(samples: Samples, config: Config, choices: Choices) -> str:
    """Who decodes the training JPEGs, `HOST` or `DEVICE`. A CPU is the host, whatever `auto` would measure.

    Raises:
        UserError: the device is to decode, and cannot.
    """
    data, context = config.data, choices.context
    on_cpu = context.device.type == "cpu"
    trial = functools.cache(lambda: DecodeTrial(samples, TrainTransform(data, config.train, config.seed)))
    if data.decode == DEVICE:
        if on_cpu or not trial().device_can(context.device):
            raise UserError("DATA.DECODE device: no GPU with nvJPEG in torchvision is at hand; take auto or host")
        return DEVICE
    if data.decode == HOST or on_cpu:
        return HOST
    workers = max(1, num_workers(samples, data, context))
    return choices.fastest(
        "decode",
        (HOST, DEVICE),
        lambda: {"workers": workers, "file_bytes": trial().file_bytes(), "image_size": data.image_size},
        lambda: trial().seconds(workers, context.device),
    )
