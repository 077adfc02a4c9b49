#!/usr/bin/env bash
# hydra-core 1.3.8 (its command line), omegaconf 2.3.1 (its files)
# Subject: training
# Behaviour: a text in a YAML file of Hydra and the same text on its command line, key=text, are two values: 010 is 8 in
#   the file and the text 010 on the command line, no is False and the text no, 12:30 is 750 and 12:30; nan is a text
#   in the file and a number on the command line.
# Expected: one value for one text, since an override is copied into the file as it was typed.
# Why it matters: names of classes, sites and cameras are such texts. A run whose command line is put into a file has
#   the site 8 in place of 010, and the class False in place of no; in a condition the text no is true, and False is
#   not.
# Instead: quote such texts in the file
# Last lines of a run on 2026-11-30 (text: in the file, on the command line):
#   hydra-core 1.3.8, omegaconf 2.3.1
#   010: 8, '010'; no: False, 'no'; on: True, 'on'; 12:30: 750, '12:30'
#   0x10: 16, '0x10'; nan: 'nan', nan; 1e3: 1000.0, 1000.0; true: True, True
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq hydra-core==1.3.8 omegaconf==2.3.1 pyyaml==6.0.4
venv/bin/python - <<'PYTHON'
from importlib.metadata import version
from pathlib import Path

import hydra

Path("conf").mkdir()


def both(text):
    Path("conf/run.yaml").write_text(f"in_file: {text}\non_command_line: unset\n")
    with hydra.initialize_config_dir(str(Path("conf").resolve()), version_base=None):
        run = hydra.compose("run", overrides=[f"on_command_line={text}"])
    return run.in_file, run.on_command_line


found = {text: both(text) for text in ("010", "no", "on", "12:30", "0x10", "nan", "1e3", "true")}
print(f"hydra-core {version('hydra-core')}, omegaconf {version('omegaconf')}")
lines = [f"{text}: {values[0]!r}, {values[1]!r}" for text, values in found.items()]
print("; ".join(lines[:4]) + "\n" + "; ".join(lines[4:]))
assert found["010"] == (8, "010") and found["no"] == (False, "no") and found["on"] == (True, "on")
assert found["12:30"] == (750, "12:30") and found["0x10"] == (16, "0x10")
assert found["nan"][0] == "nan" and found["nan"][1] != found["nan"][1]
assert found["1e3"] == (1000.0, 1000.0) and found["true"] == (True, True)
assert both('"010"')[0] == "010"
PYTHON
