"""The folder of a sharded checkpoint is taken wherever best.pth is: export, conversion, averages, -pretrained."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import CPU, GREY, TINY_VIT, train
from safetensors.torch import load_file
from shard_files import to_shards

from configs.weights import find_weights
from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.weights_record import read_record
from models.weights.read import read_weights
from models.weights.shards import read_stored
from scripts import export
from utils.errors import UserError


@pytest.fixture(scope="module")
def runs(trained_digits, tmp_path_factory) -> tuple[Path, Path]:
    """A run, and its copy with folders of shards in place of files."""
    shared = trained_digits("TRAIN.BASE_LR=1e-2", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9")
    folder = tmp_path_factory.mktemp("out")
    run, sharded = (Path(shutil.copytree(shared, folder / name)) for name in ("run", "sharded"))
    for file in list(sharded.glob("*.pth")):
        to_shards(file)
    return run, sharded


def equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_its_averaged_weights_are_read(runs):
    run, sharded = runs
    assert find_weights(str(sharded / "best")) == sharded / "best.shards"
    with pytest.raises(UserError, match=r"best\.shards"):
        find_weights(str(sharded))
    averaged = read_stored(read_weights(str(sharded / "best.shards")).states["state_dict_ema"])
    assert equal(averaged, load_checkpoint(run / "best.pth")["state_dict_ema"])
    assert read_record(str(sharded / "best.shards")) == read_record(str(run / "best.pth"))


@pytest.mark.parametrize("source", ["", "best.shards"], ids=["the run", "the folder"])
def test_it_is_exported_to_one_file(runs, tmp_path, source):
    run, sharded = runs
    target = tmp_path / "model.safetensors"
    assert export.main([str(sharded / source), "-format", "safetensors", "-output", str(target)]) == 0
    assert equal(load_file(target), load_checkpoint(run / "best.pth")["state_dict_ema"])


def test_it_initializes_a_run_and_one_process_resumes_it(runs, tmp_path):
    run, sharded = runs
    options = [*TINY_VIT, *GREY, "TRAIN.MAX_STEPS=1", "TRAIN.BASE_LR=0.0"]
    argv = ["-dataset=digits", "-batch_size=64", f"-output={tmp_path}", f"-pretrained={sharded / 'best.shards'}"]
    model = load_checkpoint(train([*argv, "-opts", *options], CPU) / "last.pth")["model"]
    pretrained = load_checkpoint(run / "best.pth")["state_dict_ema"]
    assert all(torch.allclose(model[name], pretrained[name], atol=1e-4) for name in pretrained)
    copies = [Path(shutil.copytree(folder, tmp_path / "copies" / folder.name)) for folder in runs]
    for copy in copies:
        train([f"-resume={copy}", "-opts", "TRAIN.NUM_EPOCHS=3"], CPU)
    one, other = (load_checkpoint(copy / "last.pth")["model"] for copy in copies)
    assert equal(one, other) and not (copies[1] / "last.shards").exists()
