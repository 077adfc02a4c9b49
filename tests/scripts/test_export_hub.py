"""export.py -format hf: the folder for the Hub is read by timm, transformers and this program, and has a model card."""

import copy
import json
import os
import re
import subprocess
import sys

import numpy as np
import torch
from conftest import (
    CPU,
    TINY_VIT,
    cli,
    config_for,
    eval_loader_for,
    evaluate,
    export_as,
    model_for,
    read_result,
)
from huggingface_hub import ModelCard
from pytest import approx, fixture, mark
from scipy.special import expit
from sklearn.metrics import roc_curve
from timm import create_model
from torch import Tensor, nn
from torch.testing import assert_close

from configs.command_line import parse_command_line
from configs.schema.operating_point import UNDECIDED
from datasets.transforms.device import Normalize
from engine.checkpoint.weights_record import read_record
from engine.evaluation.ranking import log_odds
from models.weights.choose import EVALUATE
from scripts import export
from scripts.exporting.run import export as write_export
from scripts.weights.trained_model import TrainedModel, open_trained
from utils.files import read_json
from utils.system import is_installed

GREY = cli("DATA.IMAGE_CHANNELS=1 DATA.IMAGENET_MEAN=[0.4] DATA.IMAGENET_STD=[0.2]")
STEM = cli("MODEL.STEM=resnet10t MODEL.PATCH_SIZE=16 DATA.IMAGE_SIZE=32 MODEL.GLOBAL_POOL=avg MODEL.INIT_VALUES=0.1")
# In another process, which does not know this program: "grey" has timm's model, "stem" code of its own.
READ = """
import os
import sys
import timm
import torch
from PIL import Image
for folder in ("grey", "stem"):
    os.chdir(folder)
    images = torch.load("../images.pt")[:, : 1 if folder == "grey" else 3]
    if folder == "stem":
        import vit_stem
    logits = [timm.create_model("local-dir:.", pretrained=True).eval()(images)]
    if "transformers" in sys.argv:
        from transformers import AutoImageProcessor, AutoModelForImageClassification
        kwargs = {"trust_remote_code": True} if folder == "stem" else {}
        model = AutoModelForImageClassification.from_pretrained(".", **kwargs).eval()
        logits.append(model(pixel_values=images).logits)
        assert model.config.id2label == dict(enumerate("abcdefgh89"))  # of 8 classes
        processor = AutoImageProcessor.from_pretrained(".", **kwargs)
        image = Image.new("L" if folder == "grey" else "RGB", (50, 40), 128)
        transform = timm.data.create_transform(**timm.data.resolve_data_config(model.config.pretrained_cfg))
        assert torch.equal(processor(image)["pixel_values"], transform(image)[None])
    torch.save(logits, "logits.pt")
    os.chdir("..")
"""


@mark.slow
def test_timm_transformers_and_this_program_have_equal_logits(tmp_path):
    torch.save(torch.randn(3, 3, 32, 32), tmp_path / "images.pt")
    cases = {"grey": [*TINY_VIT, *GREY, "DATA.IMAGE_SIZE=32"], "stem": [*TINY_VIT, *STEM]}
    models = {}
    for name, options in cases.items():
        config = config_for("-dataset=digits", "-opts", *options)
        models[name] = model_for(config)[0].eval()
        nn.init.normal_(models[name].head.weight)
        weights = config.with_model(pretrained=str(tmp_path / "best.pth"))
        exported = copy.deepcopy(models[name])
        write_export(exported, TrainedModel(weights, list("abcdefgh"), []), None, "hf", tmp_path / name)
    argv = ["transformers"] * is_installed("transformers")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": ""}
    subprocess.run([sys.executable, "-c", READ, *argv], cwd=tmp_path, env=environment, check=True)
    for name, model in models.items():
        images = torch.load(tmp_path / "images.pt")[:, : 1 if name == "grey" else 3]
        logits = torch.load(tmp_path / name / "logits.pt")
        assert len(logits) == 1 + len(argv)
        logits += [create_model(f"local-dir:{tmp_path / name}", pretrained=True).eval()(images)]  # as -model=local-dir:
        own = config_for("-dataset=digits", f"-pretrained={tmp_path / name}", "-opts", *cases[name])
        logits += [model_for(own, purpose=EVALUATE)[0].eval()(images)]
        for other in logits:
            assert_close(other.detach(), model(images).detach(), atol=1e-5, rtol=0)


GOAL = "EVAL.OPERATING_POINT={class: 3, specificity: 0.9}"
AVERAGED = (  # as in test_decision.py
    "DATA.FRACTION=0.5", "DATA.BATCH_SIZE=16", "TRAIN.BASE_LR=1e-2", GOAL, "TRAIN.MODEL_EMA=true",
    "TRAIN.MODEL_EMA_DECAY=0.9"
)  # fmt: skip


@fixture
def card(digits_run) -> ModelCard:
    """The card of a run whose test had 90 hits in 100 images."""
    folder = digits_run(*AVERAGED)
    content = read_json(folder / "run.json")
    content["result"]["test"] = {"top1": 90.0, "top5": 100.0, "loss": 0.5, "samples": 100}
    (folder / "run.json").write_text(json.dumps(content))
    assert export.main([str(folder), "-format", "hf", "-no_check"]) == 0
    return ModelCard.load(folder / "best-hf/README.md")


def test_the_card_has_the_figures_of_the_run_and_their_error(card, tmp_path):
    assert (card.data.library_name, card.data.pipeline_tag, card.data.license) == (
        "timm", "image-classification", "other"
    )  # fmt: skip
    folder = next((tmp_path / "out").iterdir())
    low, high = read_json(folder / "evaluation/summary.json")["interval"]
    score = f"top-1 {read_result(folder)['top1']:.2f}%, 95% interval {low:.2f} to {high:.2f}%"
    assert f"**Validation:** {score}" in card.text
    assert "**Test:** top-1 90.00%" in card.text
    point = read_json(folder / "evaluation/summary.json")["operating_point"]
    assert f"**Operating point:** `3` from a probability of {expit(point['threshold']):.6g} on" in card.text
    (of_validation,) = re.findall(r".*\*\*Sensitivity on.*", card.text)  # the test has none
    for name in ("sensitivity", "specificity"):
        low, high = point[f"{name}_interval"]
        assert f"{point[name]:.2f}%;" in of_validation
        assert f"95% interval {low:.2f} to {high:.2f}%" in of_validation


@mark.parametrize("options, file", [(("TRAIN.MAX_STEPS=2",), ""), (AVERAGED, "last.pth")])
def test_weights_that_the_run_has_not_evaluated_have_no_figures(digits_run, options, file):
    folder = digits_run(*options)
    export.main([str(folder / file), "-format", "hf", "-no_check"])
    (card,) = folder.glob("*-hf/README.md")
    assert "**Validation:**" not in card.read_text()
    assert "**Sensitivity" not in card.read_text()
    assert ("from a probability of" in card.read_text()) == (GOAL in options)


def figures_of(logits: Tensor, labels: np.ndarray) -> tuple[float, float]:
    """Top-1, and the highest sensitivity of class 3 at a specificity of 0.9."""
    scores = log_odds(logits).numpy()[:, 3]
    false, true, _ = roc_curve(labels == 3, scores, drop_intermediate=False)
    return 100 * (logits.argmax(1).numpy() == labels).mean(), 100 * true[false <= 0.1 + 1e-9].max()


def test_an_export_has_the_figures_of_the_model_that_it_is(trained_digits, tmp_path, capsys):
    """Not of the means over mirror images: card, description and point, measured again or left out."""
    run = trained_digits(GOAL, *cli("DATA.FRACTION=0.25 DATA.BATCH_SIZE=64 TRAIN.BASE_LR=1e-2 EVAL.TTA=flip"))
    export_as("hf", run, tmp_path / "hf")
    assert "360 validation images: figures and thresholds of the run are not of this export" in capsys.readouterr().out
    trained = open_trained(parse_command_line(["-eval", f"-pretrained={run / 'best.pth'}"]), CPU)
    samples = trained.samples
    images = torch.cat([batch.images for batch in eval_loader_for(trained.config, samples, CPU)])[: len(samples)]
    model = create_model(f"local-dir:{tmp_path / 'hf'}", pretrained=True).eval()
    with torch.no_grad():
        logits = model(Normalize(trained.config.data)(images))
    decision = read_record(str(tmp_path / "hf/model.safetensors")).decision
    point = decision.point
    logits = logits / decision.temperature
    assert decision.temperature != read_record(str(run / "best.pth")).decision.temperature
    top1, sensitivity = figures_of(logits, samples.targets)
    card = (tmp_path / "hf/README.md").read_text()
    assert f"**Validation:** top-1 {top1:.2f}%, 95% interval" in card
    chosen = log_odds(logits).numpy()[:, 3] >= point.threshold
    assert 100 * chosen[samples.targets == 3].mean() == approx(sensitivity)
    assert f"**Sensitivity on validation images:** {sensitivity:.2f}%" in card
    assert point.threshold != read_record(str(run / "best.pth")).decision.point.threshold
    export_as("hf", run, tmp_path / "hf", "-no_check")
    assert read_record(str(tmp_path / "hf/model.safetensors")).decision == UNDECIDED
    assert "**Figures:** none" in (tmp_path / "hf/README.md").read_text()


OTHERS = cli("MODEL.WEIGHTS_ENTRY=model DATA.IMAGENET_MEAN=[0.1] DATA.IMAGENET_MEAN=[0.5]")


@mark.parametrize("option", OTHERS)
def test_other_weights_and_pixels_than_those_of_the_run_have_other_figures(trained_digits, option, tmp_path):
    run = trained_digits(*AVERAGED)
    export_as("hf", run, tmp_path / "hf", "-opts", option)
    folder = evaluate(tmp_path / "eval", f"-pretrained={run / 'best.pth'}", "-opts", option)
    card = (tmp_path / "hf/README.md").read_text()
    assert f"**Validation:** top-1 {read_result(folder)['top1']:.2f}%" in card
    assert (option in card) == (option != OTHERS[-1])  # which the run has
