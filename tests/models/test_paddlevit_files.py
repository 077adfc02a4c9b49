"""All 238 YAML files of PaddleViT's image classification: each builds PaddlePaddle's model, or is refused in one line.

`tests/fixtures/paddlevit_files.jsonl` has a line for each file: whether timm has the same architecture (same), a like
one (near) or none; the options of the file; and the number of parameters that PaddlePaddle 3.3.1 counted.
"""

import json
import re
from itertools import groupby
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

from configs.reading.command_line import parse_command_line
from configs.schema.families.registry import MODEL_SECTIONS
from models import families
from models.build import build_model
from utils.errors import UserError

FACTS = [json.loads(line) for line in (Path(__file__).parents[1] / "fixtures" / "paddlevit_files.jsonl").open()]
FAMILIES = {name: list(facts) for name, facts in groupby(FACTS, lambda fact: fact["file"].partition("/")[0])}


def load(fact, tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text(json.dumps(fact["options"]))
    return parse_command_line([f"-cfg={file}"]).config


def is_known(fact):
    return fact["options"]["MODEL"]["TYPE"].lower() in MODEL_SECTIONS


class NoInitialization(TorchFunctionMode):
    """Skips functions that change a tensor in place: on the meta device they cost the most time and have no effect."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        if name.endswith("_") and not name.endswith("__") and name != "requires_grad_" and args:
            return args[0]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "family", [name for name, facts in FAMILIES.items() if any(f["status"] == "same" for f in facts)]
)
def test_files_build_paddles_model(family, tmp_path, monkeypatch):
    monkeypatch.setattr(families, "check_image_size", lambda *_: None)  # a forward pass: in test_families.py
    facts = [fact for fact in FAMILIES[family] if fact["status"] == "same"]
    counts = {}
    for fact in facts:
        config = load(fact, tmp_path)
        with torch.device("meta"), NoInitialization():
            model, _ = build_model(config.model, config.data, torch.device("meta"))
        counts[fact["file"]] = sum(parameter.numel() for parameter in model.parameters())
    assert counts == {fact["file"]: fact["parameters"] for fact in facts}


@pytest.mark.parametrize("family", FAMILIES)
def test_files_load_or_are_refused_in_one_line(family, tmp_path):
    for fact in FAMILIES[family]:
        if fact["status"] == "none" or not is_known(fact):
            with pytest.raises(UserError) as refusal:
                load(fact, tmp_path)
            assert "\n" not in str(refusal.value)
            assert re.search("MODEL.TYPE|MODEL.MAE_PRETRAIN is True", str(refusal.value))
        else:
            load(fact, tmp_path)
