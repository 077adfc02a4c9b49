"""The rules by which options follow from others, from weights and from facts about the data; `-h RULES` prints them.

The first sentence of a rule's docstring states it; a value that is given wins, unless the rule says otherwise. The
options of a run are completed in this order, and log.txt has the values that 4 and 5 have set:

1. `read_layers` (configs/load.py): BASE files < YAML file < -model < flags < -opts.
2. `follow_options`: RULES, then the check of all options.
3. `choose_recipe` (engine/plan/recipe.py): without -cfg, the recipe is a layer below the flags; 1 and 2 are repeated.
4. `plan_training`: `follow_weights` (configs/weights.py); with the data, ranks and device `follow_facts`: FACT_RULES;
   the batch size that fits; `compile_if_it_pays`.
5. `fit_into_minutes` (engine/training/minutes.py): NUM_EPOCHS and EPOCH_STEPS of -minutes.

Example, -data_path=flowers with 500 images of 5 classes, on a CPU: 1 gives DATA.DATA_PATH; 3 probe.yaml, as timm's
weights are on this machine: MODEL.NAME and MODEL.TUNE probe; 2 then TRAIN.NUM_EPOCHS 1; 4 DATA.IMAGENET_MEAN by the
weights, and MODEL.NUM_CLASSES 5 by the data.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from configs.batch_plan import plan_batches
from configs.load import OptionTable, decode_quoted, is_contradiction, mistakes_in
from configs.schema import Config, Data, Train
from configs.schema.compute import PRESETS
from configs.schema.config import known_keys
from configs.schema.data import AUTO, properties_of
from configs.schema.families.registry import FAMILIES, MODEL_SECTIONS
from configs.schema.section import without
from configs.versions import GONE_KEYS, JOIN, is_gone_value
from configs.weights import NORMALIZATION, WEIGHT_RULES, described_model
from configs.yaml_io import format_value, shorten
from utils.errors import UserError
from utils.file_formats.hf_folder import CONFIG, HUB, LOCAL, model_folder, read_config
from utils.metric_table import metrics_of
from utils.notes import Note

WARMUP = "TRAIN.WARMUP_EPOCHS"
EPOCHS = "TRAIN.NUM_EPOCHS"
# Patterns of keys, and the option with the values without which they have no effect
_NEEDS: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    ("AMP.DTYPE AMP.LEVEL AMP.*_LOSS_SCALING AMP.INCR_* AMP.DECR_* AMP.CUSTOM_*", "AMP.ENABLED", (True,)),
    ("TRAIN.MODEL_EMA_*", "TRAIN.MODEL_EMA", (True,)),
    ("TRAIN.RAND_AUGMENT_*", "TRAIN.RAND_AUGMENT", (True,)),
    ("TRAIN.DISTILLATION_TAU", "TRAIN.DISTILLATION_TYPE", ("soft",)),
    ("TRAIN.DISTILLATION_ALPHA", "TRAIN.DISTILLATION_TYPE", ("soft", "hard")),
    ("TRAIN.TEACHER_MODEL", "TRAIN.DISTILLATION_TYPE", ("soft", "hard")),
    ("LOSS.SMOOTH_TO_HALF", "DATA.MULTI_LABEL", (True,)),
    ("MODEL.LORA.*", "MODEL.TUNE", ("lora",)),
)
# Keys of PaddleViT's earlier YAML files and their present names.
_RENAMED = {
    "DISTILL": "DISTILLED", "DROP_PATH": "DROPPATH", "EMBED_DIMS": "EMBED_DIM", "HEADS": "NUM_HEADS",
    "HIDDEN_SIZE": "EMBED_DIM", "NUM_LAYERS": "DEPTH", "RANDAUGMENT": "RAND_AUGMENT", "STAGE_DEPTHS": "STAGE_DEPTH",
}  # fmt: skip
# Of PaddleViT's launcher, of BEiT's tokenizer, of MAE's pre-training; the place of the average; erasing per image.
_UNUSED = (
    "DATA.SECOND_IMAGE_SIZE", "LOCAL_RANK", "NGPUS", "TAG", "THROUGHPUT_MODE", "TRAIN.LR_SCHEDULER.MILESTONES",
    "TRAIN.MODEL_EMA_FORCE_CPU", "TRAIN.NORMALIZE_TARGET", "TRAIN.RANDOM_ERASE_SPLIT",
)  # fmt: skip
_UNUSED_IF_OFF = (
    "MODEL.ATTN_HEAD_SIZE", "MODEL.DISTILL", "MODEL.RESUME_EMA", "MODEL.TRANS.HYBRID",
    "MODEL.TRANS.PATCH_GRID", "TRAIN.MULTI_SCALE_SAMPLER_DDP",
)  # fmt: skip
# The values without effect of keys that are unknown with another value.
_OFF: dict[str, tuple[Any, ...]] = dict.fromkeys(_UNUSED_IF_OFF, (None, False, ""))
_OFF |= {key: (value,) for key, (value, _) in GONE_KEYS.items()}
_OF_STEP_DECAY = ("TRAIN.LR_SCHEDULER.DECAY_EPOCHS", "TRAIN.LR_SCHEDULER.DECAY_RATE")


def follow_options(given: OptionTable) -> tuple[Config, OptionTable, list[Note]]:
    """The checked options of a command line, their table with all that follows from them, and lines for the log.

    Raises UserError: a line for each mistake: an unknown key, a wrong type or value, contradictory options.
    """
    table = copy.deepcopy(given)
    notes = list[Note]()
    failure = None
    table.check_sections()
    _check_family(table)
    try:
        for rule in RULES:
            notes += rule(table)
    except (AttributeError, TypeError) as error:  # a value of another type, which the check names
        failure = error
    try:
        config = Config.model_validate(table.values)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        wrong = [error for error in errors if not is_contradiction(error)]
        if decode_quoted(wrong, given):
            return follow_options(given)
        raise mistakes_in(wrong or errors, table) from None
    if failure:
        raise failure
    return probe_has_one_epoch(config), table, notes


def _check_family(table: OptionTable) -> None:
    """Raises UserError if MODEL.TYPE names no family."""
    name = table.get("MODEL.TYPE", "vit")
    if str(name).lower() not in MODEL_SECTIONS:
        known = ", ".join(MODEL_SECTIONS)
        raise UserError(f"{table.origin('MODEL.TYPE')}MODEL.TYPE is {shorten(name)}: give one of {known}")


def data_set_follows_path(options: OptionTable) -> Iterator[Note]:
    """DATA.DATASET without files, such as the digits of a recipe, gives way to a DATA_PATH of a higher layer.

    `recognize_dataset` then finds out which data set the path is. Raises UserError if the command line gives both: one
    of them would be ignored.
    """
    data_set = options.get("DATA.DATASET")
    if properties_of(str(data_set)).has_files:
        return
    name, path = (options.row(f"DATA.{key}").source for key in ("DATASET", "DATA_PATH"))
    if name.startswith("-") and path.startswith("-"):
        raise UserError(f"DATA.DATASET {data_set} ({name}) does not use DATA.DATA_PATH ({path}); remove one")
    if options.row("DATA.DATA_PATH").level <= options.row("DATA.DATASET").level:
        return
    options.add_key("DATA.DATASET", Data.model_fields["dataset"].default, path)
    replaced = f"DATA.DATASET: {data_set} ({name}) is replaced by the data of {path}"
    yield Note("screen", f"{replaced}: {options.get('DATA.DATA_PATH')}")


def model_follows_source(options: OptionTable) -> Iterator[Note]:
    """MODEL.NAME hf:ORG/NAME (hf-hub:) or local-dir:FOLDER becomes the model that the source's config.json describes.

    The given MODEL.KWARGS have priority; `MODEL.PRETRAINED: timm` becomes the source. The run does not need the source
    again: its options describe the model. Raises UserError for a source without a model of timm or transformers.
    """
    source = str(options.get("MODEL.NAME"))
    if options.family not in ("timm", "transformers") or not source.startswith((*HUB, LOCAL)):
        return
    folder = model_folder(source, f"-model={LOCAL}FOLDER")
    described = described_model(read_config(folder))
    kwargs = described["KWARGS"]
    given = options.get("MODEL.KWARGS") or {}
    for key in ("TYPE", "NAME"):
        options.set(f"MODEL.{key}", described[key])
    options.set("MODEL.KWARGS", kwargs | given)
    if options.get("MODEL.PRETRAINED") == "timm":
        options.set("MODEL.PRETRAINED", source.removeprefix(LOCAL))
    about = f"MODEL.TYPE {described['TYPE']}, {described['NAME']} with MODEL.KWARGS {shorten(kwargs)}"
    yield Note("log", f"Model: {source} is {about} ({folder / CONFIG})")


def old_keys_are_renamed(options: OptionTable) -> Iterator[Note]:
    """Old keys get their present name, or are removed if they have no effect; of both names, the higher layer wins. An
    evaluation needs none of the keys of trainings that are gone.
    """
    known = known_keys(options.family)
    evaluates = options.get("EVAL.ENABLED") is True
    unused: tuple[str, ...] = _UNUSED
    if options.get("TRAIN.LR_SCHEDULER.NAME") == "warmupcosine":  # PaddleViT's name
        unused += _OF_STEP_DECAY
    removed = []
    renamed = []
    for key, row in list(options.rows.items()):
        present = _present_name(key, known)
        is_gone = evaluates and (key in GONE_KEYS or is_gone_value(key, row.value))
        is_off = present not in known and row.value in _OFF.get(key, ())
        if key in unused or is_gone or is_off:
            removed.append(key)
            options.remove(key)
        elif present != key:
            renamed.append(f"{key} -> {present}")
            if row.level > options.row(present).level:
                options.add_key(present, row.value, row.source)
            options.remove(key)
    columns = options.get("DATA.COLUMNS")
    if evaluates and isinstance(columns, dict) and JOIN in columns:
        removed.append(f"DATA.COLUMNS: {JOIN}")
        options.set("DATA.COLUMNS", without(columns, (JOIN,)))
    if renamed:
        yield Note("log", f"old keys, renamed: {', '.join(renamed)}")
    if removed:
        yield Note("warning", f"old keys without effect: {', '.join(removed)}")


def _present_name(key: str, known: Collection[str]) -> str:
    """The name of an old key in this version, or the key itself."""
    if "MODEL.TRANS" not in known:
        key = key.replace("MODEL.TRANS.", "MODEL.")
    section, dot, leaf = key.rpartition(".")
    renamed = section + dot + _RENAMED.get(leaf, leaf)
    if key in known or renamed not in known:
        return key
    return renamed


def precision_follows_preset(options: OptionTable) -> Iterator[Note]:
    """AMP.PRESET gives other keys of AMP; a key wins if the layer of PRESET, or a higher one, gives it. A line names
    the typed ones that it replaces; a typed DTYPE stays.
    """
    preset = options.row("AMP.PRESET")
    name = str(preset.value)
    of_preset = PRESETS.get(name, {})
    values = {key: value for key, value in of_preset.items() if options.row(f"AMP.{key}").level < preset.level}
    if options.row("AMP.DTYPE").source.startswith("-"):
        values = without(values, ("DTYPE",))  # the check of the options refuses another one than the preset's
    if not values:  # or an unknown name, which the check of the options reports
        return
    for key, value in values.items():
        row = options.row(f"AMP.{key}")
        if row.source.startswith("-") and row.value != value:
            own = f"{row.source} (AMP.{key} {format_value(row.value)})"
            yield Note("screen", f"{own} is not read: AMP.PRESET {name} has {format_value(value)}")
    options.add({"AMP": values}, f"AMP.PRESET {name}")
    given = ", ".join(f"{key} {format_value(value)}" for key, value in values.items())
    yield Note("log", f"AMP.PRESET {name}: {given}")


def dtype_follows_model(options: OptionTable) -> Iterator[Note]:
    """AMP.DTYPE is bfloat16 for DINOv3's models, whose activations exceed the range of float16."""
    is_dinov3 = "dinov3" in str(options.get("MODEL.NAME")).lower()
    if not is_dinov3 or options.get("AMP.ENABLED") is not True or "AMP.DTYPE" in options.rows:
        return
    options.set("AMP.DTYPE", "bfloat16")
    yield Note("screen", "AMP.DTYPE is bfloat16: the activations of DINOv3's models exceed the range of float16")


def rate_follows_tuning(options: OptionTable) -> Iterable[Note]:
    """With MODEL.HEAD probe, TRAIN.BASE_LR is 2e-4 (MODEL.TUNE lora: 5e-4); for timm's models of over 50 M parameters
    5e-5 (lora: 2e-4); for timm's models with batch norms and no layer norms 5e-4 (not with lora).

    `choose_recipe` sets the rates that need timm's model.
    """
    if options.get("MODEL.HEAD") == "probe" and options.get("MODEL.PRETRAINED"):
        options.set_default("TRAIN.BASE_LR", rate_of_tuning(options.get("MODEL.TUNE") == "lora"))
    return ()


def rate_of_tuning(is_lora: bool, is_large: bool = False, has_batch_norms_only: bool = False) -> float:
    """The rate of `rate_follows_tuning`; measured in docs/log.md, Rates of fine-tuning."""
    if is_lora:
        return 2e-4 if is_large else 5e-4
    if has_batch_norms_only:
        return 5e-4
    return 5e-5 if is_large else 2e-4


def defaults_follow_family(options: OptionTable) -> Iterator[Note]:
    """Keys that are not given have the defaults of the family MODEL.TYPE: PaddleViT's. With -model, only MODEL has
    them; with weights also the mean and the standard deviation.
    """
    name = options.family
    family = FAMILIES.get(name)
    if not family:
        return
    defaults = family.defaults
    if str(options.get("TRAIN.OPTIMIZER.NAME", "AdamW")).lower() not in ("adamw", "adamwdl"):
        defaults = {key: value for key, value in defaults.items() if not key.startswith("TRAIN.OPTIMIZER.")}
    if options.model_only:
        kept = ["MODEL."]
        if options.get("MODEL.PRETRAINED"):
            kept += [f"DATA.{key}" for key in NORMALIZATION]
        defaults = {key: value for key, value in defaults.items() if key.startswith(tuple(kept))}
    used = [key for key, value in defaults.items() if options.set_default(key, value)]
    if used:
        yield Note("log", f"Defaults of MODEL.TYPE {name}: {', '.join(used)}")


def drop_rates_follow_recipe(options: OptionTable) -> Iterator[Note]:
    """Beside -cfg, -model takes the architecture of the recipe that it names, and keeps DROPOUT, ATTENTION_DROPOUT
    and DROPPATH of -cfg.
    """
    section = MODEL_SECTIONS[options.family].model_fields
    given = {key: options.get(f"MODEL.{key}", section[key.lower()].default) for key in options.rates_of_model}
    differing = {key: rate for key, rate in options.rates_of_model.items() if rate != given[key]}
    if not differing:
        return
    name = options.get("MODEL.NAME")
    own = ", ".join(f"MODEL.{key}={rate}" for key, rate in differing.items())
    kept = ", ".join(f"{key} {format_value(given[key])}" for key in differing)
    yield Note("screen", f"Of -cfg: {kept}; the recipe {name} has {own}")


def keys_need_others(options: OptionTable) -> Iterator[Note]:
    """Keys in -opts have no effect without the option that they belong to; a recipe may hold them for runs with it."""
    typed = [key for key, row in options.rows.items() if row.source == "-opts"]
    for patterns, other, values in _NEEDS:
        if options.get("EVAL.ENABLED") is True and other != "AMP.ENABLED":  # evaluations use AMP alone
            continue
        unused = [key for key in typed if any(fnmatchcase(key, pattern) for pattern in patterns.split())]
        if unused and options.get(other) not in values:
            wanted = " or ".join(map(format_value, values))
            yield Note("warning", f"{', '.join(unused)}: no effect without {other}={wanted}")


def loss_follows_labels(options: OptionTable) -> Iterable[Note]:
    """DATA.MULTI_LABEL: LOSS.NAME is bce, as no other loss accepts several labels."""
    if options.get("DATA.MULTI_LABEL") is True:
        options.set_default("LOSS.NAME", "bce")
    return ()


def classes_follow_choice(options: OptionTable) -> Iterator[Note]:
    """In a training, MODEL.NUM_CLASSES of a lower layer than DATA.ONLY_CLASSES is the number of these classes."""
    names = options.row("DATA.ONLY_CLASSES")
    number = options.row("MODEL.NUM_CLASSES")
    is_lower = number.value is not None and number.level < names.level
    if not is_lower or names.value is None or options.get("EVAL.ENABLED"):
        return
    renamed = {str(old): str(new) for old, new in (options.get("DATA.RENAME") or {}).items()}
    classes = len({renamed.get(str(name), str(name)) for name in names.value})
    options.set("MODEL.NUM_CLASSES", classes)
    if classes != number.value:
        yield Note("screen", f"MODEL.NUM_CLASSES is {classes} in place of {number.value}: DATA.ONLY_CLASSES")


def batch_of_rate_follows_rate(options: OptionTable) -> Iterable[Note]:
    """A BASE_LR of a higher layer than BASE_LR_BATCH_SIZE removes the latter, which belongs to another rate."""
    if options.row("TRAIN.BASE_LR").level > options.row("TRAIN.BASE_LR_BATCH_SIZE").level:
        options.remove("TRAIN.BASE_LR_BATCH_SIZE")
    return ()


def distillation_follows_teacher(options: OptionTable) -> Iterator[Note]:
    """TRAIN.DISTILLATION_TYPE is hard if a family that distils, such as DeiT, has TEACHER_WEIGHTS."""
    family = FAMILIES.get(options.family)
    if not (family and family.teacher_distils and options.get("TRAIN.TEACHER_WEIGHTS")):
        return
    if options.row("TRAIN.DISTILLATION_TYPE").level:
        return
    options.set("TRAIN.DISTILLATION_TYPE", "hard")
    yield Note("screen", f"TRAIN.DISTILLATION_TYPE is hard: MODEL.TYPE {options.family} has a teacher")


def token_follows_distillation(options: OptionTable) -> Iterable[Note]:
    """MODEL.DISTILLED is true with a TRAIN.DISTILLATION_TYPE, in families that have the key."""
    if "distilled" in MODEL_SECTIONS[options.family].model_fields:
        options.set_default("MODEL.DISTILLED", options.get("TRAIN.DISTILLATION_TYPE") not in (None, "none"))
    return ()


def warmup_follows_epochs(options: OptionTable) -> Iterator[Note]:
    """A recipe's warm-up of half of NUM_EPOCHS or more (the default: of all) is a tenth; one beside them stays."""
    epochs = options.get(EPOCHS, Train.model_fields["num_epochs"].default)
    warmup = options.get(WARMUP, Train.model_fields["warmup_epochs"].default)
    too_long = epochs / 2 if options.row(WARMUP).level else epochs  # the default is PaddleViT's
    if warmup < too_long or options.row(WARMUP).level >= options.row(EPOCHS).level:
        return
    options.set(WARMUP, epochs / 10)
    change = f"{WARMUP} is {epochs / 10:g} in place of {warmup:g} ({options.row(WARMUP).source or 'default'})"
    yield Note("screen", f"{change}: NUM_EPOCHS is {epochs}")


RULES: tuple[Callable[[OptionTable], Iterable[Note]], ...] = (
    data_set_follows_path,
    model_follows_source,
    old_keys_are_renamed,
    precision_follows_preset,
    dtype_follows_model,
    rate_follows_tuning,
    defaults_follow_family,
    drop_rates_follow_recipe,
    loss_follows_labels,
    classes_follow_choice,
    batch_of_rate_follows_rate,
    distillation_follows_teacher,
    token_follows_distillation,
    warmup_follows_epochs,
    keys_need_others,
)


def probe_has_one_epoch(options: Config) -> Config:
    """MODEL.TUNE probe: NUM_EPOCHS is 1, images are read by BATCH_SIZE_EVAL; keys without effect get their defaults."""
    if not options.model.solves_head or options.eval.enabled:
        return options
    train = Train(NUM_EPOCHS=1, WARMUP_EPOCHS=0, SMOOTHING=options.train.smoothing)
    size = {"batch_size": 1, "batch_size_eval": options.data.eval_batch_size}
    order = {"global_batch_size": None, "balanced_sampling": False, "repeated_augmentation": 1}
    return options.with_data(**size, **order).changed(train=train, eval_raw=False)


@dataclass(frozen=True)
class Facts:
    """The facts about a run that options depend on; each has its default until it is known.

    ranks: number of processes. classes: of the data. fitting_batch_size, compile: values that a resumed run has found.
    eager_seconds: estimate for the steps to come; 0 if the blocks share no graph, or on a CPU.
    """

    ranks: int = 1
    classes: int | None = None
    fitting_batch_size: int | None = None
    compile: str | None = None
    eager_seconds: float = 0.0


def follow_facts(options: Config, facts: Facts) -> Config:
    """Applies the rules of facts. A resolved run stays as it is: a resumed run is resolved again from `config.yaml`.

    Raises UserError: the global batch is not a multiple of the batch size over all ranks; `EVAL.BEST_METRIC` does not
    apply to the data.
    """
    for rule in FACT_RULES:
        options = rule(options, facts)
    check_best_metric(options)
    return options


def batch_size_follows_memory(options: Config, facts: Facts) -> Config:
    """DATA.BATCH_SIZE auto is the largest size that fits into the memory; a resumed run keeps its size."""
    if options.data.batch_size != AUTO or facts.fitting_batch_size is None:
        return options
    return options.with_data(batch_size=facts.fitting_batch_size)


def accumulation_follows_global_batch(options: Config, facts: Facts) -> Config:
    """TRAIN.ACCUM_ITER of a training is DATA.GLOBAL_BATCH_SIZE / (BATCH_SIZE x number of ranks), if that is given."""
    if options.eval.enabled:
        return options
    return options.with_train(accum_iter=plan_batches(options, facts.ranks).accumulation)


def classes_follow_data(options: Config, facts: Facts) -> Config:
    """MODEL.NUM_CLASSES: null is the number of classes of the data."""
    if options.model.num_classes is not None or facts.classes is None:
        return options
    return options.with_model(num_classes=facts.classes)


# ViT-B/16 on an H200, eager and compiled images/s (docs/log.md), as a share of the time of an eager step.
SAVED_SHARE = {"O1": 1 - 3024 / 3553, "O2": 1 - 3461 / 3700}
COMPILE_SECONDS = 10.0  # there, the first step takes 7.3 s more with an empty cache, on 16 cores


def compilation_follows_steps(options: Config, facts: Facts) -> Config:
    """TRAIN.COMPILE auto is default on a GPU if the blocks of the model share a graph, and the steps to come save over
    10 s: with AMP 15% of their time in O1, 6% in O2; on a GPU a resumed run keeps its value. Else it stays auto, which
    is none: also with fused blocks (faster: MODEL.FUSED_BLOCKS), DETERMINISTIC, -profile, plugins, a sharded model.
    """
    if options.train.compile == AUTO and facts.compile:
        return options.with_train(compile=facts.compile)
    if not may_compile(options) or SAVED_SHARE[options.amp.level] * facts.eager_seconds <= COMPILE_SECONDS:
        return options
    return options.with_train(compile="default")


def may_compile(options: Config) -> bool:
    """Whether `compilation_follows_steps` compiles if the steps take long enough."""
    excluded = (options.deterministic, options.plugins, options.parallel.strategy != "ddp", not options.amp.enabled)
    return options.train.compile == AUTO and options.amp.level in SAVED_SHARE and not any(excluded)


FACT_RULES: tuple[Callable[[Config, Facts], Config], ...] = (
    batch_size_follows_memory,
    accumulation_follows_global_batch,
    classes_follow_data,
    compilation_follows_steps,
)


def recipe_follows_data(
    images: int, has_weights: bool, on_cpu: bool, trains: bool, probes: bool
) -> tuple[str, int | None]:
    """Without -cfg, own images with weights get finetune.yaml; on a CPU without keys of TRAIN probe.yaml. Without
    weights they get folder_small.yaml with a convolutional network. A GPU adds -amp.

    trains: keys of TRAIN, as -minutes, ask for steps, on a CPU too. Returns the recipe and NUM_EPOCHS, None for probe:
    the ones that were measured on 1,854 training images, changed with the square root of their number.
    """
    if has_weights and (probes or (on_cpu and not trains)):
        return "probe", None
    factor = (1854 / images) ** 0.5
    if has_weights:
        return "finetune", min(20, max(3, round(10 * factor)))
    return "folder_small", min(60, max(8, round(18 * factor)))


ALL_RULES: list[Callable[..., object]]
ALL_RULES = [*RULES, probe_has_one_epoch, *WEIGHT_RULES, *FACT_RULES, recipe_follows_data]


def check_best_metric(options: Config) -> None:
    """Raises UserError if the metric does not apply to the kind of labels, or to so few classes."""
    metric = options.best_metric
    multi_label = options.data.multi_label
    classes = options.model.num_classes
    known = metrics_of(multi_label)
    possible = [one for one in known if one.applies(classes or 1, multi_label)]
    if metric not in (possible if classes else known):
        data = f"DATA.MULTI_LABEL {format_value(multi_label)} and MODEL.NUM_CLASSES {format_value(classes)}"
        names = ", ".join(one.name for one in possible)
        raise UserError(f"EVAL.BEST_METRIC {metric.name} does not apply to {data}; use {names}")
