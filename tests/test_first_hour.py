"""The first hour of a user with a folder of images: the commands as they would be typed, and the answers."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import main_single_gpu
from scripts import report
from utils.errors import UserError

TINY = ["-image_size=32", "-num_workers=0", "-batch_size=4"]
MODEL = ["-opts", "MODEL.EMBED_DIM=16", "MODEL.DEPTH=1", "MODEL.NUM_HEADS=2"]


@pytest.fixture
def pets(tmp_path, monkeypatch) -> Path:
    """Twelve images of each of three classes; each class has its own gray level. The test runs beside the folder."""
    for label, name in enumerate(("cat", "dog", "fox")):
        write_images(tmp_path / "pets" / name, 12, 100 * label)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "pets"


def write_images(folder: Path, count: int, level: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.fromarray(np.full((20, 20, 3), level + number, np.uint8)).save(folder / f"{number}.png")


def typed(*words: str) -> int:
    return main_single_gpu.main(list(words))


def train_pets(*words: str) -> Path:
    """Trains with the recipe for small folders; returns the new run's folder."""
    recipe = Path(__file__).parents[1] / "configs" / "folder_small.yaml"
    before = set(Path("output").glob("*"))
    assert typed(f"-cfg={recipe}", "-data_path=pets", *TINY, *words) == 0
    (folder,) = set(Path("output").glob("*")) - before
    return folder


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def test_a_folder_of_images_is_trained_evaluated_continued_and_compared(pets, capsys):
    run = train_pets("-epochs=2", "-lr=3e-3", *MODEL)
    assert run.name.startswith("folder_small-")
    assert json.loads((run / "classes.json").read_text())["class_names"] == ["cat", "dog", "fox"]
    assert "NUM_CLASSES: 3" in (run / "config.yaml").read_text()
    assert all(len(line) <= 120 for line in log(run).splitlines() if line.startswith("Epoch["))

    # A test folder with two of the classes: labels follow the names, and all of its images count.
    for name in ("dog", "fox"):
        write_images(Path("test") / name, 5, {"dog": 100, "fox": 200}[name])
    assert typed("-eval", f"-pretrained={run}/best.pth", "-dataset=folder", "-data_path=test", "-num_workers=0") == 0
    assert "10 images of 2 of 3 classes" in capsys.readouterr().out
    (Path("test") / "dog").rename(Path("test") / "wolf")
    with pytest.raises(UserError, match=r"wolf'?: not a class of the checkpoint"):
        typed("-eval", f"-pretrained={run}/best.pth", "-dataset=folder", "-data_path=test", "-num_workers=0")

    # More epochs by the folder alone, without a recipe.
    assert typed(f"-resume={run}", "-epochs=3") == 0
    assert json.loads((run / "result.json").read_text())["finished"]
    assert "TRAIN.NUM_EPOCHS: 2, now 3" in log(run).replace("\n", " ")
    status = (run / "status.json").read_text()
    with pytest.raises(UserError, match=r"TRAIN\.NUM_EPOCHS"):
        typed(f"-resume={run}", "-epochs=1")
    assert json.loads((run / "status.json").read_text())["state"] == json.loads(status)["state"] == "finished"

    # Another seed does not enter this run; the table has both.
    other = train_pets("-resume=auto", "-epochs=2", *MODEL, "SEED=1")
    assert "passed over" in log(other) and "SEED 0, this run has 1" in log(other)
    assert report.main([str(run), str(other)]) == 0
    table = capsys.readouterr().out
    assert run.name in table and other.name in table and Path("output/compare.html").exists()
