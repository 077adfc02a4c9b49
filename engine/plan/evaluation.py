"""The plan of an evaluation or a prediction: its options follow the weights; and which output is which class.

The files of other programs often name no classes: the evidence is then in the names of the data and of the model.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from timm.data import ImageNetInfo, infer_imagenet_subset
from timm.models import get_arch_pretrained_cfgs, is_model

from configs.command_line import Command
from configs.flags import Prediction
from configs.parts import check_plugins
from configs.resolve import Facts, follow_facts
from configs.schema import Config
from configs.schema.data import IMAGENET_CLASSES, properties_of
from configs.schema.model import Model
from configs.weights import (
    OF_EVERY_MODEL,
    WeightsRecord,
    follow_weights,
    keys_in_section,
    model_follows_weights,
    prediction_needs_no_labels,
)
from datasets.reading import read_data, read_unlabelled
from datasets.recognition import recognize_dataset
from datasets.sources.checks import check_images, digest_of
from datasets.sources.class_names import (
    BYTES,
    CLASS_FILE,
    NATURAL,
    find_ambiguity,
    list_names,
    merged_outputs,
    number_of_classes,
    read_class_list,
    rename_classes,
)
from datasets.sources.numbering import check_renames
from datasets.sources.rows import Rows
from datasets.sources.samples import Samples
from datasets.sources.sets.imagenet_sets import class_mask, wordnet_ids
from datasets.sources.source import Wanted
from datasets.sources.split import History, as_read_before, hash_paths
from engine.checkpoint.files import find_checkpoint
from engine.checkpoint.run_folder import BEST, check_same_checkpoint
from engine.checkpoint.weights_record import record_in, weights_record
from engine.plan.training import check_same_options, describe_preprocessing, find_on_all_ranks
from engine.run.facts import EvaluationData, Fact
from engine.run.log import RunLogger
from engine.run.record import read_metrics
from models.build import outputs_of_weights
from models.weights.choose import EVALUATE, FEATURES, Purpose
from models.weights.read import WeightsFile, read_weights
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.notes import Note
from utils.system import require
from utils.tables import MAX_ROWS

_DECODE_SECONDS = 2.0  # one error then names most of the unusable images
_TITLES = {"train": "Training", "val": "Validation", "test": "Test"}  # of a split, in the log


@dataclass(frozen=True)
class EvaluationPlan:
    """An evaluation or a prediction before its model is built; its options are final.

    samples: to evaluate, with the class names of the model. images: about them. class_mask: the logits to compute, bool
    (C,); None: all. merged: of `Evaluator`. split: 'train', 'val' or 'test'; 'all': of data without splits. title: of
    the figures in the log. purpose: EVALUATE or FEATURES. notes: lines for the log. record: of the weights.
    others: options and records of the further models of a mean.
    """

    config: Config
    samples: Samples
    images: EvaluationData
    class_mask: np.ndarray | None
    merged: dict[int, list[int]]
    split: str
    title: str
    purpose: Purpose
    notes: list[Note | Fact]
    record: WeightsRecord
    others: Sequence[tuple[Config, WeightsRecord]] = ()


def plan_evaluation(command: Command, context: ProcessContext, logger: RunLogger) -> EvaluationPlan:
    """Finds the weights, of `MODEL.PRETRAINED` or of -resume, and reads the samples to evaluate or to label.

    Labels follow the class names of the checkpoint. Options that the user did not write follow its preprocessing, its
    number of classes and, if the user named no model, its architecture. Every rank must call it.
    Raises UserError: as `read_data`, `check_images`, `_check_prediction` and `_plan_mean`; no such checkpoint or
    weights; a preprocessing that contradicts the options. In a prediction, missing and unreadable images are no errors.
    """
    if command.config.model.resume:
        command = command.with_weights(_checkpoint_of(command, context, logger))
    prediction = command.prediction
    data = recognize_dataset(command.config.data, context, command.has_columns_of_run)
    given = command.config.changed(data=data)
    options, record, notes = options_of_weights(replace(command, config=given))
    options, split = _choose_split(command, options, record)
    if prediction:
        options = prediction_needs_no_labels(options, command.given, record, has_path=command.path is not None)
    names = record.class_names
    record, merged = _rename(record, options)
    if record.gone_labels and record.is_of(options.data) and not command.prediction:
        raise UserError(f"{options.model.pretrained}: was trained with {record.gone_labels}; give it as -data_path")
    read, names_note = _read(options, record, names, split, command, context)
    ((split, samples),) = read.splits.items()
    facts = Facts(context.world_size, classes=number_of_classes(options.data.dataset, [samples]))
    config = follow_facts(options, facts).with_data(columns=data.columns, encoding=data.encoding)
    check_same_options(config, context)
    if not prediction:
        notes += [note.on("Data") for note in check_images([samples], config.data, context, _DECODE_SECONDS)]
    images = _describe(samples, config, command, split, read.num_trained)
    images = replace(images, epochs=_epochs_of_choice(config, record, split))
    notes += [note.on("Data") for note in read.notes]
    notes.append(images)
    if images.classes == 1 and not (prediction or config.data.multi_label):
        text = "all images are of one class: top-1 is its recall, and means nothing if the labels are placeholders"
        notes.append(Note("warning", text, misleads=True).on("Data"))
    if not names_note:
        samples, names_note = name_outputs(samples, record, config)
    notes.append(Note("screen", f"Class names: {names_note}"))
    mask = None
    if not command.path and properties_of(config.data.dataset).synsets:
        mask = class_mask(config.data.dataset, samples.class_names)
        notes.append(Note("log", f"{config.data.dataset}: the logits of other classes are masked"))
    plan = EvaluationPlan(
        config=config,
        samples=samples,
        images=images,
        class_mask=mask,
        merged=merged,
        split=split,
        title=_TITLES.get(split, "Evaluation"),
        purpose=FEATURES if command.embeds else EVALUATE,
        notes=notes,
        record=record,
    )
    if prediction:
        _check_prediction(prediction, config, len(samples))
    return _plan_mean(command, plan, context, logger) if command.runs else plan


def _rename(record: WeightsRecord, options: Config) -> tuple[WeightsRecord, dict[int, list[int]]]:
    """The record after DATA.RENAME, and the outputs that it merges. Outputs without names have their numbers.

    Raises UserError: a name is no class of the weights; of several labels per image.
    """
    data = options.data
    if not data.rename:
        return record, {}
    names = record.class_names
    if not names:
        names = [*map(str, range(options.model.num_classes or 0))]
        if not data.rename.keys() <= {*names}:
            return record, {}
    check_renames(data.rename, {*names}, names, "the checkpoint")
    merged = merged_outputs(names, data.rename)
    if merged and data.multi_label:
        raise UserError("DATA.RENAME: merges outputs of weights with one label per image only; train with it instead")
    return replace(record, class_names=rename_classes(names, data.rename)), merged


def _checkpoint_of(command: Command, context: ProcessContext, logger: RunLogger) -> Path:
    """The checkpoint that -resume names. Raises UserError: there is none, or the ranks found different ones."""
    found = find_on_all_ranks(command.config, context, logger)
    if found is None:
        raise UserError(
            f"-resume auto: no run of this experiment in {command.config.save} has a checkpoint; give -resume=RUN"
        )
    check_same_checkpoint(found.path, context)
    return found.path


def _choose_split(command: Command, options: Config, record: WeightsRecord) -> tuple[Config, str | None]:
    """The options with which the training read its data, and the split; None for a split that the data decide.

    The images of a path have neither.
    """
    if command.path:
        return options, None
    is_of_training = record.is_of(options.data)
    options = options.changed(data=as_read_before(options.data, record.split, is_of_training))
    if command.flags.split:
        return options, command.flags.split
    asked = {key: getattr(options.data, key.lower()) for key in ("VAL_FRACTION", "FOLDS")}
    is_like_training = is_of_training or any(value not in (None, record.data.get(key)) for key, value in asked.items())
    return options, "val" if is_like_training else None


def _describe(samples: Samples, config: Config, command: Command, split: str, num_trained: int) -> EvaluationData:
    if command.path:
        return EvaluationData(len(samples), path=command.path)
    outputs = config.model.num_logits
    present = int(np.count_nonzero(samples.class_counts(outputs)))
    has_split = command.flags.split or properties_of(config.data.dataset).may_lack_splits
    digest = "" if command.prediction else digest_of(samples)
    return EvaluationData(
        len(samples), present, outputs, split if has_split else None, trained=num_trained, digest=digest
    )


def _epochs_of_choice(config: Config, record: WeightsRecord, split: str) -> int:
    """The epochs among which these images chose the weights: the validation images of the run of a best.pth."""
    weights = Path(str(config.model.pretrained))
    if weights.name != BEST or split != "val" or not record.is_of(config.data):
        return 0
    rows, _ = read_metrics(weights.parent)
    return len({row["epoch"] for row in rows if "val_loss" in row})


def options_of_weights(command: Command) -> tuple[Config, WeightsRecord, list[Note | Fact]]:
    """The options to evaluate the weights `MODEL.PRETRAINED`, which need no data; their record; log lines.

    Raises UserError: no such weights, or damaged ones; a preprocessing that contradicts the options.
    """
    options = command.config
    weights = options.model.pretrained
    file = record = None
    if weights not in (None, "timm"):
        file = read_weights(weights)
        record = record_in(file)
    notes = list[Note | Fact]()
    if not record:
        options, notes = _follow_named_model(command, file)
        record = weights_record(options.model, file, command.source)
    changed = check_plugins(record.plugins, options.plugins, f"{weights}: ")
    notes += [warning for warning in changed if warning not in command.notes]
    if record.gone_labels:
        notes.append(Note("screen", f"{weights}: was trained with {record.gone_labels}"))
    embeds = command.embeds  # images as a probe, a training, sees them
    followed = follow_weights(options, command.given, record, evaluates=True, as_published=not embeds)
    options = followed.options
    if options.model.num_classes is None and weights and not embeds:
        options = options.with_model(num_classes=outputs_of_weights(options.model, options.data, file))
    if not record.is_own and len(record.class_names or ()) != options.model.num_classes:
        record = replace(record, class_names=None)  # a list of other classes beside the weights
    notes += [*followed.notes, describe_preprocessing(followed), *followed.differing.values()]
    return options, record, notes


def _follow_named_model(command: Command, file: WeightsFile | None) -> tuple[Config, list[Note | Fact]]:
    """The options with the model that another program's file names, if none is given."""
    options = command.config
    of_model = keys_in_section("MODEL", command.given)
    if not file or not file.model_section or not of_model <= OF_EVERY_MODEL:
        return options, []
    named = WeightsRecord(str(file.file), model=file.model_section, data={})
    model = model_follows_weights(named, options.model, of_model)
    note = Note("log", f"Model: {file.architecture}, which the file names")
    return options.changed(model=model), [note]


def _read(
    options: Config,
    record: WeightsRecord,
    of_weights: Sequence[str] | None,
    split: str | None,
    command: Command,
    context: ProcessContext,
) -> tuple[Rows, str | None]:
    """The samples of one split, with the labels of the model if they have labels; the source of its class names, if the
    data show it.

    of_weights: their class names before DATA.RENAME.
    """
    data = options.data
    model = options.model
    if command.path:
        return read_unlabelled(command.path, data, context, record.data.get("IMAGE_ROOT")), None
    names = None if _has_english_names(record) else record.class_names
    known = record.split
    if known and not known.held_out and not record.is_of(data):
        known = None
    if properties_of(data.dataset).synsets:
        names = names or wordnet_ids(model.num_classes or IMAGENET_CLASSES)
        class_mask(data.dataset, names)
    wanted = Wanted(
        data,
        (split,) if split else (),
        class_names=names or (),
        of_weights=of_weights or (),
        num_classes=model.num_classes,
        history=History(known),
        predicts=command.prediction is not None,
        is_dry=command.flags.dry_run,
    )
    read = read_data(wanted, context)
    ((found, samples),) = read.splits.items()
    if names or command.embeds or not samples.has_class_names:
        return read, None
    outputs, names, source = match_outputs(samples.class_names, model, record, data.classes)
    samples = samples.with_classes(np.array(outputs, np.int64), names)
    return replace(read, splits={found: samples}), source


def name_outputs(samples: Samples, record: WeightsRecord, config: Config) -> tuple[Samples, str]:
    """The samples with the class names of the model; their source, for the log.

    The file of the weights names the classes, else DATA.CLASSES, else the data, else timm the classes of ImageNet, see
    `imagenet_subset`. Other weights with 1000 classes may be of any data: their names are the labels.
    Raises UserError: as `read_class_list`; a list of other length than the number of outputs.
    """
    number = config.model.num_logits
    classes = config.data.classes
    shown = record.class_names
    if not samples.has_class_names:
        shown = record.output_names or shown
    if shown:
        names = shown
        source = "from the checkpoint"
    elif samples.has_class_names:
        names = samples.class_names
        source = "from the data, in their order"
    elif classes not in (None, NATURAL, BYTES):
        names = read_class_list(Path(classes))
        source = f"from {classes}"
        if len(names) != number:
            raise UserError(f"DATA.CLASSES: {classes}: {len(names)} names for {number} outputs; give one for each")
    elif subset := imagenet_subset(config.model, record):
        names = list(ImageNetInfo(subset).label_descriptions())
        source = f"timm's of {subset}, of which timm publishes {config.model.name}"
    else:
        return samples, "the labels, which are numbers"
    return samples.changed(class_names=names, has_class_names=True), source


def match_outputs(
    names: Sequence[str], model: Model, record: WeightsRecord, classes: str | None
) -> tuple[list[int], list[str], str]:
    """The output of each class of data, for weights that do not name all; names of the outputs; their source, for logs.

    names: of the classes, in the order of DATA.CLASSES (`classes`), else of their bytes.
    Raises UserError: neither the names nor the weights show the order; names the key that does.
    """
    number = model.num_classes or len(names)
    in_order = list(range(len(names)))
    fix = f"set DATA.CLASSES to {CLASS_FILE}"
    if classes and len(names) >= number:
        return in_order, list(names), f"in the order of DATA.CLASSES {classes}"
    if not classes:
        ids = wordnet_ids(number)
        subset = imagenet_subset(model, record)
        outputs = _outputs_of_imagenet(names, ids, subset)
        shown = {output: name for output, name in zip(outputs, names, strict=True) if output >= 0}
        if len(shown) == len(names):
            source = "ImageNet's, by WordNet id or English name"
            return outputs, [shown.get(output, one) for output, one in enumerate(ids)], source
        if subset:
            wrong = list_names([name for name, output in zip(names, outputs, strict=True) if shown.get(output) != name])
            problem = f"{model.pretrained}: is of {subset}: {wrong}: no WordNet id or English name of one class of it"
            raise UserError(f"{problem}; {fix}")
    if record.output_names or len(names) < number:
        problem = f"{model.pretrained}: has no names for all of its {number} outputs, and the data {len(names)} classes"
        raise UserError(f"{problem}; {fix}")
    ambiguity = find_ambiguity(names)
    if model.num_classes and ambiguity:  # weights without a head are refused when they load
        raise UserError(f"{model.pretrained}: has no class names, and {ambiguity}")
    return in_order, list(names), "from the data, in their order"


def imagenet_subset(model: Model, record: WeightsRecord) -> str | None:
    """timm's name of the part of ImageNet whose classes the outputs are; None for other models.

    The evidence is the model's name: timm publishes weights of it for this part, with as many outputs as this model
    has. The runs of this program are of their own data.
    """
    architecture = model.name.partition(".")[0]
    if not model.pretrained or not is_model(architecture) or record.is_own:
        return None
    published = get_arch_pretrained_cfgs(architecture).values()
    counts = [cfg.num_classes for cfg in published if re.search(r"in(1|12|21|22)k", cfg.tag or "")]
    return infer_imagenet_subset({"num_classes": model.num_classes}) if model.num_classes in counts else None


def _has_english_names(record: WeightsRecord) -> bool:
    """Returns whether the outputs have the English names of ImageNet, as of the models of transformers."""
    names = record.output_names or [""]
    return len(names) == IMAGENET_CLASSES and names[0].startswith("tench") and not record.is_own


def _outputs_of_imagenet(names: Sequence[str], ids: Sequence[str], subset: str | None) -> list[int]:
    """The output of each class by the WordNet ids of the outputs, of weights of a `subset` also by a name that timm has
    for one class alone; -1 for other names.
    """
    texts = ImageNetInfo(subset).label_descriptions() if subset else ids
    outputs = defaultdict[str, set[int]](set)
    for output, (wordnet_id, text) in enumerate(zip(ids, texts, strict=True)):
        for name in (wordnet_id, *text.split(",")):
            outputs[_plain(name)].add(output)
    found = [outputs[_plain(name)] for name in names]
    return [min(one) if len(one) == 1 else -1 for one in found]


def _plain(name: str) -> str:
    """'n01440764' of 'n01440764_tench', 'church building' of 'Church_building'."""
    wordnet_id = re.match(r"n\d{8}(?!\d)", name.lower())
    return wordnet_id[0] if wordnet_id else " ".join(re.findall(r"[^\W_]+", name.casefold()))


def _plan_mean(command: Command, plan: EvaluationPlan, context: ProcessContext, logger: RunLogger) -> EvaluationPlan:
    """The plan of the mean of all models of a sweep, of whose first model `plan` is.

    Raises UserError: their classes or their preprocessing differ; these images trained some of them; a map or features
    of several models.
    """
    if command.embeds or (command.prediction and command.prediction.explain):
        raise UserError(
            f"-embed and -explain are of one model; give one with -resume={shlex.quote(str(command.runs[0]))}"
        )
    is_compared = not command.path and plan.split != "test"
    is_of_training = plan.record.is_of(plan.config.data) or plan.images.trained
    paths = hash_paths(plan.samples.names_for_split)
    others = []
    for run in command.runs[1:]:
        found = find_checkpoint(str(run), context, best_first=True)
        assert found
        for note in found.notes:
            logger.warn(f"Resume: skipped: {note}")
        config, record, _ = options_of_weights(command.with_weights(found.path))
        record, _ = _rename(record, config)
        if (record.class_names, record.preprocessing) != (plan.record.class_names, plan.record.preprocessing):
            raise UserError(f"{run}: has other classes, or another preprocessing, than {command.runs[0]}")
        has_trained = record.split and np.isin(paths, record.split.trained).all()
        if is_compared and record.split != plan.record.split and (is_of_training or has_trained):
            problem = f"-resume={run.parent}: the runs hold out different images, which trained the others"
            fix = f"python scripts/report.py {shlex.quote(str(run.parent))} has the figures out of fold"
            raise UserError(f"{problem}; give images of other paths with -data_path; {fix}")
        others.append((config, record))
    names = ", ".join(run.name for run in command.runs)
    line = Note("screen", f"The mean of {len(command.runs)} models: {names}")
    return replace(plan, notes=[*plan.notes, line], others=others)


def _check_prediction(options: Prediction, config: Config, number: int) -> None:
    """Raises UserError: -threshold is at most 1 / classes, which the most probable class always has; a workbook has
    fewer rows than `number`, the images.
    """
    least = 1 / config.model.num_logits
    if options.threshold is not None and options.threshold <= least and not config.data.multi_label:
        raise UserError(
            f"-threshold={options.threshold:g}: labels no image unknown, as the most probable class "
            f"has a probability of at least {least:.3g}; give a higher one, or leave it out"
        )
    if options.excel:
        require("-format excel", "xlsxwriter")
        if number >= MAX_ROWS:
            raise UserError(f"-format excel: {number:,} images, but a sheet has {MAX_ROWS:,} rows; use -format csv")
