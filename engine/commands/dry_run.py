"""Checks everything that a run needs and prints its sizes, without training."""

from pathlib import Path

import torch

from configs.command_line import Command
from engine.checkpoint.run_folder import check_writable
from engine.evaluation.session import build_sessions
from engine.plan.training import plan_training
from engine.run.flops import count_parameters, forward_flops
from engine.run.folder import log_options
from engine.run.log import RunLogger
from engine.training.batch_size import find_batch_size
from engine.training.first_steps import measure_baseline
from engine.training.loss import build_loss
from engine.training.session import build_session
from utils.distributed import ProcessContext


def dry_run(command: Command, context: ProcessContext) -> int:
    """Builds data, model, optimizer and the state to resume from, and checks that the output folder is writable.

    Raises UserError: the first problem that would stop the run.
    """
    logger = RunLogger(None, context)
    log_options(command, logger)
    if command.config.eval.enabled:
        check_writable(Path(command.config.save))
        session, *_ = build_sessions(command, context, logger)
        config, model = session.plan.config, session.meta_model
    else:
        plan = plan_training(command, context, logger, find_batch_size)
        check_writable(plan.run_folder or Path(plan.config.save))
        config, state = plan.config, build_session(plan, context, logger).state
        model = state.meta_model
        logits = torch.zeros(2, config.model.num_logits, device=context.device)
        build_loss(config.loss, config.train.smoothing, None)(logits, logits.argmax(1))  # a plugin's function may raise
        if not config.model.tune.solves_head:  # which has no batches
            logger.info(f"global batch size: {plan.batch}")
            logger.info(f"steps per epoch: {state.layout.steps_per_epoch}")
            logger.info(f"peak learning rate: {state.schedule.peak_lr:.3g}")
        if context.is_main and (baseline := measure_baseline(config.data, plan.train, plan.val)):
            logger.note(baseline)
    parameters, trained = count_parameters(model)
    logger.info(f"parameters: {parameters / 1e6:.3f} M, trained: {trained / 1e6:.3f} M")
    flops = forward_flops(model, config.data)
    logger.info(f"forward pass: {flops / 1e9:.2f} GFLOPs per image (a multiply-add counts as two)")
    logger.info("dry run: all checks passed")
    return 0
