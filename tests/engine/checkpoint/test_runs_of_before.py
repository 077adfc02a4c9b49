"""Runs of earlier commits (tests/fixtures/runs) under this version: their weights give the figures of the run.

Each release adds one, below 50 KB: config.yaml and last.pth of `main_single_gpu.py -dataset=digits -opts`, with the
options in its config.yaml, started in an empty folder with -output=output.
"""

import re
import shutil
import tomllib

import torch
from conftest import (
    ROOT,
    cli,
    config_for,
    each_value,
    evaluate,
    export_as,
    read_result,
    refused,
    run_here,
    session_for,
    train,
)
from pytest import approx, mark
from safetensors.torch import save_file

from configs.compare import changed_options, with_defaults
from configs.load import OptionTable, nest
from configs.versions import GONE_KEYS, VERSION
from configs.yaml_io import parse_value, write_yaml
from engine.checkpoint.files import load_checkpoint
from engine.checkpoint.run_folder import FORMAT
from engine.checkpoint.weights_record import read_record, to_metadata
from engine.run.record import read_run
from tests.datasets.sources.source_helpers import write_image
from utils.files import atomic_save

RUNS = ROOT / "tests/fixtures/runs"
# Loss and top-1 of the last evaluation in metrics.csv of the run
FIGURES = {"edee6d06": (1.6478465967708165, 51.94444444444444)}
AVERAGE = ("TRAIN.BASE_LR=1e-2", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9")  # as in other files
MODEL = cli("MODEL.EMBED_DIM=8 MODEL.DEPTH=1 MODEL.NUM_HEADS=2 MODEL.PATCH_SIZE=4 MODEL.MLP_RATIO=2")


def assert_figures(folder, commit):
    result = read_result(folder)
    assert (result["loss"], result["top1"]) == (approx(FIGURES[commit][0], rel=1e-6), FIGURES[commit][1])


@mark.parametrize("commit", FIGURES)
def test_the_preprocessing_of_weights_of_before_is_applied(commit, tmp_path):
    """The recipe names the data and the model only: the defaults are other pixels, of three channels."""
    weights = f"-pretrained={RUNS / commit / 'last.pth'}"
    (tmp_path / "x.yaml").write_text("DATA: {DATASET: digits, NUM_WORKERS: 0, BATCH_SIZE: 64}\n")
    folder = evaluate(tmp_path / "out", f"-cfg={tmp_path / 'x.yaml'}", weights, "-opts", *MODEL)
    assert_figures(folder, commit)


# Values that have an effect
GONE = parse_value("""
{DATA.NEAR_COPIES: true, LOSS.SUM_CLASSES: true, PARALLEL.OFFLOAD: true, PARALLEL.REDUCE_DTYPE: bfloat16,
TRAIN.BLUR_PROB: 0.5, TRAIN.CLIP_MODE: agc, TRAIN.GRAYSCALE_PROB: 0.5, TRAIN.LR_SCHEDULER.COOLDOWN_EPOCHS: 2,
TRAIN.RESTART_SCHEDULE: true, DATA.GREY_RANGE: auto, MODEL.ATTENTION: cudnn, TRAIN.MIXUP_MODE: elem}
""")


def with_gone(text: str) -> str:
    """The options of a run with keys and values that are gone."""
    layers = OptionTable(parse_value(text))
    for key, value in GONE.items():
        if key != "DATA.GREY_RANGE":  # a checkpoint has the range that it found
            layers.set(key, value)
    return write_yaml(layers.values)


@mark.parametrize("commit", FIGURES)
def test_weights_of_before_are_evaluated_from_their_run_alone_and_exported(commit, tmp_path):
    """Also with options that are gone: an evaluation needs none of them."""
    run = shutil.copytree(RUNS / commit, tmp_path / "run")
    options = (run / "config.yaml").read_text()
    exports = {"named": run / "last.pth", "alone": shutil.copy(run / "last.pth", tmp_path / "alone.pth")}
    state = torch.load(run / "last.pth")
    atomic_save(exports["alone"], state | {"options": with_gone(state["options"])})
    export_as("safetensors", run / "last.pth", tmp_path / "x.safetensors", "-no_check")
    exports["exported"] = tmp_path / "x.safetensors"
    layers = OptionTable(parse_value(with_gone(options)))
    layers.set("DATA.GREY_RANGE", "auto")
    (run / "config.yaml").write_text(write_yaml(layers.values))
    for name, weights in exports.items():
        folder = evaluate(tmp_path / name, f"-pretrained={weights}", "-dataset=digits", pictures=True)
        assert_figures(folder, commit)
    (run / "config.yaml").write_text(options)
    given = evaluate(tmp_path / "given", f"-cfg={run / 'config.yaml'}", f"-pretrained={run / 'last.pth'}")
    assert_figures(given, commit)


GONE_LABELS = """
key | value
CORRECTIONS | c.csv
COLUMNS | {label: x, join: {on: id}}
"""


@each_value(GONE_LABELS)
def test_labels_by_an_option_that_is_gone_are_never_those_of_the_folders(key, value, tmp_path):
    """Refused where the data of the run are read; predictions, exports and evaluations of other data do not need it."""
    run = shutil.copytree(RUNS / "edee6d06", tmp_path / "run")
    for number in range(10):
        write_image(tmp_path / f"images/{number}/0.png", size=(8, 8))
    state = torch.load(run / "last.pth")
    layers = OptionTable(parse_value(state["options"]))
    layers.set("DATA.DATASET", "folder")
    layers.set("DATA.DATA_PATH", str(tmp_path / "images"))
    (tmp_path / "x.yaml").write_text(write_yaml(layers.values))
    layers.set(f"DATA.{key}", value)
    state["options"] = write_yaml(layers.values)
    (run / "config.yaml").write_text(state["options"])
    atomic_save(run / "last.pth", state)
    (run / "log.txt").touch()
    (tmp_path / "out").mkdir()
    for flags in ("", f"-cfg={tmp_path / 'x.yaml'}", "-eval", f"-eval -cfg={tmp_path / 'x.yaml'}"):
        with refused(rf"DATA\.{key}.* is (gone; docs/data.md#|read as folders)"):
            run_here(f"-resume={run}", *flags.split(), f"-output={tmp_path / 'out'}")
    other = shutil.copytree(tmp_path / "images", tmp_path / "other")
    for flags in (f"-eval -data_path={other}", f"-predict={other}"):
        run_here(*flags.split(), f"-resume={run}", f"-output={tmp_path / 'out'}")
    export_as("safetensors", run / "last.pth", tmp_path / "x.safetensors", "-no_check")
    exported = f"-pretrained={tmp_path / 'x.safetensors'}"
    evaluate(tmp_path / "exported", exported, f"-data_path={other}", "-dataset=folder")


@mark.parametrize("commit", FIGURES)
def test_a_run_of_before_is_resumed(commit, tmp_path):
    run = shutil.copytree(RUNS / commit, tmp_path / "run-1")
    (run / "log.txt").touch()
    train([f"-resume={run}", "-epochs=13"])
    assert load_checkpoint(run / "last.pth")["epoch"] == 13


def test_a_run_of_before_with_rates_by_the_square_root_is_resumed_with_them(tmp_path):
    """A new run is refused. Each rate is sqrt(64 / 16) times the one of the same run without the key, bit for bit."""
    with refused("TRAIN.SQRT_SCALED_LR"):
        config_for("-opts", "TRAIN.SQRT_SCALED_LR=16")
    rates = {}
    for value in ("null", "16"):
        run = shutil.copytree(RUNS / "edee6d06", tmp_path / value)
        (run / "log.txt").touch()
        state = torch.load(run / "last.pth")
        assert parse_value(state["options"])["DATA"]["BATCH_SIZE"] == 64
        options = state["options"].replace("SQRT_SCALED_LR: null", f"SQRT_SCALED_LR: {value}")
        (run / "config.yaml").write_text(options)
        atomic_save(run / "last.pth", state | {"options": options})
        schedule = session_for([f"-resume={run}", "-epochs=13"]).state.schedule
        rates[value] = [schedule.lr_at(step) for step in range(23, 13 * 23)]
    assert rates["16"] == [2 * rate for rate in rates["null"]]
    assert max(rates["16"]) > 0


def test_a_checkpoint_has_each_entry_of_the_release_with_its_format(digits_run):
    """An entry that is renamed, goes, or gets another type needs another FORMAT: `ema` was renamed without."""
    release, now = (torch.load(folder / "last.pth") for folder in (RUNS / "edee6d06", digits_run(*AVERAGE)))
    assert load_checkpoint(RUNS / "edee6d06/last.pth")["format"] == FORMAT == now["format"]
    for section in ("geometry", "precision", None):
        then, present = (state[section] if section else state for state in (release, now))
        for name, value in then.items():
            assert value is None or type(present[name]) is type(value), name


@mark.parametrize("key, value", GONE.items())
def test_an_option_that_is_gone_says_what_replaces_it(key, value, tmp_path):
    line = f"{key}, which is gone; {GONE_KEYS[key][1]}" if key in GONE_KEYS else f"{key} is '{value}': input"
    (tmp_path / "x.yaml").write_text(write_yaml(nest({key: value})))
    for flags in (["-opts", f"{key}={value}"], [f"-cfg={tmp_path / 'x.yaml'}"]):
        with refused(re.escape(line)):
            config_for(*flags)
    if key in GONE_KEYS:
        (tmp_path / "x.yaml").write_text(write_yaml(nest({key: GONE_KEYS[key][0]})))
        assert config_for(f"-cfg={tmp_path / 'x.yaml'}").seed == 0


def test_the_options_of_a_run_have_the_version_which_is_no_option_and_no_difference(digits_run):
    file = digits_run() / "config.yaml"
    text = file.read_text()
    stored = parse_value(text)
    assert stored["VERSION"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
    assert config_for(f"-cfg={file}").model.embed_dim == stored["MODEL"]["EMBED_DIM"]
    older = text.replace(VERSION, "0.2.0")
    assert changed_options(older, text) == {}
    assert "VERSION" not in with_defaults(stored)


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
