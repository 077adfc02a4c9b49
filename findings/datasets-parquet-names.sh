#!/usr/bin/env bash
# datasets 5.2.0, pyarrow 25.0.1
# Subject: shards and loaders
# Behaviour: each parquet file of datasets has the names of its classes in its schema. load_dataset() of several files
#   takes the names of the first, for the other files and splits too, and leaves their numbers: the class dog of a test
#   file whose names are dog, cat is read as cat, without a warning.
# Expected: the numbers follow the names, or the error that concatenate_datasets gives for the same two files.
# Why it matters: splits or parts that were written one by one, with the classes in the order in which each met them
#   (or without a class that the part lacks), are trained on, or evaluated, under wrong names. cast_column(ClassLabel)
#   keeps the numbers, too.
# Instead: write all files with one list of names, or join with `concatenate_datasets()`, which refuses
# Last lines of a run on 2026-11-29 (labels of the file test.parquet: dog, cat, dog):
#   datasets 5.2.0: test.parquet alone ['dog', 'cat', 'dog'], beside train.parquet ['cat', 'dog', 'cat']
#   both as one split: ['cat', 'dog', 'cat', 'cat', 'dog', 'cat']; concatenate_datasets: ValueError
# The same on 2026-11-30 with Python 3.13 and pyarrow 26.0.1.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq datasets==5.2.0 pyarrow==25.0.1
HF_HOME="$PWD/home" venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import datasets
from datasets import ClassLabel, Dataset, Features, concatenate_datasets, load_dataset

TRAIN, TEST = ["cat", "dog", "cat"], ["dog", "cat", "dog"]


def write(name, labels):
    names = list(dict.fromkeys(labels))
    features = Features(label=ClassLabel(names=names))
    Dataset.from_dict({"label": labels}, features=features).to_parquet(name)


def named(data):
    return data.features["label"].int2str(data["label"][:])


def read(files):
    return load_dataset("parquet", data_files=files, split="train")


write("train.parquet", TRAIN)
write("test.parquet", TEST)
alone = named(read("test.parquet"))
together = load_dataset("parquet", data_files={"train": "train.parquet", "test": "test.parquet"})
streamed = load_dataset("parquet", data_files={"train": "train.parquet", "test": "test.parquet"}, streaming=True)
beside, in_one = named(together["test"]), named(read(["train.parquet", "test.parquet"]))
of_stream = streamed["test"].features["label"].int2str([row["label"] for row in streamed["test"]])
try:
    concatenate_datasets([read("train.parquet"), read("test.parquet")])
    joined = "joined"
except ValueError as error:
    joined = type(error).__name__
print(f"datasets {datasets.__version__}: test.parquet alone {alone}, beside train.parquet {beside}")
print(f"both as one split: {in_one}; concatenate_datasets: {joined}")
assert named(together["train"]) == TRAIN and alone == TEST
assert beside == of_stream == ["cat", "dog", "cat"] and in_one == TRAIN + ["cat", "dog", "cat"]
assert joined == "ValueError"
PYTHON
