#!/usr/bin/env bash
# transformers 5.24.0, accelerate 1.15.0, torch 2.14.1 (5 GB are downloaded)
# Subject: training
# Behaviour: dataloader_drop_last=True of TrainingArguments also drops the last incomplete batch of evaluate() and of
#   predict(): of ten images in batches of four, eight are evaluated, and predict() returns eight rows. There is no
#   warning.
# Expected: the option is for the training, where batch norms and compiled steps want equal batches; an evaluation has
#   all images.
# Why it matters: up to a batch of images less one is missing from the accuracy, always the last ones, which in class
#   folders are the last class; a table of predictions has fewer rows than there are images.
# Instead: `dataloader_drop_last=False` in the arguments of the Trainer that evaluates
# Last lines of a run on 2026-11-30 (ten images, the last two of class 2, batches of four):
#   transformers 5.24.0: 10 predictions, classes [0, 1, 2]
#   dataloader_drop_last=True: 8 predictions, classes [0, 1]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq transformers==5.24.0 accelerate==1.15.0 torch==2.14.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import torch
import transformers
from transformers import AutoConfig, AutoModelForImageClassification, Trainer, TrainingArguments

LABELS = [0] * 4 + [1] * 4 + [2] * 2
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
config = AutoConfig.for_model("vit", num_labels=3, image_size=32, patch_size=8, **SIZES)
model = AutoModelForImageClassification.from_config(config)
images = [{"pixel_values": torch.randn(3, 32, 32), "labels": label} for label in LABELS]


def predicted(**options):
    arguments = TrainingArguments(
        "output", per_device_eval_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True, **options
    )
    found = Trainer(model=model, args=arguments).predict(images)
    return len(found.predictions), sorted(set(found.label_ids.tolist()))


whole, dropped = predicted(), predicted(dataloader_drop_last=True)
print(f"transformers {transformers.__version__}: {whole[0]} predictions, classes {whole[1]}")
print(f"dataloader_drop_last=True: {dropped[0]} predictions, classes {dropped[1]}")
assert whole == (10, [0, 1, 2]) and dropped == (8, [0, 1])
PYTHON
