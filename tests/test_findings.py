"""The scripts of findings: each works in a folder of its own, pins its packages, and has the parts of its head."""

import os
import re
import shlex
import shutil
import subprocess
import sys

from conftest import ROOT, each_row

RUNNER = ROOT / "findings" / "run.sh"
TEXTS = {path: path.read_text() for path in sorted(RUNNER.parent.glob("*.sh")) if path != RUNNER}
OWN_FOLDER = ["set -euo pipefail", "folder=$(mktemp -d)", 'cd "$folder"', "trap 'rm -rf \"$folder\"' EXIT"]
PARTS = ["Subject: ", "Behaviour: ", "Expected: ", "Why it matters: ", "Instead: ", "Last lines of a run on "]
PINNED = re.compile(r"[\w.\[\],-]+==[\w.]+")


def test_each_script_works_in_a_folder_of_its_own():
    assert len(TEXTS) > 100
    for script, text in TEXTS.items():
        commands = [line for line in text.splitlines() if not line.startswith("#")]
        assert commands[:4] == OWN_FOLDER, script.name
        assert not re.search(r"\b(rm|rmtree|trap|mktemp)\b", "\n".join(commands[4:])), script.name


def test_no_script_works_where_no_folder_can_be_made(tmp_path):
    (tmp_path / "kept.txt").write_text("kept")
    environment = os.environ | {"TMPDIR": "/no/such/dir", "PIP_NO_INDEX": "1"}
    ended = subprocess.run([next(iter(TEXTS))], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode != 0 and "mktemp" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_each_script_can_be_run_and_read():
    for script in [*TEXTS, RUNNER]:
        assert os.access(script, os.X_OK), script.name
        assert max(map(len, script.read_text().splitlines())) <= 120, script.name


def test_each_script_pins_its_packages():
    for script, text in TEXTS.items():
        installations = re.findall(r"pip install (.*)", text.partition("set -euo")[2].replace("\\\n", " "))
        packages = [word for word in shlex.split(" ".join(installations)) if not word.startswith("-")]
        assert packages and all(map(PINNED.fullmatch, packages)), script.name


def test_each_head_has_its_parts():
    for script, text in TEXTS.items():
        shebang, packages, *head = text.partition("\nset -euo")[0].splitlines()
        assert shebang == "#!/usr/bin/env bash" and re.search(r"[\w-]+ \d+\.\d+", packages), script.name
        parts = [part for line in head for part in PARTS if line.startswith(f"# {part}")]
        assert parts == PARTS, script.name


def test_the_index_is_made_from_the_heads():
    program = [sys.executable, RUNNER.parent / "index.py"]
    page = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert page == (RUNNER.parent / "README.md").read_text(), "python findings/index.py > findings/README.md"
    for script in TEXTS:
        assert page.count(f"| [{script.stem}]({script.name}): ") == 1, script.name


ENDS = """
commands | said
venv/bin/pip install a==1; echo seen | ok
venv/bin/pip install a==1; echo seen; false | CHANGED
venv/bin/pip install a==2 | not installed
 | no such finding
"""


@each_row(ENDS)
def test_the_runner_says_how_a_finding_ended(tmp_path, commands, said):
    shutil.copy(RUNNER, tmp_path)
    if commands:
        answer = "[ $2 = a==1 ] || { echo ERROR: no a==2; exit 1; }"
        pip = f"mkdir -p venv/bin\necho '{answer}' > venv/bin/pip\nchmod +x venv/bin/pip"
        (tmp_path / "one.sh").write_text("\n".join([*OWN_FOLDER, pip, commands]))
    ended = subprocess.run(["bash", tmp_path / "run.sh", "one"], capture_output=True, text=True)
    line, *output = ended.stdout.splitlines()
    assert line.startswith(f"{said} ") and ended.returncode == (said != "ok")
    assert ("seen" in line or "seen" in output) == ("seen" in commands)
    assert ("no a==2" in line) == (said == "not installed")
