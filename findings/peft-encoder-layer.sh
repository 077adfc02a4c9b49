#!/usr/bin/env bash
# peft 0.21.2, torch 2.14.1 (5 GB are downloaded)
# Subject: training
# Behaviour: LoRA on a torch.nn.TransformerEncoderLayer works in train(), not in eval(): there the layer runs in one
#   fused kernel that takes the weights of its linear layers, and not the adapters around them. On out_proj of
#   nn.MultiheadAttention LoRA works in neither. merge_and_unload() adds both to the weights.
# Expected: the outputs of train() without dropout, or an error as for modules that peft does not know.
# Why it matters: the loss of the training falls, and each validation has the accuracy of the network without adapters;
#   a ViT of these layers, as tutorials build it, seems not to generalize. The merged network is right.
# Instead: `torch.backends.mha.set_fastpath_enabled(False)`; no adapter on `out_proj`
# Last lines of a run on 2026-11-29 (largest change of the outputs by LoRA with random weights):
#   peft 0.21.2, torch 2.14.1, linear1 and linear2: train 0.62, eval 0.00, eval without the kernel 0.62, merged 0.62
#   out_proj: train 0.00, eval 0.00, eval without the kernel 0.00, merged 0.79
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq peft==0.21.2 torch==2.14.1
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import copy

import peft
import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
network = nn.Sequential(layer, nn.Linear(32, 3)).eval()
tokens = torch.randn(4, 5, 32)
before = network(tokens)


def change(model):
    with torch.no_grad():
        return float((model(tokens) - before).abs().max())


def changes(names):
    config = peft.LoraConfig(target_modules=names, r=4, init_lora_weights=False)
    model = peft.get_peft_model(copy.deepcopy(network), config)
    trained, evaluated = change(model.train()), change(model.eval())
    torch.backends.mha.set_fastpath_enabled(False)
    without = change(model)
    torch.backends.mha.set_fastpath_enabled(True)
    merged = change(model.merge_and_unload())
    return {"train": trained, "eval": evaluated, "eval without the kernel": without, "merged": merged}


def line(figures):
    return ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items())


linear, projection = changes(["linear1", "linear2"]), changes(["out_proj"])
print(f"peft {peft.__version__}, torch {torch.__version__.split('+')[0]}, linear1 and linear2: {line(linear)}")
print(f"out_proj: {line(projection)}")
assert linear["eval"] < 1e-5 < 0.1 < linear["train"]
assert abs(linear["train"] - linear["merged"]) < 1e-4
assert abs(linear["train"] - linear["eval without the kernel"]) < 1e-4
assert max(projection["train"], projection["eval"], projection["eval without the kernel"]) < 1e-5
assert projection["merged"] > 0.1
PYTHON
