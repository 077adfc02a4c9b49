"""Several runs as one model: the mean of their probabilities. Each keeps its own preprocessing and precision."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from configs.reading.command_line import Command
from datasets.loading.batches import build_eval_loader
from datasets.loading.loader import Loader, Loaders
from datasets.sources.class_names import names_of_labels
from datasets.sources.digest import digest_of
from engine.checkpoint.weights_record import describe_data
from engine.commands.open_evaluation import OpenedEvaluation, open_evaluation
from engine.evaluation.evaluate import Evaluator
from engine.run.log import RunLogger
from utils.distributed import ProcessContext
from utils.errors import UserError


@dataclass(frozen=True)
class _Ensemble(Evaluator):
    """Evaluates a ModuleList. members: the evaluator of each model."""

    members: tuple[Evaluator, ...] = ()

    def compute_outputs(self, model: Any, images: Any) -> torch.Tensor:
        """The logits of the mean of the probabilities (B, C). images: of each model."""
        members = zip(self.members, model, images, strict=True)
        logits = torch.stack([evaluator.compute_outputs(one, own) for evaluator, one, own in members])
        if self.multi_label:
            return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)
        return logits.log_softmax(-1).logsumexp(0)


def open_models(command: Command, context: ProcessContext, logger: RunLogger) -> list[OpenedEvaluation]:
    """The models of the runs that -resume names; raises UserError if their classes or images differ."""
    models = [open_evaluation(one, context, logger) for one in (command, *command.others)]
    first, *rest = map(_comparable, models) if command.others else [{}]
    for other, found in zip(command.others, rest, strict=True):
        for subject in (subject for subject in first if found[subject] != first[subject]):
            names = f"{other.config.model.resume}: has other {subject} than {command.config.model.resume}"
            raise UserError(f"-resume {names}; give runs of the same classes, and name the images: -predict PATH")
    return models


def _comparable(opened: OpenedEvaluation) -> dict[str, Any]:
    data, samples = opened.config.data, opened.samples
    classes = [*names_of_labels(samples, opened.config.model.num_logits)], data.multi_label
    return {"classes": classes, "images": (digest_of(samples), [*map(samples.name, range(len(samples)))])}


def build_ensemble(models: Sequence[OpenedEvaluation]) -> OpenedEvaluation:
    """The ensemble, with the options and the samples of the first model; a single model as it is."""
    if len(models) == 1:
        return models[0]
    evaluator = _Ensemble(**vars(models[0].evaluator), members=tuple(one.evaluator for one in models))
    return replace(models[0], model=nn.ModuleList(one.model for one in models), evaluator=evaluator)


def build_loader(models: Sequence[OpenedEvaluation], context: ProcessContext, first: int) -> Loader | Loaders:
    """The batches of this rank for `build_ensemble(models)`, from the sample `first` on."""
    loaders, keys = dict[str, Loader](), list[str]()
    for config, samples in ((one.config, one.samples) for one in models):
        keys.append(f"{describe_data(config.data, None)} {config.data.grey_range}")
        data = config.data.model_copy(update={"batch_size_eval": models[0].config.data.eval_batch_size})
        if keys[-1] not in loaders:
            loaders[keys[-1]] = build_eval_loader(data, samples, context, config.timeout_seconds, first=first)
    return Loaders([loaders[key] for key in keys]) if len(models) > 1 else loaders[keys[0]]
