"""Mixup and CutMix of a batch, on the device."""

from torch import nn
from torchvision.transforms import v2

from configs.schema import Train


def build_mixup(options: Train, num_classes: int) -> nn.Module:
    """(images, targets (B,)) -> (images, targets (B, classes)), or both as they are; draws from torch's global chance.

    Mixup (Zhang et al., 2017) and CutMix (Yun et al., 2019) with PaddleViT's and timm's probabilities.
    """
    mixup = v2.MixUp(num_classes=num_classes, alpha=options.mixup_alpha) if options.mixup_alpha else None
    cutmix = v2.CutMix(num_classes=num_classes, alpha=options.cutmix_alpha) if options.cutmix_alpha else None
    if mixup and cutmix:
        switch = options.mixup_switch_prob
        return v2.RandomApply([v2.RandomChoice([mixup, cutmix], p=[1 - switch, switch])], p=options.mixup_prob)
    if mixup or cutmix:
        return v2.RandomApply([mixup or cutmix], p=options.mixup_prob)
    return v2.Identity()
