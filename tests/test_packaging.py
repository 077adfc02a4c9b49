"""The list of packages, the versions of requirements.lock, and the container that installs them."""

import re
import subprocess
import sys
from pathlib import Path

import yaml
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.version import Version


def requirements(name: str) -> list[Requirement]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


def test_pip_install_ends_in_one_line_that_says_how_to_start(tmp_path):
    """The packages are named as others on PyPI are (datasets, utils): nothing may reach site-packages."""
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", f"--wheel-dir={tmp_path}", str(ROOT)]
    process = subprocess.run(pip, capture_output=True, text=True)
    assert process.returncode and "[1 lines of output]" in process.stderr and not list(tmp_path.iterdir())
    assert "error: AmpViT is no package" in process.stderr and "scripts/quickstart.sh" in process.stderr


def test_the_locked_versions_satisfy_the_list():
    text = (ROOT / "requirements.lock").read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+).*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^\w", text, re.MULTILINE))  # each one has a version and hashes
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    versions = {name: Version(version) for name, version, _ in entries}
    for required in requirements("requirements.txt"):
        assert versions[required.name.lower()] in required.specifier


def test_the_container_has_what_its_commands_need():
    steps = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if re.match("[A-Z]", line)]
    (folder,) = (step[1] for step in steps if step[0] == "WORKDIR")
    copied = [source for step in steps if step[0] == "COPY" for source in step[1:-1]]
    assert copied[-1] == "." and all((ROOT / source).exists() for source in copied)
    _, job = yaml.safe_load_all((ROOT / "scripts/kubernetes/train.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["workingDir"] == folder
    assert f"-t {container['image']} " in (ROOT / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not any(path.match(pattern) for path in ROOT.iterdir() for pattern in ignored if is_needed(path))


def is_needed(path: Path) -> bool:
    return path.suffix in {".py", ".txt", ".lock"} or path.name in {"configs", "datasets", "engine", "models", "utils"}
