"""docs/python.md: its commands and code run in order, and their results are those of the program."""

import re
import shlex

import pytest
import torch
from conftest import ROOT, samples_for
from PIL import Image
from torch import nn

import main_single_gpu
from configs.command_line import parse_command_line
from datasets.transforms.device import Normalize
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.files import attention_rollout, to_unit_range
from engine.parallel import Strategy
from engine.precision.policy import Precision
from scripts import export

PROGRAMS = {"scripts/export.py": export.main, "main_single_gpu.py": main_single_gpu.main}
PAGE = (ROOT / "docs/python.md").read_text().partition("## Kaggle and Colab")[0]
EXAMPLE = re.findall(r"^RUN=(.*)$", PAGE, re.M)[0]
BLOCKS = re.findall(r"```(shell|python)\n(.*?)```", PAGE, re.S)


@pytest.mark.slow
def test_the_page_runs_and_gives_the_results_of_the_program(digits_run, tmp_path, monkeypatch, cpu):
    pytest.importorskip("pandas")
    average = "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9"
    run = digits_run("DATA.IMAGE_SIZE=16", "DATA.CROP_PCT=0.9", "DATA.BATCH_SIZE=32", "TRAIN.BASE_LR=1e-2", *average)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    run.parent.rename(tmp_path / "output")
    run = (tmp_path / "output" / run.name).rename(tmp_path / EXAMPLE)
    (tmp_path / "out").symlink_to("output")
    names: dict = {}
    for kind, text in BLOCKS:
        if kind == "python":
            exec(text, names)
        elif not text.startswith("RUN="):
            _, program, *flags = shlex.split(text.replace("$RUN", EXAMPLE))
            assert not PROGRAMS[program](flags)
    assert {path.name for path in tmp_path.iterdir()} == {"docs", "out", "output"}  # all files are in the run
    classes, model, images = names["class_names"], names["model"], names["images"]
    for row, probabilities in zip(names["rows"], names["probabilities"], strict=True):
        found = {row[f"class_{rank}"]: float(row[f"probability_{rank}"]) for rank in range(1, 6)}
        assert found == pytest.approx({name: probabilities[classes.index(name)].item() for name in found}, abs=1e-3)

    config = parse_command_line([f"-cfg={run / 'config.yaml'}"]).config
    evaluator = Evaluator(Normalize(config.data), Precision(config.amp, cpu.device), Strategy(), cpu)
    rollout = attention_rollout(model, images, evaluator)
    torch.testing.assert_close(to_unit_range(names["heat"]), rollout, rtol=0, atol=1e-3)

    (samples,) = samples_for(config, cpu, "val")
    pictures = [Image.fromarray(samples.open(index, 1).pixels[0].numpy()) for index in range(len(samples))]
    with torch.inference_mode():
        logits = model(torch.stack([names["preprocess"](picture) for picture in pictures]))
    targets, result = torch.tensor(samples.targets), names["record"]["result"]
    assert nn.functional.cross_entropy(logits, targets).item() == pytest.approx(result["loss"], abs=1e-3)
    hits = (logits.argmax(1) == targets).sum().item()
    assert hits == pytest.approx(result["top1"] / 100 * len(targets), abs=1.01)  # a tie may round to another class
    best = names["evaluated"].loc[result["epoch"]]
    assert (best["val_top1"], best["val_loss"]) == (result["top1"], result["loss"])
    assert names["runs"].loc[run.name, "top1"] == result["top1"] and names["options"]["TRAIN"]["BASE_LR"] == 1e-2
    assert names["record"]["facts"]["Model"]["parameters"] == sum(weight.numel() for weight in model.parameters())
    recall = names["per_class"].set_index("class")["recall"]
    assert recall["3"] == pytest.approx(100 * (logits.argmax(1)[targets == 3] == 3).float().mean().item(), abs=3)
