"""A shortage of memory is one line that names the options that reduce it; the keys of the record of a run.

The keys of the two files are constant, as docs/operation.md describes them, and their paths are for any folder.
"""

import re
import shlex
import shutil
from pathlib import Path
from unittest.mock import Mock

import torch
from conftest import ROOT, TINY_VIT, cli, evaluate, noise_folder, read_result, refused, run_here, train
from pytest import approx, fixture, mark
from timm.models import VisionTransformer

from configs.command_line import parse_command_line
from configs.schema.data import DATA_SETS
from engine.commands.run import run
from engine.run.record import RESULT_KEYS, STATUS_KEYS, RunRecord
from utils.files import read_json
from utils.metric_table import METRICS
from utils.notes import STATUS


@mark.usefixtures("nondeterministic_after_test")
def test_op_without_a_deterministic_algorithm(digits_argv, monkeypatch):
    def put(*args, **kwargs):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))

    monkeypatch.setattr("engine.training.trainer.train_steps", put)
    with refused(r"^DETERMINISTIC: put_ has no deterministic algorithm here; set it to false$"):
        run_here(*digits_argv, "DETERMINISTIC=true")


def exhaust(device: torch.device):
    """Asks for a petabyte of the device's memory."""
    torch.empty(2**50, dtype=torch.uint8, device=device)


@mark.parametrize("place", ["forward", "backward", "optimizer", "evaluation"])
def test_real_shortage_of_memory(digits_argv, any_device, monkeypatch, place):
    device = any_device.device
    forward = VisionTransformer.forward

    def exhausting_forward(model, images):
        logits = forward(model, images)
        if place == "forward":
            exhaust(device)
        if place == "backward" and logits.requires_grad:
            logits.register_hook(lambda gradient: exhaust(device))
        return logits

    monkeypatch.setattr(VisionTransformer, "forward", exhausting_forward)
    if place == "optimizer":
        monkeypatch.setattr(torch.optim.AdamW, "step", lambda *args, **options: exhaust(device))
    if place == "evaluation":
        monkeypatch.setattr("engine.evaluation.evaluate._rank_classes", lambda *args, **options: exhaust(device))
    memory = "GPU" if device.type == "cuda" else "host"
    flag, size = ("-batch_size_eval", 180) if place == "evaluation" else ("-batch_size", 32)
    with refused(rf"^out of {memory} memory with vit at {flag} {size}, .*: lower {flag} \("):
        run(parse_command_line(digits_argv), any_device)


def test_out_of_gpu_memory_while_the_state_is_loaded(digits_argv, monkeypatch):
    """The caller of the function that fails takes any other RuntimeError for a checkpoint of another model."""
    run_here(*digits_argv, "TRAIN.MAX_STEPS=1")
    load = "engine.parallel.Strategy.load_optimizer_state"
    shortage = torch.AcceleratorError("CUDA error: out of memory")
    other = RuntimeError("sizes differ")
    for error, line in (
        (shortage, "out of GPU memory .*: lower -batch_size"),
        (other, "-resume: does not fit the checkpoint: sizes differ"),
    ):
        monkeypatch.setattr(load, Mock(side_effect=error))
        with refused(f"^{line}"):
            run_here("-resume=auto", *digits_argv)


def documented(title: str) -> list[str]:
    """The keys in the table of a section."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", (ROOT / "docs/operation.md").read_text(), re.M | re.S)
    return [key for cell in re.findall(r"^\| (`.*?`) \|", section, re.M) for key in re.findall(r"`(\w+)`", cell)]


def test_every_key_is_documented():
    keys = {"run.json": RunRecord().values, "result": RESULT_KEYS, "status.json": STATUS_KEYS}
    for title, names in keys.items():
        assert sorted(documented(title)) == sorted(names), f"docs/operation.md, section {title}"


def test_every_data_set_is_documented():
    page = (ROOT / "docs/data.md").read_text()
    names = [name.removeprefix("torchvision/") for name in DATA_SETS]
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == [], "docs/data.md"


@fixture
def folders(tmp_path, monkeypatch):
    """The current folder, with a data set, and another one."""
    data = noise_folder(tmp_path / "here/data", train=16, val=16, shape=(8, 8, 3))
    shutil.copytree(data / "val", data / "test")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_a_run_is_resumed_and_evaluated_from_another_folder(folders, monkeypatch):
    flags = cli("-dataset=folder -data_path=data -batch_size=8 -num_workers=0 -output=out")
    options = [*TINY_VIT, "MODEL.NUM_CLASSES=null", "TRAIN.WARMUP_EPOCHS=0", "TRAIN.MAX_STEPS=1"]
    folder = train([*flags, "-opts", *options]).absolute()
    stopped = read_json(folder / STATUS)
    result = read_result(folder)
    assert tuple(stopped) == STATUS_KEYS
    assert tuple(result) == RESULT_KEYS
    assert (stopped["state"], stopped["exit_status"], stopped["step"]) == ("stopped", 0, 1)
    assert result["checkpoint"] == stopped["checkpoint"] == str(folder / "last.pth")

    monkeypatch.chdir(folders / "elsewhere")
    python, script, *resume = shlex.split(stopped["resume"])
    assert Path(python).is_file()
    assert script == str(ROOT / "main_single_gpu.py")
    assert train(resume) == folder
    finished = read_json(folder / STATUS)
    result = read_result(folder)
    assert (finished["state"], finished["resume"]) == ("finished", None)
    assert (result["split"], result["samples"], result["finished"]) == ("val", 16, True)
    counts = ["samples", "unreadable", "unreadable_images", "error"]
    assert [*result["test"]] == [*METRICS, *counts, "f1"]
    assert result["test"]["samples"] == 16

    train([f"-resume={finished['checkpoint']}"])  # nothing is left to train
    measured = dict.fromkeys(("peak_memory_bytes", "total_seconds"))
    assert read_result(folder) | measured == result | measured

    evaluated = read_result(evaluate(Path("eval"), f"-pretrained={result['checkpoint']}"))
    assert tuple(evaluated) == RESULT_KEYS
    same = ("top1", "samples", "split", "checkpoint")
    assert [evaluated[key] for key in same] == [result[key] for key in same]
    assert evaluated["loss"] == approx(result["loss"], rel=1e-6)  # by other kernels
