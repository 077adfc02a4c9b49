#!/usr/bin/env bash
# datasets 5.2.0, pyarrow 25.0.1
# Subject: shards and loaders
# Behaviour: Dataset.from_generator() returns the rows of an earlier run if its function and arguments are the same,
#   also after images were added to the folder that it reads. map() returns earlier rows if its function is imported
#   from a module that was edited in between: only a function of the program that is run is compared by its code. There
#   is no warning.
# Expected: the rows that the files and the functions give now.
# Why it matters: a training goes on without the new images, and an edit of the preprocessing or of the labels changes
#   nothing, until somebody counts rows.
# Instead: `from_generator(..., fingerprint=...)` with a new text, `map(..., load_from_cache_file=False)`
# Last lines of a run on 2026-11-30 (two images, then a third one; labels times 2, then times 10):
#   datasets 5.2.0: rows of from_generator; labels by an imported function, by one in the program, without cache
#   first run: 2; [2, 4]; [2, 4]; [2, 4]
#   after the changes: 2; [2, 4]; [10, 20]; [10, 20]
#   with another fingerprint: 3; [10, 20]; [10, 20]; [10, 20]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq datasets==5.2.0 pyarrow==25.0.1 numpy==2.4.6
mkdir images
touch images/a.png images/b.png
cat > run.py <<'PYTHON'
import sys
from pathlib import Path

import datasets
from labels import change

datasets.disable_progress_bars()


def rows(folder):
    for path in sorted(Path(folder).iterdir()):
        yield {"name": path.name}


def times(row):
    return {"label": row["label"] * int(FACTOR)}


FACTOR, *text = sys.argv[1:]
options = {"fingerprint": text[0]} if text else {}
names = datasets.Dataset.from_generator(rows, gen_kwargs={"folder": "images"}, **options)
table = datasets.load_dataset("csv", data_files="labels.csv", split="train")
imported, own = table.map(change)["label"][:], table.map(times)["label"][:]
print(len(names), imported, own, table.map(change, load_from_cache_file=False)["label"][:], sep="; ")
PYTHON
printf 'label\n1\n2\n' > labels.csv
export HF_HOME=$PWD/cache
edit() { echo "def change(row): return {'label': row['label'] * $1}" > labels.py; }
edit 2
run() { venv/bin/python run.py "$@" 2> errors.txt || { cat errors.txt >&2; exit 1; }; }
first=$(run 2)
edit 10
touch images/c.png
second=$(run 10)
third=$(run 10 two)
version=$(venv/bin/python -c "import datasets; print(datasets.__version__)")
echo "datasets $version: rows of from_generator; labels by an imported function, by one in the program, without cache"
printf '%s\n' "first run: $first" "after the changes: $second" "with another fingerprint: $third"
[ "$first" = "2; [2, 4]; [2, 4]; [2, 4]" ] && [ "$second" = "2; [2, 4]; [10, 20]; [10, 20]" ]
[ "$third" = "3; [10, 20]; [10, 20]; [10, 20]" ]
