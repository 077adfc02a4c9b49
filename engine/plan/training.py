"""The plan of a training run, the checkpoint that -resume names, and the check that all ranks have equal options."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from torch import nn

from configs.batch_plan import BatchPlan, EpochLayout, plan_batches
from configs.command_line import Command, to_yaml
from configs.compare import (
    FIXED,
    changed_options,
    experiment_mismatch,
    keep_minutes,
    set_by,
    shared_options,
    with_defaults,
)
from configs.load import RUN_OPTIONS
from configs.parts import check_plugins
from configs.resolve import Facts, accumulation_follows_global_batch, check_best_metric, follow_facts, may_compile
from configs.schema import Config, Data
from configs.schema.data import AUTO
from configs.weights import NO_RECORD, NORMALIZATION, Followed, WeightsRecord, follow_weights
from configs.yaml_io import as_option, format_value, parse_value, read_yaml
from datasets.loading.loader import epoch_layout
from datasets.reading import read_data
from datasets.sources.checks import check_images, digest_of
from datasets.sources.class_names import number_of_classes, rename_classes
from datasets.sources.rows import Rows
from datasets.sources.samples import Samples
from datasets.sources.source import Wanted
from datasets.sources.split import History, RunSplit, as_read_before
from engine.checkpoint.files import FoundCheckpoint, find_checkpoint, runs_newest_first
from engine.checkpoint.run_folder import checkpoints_by_progress
from engine.checkpoint.weights_record import read_record, record_of, weights_record
from engine.parallel import check_compiler
from engine.precision.policy import compute_dtype, use_fused_blocks
from engine.run.cost import describe_model
from engine.run.facts import Preprocessing, TrainingData, read_fact
from engine.run.folder import next_command
from engine.run.log import RunLogger
from engine.run.loggers import check_loggers
from engine.run.record import read_run
from models.build import build_model
from models.timm_model import check_name, find_published
from utils.device import on_meta_device
from utils.distributed import ProcessContext, find_on_main, gather_objects
from utils.errors import UserError, from_here
from utils.notes import Note

_DECODE_SECONDS = 30.0  # of a dry run, for all images
_KEPT_IN_FINE_TUNING = ("GREY_RANGE", "RESIZE", "INTERPOLATION", *NORMALIZATION)  # else the pixels are other ones
# docs/log.md, ViT-B/16 on an H200 in O1; its peak for a GPU without figures
_EAGER_MFU = 0.321
_H200_FLOPS = 989.4e12


def find_on_all_ranks(
    config: Config, context: ProcessContext, logger: RunLogger, locks: ExitStack | None = None
) -> FoundCheckpoint | None:
    """Finds the checkpoint that `-resume` names, see `find_checkpoint`; a collective call.

    In a run's folder an evaluation or a prediction prefers `best.pth`. 'auto' passes over newer runs of other
    experiments, with one line in the log, and reads no older ones.
    """
    if not config.model.resume:
        return None
    passed = []

    def runs_of_experiment() -> Iterator[Path]:
        for folder in runs_newest_first(Path(config.save)):
            if mismatch := experiment_mismatch(folder / RUN_OPTIONS, config):
                passed.append(f"{folder.name}: {mismatch}")
            else:
                yield folder

    found = find_checkpoint(config.model.resume, context, runs_of_experiment(), config.eval.enabled, locks)
    if passed:
        logger.log(f"----- Resume: runs of other experiments passed over: {len(passed)}, the newest {passed[0]}")
    if found:
        for note in found.notes:
            logger.warn(f"Resume: skipped: {note}")
        logger.log(f"----- Resume: from {found.path}")
    elif not config.eval.enabled:
        reason = [*passed, f"no run in {config.save} is of this experiment"][0]
        logger.note(Note("screen", f"Resume: {reason}; a new run starts (-resume=RUN continues another)"))
    return found


FindBatchSize = Callable[[Config, ProcessContext], tuple[int, Note]]


@dataclass(frozen=True)
class Plan:
    """A training run before its model is built. All ranks have the same plan; its options are final.

    found: the checkpoint that the run resumes. start: what it says of its training, or else MODEL.PRETRAINED does.
    test: held-out samples, for the end of the run. class_names: of the data, None if it has none.
    split: of data without a validation split. preprocessing: with the sources of its values.
    notes: about the data. evaluation_seconds: as TRAIN.MINUTES has measured.
    """

    config: Config
    batch: BatchPlan
    found: FoundCheckpoint | None
    start: WeightsRecord
    train: Samples
    val: Samples
    test: Samples | None
    class_names: list[str] | None
    split: RunSplit | None
    preprocessing: Preprocessing
    notes: list[Note]
    evaluation_seconds: float | None = None

    @property
    def run_folder(self) -> Path | None:
        """The folder of the run that is resumed."""
        return self.found.run_folder if self.found else None

    @property
    def splits(self) -> dict[str, Samples]:
        """The images of all splits."""
        splits = {"train": self.train, "val": self.val, "test": self.test}
        return {split: samples for split, samples in splits.items() if samples}

    @property
    def layout(self) -> EpochLayout:
        return epoch_layout(self.config, self.train, self.batch)

    @property
    def steps(self) -> int:
        """Of a new run."""
        train = self.config.train
        steps = (train.num_epochs - train.last_epoch) * self.layout.steps_per_epoch
        return min(steps, train.max_steps) if train.max_steps else steps


def _is_timms_recipe(recipe: Path | None) -> bool:
    """Whether the recipe has the defaults of timm's train.py, which takes the published preprocessing from scratch."""
    of_timm = Path(__file__).parents[2] / "configs" / "programs" / "timm.yaml"
    return recipe is not None and recipe.resolve() == of_timm.resolve()


def _record_of_run(found: FoundCheckpoint, config: Config) -> WeightsRecord:
    """The record of a checkpoint, after DATA.RENAME; its arguments of timm's network may have followed weights.

    Raises UserError: the run has plugins that this command does not name.
    """
    record = record_of(found.state, parse_value(found.state["options"]))
    check_plugins(record.plugins, config.plugins, "the checkpoint: ")
    if record.class_names:
        record = replace(record, class_names=rename_classes(record.class_names, config.data.rename))
    if config.model.type == "timm":
        record = replace(record, kwargs=record.model.get("KWARGS") or {})
    return record


def _check_fixed_options(found: FoundCheckpoint, command: Command) -> None:
    """Raises UserError: an option differs from the run's that it has from its start to its end."""
    changed = changed_options(found.state["options"], to_yaml(command.config))
    for key in FIXED:
        if key in changed:
            then = format_value(changed[key][0])
            raise UserError(
                f"{key}: differs from the checkpoint's {then}, and cannot change in a run; "
                f"set it to the same value, or {new_run(found, command)}"
            )


def new_run(found: FoundCheckpoint, command: Command) -> str:
    """The advice of a new run with the options of the one that is resumed, and the data and fixed ones of `command`."""
    changed = changed_options(found.state["options"], to_yaml(command.config))
    options = [f"{key}={as_option(changed[key][1])}" for key in ("DATA.DATA_PATH", *FIXED) if key in changed]
    if {"DATA.ONLY_CLASSES", "DATA.RENAME"} & changed.keys():
        options.append("MODEL.NUM_CLASSES=null")
    if options:
        options.insert(0, "-opts")
    if "MODEL.TUNE" in changed:  # it tunes weights that are there
        options.insert(0, f"-pretrained={found.path.absolute()}")
    recipe = found.path.with_name(RUN_OPTIONS).absolute()
    if not recipe.exists():
        return "start a new run with -pretrained"
    return f"start a new run: {from_here(next_command(command, f'-cfg={recipe}', *options))}"


def _split_of(run: str) -> RunSplit:
    """The split of a run, or of a file of its weights, whose held-out images another run holds out.

    Raises UserError: as `read_weights`; it has no list of them, or of its training images.
    """
    files = checkpoints_by_progress(Path(run))
    record = read_record(str(files[0] if files else run))
    split: RunSplit | None = record.split if record else None
    if split is None or not split.listed or not len(split.trained):
        raise UserError(
            f"-held_out {run}: has no lists of its images; give a run of data with no validation split, or its weights"
        )
    return split


def _split_as(config: Config, before: RunSplit) -> Config:
    """With the options by which the run of -held_out chose its images, where none are given."""
    if config.data.folds:
        raise UserError("-held_out excludes DATA.FOLDS; remove one")
    options = {"val_fraction": before.fraction, "split_seed": before.seed, "groups": before.groups}
    return config.with_data(**{key: options[key] for key in options.keys() - config.data.model_fields_set})


def _check_before_reading(config: Config, num_ranks: int, is_new: bool) -> None:
    """Raises UserError: a global batch, a metric or a name of timm's that is wrong for any data; weights that a new run
    cannot download.
    """
    plan_batches(config, num_ranks)
    check_best_metric(config)
    if config.model.type == "timm":
        check_name(config.model.name)
        if is_new and config.model.pretrained == "timm":
            find_published(config.model)


def _facts_of(splits: list[Samples], data: Data, found: FoundCheckpoint | None, context: ProcessContext) -> Facts:
    """A run that is resumed keeps its batch size, and on a GPU its TRAIN.COMPILE."""
    facts = Facts(context.world_size, number_of_classes(data.dataset, splits))
    if not found:
        return facts
    options = with_defaults(parse_value(found.state["options"]))
    compiles = options["TRAIN.COMPILE"] if context.device.type == "cuda" else None
    return replace(facts, fitting_batch_size=options["DATA.BATCH_SIZE"], compile=compiles)


def _read_splits(
    command: Command, resumed: WeightsRecord, start: WeightsRecord, history: History, context: ProcessContext
) -> Rows:
    """The images to train and to validate, and of a test split if there is one. resumed, start: as in the plan."""
    config = command.config
    wanted = Wanted(
        as_read_before(config.data, resumed.split),
        ("train", "val"),
        class_names=resumed.class_names or (),
        of_weights=start.class_names or (),
        num_classes=config.model.num_classes,
        history=history,
        is_new=resumed is NO_RECORD,
        with_test=True,
        is_dry=command.flags.dry_run,
    )
    return read_data(wanted, context)


def plan_training(
    command: Command,
    context: ProcessContext,
    logger: RunLogger,
    find_batch_size: FindBatchSize,
    locks: ExitStack | None = None,
) -> Plan:
    """Finds the checkpoint to resume, reads the data, and completes the options. Every rank must call it.

    A resumed run keeps its class names and its split. Options of the preprocessing that are not set follow the
    checkpoint, or the weights.

    find_batch_size: for DATA.BATCH_SIZE auto. locks: receives the lock of the folder of a resumed run.
    Raises UserError: as `follow_facts`, `read_data` and `check_images`; no such checkpoint; a logger cannot be used.
    """
    config = command.config
    if context.is_main:
        check_loggers(config.loggers)
    found = find_on_all_ranks(config, context, logger, locks)
    if found:
        _check_fixed_options(found, command)
        if command.flags.cfg or config.model.resume == AUTO:  # else the run's options are used
            file = found.path.with_name(RUN_OPTIONS)  # it may have later plans of TRAIN.MINUTES than the checkpoint
            of_run = read_yaml(file) if file.is_file() else parse_value(found.state["options"])
            config = keep_minutes(config, with_defaults(of_run))
        resumed = _record_of_run(found, command.config)
        if resumed.gone_labels:
            new = f"start a new run of it with -held_out={quote(str(found.path.parent))}"
            raise UserError(f"{found.path}: was trained with {resumed.gone_labels}; {new}")
        start = resumed
        history = History(known=resumed.split)
    else:
        resumed = NO_RECORD
        start = weights_record(config.model, source=command.source)
        history = History(initial=start.split)
        if command.flags.held_out:
            named = find_on_main(lambda: _split_of(command.flags.held_out), context)
            history = history._replace(held_out=named)
            config = _split_as(config, named)
    _check_before_reading(config, context.world_size, is_new=found is None)

    given = {f"DATA.{field.upper()}" for field in config.data.model_fields_set}
    followed = follow_weights(config, given, start)
    if start is NO_RECORD and _is_timms_recipe(command.recipe):
        as_published = weights_record(config.model.changed(pretrained="timm"))
        followed = replace(follow_weights(config, given, as_published), differing={})
    places = {"given": config, "follow_weights": followed.options}
    config = followed.options
    read = _read_splits(replace(command, config=config), resumed, start, history, context)
    splits = [*read.splits.values()]
    train = read.splits["train"]
    notes = [*read.notes]
    if not found:  # a resumed run names all options that differ; a fine-tuning may change the image size and the crop
        logger.note(*followed.notes)
        notes += [note for key, note in followed.differing.items() if key in _KEPT_IN_FINE_TUNING]
    notes += _check_images(command, config.data, found, read.splits, context)

    facts = _facts_of(splits, config.data, found, context)
    config = follow_facts(config, facts)
    places["follow_facts"] = config
    check_same_options(config, context)
    if config.data.batch_size == AUTO:
        size, note = find_batch_size(config, context)
        config = accumulation_follows_global_batch(config.with_data(batch_size=size), facts)
        notes.append(note)
        places["find_batch_size"] = config
    logger.note(*set_by(places))
    notes += _notes_on_data(config, splits, command, is_new=not found)
    plan = Plan(
        config=config,
        batch=plan_batches(config, context.world_size),
        found=found,
        start=start,
        train=train,
        val=read.splits["val"],
        test=read.splits.get("test"),
        class_names=train.class_names if train.has_class_names else resumed.class_names,
        split=read.run_split,
        preprocessing=describe_preprocessing(followed),
        notes=notes,
    )
    if command.flags.profile:
        return plan
    return replace(plan, config=compile_if_it_pays(plan, facts, context, logger))


def _check_images(
    command: Command,
    data: Data,
    found: FoundCheckpoint | None,
    splits: Mapping[str, Samples],
    context: ProcessContext,
) -> list[Note]:
    """As `check_images`, if this is no run that is resumed with the same images; a collective call."""
    decode_seconds = _DECODE_SECONDS if command.flags.dry_run else 0.0
    if not decode_seconds and find_on_main(partial(_is_checked, found, splits), context):
        return []
    return check_images([*splits.values()], data, context, decode_seconds)


def _is_checked(found: FoundCheckpoint | None, splits: Mapping[str, Samples]) -> bool:
    """Whether the run that is resumed began with these images: equal numbers, and names and labels to validate on."""
    before = read_fact(read_run(found.path.parent), TrainingData) if found else None
    if not before:
        return False
    numbers = [len(splits.get(split, ())) for split in ("train", "val", "test")]
    has_same_numbers = numbers == [before.training, before.validation, before.test]
    return has_same_numbers and before.validation_digest == digest_of(splits["val"])


def _notes_on_data(config: Config, splits: list[Samples], command: Command, is_new: bool) -> list[Note]:
    """Facts of the training images, the first of `splits`, that change or limit the result."""
    train = splits[0]
    data = config.data
    outputs = config.model.num_logits
    used = max(len(samples.class_names) for samples in splits)
    expected = 2 * used  # numbers may leave some classes out
    if train.has_class_names:
        expected = number_of_classes(data.dataset, splits)
    notes = []
    if data.groups and "DATA.GROUPS" not in command.given:
        notes.append(Note("screen", f"DATA.GROUPS {data.groups}: images of one group stay in one split"))
    if not data.multi_label and np.count_nonzero(train.class_counts(outputs)) == 1:
        notes.append(Note("warning", "all training images are of one class: an accuracy of 100% means nothing"))
    if is_new and outputs > expected:
        text = f"the model has {outputs} classes, and the data {used}; -opts MODEL.NUM_CLASSES={used} trains {used}"
        notes.append(Note("warning", text))
    return notes


def compile_if_it_pays(plan: Plan, facts: Facts, context: ProcessContext, logger: RunLogger) -> Config:
    """The options of a new run, with TRAIN.COMPILE auto decided by an estimate; a collective call.

    A model of fused blocks alone is faster than with compiled ones.
    """
    config = plan.config
    device = context.device
    if device.type != "cuda" or plan.found or not may_compile(config):
        return config
    model: Any = nn.Module()
    with suppress(UserError), on_meta_device():  # a pass that reads values fails there, not on a device
        model, _ = build_model(config.with_model(pretrained=None).model, config.data, torch.device("meta"))
    number = 0
    reason = ""
    if config.model.fused_blocks and not config.model.grad_checkpointing:
        number, reason = use_fused_blocks(model, config.amp, context)
    if number:
        return config
    seconds = _eager_seconds(plan, model, context)
    problem = ""
    decided = follow_facts(config, replace(facts, eager_seconds=seconds))
    if decided.train.compiles:
        problem = f"; {reason}" if reason else ""  # the session says it of blocks that are not compiled
        try:
            check_compiler(device)
        except UserError as error:
            decided = config
            problem = f"; {error}"
    if not all(gather_objects(decided.train.compiles, context)):
        decided = config
    value = decided.train.compile if decided.train.compiles else "none"
    logger.note(Note("log", f"TRAIN.COMPILE auto is {value}: {seconds:,.0f} s of eager steps (-h RULES){problem}"))
    return decided


def _eager_seconds(plan: Plan, model: nn.Module, context: ProcessContext) -> float:
    """An estimate of the time of all steps without compilation; 0 if the blocks of the model share no graph.

    It follows from FLOPs and the MFU of ViT-B/16. Smaller models do not reach it: their steps take longer.
    """
    config = plan.config
    train = plan.config.train
    blocks: list[nn.Module] = list(getattr(model, "blocks", ()))
    kinds = {(type(one), *((each.shape, each.requires_grad) for each in one.parameters())) for one in blocks}
    if len(kinds) != 1 or len(blocks) == 1 or config.model.solves_head:
        return 0.0
    if train.minutes:
        return 30 * train.minutes  # -minutes compiles twice
    about = describe_model(model, config.data, compute_dtype(config.amp, context.device), False, context)
    peak = about.peak_flops_per_second or context.world_size * _H200_FLOPS
    return plan.steps * plan.batch.global_size * (about.flops_per_image or 0) / (_EAGER_MFU * peak)


def check_same_options(config: Config, context: ProcessContext, **flags: str | int | None) -> None:
    """Checks that all ranks have the same `shared_options` and `flags`. A collective call.

    Raises UserError: on all ranks; it names the first rank that differs from rank 0, and each key with both values.
    """
    of_main, *others = gather_objects(shared_options(config) | flags, context)
    for rank, of_rank in enumerate(others, 1):
        keys = [key for key in of_main | of_rank if of_main.get(key) != of_rank.get(key)]
        if keys:
            main = ", ".join(f"{key} {format_value(of_main.get(key))}" for key in keys)
            own = ", ".join(f"{key} {format_value(of_rank.get(key))}" for key in keys)
            problem = f"{context.name(rank)} has {own}, but {context.name(0)} has {main}"
            raise UserError(f"{problem}; start all ranks with equal options")


def describe_preprocessing(followed: Followed) -> Preprocessing:
    """The fact about the preprocessing of options that follow weights."""
    data = followed.options.data
    return Preprocessing(
        image_size=data.image_size,
        crop_pct=data.crop_pct,
        interpolation=data.interpolation,
        mean=list(data.imagenet_mean),
        std=list(data.imagenet_std),
        sources=followed.sources,
        resize=data.resize,
    )
