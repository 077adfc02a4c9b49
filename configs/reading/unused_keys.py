"""The options of the command line that a command does not use."""

import os
from fnmatch import fnmatchcase

from configs.reading.flags import Prediction
from configs.reading.option_layers import OptionLayers, flatten

_TABLES = (".csv", ".tsv", ".txt", ".jsonl", ".parquet")
_SAVING = "SAVE_FREQ* KEEP_CHECKPOINTS VALIDATE_FREQ"
_CROPS = "DATA.RANDOM_CROP_* DATA.?FLIP_PROB DATA.AFFINE_* DATA.*_AUGMENTATIONS"
_STEPS = (
    "SEED REPORT_FREQ LOGGERS EVAL_RAW EVAL.SUSPECTS TRAIN.* LOSS.* PARALLEL.* DATA.GLOBAL_BATCH_SIZE DATA.MEMORY_GB "
    "DATA.REPEATED_AUGMENTATION DATA.BALANCED_SAMPLING DATA.NEAR_COPIES MODEL.TUNE MODEL.LORA.* MODEL.FREEZE_BACKBONE "
    "MODEL.DROPOUT MODEL.ATTENTION_DROPOUT MODEL.DROPPATH MODEL.GRAD_CHECKPOINTING AMP.*_LOSS_SCALING AMP.INCR_* "
    "AMP.DECR_* AMP.MAX_SKIPPED_STEPS"
)
_EVAL = f"{_SAVING} {_CROPS} {_STEPS}"
_PREDICT = f"{_EVAL} EVAL.SAVE_LOGITS EVAL.BEST_METRIC DATA.ON_BAD_IMAGE"
# By command, patterns of keys. The rule of MODEL.TUNE probe (configs/rules.py) names the keys of its training steps.
_UNUSED = {
    "probe": f"{_SAVING} {_CROPS} DATA.MEMORY_GB MODEL.GRAD_CHECKPOINTING",
    "profile": f"{_SAVING} LOGGERS EVAL.* EVAL_RAW DATA.NEAR_COPIES TRAIN.PATIENCE",
    "eval": _EVAL,
    "predict": _PREDICT,
    "embed": f"{_PREDICT} EVAL.TTA",
}
_DATA_SET = (
    "DATA.DATA_PATH DATA.CLASS_FOLDERS DATA.VAL_FRACTION DATA.SPLIT_SEED DATA.FOLD* DATA.GROUPS DATA.SHUFFLE_SHARDS "
    "DATA.CACHE_*"
)
_TABLE = "DATA.IMAGE_ROOT DATA.COLUMNS DATA.ENCODING"


def unused_keys(command: str, path: str | None = None) -> list[str]:
    """Patterns of the keys that a command does not use. path: of the images to label or to embed."""
    is_table = path and path.lower().endswith(_TABLES) and not os.path.isdir(path)
    return f"{_UNUSED.get(command, '')} {_DATA_SET if path else ''} {_TABLE if path and not is_table else ''}".split()


def warn_of_unused(layers: OptionLayers, command: str, prediction: Prediction | None) -> list[str]:
    """A warning that names the flags, and the keys of -opts, that the command does not use; none for keys of files."""
    if prediction:
        command = "embed" if prediction.embeds else "predict"
    patterns = unused_keys(command, prediction.path if prediction else None)
    flags: dict[str, list[bool]] = {}  # by flag or, of -opts, by key: is each key unused?
    for key, _ in flatten(layers.values):
        source = layers.origin(tuple(key.split("."))).removesuffix(": ")
        if source.startswith("-"):
            name = key if source in ("-opts", "-set") else source
            flags.setdefault(name, []).append(any(fnmatchcase(key, pattern) for pattern in patterns))
    unused = [name for name, are_unused in flags.items() if all(are_unused)]
    title = "MODEL.TUNE probe" if command == "probe" else f"-{command}"
    title += " PATH" if prediction and prediction.path else ""
    return [f"Warning: {title} does not use {', '.join(unused)}"] if unused else []
