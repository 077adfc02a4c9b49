#!/usr/bin/env bash
# transformers 5.24.0, accelerate 1.15.0, torch 2.14.1 (5 GB are downloaded)
# Subject: training
# Behaviour: with gradient_accumulation_steps=N of the Trainer the loss and the gradients of many image classifiers are
#   N times as large: of ResNet, MobileNetV2 and BEiT always, of ViT and Swin with several labels per image. The Trainer
#   leaves the division to each model that takes further keywords, and these losses ignore them. ViT and Swin with one
#   label, and ConvNeXt, are right.
# Expected: four batches of 2 are one batch of 8.
# Why it matters: SGD has a rate that is N times as large; max_grad_norm, 1.0 by default, cuts gradients that it should
#   not, by another amount for each number of steps; and the loss that is logged is N times that of the evaluation.
# Instead: divide in `compute_loss_func=`, or set `trainer.model_accepts_loss_kwargs = False`
# Last lines of a run on 2026-11-30 (loss and gradient norm of one batch of 8, of four batches of 2):
#   transformers 5.24.0, vit, one label: 1.09 0.65, 1.09 0.65; several labels: 0.70 0.90, 2.78 3.61
#   resnet, one label: 1.13 2.29, 4.51 9.15; several labels: 0.69 0.95, 2.77 3.80
#   resnet with model_accepts_loss_kwargs = False, one label: 1.13 2.29, 1.13 2.29
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq transformers==5.24.0 accelerate==1.15.0 torch==2.14.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' | grep -v "^{" || { cat errors.txt; exit 1; }
import torch
import transformers
from transformers import AutoConfig, AutoModelForImageClassification, Trainer, TrainingArguments

SMALL_VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
OPTIONS = {
    "vit": {**SMALL_VIT, "image_size": 32, "patch_size": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"},
    "mobilenet_v2": {"image_size": 32},
    "beit": {**SMALL_VIT, "image_size": 32, "patch_size": 8},
    "swin": {"image_size": 32, "window_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]},
    "convnext": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "image_size": 32},
}
RIGHT = [("vit", "one label"), ("swin", "one label"), ("convnext", "one label"), ("convnext", "several labels")]
generator = torch.Generator().manual_seed(1)
images = torch.randn(8, 3, 32, 32, generator=generator)
labels = {
    "one label": torch.randint(0, 3, (8,), generator=generator),
    "several labels": (torch.rand(8, 3, generator=generator) < 0.5).float(),
}
PROBLEMS = {"one label": "single_label_classification", "several labels": "multi_label_classification"}


def first_step(family, kind, batches, patched=False):
    """Loss and gradient norm of the first step on eight images."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, num_labels=3, problem_type=PROBLEMS[kind], **OPTIONS[family])
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    model = AutoModelForImageClassification.from_config(config)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # statistics of a batch would differ
            module.eval()
            module.train = lambda mode=True: None
    arguments = TrainingArguments(
        "output", per_device_train_batch_size=8 // batches, gradient_accumulation_steps=batches, max_steps=1,
        max_grad_norm=1e9, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    samples = [{"pixel_values": image, "labels": label} for image, label in zip(images, labels[kind])]
    trainer = Trainer(model=model, args=arguments, train_dataset=samples)
    if patched:
        trainer.model_accepts_loss_kwargs = False
    trainer.train()
    (line,) = [line for line in trainer.state.log_history if "loss" in line]
    return float(line["loss"]), float(line["grad_norm"])


def both(family, kind, patched=False):
    return first_step(family, kind, 1, patched), first_step(family, kind, 4, patched)


def text(figures):
    return ", ".join(f"{loss:.2f} {norm:.2f}" for loss, norm in figures)


found = {(family, kind): both(family, kind) for family in OPTIONS for kind in labels}
patched = both("resnet", "one label", patched=True)
start = f"transformers {transformers.__version__}, "
for family in ("vit", "resnet"):
    kinds = "; ".join(f"{kind}: {text(found[family, kind])}" for kind in labels)
    print(f"{start}{family}, {kinds}")
    start = ""
print(f"resnet with model_accepts_loss_kwargs = False, one label: {text(patched)}")
for case, (whole, parts) in {**found, "patched": patched}.items():
    factor = 1 if case == "patched" or case in RIGHT else 4
    assert abs(parts[0] / whole[0] - factor) < 0.01 and abs(parts[1] / whole[1] - factor) < 0.01, case
PYTHON
