#!/usr/bin/env bash
# PyYAML 6.0.4, ruamel.yaml 0.19.1, omegaconf 2.3.1
# Subject: training
# Behaviour: yaml.dump() of PyYAML writes the texts 08, 09, 1e3 and 7e10 without quotes, since they are no numbers in
#   YAML 1.1. They are numbers in YAML 1.2: ruamel.yaml (as readers in other languages) returns 8, 9, 1000.0 and 7e10;
#   omegaconf, which reads with PyYAML, has 1000.0 and 7e10. 00 to 07 are quoted, and stay texts.
# Expected: a writer quotes each text that a reader of either version takes for a number.
# Why it matters: of the classes 00 to 09 in a list of names two are numbers and eight are texts: lookups of two classes
#   fail, or an exporter sorts them elsewhere. Hashes and product numbers such as 7e10 are changed for good.
# Instead: write with ruamel.yaml, or quote names of digits
# Last lines of a run on 2026-11-30 (names 00 to 09, 1e3, 7e10):
#   PyYAML 6.0.4 writes ['00', '01', '02', '03', '04', '05', '06', '07', 08, 09, 1e3, 7e10]
#   no texts by ruamel.yaml 0.19.1: [8, 9, 1000.0, 70000000000.0]; by omegaconf 2.3.1: [1000.0, 70000000000.0]
#   by PyYAML: []
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pyyaml==6.0.4 ruamel.yaml==0.19.1 omegaconf==2.3.1
venv/bin/python - <<'PYTHON'
from importlib.metadata import version

import yaml
from omegaconf import OmegaConf
from ruamel.yaml import YAML

names = [f"{number:02}" for number in range(10)] + ["1e3", "7e10"]
text = yaml.safe_dump(names, default_flow_style=None)
print(f"PyYAML {version('pyyaml')} writes {text.strip()}")
changed = {
    f"ruamel.yaml {version('ruamel.yaml')}": YAML(typ="safe").load(text),
    f"omegaconf {version('omegaconf')}": list(OmegaConf.create(text)),
    "PyYAML": yaml.safe_load(text),
}
changed = {reader: [value for value in read if not isinstance(value, str)] for reader, read in changed.items()}
lines = [f"by {reader}: {values}" for reader, values in changed.items()]
print(f"no texts {lines[0]}; {lines[1]}\n{lines[2]}")
assert list(changed.values()) == [[8, 9, 1000.0, 7e10], [1000.0, 7e10], []]
PYTHON
