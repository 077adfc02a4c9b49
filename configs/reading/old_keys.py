"""Keys of PaddleViT's earlier YAML files, of earlier versions, and presets in the words of other programs.

Renamed ones get their present name, those without an effect are removed.
"""

from collections.abc import Sequence
from typing import Any

from configs.reading.option_layers import OptionLayers, flatten, paths
from configs.reading.yaml_io import format_value
from configs.schema.compute import PRESETS
from configs.schema.config import known_keys

_RENAMED = {
    "DISTILL": "DISTILLED",
    "DROP_PATH": "DROPPATH",
    "EMBED_DIMS": "EMBED_DIM",
    "HEADS": "NUM_HEADS",
    "HIDDEN_SIZE": "EMBED_DIM",
    "NUM_LAYERS": "DEPTH",
    "RANDAUGMENT": "RAND_AUGMENT",
    "STAGE_DEPTHS": "STAGE_DEPTH",
}
# Of PaddleViT's launcher, of BEiT's tokenizer, of MAE's pre-training; the place of the average; erasing per image.
_UNUSED = (
    "DATA.SECOND_IMAGE_SIZE", "LOCAL_RANK", "NGPUS", "TAG", "THROUGHPUT_MODE", "TRAIN.LR_SCHEDULER.MILESTONES",
    "TRAIN.MODEL_EMA_FORCE_CPU", "TRAIN.NORMALIZE_TARGET", "TRAIN.RANDOM_ERASE_SPLIT",
)  # fmt: skip
# Unknown keys if they are on.
_UNUSED_IF_OFF = (
    "MODEL.ATTN_HEAD_SIZE", "MODEL.DISTILL", "MODEL.RESUME_EMA", "MODEL.TRANS.HYBRID", "MODEL.TRANS.PATCH_GRID",
    "TRAIN.MULTI_SCALE_SAMPLER_DDP",
)  # fmt: skip
# Keys of earlier versions, with the defaults that the config.yaml of their runs has. Other values are unknown keys.
REMOVED = {
    "LOSS.SUM_CLASSES": False, "PARALLEL.FP16_ALLREDUCE": False, "PARALLEL.FUSE_ALL_REDUCE_OPS": False,
    "PARALLEL.OFFLOAD": False, "PARALLEL.REDUCE_DTYPE": "float32", "TRAIN.BLUR_PROB": 0, "TRAIN.CLIP_MODE": "norm",
    "TRAIN.GRAYSCALE_PROB": 0, "TRAIN.LR_SCHEDULER.COOLDOWN_EPOCHS": 0, "TRAIN.MODEL_EMA_FORCE_CPU": False,
    "TRAIN.RANDOM_ERASE_SPLIT": False, "TRAIN.RESTART_SCHEDULE": False,
}  # fmt: skip
_OF_STEP_DECAY = ("TRAIN.LR_SCHEDULER.DECAY_EPOCHS", "TRAIN.LR_SCHEDULER.DECAY_RATE")


def replace_old_keys(layers: OptionLayers, family: str) -> list[str]:
    """Renames and removes old keys of `layers` in place. Of an old and a present name, a higher layer wins.

    Returns:
        one warning that names the keys, or nothing.
    """
    known, values = known_keys(family), dict(paths(layers.values))
    is_cosine = values.get(("TRAIN", "LR_SCHEDULER", "NAME")) == "warmupcosine"  # PaddleViT's name
    unused, renamed = [], []
    for path, value in values.items():
        key = ".".join(path)
        present = _present_name(key, known)
        if key in REMOVED and value == REMOVED[key]:
            _remove(layers.values, path)
            continue
        if (isinstance(value, dict) and value) or (key in known and not (is_cosine and key in _OF_STEP_DECAY)):
            continue
        is_off = key in _UNUSED_IF_OFF and present not in known and value in (None, False, "")
        if key in known or key in _UNUSED or is_off:
            unused.append(key)
        elif present != key:
            renamed.append(f"{key} -> {present}")
            if layers.level(key) > layers.level(present):
                layers.add_key(present, value, layers.origin(path).removesuffix(": "))
        else:
            continue
        _remove(layers.values, path)
    parts = [f"without effect: {', '.join(unused)}"] if unused else []
    parts += [f"renamed: {', '.join(renamed)}"] if renamed else []
    return [f"Warning: old keys; {'; '.join(parts)}"] if parts else []


def _present_name(key: str, known: Sequence[str]) -> str:
    """The key itself if it has no other name."""
    moved = key if "MODEL.TRANS" in known else key.replace("MODEL.TRANS.", "MODEL.")
    section, dot, leaf = moved.rpartition(".")
    renamed = section + dot + _RENAMED.get(leaf, leaf)
    return renamed if renamed in known and moved not in known else moved


def _remove(values: dict[str, Any], path: tuple[str, ...]) -> None:
    """Removes the key, and the sections that it leaves empty."""
    above = values
    for name in path[:-1]:
        above = above[name]
    del above[path[-1]]
    if not above and len(path) > 1:
        _remove(values, path[:-1])


def precision_follows_preset(layers: OptionLayers) -> list[str]:
    """AMP.PRESET gives other keys of AMP; a key wins if the layer of PRESET, or a higher one, gives it.

    Returns:
        a line for the log with the added values, or nothing.
    """
    name, level = str(dict(flatten(layers.values)).get("AMP.PRESET")), layers.level("AMP.PRESET")
    values = {key: value for key, value in PRESETS.get(name, {}).items() if layers.level(f"AMP.{key}") < level}
    if not values:  # or an unknown name, which the check of the options reports
        return []
    layers.add({"AMP": values}, f"AMP.PRESET {name}")
    return [f"AMP.PRESET {name}: {', '.join(f'{key} {format_value(value)}' for key, value in values.items())}"]
