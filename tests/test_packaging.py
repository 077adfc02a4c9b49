"""The list of packages, the versions of requirements.lock, and the container that installs them; commands where only
the required packages are installed."""

import json
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import yaml
from conftest import OPTIONAL_MODULES, ROOT, TINY_VIT, cli, noise_folder, only_run, refused
from packaging.requirements import Requirement
from packaging.version import Version
from pytest import mark
from rank_pool import RankPool

from datasets.shards.location import parse_location
from datasets.shards.store import ShardStore
from datasets.sources.source import source_class
from engine.run.loggers import check_loggers
from utils.tables import read_csv_rows


def requirements(name: str) -> list[Requirement]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


def test_pip_install_ends_in_one_line_that_says_how_to_start(tmp_path):
    """The packages are named as others on PyPI are (datasets, utils): nothing may reach site-packages."""
    pip = [sys.executable, *cli(f"-m pip wheel --no-deps --no-index --wheel-dir={tmp_path} {ROOT}")]
    process = subprocess.run(pip, capture_output=True, text=True)
    assert process.returncode
    assert not list(tmp_path.iterdir())
    assert all(
        part in process.stderr for part in ("[1 lines of output]", "error: AmpViT is no", "scripts/quickstart.sh")
    )


def test_the_locked_versions_satisfy_the_list():
    text = (ROOT / "requirements.lock").read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+).*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^\w", text, re.MULTILINE))  # each one has a version and hashes
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
    versions = {name: Version(version) for name, version, _ in entries}
    for required in requirements("requirements.txt"):
        assert versions[required.name.lower()] in required.specifier


def test_the_container_has_what_its_commands_need():
    steps = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if re.match("[A-Z]", line)]
    (folder,) = (step[1] for step in steps if step[0] == "WORKDIR")
    copied = [source for step in steps if step[0] == "COPY" for source in step[1:-1]]
    assert copied[-1] == "."
    assert all((ROOT / source).exists() for source in copied)
    _, job = yaml.safe_load_all((ROOT / "scripts/kubernetes/train.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["workingDir"] == folder
    assert f"-t {container['image']} " in (ROOT / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not any(path.match(pattern) for path in ROOT.iterdir() for pattern in ignored if is_needed(path))


def is_needed(path: Path) -> bool:
    return path.suffix in {".py", ".txt", ".lock"} or path.name in cli("configs datasets engine models utils")


def command(output, *flags):
    sizes = cli(f"-batch_size=4 -num_workers=1 -data_path={output / 'noise'} -output={output}")
    return ["-dataset=folder", *sizes, *flags, "-opts", *TINY_VIT, "MODEL.NUM_CLASSES=2", "TRAIN.NUM_EPOCHS=1"]


@mark.slow
def test_commands_need_the_required_packages_only(tmp_path, monkeypatch):
    """Worker processes and other ranks inherit the hidden packages."""
    noise_folder(tmp_path / "noise", 24, 7, (40, 60, 3))
    monkeypatch.setenv("HIDDEN_MODULES", " ".join(OPTIONAL_MODULES))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/fixtures/hide_packages"))
    commands = ("", "-eval -resume=auto", "-predict -resume=auto", "-profile", "-dry_run")
    with closing(RankPool(2)) as pool:
        pool.run(*(command(tmp_path, *cli(flags)) for flags in commands))
    folder = only_run(tmp_path)
    assert (folder / "report.html").exists()
    assert [path.name for path in folder.rglob("*.png")] == ["train_batch.png"]
    assert not list(folder.rglob("events*"))
    evaluated = only_run(tmp_path, "eval") / "evaluation"
    assert (evaluated / "per_class.csv").read_text() == (folder / "evaluation/per_class.csv").read_text()
    assert json.loads((evaluated / "summary.json").read_text())["attention"] is None
    assert len(read_csv_rows(tmp_path / "predictions.csv")) == 7
    assert (only_run(tmp_path, "profile") / "trace.json.gz").exists()


def test_a_missing_package_of_a_wanted_feature_is_one_line(monkeypatch):
    for name in ("sklearn", "obstore", "braceexpand", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    for use, message in (
        (lambda: source_class("digits"), "DATA.DATASET digits: needs scikit-learn"),
        (lambda: parse_location("https://host/{0..1}.tar"), "DATA.DATA_PATH .*: needs braceexpand"),
        (lambda: ShardStore("https://host", 1.0).head(["0.tar"]), "-dataset=tar with a URL: needs obstore"),
        (lambda: check_loggers(["mlflow"]), "LOGGERS: needs mlflow"),
    ):
        with refused(f"^{message}"):
            use()
