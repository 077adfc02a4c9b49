"""scripts/average_checkpoints.py: greedy soups of the checkpoints of a run, and of several runs."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import CPU, GREY, TINY_VIT, only_run, read_result, train

from configs.command_line import parse_command_line
from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.weights_record import read_record
from engine.commands.run import run
from scripts import average_checkpoints
from scripts.weights.averages import add_to_mean
from utils.errors import UserError


def train_digits(folder: Path, *more: str) -> Path:
    options = [*TINY_VIT, *GREY, "TRAIN.BASE_LR=5e-3", "TRAIN.NUM_EPOCHS=3", "KEEP_CHECKPOINTS=5", *more]
    return train(["-dataset=digits", "-batch_size=64", f"-output={folder}", "-opts", *options], CPU)


@pytest.fixture(scope="module")
def averaged_run(tmp_path_factory) -> Path:
    return train_digits(tmp_path_factory.mktemp("one"), "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9")


def test_the_mean_is_computed_in_float64():
    mean = {"a": torch.tensor([1.0, 3e38]), "n": torch.tensor(7)}
    for count, number in enumerate((1.0, 4.0), start=1):
        mean = add_to_mean(mean, {"a": torch.tensor([number, 3e38]), "n": torch.tensor(8)}, count)
    assert mean["a"].float().tolist() == [2.0, torch.tensor(3e38).item()] and mean["n"].item() == 7


def test_weights_that_lower_the_top1_are_left_out(averaged_run, tmp_path, capsys):
    """The mean of equal weights is the weights, and keeps the top-1; weights with the other sign lower it."""
    state = load_checkpoint(averaged_run / "best.pth")["state_dict_ema"]
    for name, sign in (("same", 1), ("other", -1)):
        torch.save({"model": {key: sign * tensor for key, tensor in state.items()}}, tmp_path / f"{name}.pth")
    sources, output = [str(averaged_run), str(tmp_path / "other.pth")], tmp_path / "soup.pth"
    average_checkpoints.main([*sources, f"-output={output}"])
    assert f"no weights improve on {averaged_run / 'best.pth'}" in capsys.readouterr().out and not output.exists()
    average_checkpoints.main([*sources, str(tmp_path / "same.pth"), f"-output={output}"])
    printed = capsys.readouterr().out
    assert (printed.count("added"), printed.count("left out")) == (2, 1)
    written = torch.load(output, weights_only=True)["model"]
    assert all(torch.allclose(tensor, state[name]) for name, tensor in written.items())


def test_a_soup_is_evaluated_and_read_by_pretrained(averaged_run, tmp_path, capsys):
    """A copy of the best weights joins in any case."""
    runs = [averaged_run, train_digits(tmp_path, "SEED=7")]
    copies = [shutil.copy(folder / "best.pth", tmp_path / f"{folder.parent.name}.pth") for folder in runs]
    output = tmp_path / "soup.pth"
    average_checkpoints.main([*map(str, runs), *map(str, copies), f"-output={output}"])
    top1 = float(capsys.readouterr().out.rpartition("top-1 ")[2].partition("%")[0])
    best = max(load_checkpoint(folder / "best.pth")["best"]["top1"] for folder in runs)
    assert top1 >= round(best, 2)
    known, expected = read_record(str(output)), read_record(str(averaged_run / "best.pth"))
    assert (known.class_names, known.preprocessing) == (expected.class_names, expected.preprocessing)
    argv = ["-eval", f"-cfg={averaged_run / 'config.yaml'}", f"-pretrained={output}", f"-output={tmp_path / 'eval'}"]
    run(parse_command_line(argv), CPU)
    assert round(read_result(only_run(tmp_path / "eval", "eval"))["top1"], 2) == top1


def test_each_checkpoint_of_a_run_is_tried_once(averaged_run, capsys):
    """best.pth and last.pth are copies of others."""
    average_checkpoints.main([str(averaged_run)])
    assert sum("added" in line or "left out" in line for line in capsys.readouterr().out.splitlines()) == 3


def test_runs_of_other_folds_are_refused(tmp_path):
    """Each was trained on the images that the other one holds out."""
    data = ["-dataset=digits", "-batch_size=64", "-num_workers=0"]
    options = ["-opts", *TINY_VIT, *GREY, "TRAIN.NUM_EPOCHS=1"]
    first, second, third = (
        train([*data, f"-output={tmp_path / 'S'}", f"-name=FOLD={fold},SEED={seed}", *options, *more], CPU)
        for fold, seed in ((0, 0), (0, 1), (1, 0))
        for more in [["DATA.FOLDS=3", f"DATA.FOLD={fold}", f"SEED={seed}"]]
    )
    refused = rf"^\S*{third.name}/best.pth: holds out other images than \S*{first.name}/best.pth[^\n]* -resume [^\n]*$"
    with pytest.raises(UserError, match=refused):
        average_checkpoints.main([str(first), str(third)])
    average_checkpoints.main([str(first), str(second)])


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "give the folder of a run"),
        (["RUN", "-output=x.safetensors"], "must end with .pth"),
        (["RUN", "-output=gone/x.pth"], "its folder does not exist"),
        (["RUN", "OTHER"], "other.pth: "),
        (["RUN", "CLASSES"], "was trained on other classes"),
    ],
)
def test_wrong_arguments_are_one_line(argv, message, averaged_run, tmp_path):
    state = torch.load(averaged_run / "best.pth", weights_only=True)
    torch.save({"model": {"norm.bias": torch.ones(3)}}, tmp_path / "other.pth")
    torch.save(state | {"class_names": list("abcdefghij")}, tmp_path / "classes.pth")
    names = {"RUN": averaged_run, "OTHER": tmp_path / "other.pth", "CLASSES": tmp_path / "classes.pth"}
    with pytest.raises(UserError, match=message) as caught:
        average_checkpoints.main([str(names.get(text, text)).replace("RUN/", f"{averaged_run}/") for text in argv])
    assert "\n" not in str(caught.value)
