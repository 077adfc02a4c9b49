"""Folders of runs as a training or an evaluation writes them, small and without training; the reader of their pages."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from conftest import cli
from PIL import Image

from configs.command_line import parse_command_line, to_yaml
from configs.yaml_io import parse_value
from engine.report.page import write_report
from engine.run.facts import Devices, Environment, EvaluationData, Fact, Model, Start, TrainingData
from utils.files import read_json

FACTS_OF_RUN = (
    Devices(2, "cuda:0", "O1: bfloat16 autocast over float32 weights"),
    Environment("python <b>", {"torch": "2.14.1", "commit": "0123-dirty"}, ["a", "a", "b"]),
    TrainingData(1437, 360, 0, 3, 3),
    Model(455_000, 46_600_000, None),
    Start("output/digits", 0, "python main_single_gpu.py"),
)
WARNING = "12 of 1000 classes have one training image, such as 'newt'"


REPORT = "kind epoch step lr loss_scale skipped_steps grad_norm"
EVALUATION = "kind epoch step val_loss val_top1 val_top5"
EPOCH = """kind epoch step lr train_loss train_top1 images_per_second data_wait_share loss_scale skipped_steps
peak_memory_bytes train_seconds"""


def row_of(columns: str, *values: Any) -> dict[str, Any]:
    return dict(zip(columns.split(), values, strict=True))


def make_run(folder: Path, epochs: int = 3, options: Sequence[str] = (), **values: Any) -> Path:
    """A training run of digits. Epoch e has val_top1 10 e, val_loss 1 / e, and two reports. values: of `run.json`."""
    _write_options(folder, ["-dataset=digits"], options)
    about = {"class_names": ["cat", "dog", "fox"], "preprocessing": {"crop_pct": 0.9}, "warnings": {WARNING: 1}}
    state = {"state": "finished", "pid": os.getpid(), "world_size": 1, "starts": 1}
    write_json(folder / "run.json", about | state | values)
    rows = []
    for epoch in range(1, epochs + 1):
        last = 20 * epoch
        for step in (last - 10, last):
            rows.append(row_of(REPORT, "report", epoch, step, 0.1 / step, 1.0, 0, 1 + 1 / step))
        rows.append(row_of(EVALUATION, "evaluation", epoch, last, 1 / epoch, 10 * epoch, 20 * epoch))
        figures = 0.1 / epoch, 2 / epoch, 5 * epoch, 1000 + epoch, 0.05 / epoch, 1.0, 0, 2e9, 60 * epoch
        rows.append(row_of(EPOCH, "epoch", epoch, last, *figures))
    write_rows(folder, rows)
    write_facts(folder, FACTS_OF_RUN)
    return folder


def write_rows(folder: Path, rows: Iterable[dict[str, Any]]):
    """Replaces the rows; by default they are of epochs."""
    lines = ({"kind": "epoch", "step": 20 * row["epoch"]} | row for row in rows)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def make_evaluation_run(folder: Path, names: Sequence[str] = ("cat", "dog", "fox")) -> Path:
    """The folder of `-eval`."""
    _write_options(folder, cli("-dataset=digits -eval -pretrained=best.pth"), [])
    result = {"top1": 87.5, "top5": 99.0, "loss": 0.5, "images_per_second": 5000.0}
    write_json(folder / "run.json", {"state": "finished", "result": result})
    write_facts(folder, [EvaluationData(8, 3, 3)])
    add_evaluation(folder, names)
    return folder


MISTAKES = "index path true predicted probability true_probability loss"
CALIBRATION = """
- {low: 0, high: 20, count: 0, confidence: '', accuracy: ''}
- {low: 20, high: 40, count: 1, confidence: 30, accuracy: 15}
- {low: 40, high: 60, count: 2, confidence: 50, accuracy: 30}
- {low: 60, high: 80, count: 3, confidence: 70, accuracy: 45}
- {low: 80, high: 100, count: 4, confidence: 90, accuracy: 60}
"""
COVERAGE = """
- {threshold: 80, coverage: 20, accuracy: 95.0}
- {threshold: 40, coverage: 60, accuracy: 85.0}
- {threshold: 0, coverage: 100, accuracy: 75.0}
"""


def add_evaluation(folder: Path, names: Sequence[str]):
    """The files of `engine/evaluation/files.py`. Of each class 3 of 4 images are right; one is the next class."""
    folder = folder / "evaluation"
    (folder / "pictures").mkdir(parents=True)
    number = len(names)
    following = [*names[1:], names[0]]
    summary = {"epoch": 3, "samples": 4 * number, "num_classes": number, "loss": 0.25, "top1": 75.0, "ece": 4.5}
    write_json(folder / "summary.json", summary | {"attention": None})
    right = np.eye(number, dtype=int)
    matrix = 3 * right + np.roll(right, 1, axis=1)
    tables = {
        "per_class": [
            row_of("label class count predicted recall f1", label, name, 4, 4, 75 + label / 100, 75 - label / 100)
            for label, name in enumerate(names)
        ],
        "confused_pairs": [
            row_of("true predicted count share", *pair, 1, 25) for pair in zip(names, following, strict=True)
        ],
        "calibration": parse_value(CALIBRATION),
        "coverage": parse_value(COVERAGE),
        "mistakes": [
            row_of(MISTAKES, index, f"{index}.png", names[index % number], following[index % number], 90, 5, 3.0)
            for index in range(2, 6)
        ]
    }  # fmt: skip
    if number <= 50:
        tables["confusion"] = [list(names), matrix.tolist()]
    write_json(folder / "tables.json", tables)
    for index in range(6):
        noise = Image.effect_noise((32, 32), 90)
        noise.save(folder / "pictures" / f"{index}.jpg", quality=95)
        noise.save(folder / "pictures" / f"{index}-attention.jpg", quality=95)


def update_json(path: Path, **values: Any):
    write_json(path, json.loads(path.read_text()) | values)


def write_facts(folder: Path, facts: Iterable[Fact]):
    """Adds them to those that the folder has."""
    known = read_json(folder / "run.json").get("facts", {})
    update_json(folder / "run.json", facts=known | {type(fact).__name__: asdict(fact) for fact in facts})


def write_json(path: Path, values: Any):
    path.write_text(json.dumps(values))


def _write_options(folder: Path, flags: list[str], options: Sequence[str]):
    folder.mkdir(parents=True)
    command = parse_command_line([*flags, "-opts", "SEED=0", *options])
    (folder / "config.yaml").write_text(to_yaml(command.config))


VOID = {"meta", "link", "img", "br", "input"}


class Reader(HTMLParser):
    """tags: (name, attributes) of all elements. text: all that is shown. Raises AssertionError if tags do not match."""

    def __init__(self, html: str):
        super().__init__()
        self.html = html
        self.tags = []
        self.open = []
        self.parts = []
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
