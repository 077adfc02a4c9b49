"""The probe of a run: as its only step (MODEL.TUNE probe), or as the start of its head (MODEL.HEAD probe)."""

from dataclasses import replace

import torch
from torch import nn

from engine.evaluation.evaluate import Evaluator
from engine.evaluation.fast import speed_up
from engine.evaluation.session import eval_model_of
from engine.features.probe import ProbeTask, Solved, set_head, solve_head
from engine.plan.training import Plan
from engine.run.log import RunLogger
from engine.run.record import SUSPECTS
from engine.training.loss import label_loss
from engine.training.session import initial_model, match_classes
from engine.training.trainer import Trainer
from models.timm_model import linear_head
from models.weights.choose import FEATURES, FINE_TUNE
from utils.distributed import ProcessContext
from utils.errors import UserError


def run_probe(trainer: Trainer) -> None:
    """Runs an epoch of one step, which solves for the head; with the evaluation and the files of a training.

    Raises:
        UserError: the head is not one linear layer; or as `solve_head`.
    """
    plan = trainer.plan
    outputs = trainer.outputs
    progress = trainer.progress
    config = trainer.config
    weights = trainer.state.precision.weights
    session = trainer.session
    if not linear_head(weights.saved):
        raise UserError(f"MODEL.TUNE probe: the head of {config.model.name} is not one linear layer; set it to head")
    with trainer.started():
        if trainer.position.has_ended:
            return
        trainer.start_epoch()
        if not progress.done_steps:
            task = _task(plan, trainer.state.eval_model, session.evaluator, outputs.logger)._replace(
                bad_images=session.bad_images,
                after_batch=trainer.after_eval_batch,
                suspects=outputs.folder / SUSPECTS if config.eval.suspects else None,
                solved=session.solved,
            )
            solved = solve_head(task)
            set_head(weights.saved, solved)
            weights.sync_after_load()
            trainer.use_solved(solved)
            if solved.sums is not None:  # on the main process; the sums are over all ranks
                no = torch.zeros((), device=trainer.context.device)
                progress.sums.add_step(solved.sums, no, no > 0)
            progress.done_steps += 1
            trainer.after_step(progress)
        trainer.end_epoch()


def _task(plan: Plan, model: nn.Module, evaluator: Evaluator, logger: RunLogger) -> ProbeTask:
    config = plan.config
    loss = label_loss(config, plan.train.targets, evaluator.context.device)
    return ProbeTask(config, model, evaluator, plan.train, plan.val, loss, logger)


def solve_new_head(plan: Plan, context: ProcessContext, logger: RunLogger) -> Solved | None:
    """The start of the head of a new run with MODEL.HEAD probe; None if the weights have a head of these classes.

    A head of zeros is a new one. A collective call. Raises UserError as `solve_head`.
    """
    config = plan.config
    options = plan.config.model
    if plan.found or options.head != "probe" or options.solves_head or not options.pretrained:
        return None
    purpose = replace(FINE_TUNE, head_rows=match_classes(plan).rows)
    model, _ = initial_model(config, context.device, purpose, plan.start.image_size, tune="full")
    head = linear_head(model)
    if head is None or head.weight.any():
        logger.log(
            "----- MODEL.HEAD probe has no effect: "
            "the head is not one linear layer, or the weights have a row for each class"
        )
        return None
    built = eval_model_of(model, config, context)
    number = len(plan.train) + len(plan.val)
    logger.note(*speed_up(built.compute, config, built.evaluator.precision, number, FEATURES))
    return solve_head(_task(plan, built.compute, built.evaluator, logger))
