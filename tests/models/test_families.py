"""PaddleViT's families: its YAML files and weights give the logits that PaddlePaddle 3.3.1 computed, or one line."""

import json
import re
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from conftest import ROOT, config_for, line_of, model_for, slow
from pytest import mark
from torch.overrides import TorchFunctionMode

from configs.schema.families.registry import FAMILIES, MODEL_SECTIONS
from models.weights.choose import EVALUATE

FIXTURES = ROOT / "tests" / "fixtures" / "families"
FOLDERS = sorted(FIXTURES.iterdir())


def test_each_family_has_a_reference_and_a_line_of_the_page():
    """As CONTRIBUTING.md says."""
    references = [config_for(f"-cfg={folder / 'model.yaml'}").model for folder in FOLDERS]
    assert {model.type for model in references} == FAMILIES.keys()
    page = (ROOT / "docs" / "paddlevit.md").read_text().lower()
    assert all(f"| `{kind}` |" in page for kind in FAMILIES)


def error_of(recipe: Path, weights: Path) -> float:
    """In float64, so that the only difference is the rounding of Paddle's float32 logits on every CPU."""
    config = config_for(f"-cfg={recipe}", "-eval", f"-pretrained={weights}")
    model, _ = model_for(config, purpose=EVALUATE)
    reference = np.load(recipe.with_name("reference.npz"))
    with torch.no_grad():
        logits = model.double().eval()(torch.from_numpy(reference["images"]).double())
    return (logits - torch.from_numpy(reference["logits"])).abs().max().item()


@mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_weights_give_paddles_logits(folder):
    assert error_of(folder / "model.yaml", folder / "weights.pdparams") < 1e-5


def test_the_position_embedding_of_mae_is_fixed():
    model, _ = model_for(config_for(f"-cfg={FIXTURES / 'MAE' / 'model.yaml'}"))
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == ["pos_embed"]


FACTS = [json.loads(line) for line in (Path(__file__).parents[1] / "fixtures" / "paddlevit_files.jsonl").open()]
FILES = {name: list(facts) for name, facts in groupby(FACTS, lambda fact: fact["file"].partition("/")[0])}


def load(fact, tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text(json.dumps(fact["options"]))
    return config_for(f"-cfg={file}")


class NoInitialization(TorchFunctionMode):
    """Skips functions that change a tensor in place: on the meta device they cost the most time and have no effect."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        if name.endswith("_") and not name.endswith("__") and name != "requires_grad_" and args:
            return args[0]
        return function(*args, **(kwargs or {}))


@mark.parametrize("count", [1, slow(None)])  # of its files
@mark.parametrize("family", [name for name, facts in FILES.items() if any(fact["status"] == "same" for fact in facts)])
def test_files_build_paddles_model(family, count, tmp_path, monkeypatch):
    monkeypatch.setattr("models.build.check_image_size", lambda *_: None)  # a forward pass: in test_families.py
    facts = [fact for fact in FILES[family] if fact["status"] == "same"][:count]
    counts = {}
    for fact in facts:
        config = load(fact, tmp_path)
        with torch.device("meta"), NoInitialization():
            model, _ = model_for(config, "meta")
        counts[fact["file"]] = sum(parameter.numel() for parameter in model.parameters())
    assert counts == {fact["file"]: fact["parameters"] for fact in facts}


@mark.parametrize("family", FILES)
def test_files_load_or_are_refused_in_one_line(family, tmp_path):
    for fact in FILES[family]:
        if fact["status"] == "none" or fact["options"]["MODEL"]["TYPE"].lower() not in MODEL_SECTIONS:
            assert re.search("MODEL.TYPE|MODEL.MAE_PRETRAIN is True", line_of(load, fact, tmp_path))
        else:
            load(fact, tmp_path)
