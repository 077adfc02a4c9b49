"""The version of the program, and options that other versions wrote."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.errors import UserError

VERSION = "0.3.0.dev0"  # as in pyproject.toml
WRITTEN_BY = "VERSION"  # the key beside the options of a run: the version that wrote them; no option
_GRAY_AND_BLUR = "use TRAIN.AUGMENT_POLICY=3a, which has gray values and blur, or a plugin"
# Keys that are gone: the value without effect, which the options of runs have, and what replaces other values.
GONE_KEYS: dict[str, tuple[Any, str]] = {
    "DATA.CORRECTIONS": (None, "docs/data.md#corrected-labels writes a table with the right labels"),
    "DATA.NEAR_COPIES": (False, "remove it"),
    "LOSS.SUM_CLASSES": (False, "use the mean over the classes, and with SGD a TRAIN.BASE_LR times their number"),
    "PARALLEL.OFFLOAD": (False, "use MODEL.GRAD_CHECKPOINTING=true, or more devices"),
    "PARALLEL.REDUCE_DTYPE": ("float32", "use PARALLEL.STRATEGY=hsdp for less traffic between hosts"),
    "TRAIN.BLUR_PROB": (0, _GRAY_AND_BLUR),
    "TRAIN.CLIP_MODE": ("norm", "use TRAIN.GRAD_CLIP alone, which clips the norm of all gradients"),
    "TRAIN.GRAYSCALE_PROB": (0, _GRAY_AND_BLUR),
    "TRAIN.LR_SCHEDULER.COOLDOWN_EPOCHS": (0, "use TRAIN.NUM_EPOCHS without these epochs"),
    "TRAIN.RESTART_SCHEDULE": (False, "use a new run with -pretrained=RUN/last.pth"),
}
# Values that are gone, by key; evaluations do not need them.
GONE_VALUES = {"DATA.GREY_RANGE": ("auto",), "MODEL.ATTENTION": ("cudnn",), "TRAIN.MIXUP_MODE": ("elem", "pair")}


JOIN = "join"  # a key of DATA.COLUMNS that is gone
NO_JOIN = f"{JOIN} is gone; docs/data.md#joined-tables makes one table of two"


def without_gone_labels(data: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The section DATA of a run without options that are gone and gave it its labels; the problem, '' without one."""
    kept = {key: value for key, value in data.items() if key != "CORRECTIONS"}
    problem = ""
    if data.get("CORRECTIONS"):
        problem = f"DATA.CORRECTIONS, which is gone; {GONE_KEYS['DATA.CORRECTIONS'][1]}"
    columns = data.get("COLUMNS")
    if isinstance(columns, Mapping) and JOIN in columns:
        kept["COLUMNS"] = {key: value for key, value in columns.items() if key != JOIN}
        problem = f"DATA.COLUMNS: {NO_JOIN}"
    return kept, problem


def is_gone_value(key: str, value: Any) -> bool:
    return isinstance(value, str) and value in GONE_VALUES.get(key, ())


def refuse_newer(options: Mapping[str, Any], source: str | Path) -> None:
    """Raises UserError if a newer version wrote these options: a key may have another meaning there."""
    version = options.get(WRITTEN_BY)
    if _release(version) > _release(VERSION):
        raise UserError(f"{source}: was written by version {version}, newer than this one, {VERSION}; use that version")


def _release(version: Any) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,9}", str(version))[:3]]
