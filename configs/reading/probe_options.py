"""The options of a run with `MODEL.TUNE: probe`."""

from typing import Any

from configs.schema import Config, Train
from utils.errors import UserError

_TRAIN = {"num_epochs": 1, "warmup_epochs": 0, "accum_iter": 10**9}
PLACEHOLDERS = ("DATA.BATCH_SIZE=", *(f"TRAIN.{key.upper()}=" for key in _TRAIN))  # are not logged
_DATA = {"batch_size": 1, "global_batch_size": None, "balanced_sampling": False, "repeated_augmentation": 1}


def probe_has_one_step(config: Config, given: dict[str, Any]) -> tuple[Config, list[str]]:
    """MODEL.TUNE probe: one epoch of one step; other options of the training have no effect.

    Returns: the options, and a line for the log about those in `given` that have no effect.

    Raises:
        UserError: an option that a probe cannot have.
    """
    if config.model.tuned != "probe" or config.eval.enabled:
        return config, []
    if (strategy := config.parallel.strategy) != "ddp":
        raise UserError(f"PARALLEL.STRATEGY {strategy}: MODEL.TUNE probe needs whole models; set it to ddp")
    train = Train().model_copy(update={**_TRAIN, "smoothing": config.train.smoothing})
    data = config.data.model_copy(update={**_DATA, "batch_size_eval": config.data.eval_batch_size})
    unused = [
        f"{name}.{key}"
        for name, before, after in (("TRAIN", config.train, train), ("DATA", config.data, data))
        for key in given.get(name, {})
        if not key.startswith("BATCH_SIZE") and getattr(before, key.lower()) != getattr(after, key.lower())
    ]
    notes = [f"MODEL.TUNE probe: {', '.join(unused)} have no effect"] if unused else []
    return config.model_copy(update={"train": train, "data": data, "eval_raw": False}), notes
