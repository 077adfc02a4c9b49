"""Runs of earlier commits (tests/fixtures/runs) under this version: their weights give the figures of the run."""

import tomllib

import pytest
import torch
from conftest import ROOT, config_for, evaluate, log_of, read_result, refused
from safetensors.torch import save_file

from configs.compare import changed_options, with_defaults
from configs.versions import VERSION
from configs.weights import PREPROCESSING, PREPROCESSING_BEFORE
from configs.yaml_io import parse_value
from engine.checkpoint.weights_record import read_record, to_metadata
from engine.run.record import read_run
from utils.files import atomic_save

RUNS = ROOT / "tests/fixtures/runs"
# Loss and top-1 of the last evaluation in metrics.csv of the run
FIGURES = {
    "df9908af": (1.2768462941878371, 66.11111111111111),
    "87d05e41": (1.6478465967708165, 51.94444444444444),
    "edee6d06": (1.6478465967708165, 51.94444444444444),
}
MODEL = ["MODEL.EMBED_DIM=8", "MODEL.DEPTH=1", "MODEL.NUM_HEADS=2", "MODEL.PATCH_SIZE=4", "MODEL.MLP_RATIO=2"]


def assert_figures(folder, commit) -> None:
    result = read_result(folder)
    assert (result["loss"], result["top1"]) == (pytest.approx(FIGURES[commit][0], rel=1e-6), FIGURES[commit][1])


@pytest.mark.parametrize("commit", FIGURES)
def test_the_preprocessing_of_weights_of_before_is_applied(commit, tmp_path):
    """The recipe names the data and the model only: the defaults are other pixels, of three channels."""
    weights = f"-pretrained={RUNS / commit / 'last.pth'}"
    (tmp_path / "x.yaml").write_text("DATA: {DATASET: digits, NUM_WORKERS: 0, BATCH_SIZE: 64}\n")
    folder = evaluate(tmp_path / "out", f"-cfg={tmp_path / 'x.yaml'}", weights, "-opts", *MODEL)
    assert_figures(folder, commit)
    is_older = commit == "df9908af"
    assert ("the version of the checkpoint: RESIZE" in log_of(folder)) == is_older


def test_each_key_of_the_preprocessing_is_in_the_oldest_weights_or_has_its_value_of_before():
    """A new key without a row of PREPROCESSING_BEFORE would have today's default for weights of before."""
    record = read_record(str(RUNS / "df9908af/last.pth"))
    assert record.preprocessing.keys() == set(PREPROCESSING)
    assert record.sources.keys() == PREPROCESSING_BEFORE.keys()


def test_the_options_of_a_run_have_the_version_which_is_no_option_and_no_difference(digits_run, tmp_path):
    file = digits_run() / "config.yaml"
    text = file.read_text()
    stored = parse_value(text)
    assert stored["VERSION"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
    assert config_for(f"-cfg={file}").model.embed_dim == stored["MODEL"]["EMBED_DIM"]
    older = text.replace(VERSION, "0.2.0")
    assert changed_options(older, text) == {} and "VERSION" not in with_defaults(stored)


def test_what_a_newer_version_wrote_is_named_as_newer(digits_run, tmp_path):
    """The options file of a run, its checkpoint and its export. A key that is unknown here need not be named."""
    run = digits_run()
    newer = (run / "config.yaml").read_text().replace(VERSION, "1.0.0") + "EDGES: soft\n"
    state = torch.load(run / "last.pth")
    (tmp_path / "config.yaml").write_text(newer)
    (tmp_path / "one").mkdir()
    atomic_save(tmp_path / "one/last.pth", state | {"options": newer})
    description = {key: read_run(run)[key] for key in ("class_names", "preprocessing")}
    save_file(state["model"], tmp_path / "one/x.safetensors", to_metadata(description, parse_value(newer)))
    words = f"was written by version 1.0.0, newer than this one, {VERSION}"
    for flags in ("-cfg={}/config.yaml", "-resume={}/one/last.pth", "-eval -pretrained={}/one/x.safetensors"):
        with refused(words):
            config_for(*flags.format(tmp_path).split())
    for name in ("last.pth", "x.safetensors"):
        with refused(f"{name}: {words}"):
            read_record(str(tmp_path / "one" / name))
