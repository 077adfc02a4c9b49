#!/usr/bin/env bash
# label-studio-sdk 2.1.2 (its converter, which writes Label Studio's exports)
# Subject: tables and lists of images
# Behaviour: in the CSV export of choices, one choice is its text, several are a JSON object in the same column. A task
#   that nobody has labelled is a row with an empty choice; a task that was skipped has no row; a task of two people has
#   two rows.
# Expected: one form for all cells, one row per image, and unlabelled tasks left out as skipped ones are.
# Why it matters: read as names, {"choices":["cat","dog"]} becomes a class of its own. In a training with several
#   labels an unlabelled image is a negative of every class; images of two people count twice, or contradict themselves.
# Instead: split cells that begin with `{`, and drop empty ones and second rows of an image
# Last lines of a run on 2026-11-28 (1: two people; 2: two choices; 3: skipped; 4: not labelled):
#   label-studio-sdk 2.1.2: 1.jpg 'cat', 1.jpg 'dog', 2.jpg '{"choices":["cat","dog"]}', 4.jpg ''
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq label-studio-sdk==2.1.2
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import csv
import json
from importlib.metadata import version
from pathlib import Path

from label_studio_sdk.converter import Converter

VIEW = (
    '<View><Image name="image" value="$image"/><Choices name="choice" toName="image" choice="multiple">'
    '<Choice value="cat"/><Choice value="dog"/></Choices></View>'
)


def annotation(number, *choices, was_cancelled=False):
    result = {"from_name": "choice", "to_name": "image", "type": "choices", "value": {"choices": choices}}
    shown = [] if was_cancelled else [{"id": f"r{number}", **result}]
    return {"id": number, "completed_by": number, "was_cancelled": was_cancelled, "result": shown}


of_tasks = [
    [annotation(1, "cat"), annotation(2, "dog")],
    [annotation(3, "cat", "dog")],
    [annotation(4, was_cancelled=True)],
    [],
]
tasks = [
    {"id": number, "data": {"image": f"{number}.jpg"}, "annotations": annotations, "predictions": []}
    for number, annotations in enumerate(of_tasks, 1)
]
Path("tasks.json").write_text(json.dumps(tasks))
Converter(VIEW, project_dir=None).convert_to_csv("tasks.json", "labels.csv", is_dir=False, sep=",")
with open("labels.csv", newline="") as file:
    rows = [(row["image"], row["choice"]) for row in csv.DictReader(file)]
print(f"label-studio-sdk {version('label-studio-sdk')}: {', '.join(f'{image} {choice!r}' for image, choice in rows)}")
both = '{"choices":["cat","dog"]}'
assert rows == [("1.jpg", "cat"), ("1.jpg", "dog"), ("2.jpg", both), ("4.jpg", "")]
PYTHON
