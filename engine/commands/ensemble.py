"""Several runs as one model: the mean of their probabilities. Each keeps its own preprocessing and precision."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from configs.reading.command_line import Command
from datasets.loading.loader import Loader, Loaders, build_eval_loader
from datasets.sources.checks import digest_of
from datasets.sources.samples import names_of_labels
from engine.checkpoint.weights_record import describe_data
from engine.commands.evaluation_session import EvaluationSession, build_evaluation_session
from engine.evaluation.evaluate import Evaluator
from engine.plan.evaluation import plan_evaluation
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


def build_sessions(command: Command, context: ProcessContext, logger: RunLogger) -> list[EvaluationSession]:
    """The sessions of the runs that -resume names; raises UserError if their classes or images differ."""
    plans = (plan_evaluation(one, context, logger) for one in (command, *command.others))
    sessions = [build_evaluation_session(plan, context, logger) for plan in plans]
    first, *rest = map(_comparable, sessions) if command.others else [{}]
    for other, found in zip(command.others, rest, strict=True):
        for subject in (subject for subject in first if found[subject] != first[subject]):
            names = f"{other.config.model.resume}: has other {subject} than {command.config.model.resume}"
            raise UserError(f"-resume {names}; give runs of the same classes, and name the images: -predict PATH")
    return sessions


def _comparable(session: EvaluationSession) -> dict[str, Any]:
    config, samples = session.plan.config, session.plan.samples
    classes = [*names_of_labels(samples, config.model.num_logits)], config.data.multi_label
    return {"classes": classes, "images": (digest_of(samples), [*map(samples.name, range(len(samples)))])}


def build_ensemble(sessions: Sequence[EvaluationSession]) -> EvaluationSession:
    """The ensemble, with the plan of the first session; a single session as it is."""
    if len(sessions) == 1:
        return sessions[0]
    evaluator = _Ensemble(**vars(sessions[0].evaluator), members=tuple(one.evaluator for one in sessions))
    return replace(sessions[0], model=nn.ModuleList(one.model for one in sessions), evaluator=evaluator)


def build_loader(sessions: Sequence[EvaluationSession], context: ProcessContext, first: int) -> Loader | Loaders:
    """The batches of this rank for `build_ensemble(sessions)`, from the sample `first` on."""
    loaders, keys = dict[str, Loader](), list[str]()
    for config, samples in ((one.plan.config, one.plan.samples) for one in sessions):
        keys.append(f"{describe_data(config.data, None)} {config.data.grey_range}")
        data = config.data.model_copy(update={"batch_size_eval": sessions[0].plan.config.data.eval_batch_size})
        if keys[-1] not in loaders:
            loaders[keys[-1]] = build_eval_loader(data, samples, context, config.timeout_seconds, first=first)
    return Loaders([loaders[key] for key in keys]) if len(sessions) > 1 else loaders[keys[0]]
