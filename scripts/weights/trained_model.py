"""Trained weights with their model and their validation images, for the scripts that export and average."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configs.command_line import Command, to_yaml
from configs.schema import Config
from configs.schema.operating_point import TO_CHOOSE, UNDECIDED, Decision
from configs.weights import NO_RECORD, PLACE, SPLIT, WeightsRecord, keys_in_section, options_to_export
from configs.yaml_io import Values, format_value, parse_value
from datasets.loading.loader import build_eval_loader
from datasets.sources.class_names import BYTES, NATURAL, merged_outputs, read_class_list, rename_classes
from datasets.sources.samples import Samples
from datasets.sources.sets.imagenet_sets import wordnet_ids
from datasets.sources.split import RunSplit
from engine.checkpoint.files import find_checkpoint
from engine.checkpoint.weights_record import decision_to_entries, describe_data, to_metadata, weights_record
from engine.evaluation.intervals import confidence_interval, figures_at
from engine.evaluation.session import EvalModel
from engine.plan.decision import decision_for
from engine.plan.evaluation import imagenet_subset, options_of_weights, plan_evaluation
from engine.report.overview import interval_text
from engine.run.facts import Fact, ImagesRead, read_fact
from engine.run.log import RunLogger
from engine.run.record import read_run
from models.build import build_model
from models.weights.choose import EVALUATE
from utils.distributed import ProcessContext, single_process
from utils.errors import UserError, error_from
from utils.notes import Note

Forward = Callable[[Tensor], Tensor]  # normalized images (N, C, S, S) -> logits (N, classes)


@dataclass(frozen=True)
class TrainedModel:
    """The options to evaluate the weights `MODEL.PRETRAINED`.

    class_names: from the training, DATA.CLASSES, or ImageNet's WordNet ids; else from the validation samples, or None.
    notes: lines for the user. record: of the weights. names_data_path: whether `options` names the folders of the data.
    If it has been evaluated again: measured: the metric that decides and its interval; measured_point: `figures_at` its
    operating point, if it has one. samples: validation images, if they are read.
    """

    config: Config
    class_names: list[str] | None
    notes: list[Note | Fact]
    record: WeightsRecord = NO_RECORD
    decision: Decision = UNDECIDED
    names_data_path: bool = True
    measured: str = ""
    measured_point: Mapping[str, Any] | None = None
    samples: Samples | None = None

    @property
    def weights(self) -> Path:
        return Path(self.config.model.pretrained)

    @property
    def split(self) -> RunSplit | None:
        """Of the data of the training, None if the data is other data, or is not named."""
        return self.record.split if self.names_data_path and self.record.is_of(self.config.data) else None

    @property
    def others(self) -> list[str]:
        """Options, as KEY=value, because of which its logits are not those that its run has evaluated."""
        if not self.record.is_own:
            return []
        now = self.config.data.model_dump(mode="json", by_alias=True)
        before = self.record.preprocessing
        pixels = [f"DATA.{key}={format_value(now[key])}" for key in before if now[key] != before[key]]
        return [*pixels, *decision_for(self.record, self.config)[1]]

    @property
    def options(self) -> dict[str, Values]:
        """The options that travel with the weights: model, and data as an evaluation needs them."""
        options = options_to_export(parse_value(to_yaml(self.config)))
        if not self.names_data_path:
            for key in ("DATA_PATH", "IMAGE_ROOT", "GROUPS", "COLUMNS"):
                del options["DATA"][key]
        return options

    @property
    def names(self) -> list[str]:
        """The names of the classes, else their numbers."""
        return self.class_names or self.names_of_outputs

    @property
    def names_of_outputs(self) -> list[str]:
        """A name for each output: its number where it has no class, as of more outputs than classes."""
        names = self.class_names or []
        return [*names, *map(str, range(len(names), self.config.model.num_logits))]

    @property
    def description(self) -> Values:
        """The names, the preprocessing, and the thresholds, if there are some."""
        images = read_fact(read_run(self.weights.parent), ImagesRead)
        entries = {"images_digest": images.digest} if images else {}
        return describe_data(self.config.data, self.names) | decision_to_entries(self.decision) | entries

    def build(self, weights: Path) -> nn.Module:
        """The model with the weights of a file, in fp32 on the CPU, read as `-pretrained` reads it."""
        options = self.config.model.changed(pretrained=str(weights))
        data = self.config.data
        return build_model(options, data, torch.device("cpu"), EVALUATE, data.input_size)[0].eval()

    def measure(self, built: EvalModel) -> "TrainedModel":
        """Evaluates the validation images; they choose the temperature, and all thresholds.

        Raises UserError: DATA.ONLY_CLASSES leaves out images of classes of the model.
        """
        if len(self.class_names or ()) > len(self.config.data.only_classes or self.class_names or ()):
            raise UserError("DATA.ONLY_CLASSES: figures and thresholds are of all classes of the model; remove it")
        evaluator = replace(built.evaluator, decision=TO_CHOOSE._replace(point=self.decision.goal))
        model = evaluator.precision.compute_copy(built.fp32)
        assert self.samples
        batches = build_eval_loader(self.config, self.samples, evaluator.context)
        metrics, results = evaluator.evaluate(model, batches)
        assert results  # of one process
        interval, _ = confidence_interval(results, metrics.metric)
        texts = f"{metrics.metric.title} {metrics.metric.text(metrics.score)}", interval_text(interval)
        measured = ", ".join(filter(None, texts))
        point = results.used_point
        figures = point and figures_at(results.calibrated, point)
        return replace(self, decision=metrics.decision, measured=measured, measured_point=figures)

    def metadata(self) -> dict[str, str]:
        """Class names, preprocessing, and the options of model and data, as JSON texts."""
        return to_metadata(self.description, self.options)


def locate_weights(source: Path) -> Path:
    """`source` if it is a file; in a run's folder the best or newest valid checkpoint."""
    found = find_checkpoint(str(source), single_process("cpu"), best_first=True) if source.is_dir() else None
    return found.path if found else source


def without_images(command: Command) -> TrainedModel:
    """The model of the weights `MODEL.PRETRAINED`, with the data of their training unless others are named."""
    config, record, notes = options_of_weights(replace(command, config=command.config.with_model(resume=None)))
    if not {*PLACE, *SPLIT} & keys_in_section("DATA", command.given):
        changes = {key.lower(): value for key, value in record.data.items() if key in (*PLACE, *SPLIT)}
        config = config.with_data(**changes)
    return _trained_model(config, record, notes)


def open_trained(command: Command, context: ProcessContext) -> TrainedModel:
    """The model of the weights `MODEL.PRETRAINED`, with the validation samples; raises UserError without images."""
    config = command.config.with_model(resume=None)
    try:
        plan = plan_evaluation(replace(command, config=config), context, RunLogger(context))
    except UserError as error:
        raise error_from(
            error,
            f"the validation images are needed to check the result: {error} (-data_path=FOLDER names their folder, "
            "-dataset=NAME their kind; export.py -no_check needs no images)",
        ) from None
    samples = plan.samples
    config = plan.config
    trained = _trained_model(config, weights_record(config.model, source=command.source), plan.notes)
    names = trained.class_names
    if not names and samples.has_class_names and len(samples.class_names) == config.model.num_classes:
        names = samples.class_names
    return replace(trained, class_names=names, samples=samples)


def _class_names(config: Config, record: WeightsRecord) -> list[str] | None:
    classes = config.data.classes
    if record.class_names:
        return record.class_names
    if classes not in (None, NATURAL, BYTES):
        return read_class_list(Path(classes))
    if classes is None and imagenet_subset(config.model, record):
        return wordnet_ids(config.model.num_classes)
    return None


def _trained_model(config: Config, record: WeightsRecord, notes: list[Note | Fact]) -> TrainedModel:
    names = _class_names(config, record)
    renames = config.data.rename
    if names and renames:
        if merged_outputs(names, renames):
            raise UserError("DATA.RENAME: an export cannot merge classes; give each class a name of its own")
        names = rename_classes(names, renames)
    decision, _ = decision_for(record, config, names or ())
    return TrainedModel(config, names, notes, record, decision)
