"""The values of `-predict` or `-embed`, and of their flags."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from utils.errors import UserError
from utils.status import newest_runs

Split = Literal["train", "val", "test", "all"]
_NO_TRAINING = ("eval-", "predict-", "embed-", "profile-")  # begin the names of other folders in SAVE


@dataclass(frozen=True)
class Prediction:
    """The images to label, and the files of the result.

    path: an image, a folder of images, or a list of images; None: the data of DATA.DATASET.
    top_k: number of ranked classes per image; None: all classes, as columns.
    folder: of -output, for the predictions; None: a new folder in SAVE. json: write JSON, too. excel: of -format.
    threshold: the lowest probability of a label; images without one are labelled "unknown". None: no labels.
    explain: write a heat map of each image.
    embeds: write features in place of labels (-embed).
    """

    path: str | None
    top_k: int | None
    folder: Path | None
    json: bool
    excel: bool = False
    threshold: float | None = None
    explain: bool = False
    embeds: bool = False


def runs_to_predict(names: list[str], prediction: Prediction | None) -> list[str]:
    """The runs that -resume names, in a prediction all runs of a sweep; raises UserError where only one can be."""
    runs = list[str]()
    for name in names:
        inside = newest_runs(Path(name)) if prediction else {}
        for run in (run for run, found in inside.items() if not found and not run.startswith(_NO_TRAINING)):
            raise UserError(f"-resume {name}: no run {run} has a checkpoint; continue the sweep, or name the others")
        runs += [str(found[0]) for found in inside.values() if found] or [name]
    if len(runs) > 1 and (not prediction or prediction.embeds or prediction.explain):
        raise UserError(f"-resume names {len(runs)} runs: only the labels of -predict are averaged; give one run")
    return runs


def read_prediction(arguments: argparse.Namespace) -> Prediction | None:
    """The prediction that the flags ask for; None without -predict and -embed. Raises UserError for a wrong flag."""
    command = "predict" if arguments.embed is None else "embed"
    value = getattr(arguments, command)
    for name in ("top_k", "json", "format", "threshold", "explain", "split", "save_logits"):
        commands = {"split": ("eval", "predict", "embed"), "save_logits": ("eval",)}.get(name, ("predict",))
        training = "; a training run has -opts EVAL.SAVE_LOGITS=true" if name == "save_logits" else ""
        if getattr(arguments, name) is not None and not any(getattr(arguments, one) for one in commands):
            raise UserError(f"-{name} is a flag of -{' and -'.join(commands)}; add the command, or remove it{training}")
    if value is None:
        return None
    for name in (name for name in {"predict", "eval", "profile"} - {command} if getattr(arguments, name)):
        raise UserError(f"-{command} and -{name} are two commands; remove one of them")
    path = None if value is True else value
    if path == "":
        raise UserError(f"-{command}: the path is empty; give an image, a folder or a list, or remove the '='")
    if path:
        for name in (name for name in ("split", "dataset", "data_path") if getattr(arguments, name) is not None):
            raise UserError(f"-{command} PATH reads the images of PATH; remove the path, or -{name}")
    is_wide, top_k = arguments.format == "wide", 5 if arguments.top_k is None else arguments.top_k
    if is_wide and arguments.top_k is not None:
        raise UserError("-format wide has a column for each class; remove -top_k")
    if top_k < 1:
        raise UserError(f"-top_k {top_k}: must be at least 1")
    threshold = arguments.threshold
    if threshold is not None and not 0 <= threshold <= 1:
        raise UserError(f"-threshold {threshold:g}: is a probability, so it must be from 0 to 1, such as 0.7")
    return Prediction(
        path=path,
        top_k=None if is_wide else top_k,
        folder=Path(arguments.output) if arguments.output else None,
        json=bool(arguments.json),
        excel=arguments.format == "excel",
        threshold=threshold,
        explain=bool(arguments.explain),
        embeds=command == "embed",
    )
