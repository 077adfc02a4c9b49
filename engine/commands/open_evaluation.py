"""The parts that an evaluation, a prediction and their dry run share: weights, data and model, checked and logged."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from configs.data_sets import properties_of
from configs.reading.command_line import Command
from configs.schema import Config
from datasets.sources.files.imagenet_sets import class_mask
from datasets.sources.samples import Samples
from engine.evaluation.evaluate import Evaluator
from engine.plan.evaluation import plan_evaluation
from engine.plan.find import find_on_all_ranks
from engine.run.environment import record_environment
from engine.run.facts import Devices
from engine.run.log import RunLogger
from engine.run.mfu.flops import copy_to_meta
from engine.training.eval_model import build_eval_model
from utils.distributed import ProcessContext
from utils.errors import UserError

_TITLES: dict[str | None, str] = {"train": "Training", "test": "Test"}  # of a split, in the log


@dataclass(frozen=True)
class OpenedEvaluation:
    """The completed options, the samples, and the model of `MODEL.PRETRAINED`, ready for `evaluator`.

    split: 'train', 'val' or 'test'; 'all': of data without splits. title: of the figures in the log. meta_model: a
        copy in fp32 without memory, for its number of parameters and FLOPs.
    """

    config: Config
    samples: Samples
    model: nn.Module
    evaluator: Evaluator
    split: str
    title: str
    meta_model: nn.Module


def open_evaluation(command: Command, context: ProcessContext, logger: RunLogger) -> OpenedEvaluation:
    """Reads the data, and the weights of -pretrained or of the checkpoint that -resume names.

    Raises:
        UserError: as `plan_evaluation`; no such checkpoint; the weights do not fit the model.
    """
    if command.config.model.resume:
        found = find_on_all_ranks(command.config, context, logger)
        if found is None:
            raise UserError(
                f"-resume auto: no run of this experiment in {command.config.save} has a checkpoint to evaluate; name "
                "a run with -resume=RUN, or give -pretrained"
            )
        command = command.with_weights(found.path)
        del found  # the content of the checkpoint
    plan = plan_evaluation(command, context)
    config, samples = plan.config, plan.samples
    built = build_eval_model(config, context, needs_head=not (command.prediction and command.prediction.embeds))
    for note in (*built.notes, *plan.notes):
        logger.note(note)
    logger.record(Devices(context.world_size, str(context.device), built.evaluator.precision.describe()))
    record_environment(context, logger)
    # At O2 and O3 the fp32 weights of `built` are not needed.
    title, meta_model, evaluator = _TITLES.get(command.split, "Validation"), copy_to_meta(built.fp32), built.evaluator
    if properties_of(config.data.dataset).synsets and not (command.prediction and command.prediction.path):
        mask = class_mask(config.data.dataset, samples.class_names)
        logger.note(f"{config.data.dataset}: the logits of {np.count_nonzero(~mask)} of {len(mask)} classes are masked")
        evaluator = replace(evaluator, class_mask=torch.from_numpy(mask).to(context.device))
    return OpenedEvaluation(
        config=config,
        samples=samples,
        model=built.compute,
        evaluator=evaluator,
        split=plan.split,
        title=title,
        meta_model=meta_model,
    )
