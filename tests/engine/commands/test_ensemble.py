"""-predict with several runs: the mean of the probabilities that -predict writes for each of them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import GREY, TINY_VIT, train
from PIL import Image
from test_predict import predict

from configs.command_line import parse_command_line
from datasets.batch import PADDING, Batch
from datasets.decoding.images import BadImage
from datasets.loading.loader import Loaders
from datasets.loading.sampler import EvalSampler
from engine.commands.run import run
from utils.errors import UserError

CLASSES = ["ant", "bee", "cat"]
MODEL = [option for option in TINY_VIT if "NUM_CLASSES" not in option]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Noise whose mean depends on the class, of 11 x 9 pixels."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(36):
        (folder := root / CLASSES[number % 3]).mkdir(exist_ok=True)
        pixels = np.clip(rng.normal(60 + 60 * (number % 3), 60, (11, 9)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return root


def train_run(images: Path, root: Path, name: str, cpu, *options: str) -> Path:
    data = ["-dataset=folder", f"-data_path={images}", "-batch_size=8", "-num_workers=0", f"-output={root}"]
    rates = ["TRAIN.NUM_EPOCHS=8", "TRAIN.BASE_LR=2e-2"]
    return train([*data, f"-name={name}", "-opts", *MODEL, *GREY, *rates, *options], cpu)


@pytest.fixture(scope="module")
def folds(images, tmp_path_factory, cpu) -> list[Path]:
    """The runs of three folds; the second has another preprocessing and precision, the third averages over flips."""
    second = ["DATA.IMAGE_SIZE=16", "DATA.CROP_PCT=0.7", "DATA.IMAGENET_MEAN=[0.2]", "AMP.ENABLED=true"]
    root, options = tmp_path_factory.mktemp("sweep"), ([], second, ["EVAL.TTA=flip"])
    return [
        train_run(images, root, f"LR=2e-2,FOLD={fold}", cpu, "DATA.FOLDS=3", f"DATA.FOLD={fold}", *options[fold])
        for fold in range(3)
    ]


def probabilities(rows: list[dict[str, str]]) -> np.ndarray:
    by_class = [{row[f"class_{rank}"]: float(row[f"probability_{rank}"]) for rank in (1, 2, 3)} for row in rows]
    return np.array([[row[name] for name in CLASSES] for row in by_class])


def mean_of(argv: list[str], runs: list[Path], folder: Path, cpu) -> np.ndarray:
    """The mean of the probabilities that predictions of one run each write."""
    single = [predict(folder / str(number), cpu, *argv, f"-resume={one}") for number, one in enumerate(runs)]
    return np.mean([probabilities(rows) for rows in single], axis=0)


def test_the_probabilities_are_the_means_of_those_of_the_runs(images, folds, tmp_path, cpu, capsys):
    argv = [str(images), "-batch_size_eval=5"]
    means = mean_of(argv, folds, tmp_path, cpu)
    assert np.ptp(means[:, 0]) > 0.1
    argv += [f"-threshold={np.median(means.max(1)):.4f}", "-json"]
    rows = predict(tmp_path / "mean", cpu, *argv, "-resume", *map(str, folds))
    assert np.abs(probabilities(rows) - means).max() <= 1.01e-6
    assert [row["class_1"] for row in rows] == [CLASSES[label] for label in means.argmax(1)]
    assert "unknown" in {row["label"] for row in rows} != {"unknown"}
    capsys.readouterr()
    assert predict(tmp_path / "sweep", cpu, *argv, f"-resume={folds[0].parent}") == rows
    printed = capsys.readouterr().out
    assert all(f"Weights: {one}" in printed for one in folds)
    assert run(parse_command_line(["-predict", *argv[:2], "-dry_run", f"-resume={folds[0].parent}"]), cpu) == 0


@pytest.mark.parametrize("columns", [(), (3,)])
def test_an_image_that_one_loader_cannot_read_is_bad_for_all(columns):
    """Labels, or a column per class; the last batch has a position without a sample."""

    class Stub:
        sampler = EvalSampler(num_samples=5, batch_size=3)

        def __init__(self, *bad: int) -> None:
            self.bad = bad

        def __iter__(self):
            for keys in self.sampler:
                targets = torch.ones(3, *columns, dtype=torch.int64)
                indices = [index for _, index, _ in keys]
                targets[[index in (*self.bad, PADDING) for index in indices]] = PADDING
                bad = tuple(BadImage(f"{index}.png", "damaged", "") for index in indices if index in self.bad)
                yield Batch(torch.zeros(3), targets, sum(index != PADDING for index in indices) - len(bad), bad=bad)

    one, two = Stub(1, 2, 4), Stub(0, 2)
    batches = list(Loaders([one, two, one]))
    padding = [(batch.targets.reshape(3, -1)[:, 0] == PADDING).tolist() for batch in batches]
    assert padding == [[True, True, True], [False, True, True]] and len(batches[0].images) == 3
    assert [[error.path for error in batch.bad] for batch in batches] == [["0.png", "1.png", "2.png"], ["4.png"]]
    assert [batch.samples for batch in batches] == [0, 1]


def test_a_folder_of_runs_is_the_newest_run_of_each_name_with_a_checkpoint(folds, images, tmp_path, cpu):
    """A run that died before its first checkpoint is refused, until there is another run of its name."""
    shutil.copytree(folds[0], tmp_path / "S" / "FOLD=0-20260101-12-00")
    for name in ("eval-FOLD=0", "predict-FOLD=0", "FOLD=1"):
        (dead := tmp_path / "S" / f"{name}-20260102-12-00").mkdir()
        (dead / "config.yaml").write_text("")
    argv = ["-predict", str(images), f"-resume={tmp_path / 'S'}"]
    with pytest.raises(UserError, match=rf"^-resume {tmp_path / 'S'}: no run FOLD=1 has a checkpoint; [^\n]*$"):
        parse_command_line(argv)
    for time in ("20260102-12-00-2", "20260103-12-00"):
        shutil.copytree(folds[1], tmp_path / "S" / f"FOLD=1-{time}")
    (tmp_path / "S" / "FOLD=1-20260104-12-00").mkdir()
    command = parse_command_line(argv)
    found = [Path(one.config.model.resume).name for one in (command, *command.others)]
    assert found == ["FOLD=0-20260101-12-00", "FOLD=1-20260103-12-00"]
    assert len(predict(tmp_path / "out", cpu, *argv[1:])) == 36


def test_several_labels(images, tmp_path, cpu):
    """The mean of sigmoids."""
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.png"))
    table = images / "all.csv"
    table.write_text("image_path,target\n" + "".join(f'{name},"{name[:3]}"\n' for name in names))
    options = ["DATA.DATASET=csv", f"DATA.DATA_PATH={table}", "DATA.MULTI_LABEL=true", "DATA.VAL_FRACTION=0.3"]
    runs = [train_run(images, tmp_path / "runs", f"S{seed}", cpu, *options, f"SEED={seed}") for seed in (0, 1)]
    means = mean_of([str(table)], runs, tmp_path, cpu)
    rows = predict(tmp_path / "mean", cpu, str(table), "-resume", *map(str, runs))
    assert np.abs(probabilities(rows) - means).max() <= 1.01e-6 and np.ptp(means.sum(1)) > 0.01
    labelled = predict(tmp_path / "labelled", cpu, "-split=all", "-resume", *map(str, runs))
    assert np.abs(probabilities(labelled) - means).max() <= 1.01e-6 and labelled[0]["target"] == "ant"


def test_labelled_images_have_the_figures_of_the_mean(images, folds, tmp_path, cpu, capsys):
    """Runs that hold out the same images; runs of folds do not."""
    runs = [train_run(images, tmp_path, f"S{seed}", cpu, "DATA.VAL_FRACTION=0.5", f"SEED={seed}") for seed in (0, 1)]
    capsys.readouterr()
    rows = predict(tmp_path / "out", cpu, "-resume", *map(str, runs))
    top1 = 100 * np.mean([row["class_1"] == row["target"] for row in rows])
    assert len(rows) == 18 and f"Validation Acc@1: {top1:.2f}%" in capsys.readouterr().out
    with pytest.raises(UserError, match=rf"^-resume \S*{folds[1].name}: has other images than \S*{folds[0].name};"):
        predict(tmp_path / "out", cpu, "-resume", *map(str, folds))


def test_runs_of_other_classes_are_refused(images, folds, tmp_path, cpu):
    shutil.copytree(images, other := tmp_path / "images")
    (other / "bee").rename(other / "eel")
    with pytest.raises(UserError, match=rf"has other classes than {folds[0]}; give runs of the same classes"):
        predict(tmp_path / "out", cpu, str(images), "-resume", str(folds[0]), str(train_run(other, tmp_path, "E", cpu)))


@pytest.mark.parametrize("argv", [["-predict", "x", "-explain"], ["-embed", "x"], ["-eval"], []])
def test_several_runs_are_for_labels_only(argv, folds):
    with pytest.raises(UserError, match=r"^-resume names 2 runs: only the labels of -predict are averaged"):
        parse_command_line([*argv, "-resume", *map(str, folds[:2])])
