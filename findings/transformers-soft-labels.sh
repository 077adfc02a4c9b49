#!/usr/bin/env bash
# transformers 5.24.0, torch 2.14.1 (5 GB are downloaded), Pillow 13.0.0
# Subject: training
# Behaviour: an image classifier takes labels of probabilities, as mixup, CutMix and label smoothing make them, for
#   several labels per image: its loss is binary cross-entropy. The first such batch writes problem_type
#   "multi_label_classification" into the configuration, which save_pretrained() keeps, so that the pipeline of the
#   saved model gives sigmoids, whose sum is not 1.
# Expected: cross-entropy, which torch computes with probabilities, too, and softmax.
# Why it matters: the same recipe trains with another loss as soon as mixup is on. Probabilities, thresholds and
#   temperatures of the trained model are of another kind.
# Instead: compute the loss outside, `F.cross_entropy(model(images).logits, labels)`
# Last lines of a run on 2026-12-01 (three classes, random weights, the labels 0, 1, 2, 0 as probabilities):
#   transformers 5.24.0: losses of ViT, DINOv2, ResNet 0.70, 0.71, 0.67; cross-entropy 1.11, 1.13, 1.05
#   problem_type None, multi_label_classification; sum of the pipeline's scores 1.00, 1.52
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq transformers==5.24.0 torch==2.14.1 torchvision==0.29.1 pillow==13.0.0 numpy==2.4.6
OMP_NUM_THREADS=1 HF_HOME=$PWD/cache venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import torch
import torch.nn.functional as F
import transformers
from PIL import Image

torch.manual_seed(0)
SMALL = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
CONVOLUTIONS = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}
CONFIGURATIONS = {
    "ViT": transformers.ViTConfig(num_labels=3, intermediate_size=16, **SMALL),
    "DINOv2": transformers.Dinov2Config(num_labels=3, **SMALL),
    "ResNet": transformers.ResNetConfig(num_labels=3, **CONVOLUTIONS),
}
IMAGES = torch.rand(4, 3, 32, 32)
LABELS = F.one_hot(torch.tensor([0, 1, 2, 0]), 3).float()


def total(model):
    """The sum of the scores of all classes by the pipeline."""
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    pipeline = transformers.pipeline("image-classification", model=model, image_processor=processor)
    return sum(score["score"] for score in pipeline(Image.new("RGB", (32, 32), (200, 30, 90))))


binary, plain = [], []
for name, configuration in CONFIGURATIONS.items():
    model = transformers.AutoModelForImageClassification.from_config(configuration).eval()
    if name == "ViT":
        before, sums = model.config.problem_type, [total(model)]
    with torch.no_grad():
        output = model(IMAGES, labels=LABELS)
    assert torch.isclose(output.loss, F.binary_cross_entropy_with_logits(output.logits, LABELS)), name
    assert model.config.problem_type == "multi_label_classification", name
    binary.append(f"{output.loss:.2f}")
    plain.append(f"{F.cross_entropy(output.logits, LABELS):.2f}")
    if name == "ViT":
        model.save_pretrained("saved")
saved = transformers.AutoModelForImageClassification.from_pretrained("saved")
sums.append(total(saved))
print(
    f"transformers {transformers.__version__}: losses of {', '.join(CONFIGURATIONS)} {', '.join(binary)}; "
    f"cross-entropy {', '.join(plain)}"
)
print(f"problem_type {before}, {saved.config.problem_type}; sum of the pipeline's scores {sums[0]:.2f}, {sums[1]:.2f}")
assert before is None and saved.config.problem_type == "multi_label_classification"
assert abs(sums[0] - 1) < 0.001 and sums[1] > 1.3
PYTHON
