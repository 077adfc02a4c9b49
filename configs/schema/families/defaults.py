"""Values that many families of PaddleViT share in their `config.py`."""

from typing import Any

IMAGENET = {"IMAGENET_MEAN": (0.485, 0.456, 0.406), "IMAGENET_STD": (0.229, 0.224, 0.225)}
AUGMENTATION = {
    "SMOOTHING": 0.1,
    "COLOR_JITTER": 0.4,
    "RAND_AUGMENT": True,
    "MIXUP_ALPHA": 0.8,
    "CUTMIX_ALPHA": 1.0,
    "RANDOM_ERASE_PROB": 0.25,
}
# Families whose data pipeline in PaddleViT crops and flips only: these keys of their `config.py` have no effect.
CROP_AND_FLIP = {"COLOR_JITTER": 0.0, "RAND_AUGMENT": False, "RANDOM_ERASE_PROB": 0.0}
MOBILE_TRAINING = CROP_AND_FLIP | {
    "WARMUP_EPOCHS": 3,
    "WEIGHT_DECAY": 0.01,
    "BASE_LR": 2e-3,
    "WARMUP_START_LR": 2e-4,
    "END_LR": 2e-4,
    "LINEAR_SCALED_LR": None,
    "MODEL_EMA": True,
    "MODEL_EMA_DECAY": 0.9996,
}


def family_defaults(
    data: dict[str, Any] | None = None, model: dict[str, Any] | None = None, train: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """ImageNet's normalization, DeiT's augmentation and schedule, and the family's own values."""
    schedule = {"WARMUP_EPOCHS": 5, "WEIGHT_DECAY": 0.05, "BASE_LR": 5e-4, "LINEAR_SCALED_LR": 512}
    return {"DATA": IMAGENET | (data or {}), "MODEL": model or {}, "TRAIN": AUGMENTATION | schedule | (train or {})}
