#!/usr/bin/env bash
# timm 1.0.31, torch 2.14.1 (5 GB are downloaded)
# Subject: training
# Behaviour: timm's Swin takes another image size in three ways, and they are three networks. create_model(img_size=160)
#   cuts the window of the last stage to its 5 x 5 tokens; set_input_size(160) makes the windows of all stages 5 x 5;
#   strict_img_size=False keeps 7 x 7 and pads. With equal weights the logits differ by more than 1% of the largest.
# Expected: one result for one file of weights and one size, as timm's ViTs have it (dynamic_img_size=True equals
#   img_size in all bits).
# Why it matters: a model that was trained at 160 pixels by one of the ways is another one when it is evaluated by
#   another; the file of weights fits all three.
# Instead: the same way in training and in evaluation
# Last lines of a run on 2026-11-28:
#   timm 1.0.31, swin_tiny_patch4_window7_224 at 160 pixels; windows of the four stages:
#   img_size [7, 7, 7, 5], set_input_size [5, 5, 5, 5], strict_img_size=False [7, 7, 7, 7]
#   logits apart by over 1%: img_size and set_input_size, img_size and strict_img_size=False
#   ViT: dynamic_img_size and img_size differ by 0.0
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq timm==1.0.31 torch==2.14.1
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import timm
import torch

SIZE, SWIN, VIT = 160, "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224"


def build(name, **options):
    return timm.create_model(name, num_classes=10, **options).eval()


def perturb(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.02)
    torch.save(model.state_dict(), "weights.pth")


def at_other_size(name):
    overlay = {"file": "weights.pth", "num_classes": 10}
    return build(name, img_size=SIZE, pretrained=True, pretrained_cfg_overlay=overlay)


def windows(model):
    return [stage.blocks[0].window_size[0] for stage in model.layers]


images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def apart(one, other):
    with torch.no_grad():
        first, second = one(images), other(images)
    return float((first - second).abs().max() / first.abs().max())


perturb(build(SWIN))
by_size, by_method, by_padding = at_other_size(SWIN), build(SWIN), build(SWIN, strict_img_size=False)
for model in (by_method, by_padding):
    model.load_state_dict(torch.load("weights.pth"))
by_method.set_input_size((SIZE, SIZE))
print(f"timm {timm.__version__}, {SWIN} at {SIZE} pixels; windows of the four stages:")
print(
    f"img_size {windows(by_size)}, set_input_size {windows(by_method)}, strict_img_size=False {windows(by_padding)}"
)
others = {"set_input_size": by_method, "strict_img_size=False": by_padding}
far = [f"img_size and {name}" for name, model in others.items() if apart(by_size, model) > 0.01]
print(f"logits apart by over 1%: {', '.join(far)}")
perturb(build(VIT))
dynamic = build(VIT, dynamic_img_size=True)
dynamic.load_state_dict(torch.load("weights.pth"))
of_vit = apart(at_other_size(VIT), dynamic)
print(f"ViT: dynamic_img_size and img_size differ by {of_vit}")
assert windows(by_size) == [7, 7, 7, 5] and windows(by_method) == [5] * 4 and windows(by_padding) == [7] * 4
assert len(far) == 2 and of_vit < 1e-5
PYTHON
