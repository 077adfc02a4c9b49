"""scripts/average_checkpoints.py: uniform averages of a run's checkpoints, and greedy soups of runs."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import GREY, TINY_VIT, only_run, read_result, train

from configs.reading.command_line import parse_command_line
from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.trained_on import read_trained_on
from engine.commands.run import run
from scripts import average_checkpoints
from scripts.weights.averages import Ingredient, average, find_ingredients, greedy_soup
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.tables import read_rows

CPU = ProcessContext(0, 0, 1, 1, torch.device("cpu"))


def train_digits(folder: Path, *more: str) -> Path:
    options = [*TINY_VIT, *GREY, "TRAIN.BASE_LR=5e-3", "TRAIN.NUM_EPOCHS=3", "KEEP_CHECKPOINTS=5", *more]
    return train(["-dataset=digits", "-batch_size=64", f"-output={folder}", "-opts", *options], CPU)


@pytest.fixture(scope="module")
def averaged_run(tmp_path_factory) -> Path:
    return train_digits(tmp_path_factory.mktemp("one"), "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9")


def test_the_mean_is_computed_in_float64():
    states = [{"a": torch.tensor([1.0, 3e38]), "n": torch.tensor(number)} for number in (7, 8)]
    mean = average([*states, {"a": torch.tensor([4.0, 3e38]), "n": torch.tensor(9)}])
    assert mean["a"].tolist() == [2.0, torch.tensor(3e38).item()] and mean["a"].dtype == torch.float32
    assert mean["n"].item() == 7


def test_ingredients_have_the_top1_of_their_epoch(averaged_run):
    def fail(path):
        raise AssertionError(f"{path} is in metrics.csv")

    found = find_ingredients(averaged_run, fail)
    expected = {int(row["epoch"]): float(row["val_top1"]) for row in read_rows(averaged_run / "metrics.csv")}
    assert {one.epoch: one.score for one in found} == expected and len(found) == 3
    assert {one.path.name for one in found} == {"epoch-001.pth", "epoch-002.pth", "epoch-003.pth"}


def test_epochs_without_validation_are_evaluated(averaged_run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(averaged_run, copy)
    (copy / "metrics.csv").unlink()
    found = find_ingredients(copy, lambda path: float(path.stem[-1]))
    assert {one.epoch: (one.score, one.note) for one in found} == {n: (float(n), "evaluated") for n in (1, 2, 3)}


def test_the_uniform_average_is_evaluated_and_read_by_pretrained(averaged_run, tmp_path, capsys):
    output = tmp_path / "two.pth"
    assert average_checkpoints.main([str(averaged_run), "-best", "2", f"-output={output}"]) == 0
    printed = capsys.readouterr().out
    best = sorted(find_ingredients(averaged_run, float), key=lambda one: -one.score)[:2]
    assert all(f"{one.path.name}  {one.epoch}      {one.score:.2f}" in printed for one in best)
    states = [load_checkpoint(one.path)["ema"] for one in best]
    content = torch.load(output, weights_only=True)
    for name, tensor in content["model"].items():
        assert torch.allclose(tensor, (states[0][name] + states[1][name]) / 2, atol=1e-7)
    for entry in ("class_names", "preprocessing", "num_classes"):
        assert getattr(read_trained_on(str(output)), entry) == getattr(read_trained_on(str(best[0].path)), entry)
    argv = [f"-cfg={averaged_run / 'config.yaml'}", "-eval", f"-pretrained={output}", f"-output={tmp_path / 'eval'}"]
    run(parse_command_line(argv), CPU)
    assert f"top-1 {read_result(only_run(tmp_path / 'eval', 'eval'))['top1']:.2f}%" in printed


def test_an_average_that_helps_nothing_says_so(averaged_run, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(averaged_run, copy)
    rows = "".join(f"{epoch},{top1}\n" for epoch, top1 in ((1, 99), (2, 100), (3, 98)))
    (copy / "metrics.csv").write_text(f"epoch,val_top1\n{rows}")
    average_checkpoints.main([str(copy)])
    printed = capsys.readouterr().out
    assert "3 of 5: the run has no others (KEEP_CHECKPOINTS)" in printed
    assert f"the average is worse than {copy / 'epoch-002.pth'} (100.00%): use that" in printed


def test_a_soup_of_one_run_says_so(averaged_run, tmp_path, capsys):
    state = load_checkpoint(averaged_run / "best.pth")["ema"]
    other, output = tmp_path / "other.pth", tmp_path / "soup.pth"
    torch.save({"model": {name: -tensor for name, tensor in state.items()}}, other)
    average_checkpoints.main(["-greedy", str(averaged_run), str(other), f"-output={output}"])
    assert f"no average: it holds the weights of {averaged_run / 'best.pth'} alone" in capsys.readouterr().out
    written = torch.load(output, weights_only=True)["model"]
    assert all(torch.equal(tensor, state[name]) for name, tensor in written.items())


def test_greedy_soup_keeps_what_does_not_lower_top1():
    """Ingredient n is the number n; a mean below 3 is worse."""
    ingredients = [Ingredient(Path(str(number)), None, top1, "") for number, top1 in ((5, 30.0), (3, 20.0), (1, 10.0))]

    def read(path):
        return {"a": torch.tensor(float(str(path)))}

    soup, score, trials = greedy_soup(ingredients, read, lambda state: 30.0 if state["a"] >= 3.5 else 5.0)
    assert soup["a"].item() == 4.0 and score == 30.0  # of 5 and 3
    assert trials == [(30.0, True), (30.0, True), (5.0, False)]


def test_a_soup_is_not_worse_than_its_best_run(averaged_run, tmp_path, capsys):
    other = train_digits(tmp_path, "SEED=7")
    output = tmp_path / "soup.pth"
    average_checkpoints.main(["-greedy", str(averaged_run), str(other), f"-output={output}", "-num_workers=0"])
    printed = capsys.readouterr().out
    best = max(load_checkpoint(folder / "best.pth")["best"]["top1"] for folder in (averaged_run, other))
    top1 = float(printed.rpartition("top-1 ")[2].partition("%")[0])
    assert top1 >= round(best, 2) and ("added" in printed) and read_trained_on(str(output))


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "give either RUN with -best N, or -greedy"),
        (["RUN", "-greedy", "RUN"], "give either RUN with -best N, or -greedy"),
        (["RUN", "-best", "1"], "needs two checkpoints or more"),
        (["RUN", "-output=x.safetensors"], "must end with .pth"),
        (["RUN/best.pth"], "is a file; give the folder of a run"),
        (["RUN", "-output=gone/x.pth"], "its folder does not exist"),
        (["-greedy", "RUN"], "needs two runs or more"),
        (["-greedy", "RUN", "OTHER"], "names or shapes"),
        (["-greedy", "RUN", "CLASSES"], "was trained on other classes"),
    ],
)
def test_wrong_arguments_are_one_line(argv, message, averaged_run, tmp_path):
    state = torch.load(averaged_run / "best.pth", weights_only=True)
    torch.save({"model": {"a": torch.ones(3)}}, tmp_path / "other.pth")
    torch.save(state | {"class_names": list("abcdefghij")}, tmp_path / "classes.pth")
    names = {"RUN": averaged_run, "OTHER": tmp_path / "other.pth", "CLASSES": tmp_path / "classes.pth"}
    with pytest.raises(UserError, match=message) as caught:
        average_checkpoints.main([str(names.get(text, text)).replace("RUN/", f"{averaged_run}/") for text in argv])
    assert "\n" not in str(caught.value)
