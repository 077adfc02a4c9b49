"""Commands where only the required packages are installed."""

import csv
import json
import sys
from contextlib import closing

import pytest
from conftest import OPTIONAL_MODULES, ROOT, TINY_VIT, noise_folder, only_run, read_result
from rank_pool import RankPool

from datasets.shards.location import parse_location
from datasets.shards.store import ShardStore
from datasets.sources.source import source_class
from engine.run.loggers import check_loggers
from utils.errors import UserError
from utils.system import is_installed, require


def command(output, *flags):
    sizes = ["-batch_size=4", "-num_workers=1", f"-data_path={output / 'noise'}", f"-output={output}"]
    return ["-dataset=folder", *sizes, *flags, "-opts", *TINY_VIT, "MODEL.NUM_CLASSES=2", "TRAIN.NUM_EPOCHS=1"]


@pytest.mark.slow
def test_commands_need_the_required_packages_only(tmp_path, monkeypatch):
    """Worker processes and other ranks inherit the hidden packages."""
    noise_folder(tmp_path / "noise", 24, 7, (40, 60, 3))
    monkeypatch.setenv("HIDDEN_MODULES", " ".join(OPTIONAL_MODULES))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/fixtures/hide_packages"))
    commands = [[], ["-eval", "-resume=auto"], ["-predict", "-resume=auto"], ["-profile"], ["-dry_run"]]
    with closing(RankPool(2)) as pool:
        pool.run(*(command(tmp_path, *flags) for flags in commands))
    folder = only_run(tmp_path)
    assert read_result(folder)["finished"] and (folder / "report.html").exists()
    assert [path.name for path in folder.rglob("*.png")] == ["train_batch.png"] and not list(folder.rglob("events*"))
    evaluated = only_run(tmp_path, "eval") / "evaluation"
    assert (evaluated / "per_class.csv").read_text() == (folder / "evaluation/per_class.csv").read_text()
    assert json.loads((evaluated / "summary.json").read_text())["attention"] is None
    with open(tmp_path / "predictions.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 7
    assert (only_run(tmp_path, "profile") / "trace.json.gz").exists()


def test_a_missing_package_of_a_wanted_feature_is_one_line(monkeypatch, tmp_path):
    for name in ("sklearn", "obstore", "braceexpand", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    for use, message in (
        (lambda: source_class("digits"), "DATA.DATASET digits: needs scikit-learn"),
        (lambda: parse_location("https://host/{0..1}.tar"), "DATA.DATA_PATH .*: needs braceexpand"),
        (lambda: ShardStore("https://host", 1.0).head(["0.tar"]), "-dataset=tar with a URL: needs obstore"),
        (lambda: check_loggers(["mlflow"]), "LOGGERS: needs mlflow"),
    ):
        with pytest.raises(UserError, match=f"^{message}"):
            use()


def test_installed_packages():
    assert not is_installed("gone.module") and is_installed("torch.nn")
    require("this test", "torch", "json")
