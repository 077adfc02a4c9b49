"""The session of an evaluation or a prediction: its plan as objects. It decides no option, and writes nothing."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from engine.evaluation.evaluate import Evaluator
from engine.plan.evaluation import EvaluationPlan
from engine.run.facts import Devices
from engine.run.flops import copy_to_meta
from engine.run.folder import record_environment
from engine.run.log import RunLogger
from engine.training.eval_model import build_eval_model
from utils.distributed import ProcessContext


@dataclass(frozen=True)
class EvaluationSession:
    """The model of the plan, ready for `evaluator`.

    meta_model: a copy in fp32 without memory, for its number of parameters and FLOPs.
    """

    plan: EvaluationPlan
    model: nn.Module
    evaluator: Evaluator
    meta_model: nn.Module


def build_evaluation_session(plan: EvaluationPlan, context: ProcessContext, logger: RunLogger) -> EvaluationSession:
    """Builds and loads the model of the plan.

    Raises:
        UserError: the weights do not fit the model.
    """
    built = build_eval_model(plan.config, context, plan.needs_head)
    for note in (*built.notes, *plan.notes):
        logger.note(note)
    logger.record(Devices(context.world_size, str(context.device), built.evaluator.precision.describe()))
    record_environment(context, logger)
    evaluator = built.evaluator
    if plan.class_mask is not None:
        evaluator = replace(evaluator, class_mask=torch.from_numpy(plan.class_mask).to(context.device))
    # At O2 and O3 the fp32 weights of `built` are not needed.
    return EvaluationSession(plan=plan, model=built.compute, evaluator=evaluator, meta_model=copy_to_meta(built.fp32))
