"""transfer.py: which images and options each run of the table gets. No test here asserts a time."""

import itertools
import json
from pathlib import Path

import pytest

from configs.reading.command_line import parse_command_line
from scripts.benchmarks import transfer
from scripts.benchmarks.transfer import EPOCHS, METHODS, command, find_images, link
from utils.errors import UserError

RECIPE = str(transfer.RECIPES / "vit_digits.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for name, number in itertools.product("abcd", range(130)):
        (root / name).mkdir(exist_ok=True)
        (root / name / f"{number}.png").write_text(name)
    return root


def test_seeds_select_training_images_and_share_the_others(folder, tmp_path):
    images = find_images(folder, 4)
    for place, seed in (("0", 0), ("1", 1), ("again", 0)):
        link({name: images[name] for name in "cd"}, 20, seed, tmp_path / place)
    found = {
        (place, split): {path.resolve() for path in (tmp_path / place / split).glob("*/*")}
        for place in ("0", "1", "again")
        for split in ("train", "val")
    }
    assert {len(found[place, "train"]) for place in ("0", "1")} == {40} and len(found["0", "val"]) == 52
    assert found["0", "train"] == found["again", "train"] != found["1", "train"]
    assert found["0", "val"] == found["1", "val"] and not found["0", "val"] & (
        found["0", "train"] | found["1", "train"]
    )
    assert {path.parent.name for path in found["0", "train"]} == {"c", "d"}


def test_too_few_images_and_classes_are_refused(folder, tmp_path):
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "0.png").touch()
    for images in (tmp_path, folder / "a", tmp_path / "none"):
        with pytest.raises(UserError, match=f"^-images {images}: "):
            find_images(images, 4)


@pytest.mark.parametrize("name", METHODS)
def test_each_method_trains_the_backbone_with_its_preprocessing(name):
    flags = [*command(METHODS[name][0], RECIPE, "best.pth", 5, 3), *METHODS[name][1]]
    config, backbone = parse_command_line(flags).config, parse_command_line([f"-cfg={RECIPE}"]).config
    epochs = 1 if config.model.tuned == "probe" else EPOCHS[5]
    assert (config.seed, config.train.num_epochs, config.model.num_classes) == (3, epochs, None)
    assert config.data.imagenet_mean == backbone.data.imagenet_mean and config.data.affine_degrees == 10
    assert (config.model.type, config.model.embed_dim, config.model.depth) == ("vit", 96, 4)
    expected = {"from scratch": "full", "k-NN": "probe", "LoRA": "lora"}.get(name, name)
    assert (config.model.tuned, config.model.pretrained) == (expected, None if name == "from scratch" else "best.pth")


@pytest.fixture
def started(monkeypatch):
    """The configurations of the runs that the script starts, which train nothing."""
    configs, classes = [], []

    def run(words):
        config = parse_command_line(words[2:]).config
        configs.append(config)
        output = Path(config.save) / "run"
        output.mkdir(parents=True)
        result = {"top1": 50.0 + config.seed, "knn_top1": 40.0, "checkpoint": "best.pth", "trainable_parameters": 7}
        (output / "result.json").write_text(json.dumps(result | {"train_seconds": 2.0, "peak_memory_bytes": 1e9}))
        classes.append(sorted(path.name for path in Path(config.data.data_path).glob("val/*")))

    monkeypatch.setattr(transfer, "run_program", run)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return configs, classes


def test_the_table_has_a_row_per_method(folder, started, capsys):
    """A probe and k-NN share one run."""
    configs, classes = started
    assert transfer.main([f"-images={folder}", "-seeds=2"]) == 0
    assert len(configs) == 1 + (len(METHODS) - 1) * len(EPOCHS) * 2
    assert classes == [["a", "b"], *[["c", "d"]] * (len(configs) - 1)]
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == [f"| {name}" for name in METHODS]
    assert rows[2][4] == "50.5 ± 0.5" and rows[3][1] == "0" and rows[3][4] == "40.0 ± 0.0"
