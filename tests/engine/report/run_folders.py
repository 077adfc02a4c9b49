"""Folders of runs as a training or an evaluation writes them, small and without training; the reader of their pages."""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from PIL import Image

from configs.command_line import parse_command_line, to_yaml
from engine.report.page import write_report
from engine.run.facts import (
    FACTS,
    Devices,
    Environment,
    EvaluationData,
    Fact,
    Model,
    RunWarning,
    Start,
    TrainingData,
    to_json,
)
from engine.run.step_report import EPOCH_COLUMNS, STEP_COLUMNS

FACTS_OF_RUN = (
    Devices(2, "cuda:0", "O1: bfloat16 autocast over float32 weights"),
    Environment("python <b>", {"torch": "2.14.1", "commit": "0123-dirty"}, ["a", "a", "b"], {"NCCL_DEBUG": "INFO"}),
    TrainingData(1437, 360, 0, 3, 3),
    Model(455_000, 46_600_000, None),
    RunWarning("Warning: 12 of 1000 classes have one training image, such as 'newt'"),
    Start("output/digits", 0),
)


def make_run(folder: Path, epochs: int = 3, options: Sequence[str] = (), **status: Any) -> Path:
    """A training run of digits. Epoch e has val_top1 10 e, val_loss 1 / e, and two rows of steps."""
    _write_options(folder, ["-dataset=digits"], options)
    write_json(folder / "status.json", {"state": "finished", "pid": os.getpid(), "world_size": 1} | status)
    rows = [
        {
            "epoch": epoch, "step": 20 * epoch, "lr": 0.1 / epoch, "train_loss": 2 / epoch, "train_top1": 5 * epoch,
            "val_loss": 1 / epoch, "val_top1": 10 * epoch, "val_top5": 20 * epoch, "images_per_second": 1000 + epoch,
            "data_wait_share": 0.05 / epoch, "loss_scale": 1.0, "skipped_steps": 0, "peak_memory_bytes": 2e9,
            "train_seconds": 60 * epoch,
        }
        for epoch in range(1, epochs + 1)
    ]  # fmt: skip
    write_table(folder / "metrics.csv", EPOCH_COLUMNS, rows)
    steps = (
        {"step": step, "lr": 0.1 / step, "loss_scale": 1.0, "skipped_steps": 0, "grad_norm": 1 + 1 / step}
        for step in range(10, 20 * epochs + 1, 10)
    )
    write_table(folder / "steps.csv", STEP_COLUMNS, steps)
    write_facts(folder, FACTS_OF_RUN)
    write_json(folder / "classes.json", {"class_names": ["cat", "dog", "fox"], "preprocessing": {"crop_pct": 0.9}})
    return folder


def make_evaluation_run(folder: Path, names: Sequence[str] = ("cat", "dog", "fox")) -> Path:
    """The folder of `-eval`: without metrics.csv and status.json."""
    _write_options(folder, ["-dataset=digits", "-eval", "-pretrained=best.pth"], [])
    write_json(folder / "result.json", {"top1": 87.5, "top5": 99.0, "loss": 0.5, "images_per_second": 5000.0})
    write_facts(folder, [EvaluationData(8, 3, 3)])
    add_evaluation(folder, names)
    return folder


def add_evaluation(folder: Path, names: Sequence[str]) -> None:
    """The files of `engine/evaluation/files.py`. Of each class 3 of 4 images are right; one is the next class."""
    folder = folder / "evaluation"
    (folder / "pictures").mkdir(parents=True)
    number = len(names)
    summary = {"epoch": 3, "samples": 4 * number, "num_classes": number, "loss": 0.25, "top1": 75.0, "ece": 4.5}
    write_json(folder / "summary.json", summary | {"attention": None})
    write_table(
        folder / "per_class.csv",
        ["label", "class", "count", "predicted", "precision", "recall", "f1", "top1", "top5"],
        (
            {"label": label, "class": name, "count": 4, "predicted": 4, "precision": 75, "recall": 75 + label / 100,
             "f1": 75 - label / 100, "top1": 75 + label / 100, "top5": 100}
            for label, name in enumerate(names)
        ),
    )  # fmt: skip
    matrix = [[3 if j == i else int(j == (i + 1) % number) for j in range(number)] for i in range(number)]
    with open(folder / "confusion.csv", "w", newline="", encoding="utf-8") as file:
        rows = ([name, *counts] for name, counts in zip(names, matrix, strict=True))
        csv.writer(file).writerows([["true \\ predicted", *names], *rows])
    following = [*names[1:], names[0]]
    pairs = (
        {"true": true, "predicted": predicted, "count": 1, "share": 25}
        for true, predicted in zip(names, following, strict=True)
    )
    write_table(folder / "confused_pairs.csv", ["true", "predicted", "count", "share"], pairs)
    bins = (
        {"low": 20 * i, "high": 20 * i + 20, "count": i, "confidence": 20 * i + 10 if i else "",
         "accuracy": 15 * i if i else ""}
        for i in range(5)
    )  # fmt: skip
    write_table(folder / "calibration.csv", ["low", "high", "count", "confidence", "accuracy"], bins)
    write_table(
        folder / "coverage.csv",
        ["threshold", "coverage", "accuracy"],
        ({"threshold": 100 - share, "coverage": share, "accuracy": 100 - share / 4} for share in (20, 60, 100)),
    )
    mistakes = [
        {"kind": kind, "index": index, "path": f"{index}.png", "true": names[index % number],
         "predicted": following[index % number], "probability": 90, "true_probability": 5, "loss": 3.0}
        for kind, first in (("highest_loss", 0), ("most_confident", 2))
        for index in range(first, first + 4)
    ]  # fmt: skip
    write_table(folder / "mistakes.csv", list(mistakes[0]), mistakes)
    for index in range(6):
        noise = Image.effect_noise((32, 32), 90)
        noise.save(folder / "pictures" / f"{index}.jpg", quality=95)
        noise.save(folder / "pictures" / f"{index}-attention.jpg", quality=95)


def update_json(path: Path, **values: Any) -> None:
    write_json(path, json.loads(path.read_text()) | values)


def write_table(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def write_facts(folder: Path, facts: Iterable[Fact]) -> None:
    """Adds them to those that the folder has."""
    with open(folder / FACTS, "a") as file:
        file.writelines(f"{to_json(fact)}\n" for fact in facts)


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values))


def _write_options(folder: Path, flags: list[str], options: Sequence[str]) -> None:
    folder.mkdir(parents=True)
    command = parse_command_line([*flags, *(["-opts", *options] if options else [])])
    (folder / "config.yaml").write_text(to_yaml(command.config))


VOID = {"meta", "link", "img", "br", "input"}


class Reader(HTMLParser):
    """tags: (name, attributes) of all elements. text: all that is shown. Raises AssertionError if tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.tags, self.open, self.parts = html, [], [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script", "desc"):
            self.parts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.parts).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read_page(folder: Path) -> Reader:
    return Reader(write_report(folder).read_text(encoding="utf-8"))
