"""Files of 20,000 and 100,000 classes are read again."""

import json

import numpy as np
import torch
from conftest import config_for, of_module, refused
from numpy.random import default_rng
from pytest import mark

from configs.command_line import to_yaml
from configs.compare import changed_options, experiment_mismatch
from configs.load import RUN_OPTIONS
from configs.yaml_io import MAX_BYTES
from datasets.sources.class_names import read_class_list
from engine.checkpoint.run_folder import write_run_options
from engine.checkpoint.weights_record import weights_record
from engine.run.record import RunRecord, read_run

CLASSES = 100_000
NAMES = [f"n{number:08d} a name of sixty characters, as of a species {number:08d}" for number in range(CLASSES)]


@of_module
def recipe(tmp_path_factory):
    """LOSS.CLASS_WEIGHTS and DATA.RENAME of 20,000 classes, each in one line of JSON."""
    file = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    names = NAMES[: CLASSES // 5]
    weights = json.dumps(default_rng(0).uniform(0.5, 2, len(names)).tolist())
    renamed = json.dumps({name: name.upper() for name in names})
    options = f"DATA:\n  DATASET: folder\n  RENAME: {renamed}\nLOSS:\n  NAME: bce\n  CLASS_WEIGHTS: {weights}\n"
    file.write_text(f"{options}MODEL:\n  NUM_CLASSES: {len(names)}\n")
    return file


def test_the_options_of_20000_classes_are_read_again_and_five_times_as_many_are_below_the_limit(recipe, tmp_path):
    config = config_for(f"-cfg={recipe}", "-data_path=.")
    text = to_yaml(config)
    write_run_options(tmp_path, text, 0)
    again = config_for(f"-cfg={tmp_path / RUN_OPTIONS}")
    assert (again.loss, again.data.rename) == (config.loss, config.data.rename)
    assert len(again.loss.class_weights) == len(again.data.rename) == len(NAMES) // 5
    assert experiment_mismatch(tmp_path / RUN_OPTIONS, config) is None
    assert changed_options(text, to_yaml(again)) == {}
    assert 5 * len(text) < MAX_BYTES


def test_the_names_of_100000_classes_are_read(tmp_path):
    (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    assert read_class_list(tmp_path / "classes.txt") == NAMES
    record = RunRecord()
    record.open(tmp_path, "", class_names=NAMES)
    record.update()
    assert read_run(tmp_path)["class_names"] == NAMES
    torch.save({"model": {"head.weight": torch.zeros(CLASSES, 1)}, "class_names": np.array(NAMES)}, tmp_path / "w.pth")
    model = config_for(f"-pretrained={tmp_path / 'w.pth'}").model
    assert weights_record(model).class_names == NAMES


def test_a_key_that_a_long_value_has_twice_is_refused(tmp_path):
    file = tmp_path / "recipe.yaml"
    pairs = ", ".join(f'"{name}": "x"' for name in [*NAMES[:100], NAMES[0]])
    file.write_text(f"DATA:\n  RENAME: {{{pairs}}}\n")
    with refused("is given twice"):
        config_for(f"-cfg={file}")


@mark.parametrize("text", ["DATA.ONLY_CLASSES: [{}]\n", "DATA:\n  ONLY_CLASSES: [{}]\n"])
def test_long_names_that_look_like_numbers_are_as_written(text, tmp_path):
    names = [f"{number}.10" for number in range(100, 300)]
    file = tmp_path / "recipe.yaml"
    file.write_text(text.format(", ".join(names)))
    assert list(config_for(f"-cfg={file}").data.only_classes) == names
