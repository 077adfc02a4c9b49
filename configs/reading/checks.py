"""Checks the options against the schema, and compares them with the defaults and with the options of another run.

A mistake is one line, with the file and line or the flag, and the key.
"""

import os
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from configs.reading.layer_rules import REMOVED
from configs.reading.option_layers import OptionLayers, expand_switches, flatten, merge, nest, paths, stored_options
from configs.reading.yaml_io import KeyPath, format_value, parse_value, read_yaml, shorten
from configs.schema import Config
from configs.schema.config import known_keys, model_type
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import FIXED_KEYS, Model, without_fixed_keys
from utils.errors import UserError, combine_findings, did_you_mean
from utils.tables import wrap_parts

_PROJECT = Path(__file__).parents[2]
AMP_OF_COLOSSALAI = "-opts AMP.PRESET=torch, naive or apex_o1"
_GRAY_AND_BLUR = "TRAIN.AUGMENT_POLICY=3a, which has gray values and blur, or a plugin"
_OTHER_NAMES = {  # of keys, in timm's train.py and torchvision's; docs/recipes.md has all of timm's
    "AA": "TRAIN.AUGMENT_POLICY", "AUG_REPEATS": "DATA.REPEATED_AUGMENTATION", "CHECKPOINT_HIST": "KEEP_CHECKPOINTS",
    "CLIP_GRAD": "TRAIN.GRAD_CLIP", "CUTMIX": "TRAIN.CUTMIX_ALPHA", "DROP": "MODEL.DROPOUT",
    "DROP_PATH": "MODEL.DROPPATH", "EPOCHS": "TRAIN.NUM_EPOCHS", "HFLIP": "DATA.HFLIP_PROB",
    "LABEL_SMOOTHING": "TRAIN.SMOOTHING", "LEARNING_RATE": "TRAIN.BASE_LR", "LOG_FREQ": "REPORT_FREQ",
    "LOG_INTERVAL": "REPORT_FREQ", "PRINT_FREQ": "REPORT_FREQ",
    "LR": "TRAIN.BASE_LR", "MEAN": "DATA.IMAGENET_MEAN", "MIN_LR": "TRAIN.END_LR", "MIXUP": "TRAIN.MIXUP_ALPHA",
    "OPT": "TRAIN.OPTIMIZER.NAME", "OPT_BETAS": "TRAIN.OPTIMIZER.BETAS", "OPT_EPS": "TRAIN.OPTIMIZER.EPS",
    "RATIO": "DATA.RANDOM_CROP_RATIO", "RECOUNT": "TRAIN.RANDOM_ERASE_COUNT", "REMODE": "TRAIN.RANDOM_ERASE_MODE",
    "REPROB": "TRAIN.RANDOM_ERASE_PROB", "SCALE": "DATA.RANDOM_CROP_SCALE", "SCHED": "TRAIN.LR_SCHEDULER.NAME",
    "STD": "DATA.IMAGENET_STD", "TRAIN_INTERPOLATION": "DATA.INTERPOLATION", "VAL_INTERVAL": "VALIDATE_FREQ",
    "VFLIP": "DATA.VFLIP_PROB", "WARMUP_LR": "TRAIN.WARMUP_START_LR", "WD": "TRAIN.WEIGHT_DECAY",
}  # fmt: skip
_REPLACEMENTS = _OTHER_NAMES | {  # of a key, a section, or a last part of keys
    "PARALLEL.FP16_ALLREDUCE": "PARALLEL.COMM_HOOK=fp16",
    "PARALLEL.FUSE_GRAD_SIZE_IN_MB": "PARALLEL.BUCKET_MB",
    "PARALLEL.FUSE_ALL_REDUCE_OPS": "PARALLEL.BUCKET_MB=0 for one bucket per parameter",
    "MODEL.MLP_DIM": "MODEL.MLP_RATIO, which is MLP_DIM / EMBED_DIM",
    "PARALLEL.OFFLOAD": "MODEL.GRAD_CHECKPOINTING=true, or more devices",
    "TRAIN.RESTART_SCHEDULE": "a new run with -pretrained=RUN/last.pth",
    "LOSS.SUM_CLASSES": "the mean over the classes, and with SGD a TRAIN.BASE_LR times their number",
    "PARALLEL.REDUCE_DTYPE": "PARALLEL.STRATEGY=hsdp for less traffic between hosts",
    "TRAIN.BLUR_PROB": _GRAY_AND_BLUR,
    "TRAIN.CLIP_MODE": "TRAIN.GRAD_CLIP alone, which clips the norm of all gradients",
    "TRAIN.GRAYSCALE_PROB": _GRAY_AND_BLUR,
    "TRAIN.LR_SCHEDULER.COOLDOWN_EPOCHS": "TRAIN.NUM_EPOCHS without these epochs",
    "AMP.MODE": "AMP.PRESET",  # of Colossal-AI
    "AMP.OPT_LEVEL": "AMP.LEVEL",  # of Apex
    "AMP.USE_PURE_FP16": "AMP.LEVEL=O2",  # of Fleet
    "AMP_CONFIGS": "AMP, whose keys have the same names in upper case",  # of Fleet
    "FP16": AMP_OF_COLOSSALAI,
}


def check_options(values: dict[str, Any], layers: OptionLayers) -> Config:
    """The `Config` of `values`, the options in `layers` and defaults. Raises UserError: a line for each mistake."""
    try:
        return Config.model_validate(values)
    except ValidationError as invalid:
        raise _combined(invalid.errors(include_url=False), layers) from None


def decode_quoted(layers: OptionLayers) -> list[str]:
    """Decodes texts where the key has another type, as PaddleViT's yacs does: '1e-3', 'False', (0.9, 0.999).

    Returns a line for the log.
    """
    try:
        Config.model_validate(layers.values)
        return []
    except ValidationError as invalid:
        wrong = {_path(error) for error in invalid.errors(include_url=False) if not _is_contradiction(error)}
    given, decoded = dict(paths(layers.values)), list[str]()
    for path in sorted(wrong & given.keys()):
        if (value := _decoded(given[path])) != given[path]:
            merge(layers.values, expand_switches(nest({".".join(path): value})))
            decoded.append(f"{'.'.join(path)} {shorten(given[path])} -> {format_value(value)}")
    return [f"Texts read as values: {', '.join(decoded)}"] if decoded else []


def _decoded(value: Any) -> Any:
    """The value with each text in it read as YAML; a tuple of Python is a list."""
    if isinstance(value, list):
        return [*map(_decoded, value)]
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        read = parse_value(value.replace("(", "[").replace(")", "]") if value.startswith("(") else value)
    except UserError:
        return value
    return value if isinstance(read, dict) else read


def check_types(layers: OptionLayers) -> None:
    """Checks each given key by the type of its field, as the rules, which run next, need it. Raises as `check_options`.

    Contradictions of keys are checked after the rules.
    """
    try:
        Config.model_validate(layers.values)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        if wrong := [error for error in errors if not _is_contradiction(error)]:
            raise _combined(wrong, layers) from None


def _is_contradiction(error: ErrorDetails) -> bool:
    """Returns whether the validator of a section, not of a field, found the error."""
    return error["type"] == "value_error" and isinstance(error["input"], dict)


def _combined(errors: list[ErrorDetails], layers: OptionLayers) -> UserError:
    by_path = {_path(error): error for error in reversed(errors)}  # the first of a key
    lines = [_error_line(path, error, layers) for path, error in reversed(by_path.items())]
    return combine_findings(f"{len(lines)} options are wrong:", lines)


def _path(error: ErrorDetails) -> KeyPath:
    if error["type"] == "extra_forbidden":
        return tuple(str(part) for part in error["loc"] if part not in MODEL_SECTIONS)
    return tuple(part for part in error["loc"] if isinstance(part, str) and part.isupper())  # keys, not union members


def _error_line(path: KeyPath, error: ErrorDetails, layers: OptionLayers) -> str:
    if error["type"] == "extra_forbidden":
        key, family = ".".join(path), model_type(layers.values)
        fixed = {f"MODEL.{name}": value for name, value in FIXED_KEYS.get(family, {}).items()}
        if key in fixed:
            only = format_value(fixed[key])
            return f"{layers.origin(path)}{key} is {shorten(error['input'])}: only {only} is available; remove the key"
        return f"{layers.origin(path)}unknown key {key}{nearest_key(key, family)}"
    message = error["msg"].removeprefix("Value error, ")
    for in_python, in_yaml in (("tuple", "list"), ("Tuple", "List"), ("be None", "be null")):
        message = message.replace(in_python, in_yaml)
    if error["type"] == "model_type":
        is_switch = path in (("AMP",), ("EVAL",))
        message = "must be true, false or a section of keys" if is_switch else "must be a section of keys"
        name = f"{'.'.join(path)}.NAME"
        message += f", such as {name}" if name in known_keys(model_type(layers.values)) else ""
    if _is_contradiction(error):  # the message begins with the key
        key = message.split()[0].rstrip(":")
        path = (*path, *key.split("."))
        return f"{layers.origin(path)}{'.'.join(path)}{message.removeprefix(key)}"
    return f"{layers.origin(path)}{'.'.join(path)} is {shorten(error['input'])}: {message[0].lower()}{message[1:]}"


def nearest_key(dotted: str, family: str) -> str:
    """A hint for an unknown key: its replacement, the families that have it, or the nearest known key."""
    section, (parent, _, leaf) = dotted.upper().partition(".")[0], dotted.upper().rpartition(".")
    if parent.endswith(".KWARGS"):
        return f'; write "{parent}={{{leaf.lower()}: VALUE}}"'
    if replacement := next(filter(None, map(_REPLACEMENTS.get, (dotted.upper(), section, leaf))), None):
        return f"; use {replacement}"
    if owners := [name for name in MODEL_SECTIONS if dotted in known_keys(name)]:
        own = [name.upper() for name in MODEL_SECTIONS[family].model_fields if name not in Model.model_fields]
        similar = [key for key in own if key.rstrip("S") in leaf or leaf.rstrip("S") in key]  # DIMS for EMBED_DIM
        nearest = f"; did you mean {similar[0]}?" if similar else did_you_mean(leaf, own) or "; remove it"
        return f" of MODEL.TYPE {family}{nearest} (it is a key of {', '.join(owners[:3])})"
    same_leaf = [key for key in known_keys(family) if key.rpartition(".")[2] == leaf]
    return f"; did you mean {same_leaf[0]}?" if same_leaf else did_you_mean(dotted, known_keys(family))


def key_of_flag(flag: str) -> str | None:
    """The YAML key that a flag of timm's train.py stands for: one of `_OTHER_NAMES`, or the last part of a key."""
    name, known = flag.lstrip("-").replace("-", "_").upper(), known_keys("vit")
    by_leaf = {key.removesuffix(".NAME").rpartition(".")[2]: key for key in known}
    key = _OTHER_NAMES.get(name) or by_leaf.get(name)
    return None if any(other.startswith(f"{key}.") for other in known) else key


def answer_to_timms(flag: str) -> str:
    """The row of a flag of timm's train.py in the table of docs/recipes.md; '' without one."""
    page = _PROJECT / "docs/recipes.md"
    rows = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    table = ([cell.strip() for cell in row.split("|")[1:4]] for row in rows if row.startswith("| `--"))
    cells = next((cells for cells in table if f"`{flag}`" in cells[0]), [])
    text = "; ".join(
        filter(None, ({"no": "not available", "default": "always so"}.get(cell, cell) for cell in cells[1:]))
    )
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")


_INITIAL_WEIGHTS = ("MODEL.RESUME", "MODEL.PRETRAINED")
_OF_HOST = ("DATA.DATA_PATH", "DATA.IMAGE_ROOT", "DATA.CACHE_DIR", "DATA.CACHE_GB", "DATA.NUM_WORKERS")
_OF_EXPERIMENT = (
    "DATA.DATASET", "DATA.DATA_PATH", "DATA.MULTI_LABEL", "DATA.FOLDS", "DATA.FOLD", "DATA.GROUPS", "SEED",
)  # fmt: skip
# They change how the model is trained or computed, but not its weights.
_SAME_WEIGHTS = (
    "MODEL.GRAD_CHECKPOINTING", "MODEL.ATTENTION", "MODEL.DROPOUT", "MODEL.ATTENTION_DROPOUT", "MODEL.DROPPATH",
    "MODEL.TUNE", "MODEL.FREEZE_BACKBONE",
)  # fmt: skip
_OF_ARCHITECTURE = ("MODEL.TYPE", "MODEL.EMBED_DIM", "MODEL.DEPTH")
# They end a training, or change with the number of devices.
_OF_LENGTH = (
    "TRAIN.LAST_EPOCH", "TRAIN.NUM_EPOCHS", "TRAIN.WARMUP_EPOCHS", "TRAIN.MAX_STEPS", "TRAIN.PATIENCE",
    "TRAIN.ACCUM_ITER", "TRAIN.COMPILE", "TRAIN.TEACHER_WEIGHTS",
)  # fmt: skip


def changed_options(then: str, now: str) -> dict[str, tuple[Any, Any]]:
    """Both values of each key that differs between two texts of `to_yaml`, by dotted key.

    MODEL.RESUME and NAME are ignored.
    """
    before, after = REMOVED | with_defaults(parse_value(then)), REMOVED | dict(flatten(parse_value(now)))
    return {
        key: (before.get(key), value)
        for key, value in after.items()
        if key not in ("MODEL.RESUME", "NAME") and _comparable(key, before.get(key)) != _comparable(key, value)
    }


def changes_training(key: str) -> bool:
    """Returns whether the option changes how the weights are trained; the length of the training does not count."""
    return key in ("AMP.ENABLED", "AMP.LEVEL", "AMP.DTYPE") or (
        key.startswith(("TRAIN.", "LOSS.")) and key not in _OF_LENGTH
    )


def experiment_mismatch(options_file: Path, config: Config) -> str | None:
    """'SEED 0, this run has 1' for the first key in which a run differs from `config`; None if there is none.

    The keys are the data set, its fold, the model (MODEL without paths of weights, dropout and kernels) and SEED; of a
    training, also a NAME that is given, the keys of `changes_training`, and NUM_EPOCHS, which may only grow.
    """
    try:
        stored = {} if options_file.is_file() else stored_options(options_file.parent)
        before = with_defaults(stored or read_yaml(options_file)[0])
    except UserError as error:
        return str(error)
    for key, value in _values(config).items():
        then = before.get(key)
        if _is_of_experiment(key, then, config) and _comparable(key, then) != _comparable(key, value):
            return f"{key} {shorten(then)}, this run has {shorten(value)}"
    return None


def _is_of_experiment(key: str, then: Any, config: Config) -> bool:
    """then: the value of the other run."""
    if key == "MODEL.NUM_CLASSES":
        return config.model.num_classes is not None  # else it follows the data
    if key in _OF_EXPERIMENT:
        return True
    if key.startswith("MODEL."):
        return key not in (*_INITIAL_WEIGHTS, *_SAME_WEIGHTS)
    if config.eval.enabled:
        return False
    if key == "NAME":
        return None not in (config.name, then)
    return changes_training(key) or (
        key == "TRAIN.NUM_EPOCHS" and isinstance(then, int) and then > config.train.num_epochs
    )


def check_same_architecture(before: dict[str, Any], config: Config) -> None:
    """Raises UserError if the run with the options `before`, by dotted key, cannot have weights for this model."""
    values = _values(config)
    for key in _OF_ARCHITECTURE:
        if before.get(key) != values.get(key):
            raise UserError(
                f"-resume: the checkpoint has {key} {before.get(key)}, another model than this run, with "
                f"{values.get(key)}; without -cfg the options of its run are used"
            )


def _comparable(key: str, value: Any) -> Any:
    """One folder may be named in several ways."""
    return os.path.abspath(value) if key == "DATA.DATA_PATH" and isinstance(value, str) else value


def shared_options(config: Config) -> dict[str, Any]:
    """Returns all options but paths and workers, which belong to a host, by dotted key."""
    return {key: value for key, value in _values(config).items() if key not in _OF_HOST}


def _values(config: Config) -> dict[str, Any]:
    """All options by dotted key, as a YAML file gives them."""
    return dict(flatten(config.model_dump(by_alias=True, mode="json")))


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a run by dotted key, with the defaults of the keys that its version did not write."""
    family = model_type(values)
    model = without_fixed_keys(values.get("MODEL", {}), family)  # which runs of earlier versions wrote
    return _defaults(family) | dict(flatten(expand_switches(values | {"MODEL": model})))


def _defaults(family: str) -> dict[str, Any]:
    # Not checked: general defaults, such as the image size, need not be possible for each family.
    return _values(Config.model_construct(model=MODEL_SECTIONS[family].model_construct()))


def differing_from_defaults(options: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """(value, default) of the options by dotted key that differ from their defaults; unknown keys are left out."""
    family = model_type({"MODEL": {"TYPE": options["MODEL.TYPE"]}})
    defaults = _defaults(family) | {"MODEL.TYPE": "vit"}
    return {key: (value, defaults[key]) for key, value in options.items() if value != defaults.get(key, value)}


def non_default_options(config: Config) -> dict[str, str]:
    """The options that differ from their defaults by dotted key, as short texts."""
    return {key: format_value(value) for key, (value, _) in differing_from_defaults(_values(config)).items()}


def non_default_lines(config: Config) -> str:
    """'KEY=value, ...' for each option that differs from its default, in indented lines of at most 120 columns.

    Without the options of the training, if the run only evaluates.
    """
    unused: tuple[str, ...] = ("TRAIN.", "LOSS.") if config.eval.enabled else ()
    options = non_default_options(config).items()
    parts = [part for key, value in options if not (part := f"{key}={value}").startswith(unused)]
    return "\n".join(wrap_parts(parts or ["none"], indent="      ", first_indent="      "))
