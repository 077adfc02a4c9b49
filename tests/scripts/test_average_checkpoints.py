"""scripts/average_checkpoints.py: the average of the checkpoints of a run, and of several runs."""

import shutil
from pathlib import Path

import numpy as np
import torch
from conftest import SMALL_BATCHES, evaluate, read_result, refused
from pytest import fixture
from torch.testing import assert_close

from engine.checkpoint.files import load_checkpoint
from engine.checkpoint.weights_record import read_record
from engine.evaluation.calibration import choose_temperature
from scripts import average_checkpoints
from scripts.average_checkpoints import add_to_mean
from utils.files import read_json


@fixture
def averaged_run(digits_run) -> Path:
    return digits_run("TRAIN.BASE_LR=1e-2", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9")


def test_the_mean_is_computed_in_float64_in_its_own_memory():
    tensor = torch.tensor([1.0, 3e38])
    mean = {"a": tensor, "n": torch.tensor(7)}
    for count, number in enumerate((1.0, 4.0), start=1):
        add_to_mean(mean, {"a": torch.tensor([number, 3e38]), "n": torch.tensor(8)}, count)
    assert mean["a"] is tensor
    assert tensor.tolist() == [2.0, torch.tensor(3e38).item()]
    assert mean["n"].item() == 7


def test_a_tensor_with_several_names_is_averaged_once():
    shared = torch.tensor([1.0])
    mean = {"a": shared, "b": shared.view(1), "c": torch.tensor([1.0])}
    add_to_mean(mean, {name: torch.tensor([4.0]) for name in mean}, 1)
    assert [tensor.item() for tensor in mean.values()] == [2.5, 2.5, 2.5]


def test_an_average_is_evaluated_and_read_by_pretrained(averaged_run, trained_digits, tmp_path, capsys):
    """It is the mean of both best weights; a file that is named twice counts once."""
    runs = [averaged_run, trained_digits()]
    output = tmp_path / "average.pth"
    average_checkpoints.main([*map(str, runs), str(runs[0]), f"-output={output}"])
    top1 = float(capsys.readouterr().out.rpartition("top-1 ")[2].partition("%")[0])
    first = load_checkpoint(runs[0] / "best.pth")["state_dict_ema"]
    second = load_checkpoint(runs[1] / "best.pth")["model"]
    for name, tensor in torch.load(output)["model"].items():
        assert_close(tensor, (first[name] + second[name]) / 2)
    known = read_record(str(output))
    expected = read_record(str(averaged_run / "best.pth"))
    assert (known.class_names, known.preprocessing) == (expected.class_names, expected.preprocessing)
    folder = evaluate(tmp_path / "eval", f"-cfg={averaged_run / 'config.yaml'}", f"-pretrained={output}")
    assert round(read_result(folder)["top1"], 2) == top1


def test_an_average_has_one_model_in_memory(averaged_run, monkeypatch):
    """It becomes the mean; the other tensors stay in their files, of which one is open."""
    added = []

    def add(mean, state, count):
        added.append([tensor.untyped_storage().resizable() for tensor in state.values()])
        add_to_mean(mean, state, count)
        added.append([tensor.data_ptr() for tensor in mean.values()])

    def measure(self, built):
        added.append([tensor.data_ptr() for tensor in built.fp32.state_dict().values()])
        return self

    monkeypatch.setattr("scripts.average_checkpoints.add_to_mean", add)
    monkeypatch.setattr("scripts.weights.trained_model.TrainedModel.measure", measure)
    average_checkpoints.main([str(averaged_run)])
    of_file, mean, measured = added
    assert not any(of_file)
    assert mean == measured


def test_each_checkpoint_of_a_run_counts_once(averaged_run, capsys):
    """best.pth and last.pth are copies of others; all files are named, and the average that is replaced."""
    files = {*averaged_run.glob("*.pth")}
    average_checkpoints.main([str(averaged_run)])
    lines = capsys.readouterr().out.splitlines()
    assert all(any(str(file) in line for line in lines) for file in files)
    average_checkpoints.main([str(averaged_run)])
    assert capsys.readouterr().out.count("average.pth") == "".join(lines).count("average.pth") + 1
    expected = [load_checkpoint(averaged_run / f"epoch-{epoch:03d}.pth")["state_dict_ema"] for epoch in (1, 2)]
    for name, tensor in torch.load(averaged_run / "average.pth")["model"].items():
        assert_close(tensor, sum(state[name] for state in expected) / 2)


def test_runs_of_other_folds_are_refused(averaged_run, tmp_path):
    """Each was trained on the images that the other one holds out."""
    files = []
    for name, fold in (("first", 0), ("second", 0), ("third", 1)):
        files.append(shutil.copytree(averaged_run, tmp_path / name) / "best.pth")
        state = torch.load(files[-1])
        options = state["options"].replace("FOLDS: null", "FOLDS: 3").replace("FOLD: null", f"FOLD: {fold}")
        torch.save(state | {"options": options}, files[-1])
        files[-1].with_name("config.yaml").write_text(options)
    first, second, third = map(str, files)
    with refused(rf"^{third}: was trained with other held-out images than {first}[^\n]*$"):
        average_checkpoints.main([first, third])
    average_checkpoints.main([first, second])


def test_an_average_says_how_its_point_was_chosen(digits_run, tmp_path, capsys):
    """Its figure is of means over mirror images, as those of its run; the file says so. So is its temperature."""
    goal = "EVAL.OPERATING_POINT={class: 3, specificity: 0.9}"
    run = digits_run(SMALL_BATCHES, goal, "TRAIN.BASE_LR=1e-2", "EVAL.TTA=flip")
    average_checkpoints.main([str(run)])
    top1 = capsys.readouterr().out.rpartition("top-1 ")[2].partition(",")[0]
    decision = read_record(str(run / "average.pth")).decision
    assert decision.tta == "flip"
    folder = evaluate(tmp_path / "eval", f"-pretrained={run / 'average.pth'}")
    summary = read_json(folder / "evaluation/summary.json")
    assert f"{summary['top1']:.2f}%" == top1
    assert summary["operating_point"]["specificity"] >= 90
    assert summary["operating_point"]["threshold"] == decision.point.threshold
    with np.load(folder / "evaluation/scores.npz") as saved:
        own = choose_temperature(saved["scores"], saved["labels"])
    assert summary["calibrated"]["temperature"] == decision.temperature == own
    assert decision.temperature != read_record(str(run / "best.pth")).decision.temperature
    with refused(r"^DATA\.ONLY_CLASSES: .*remove it$"):  # the images of two classes would choose the threshold
        average_checkpoints.main([str(run), "-opts", "DATA.ONLY_CLASSES=[3, 8]"])
