"""Checks everything that a run needs and prints its sizes, without training."""

from pathlib import Path

import torch

from configs.command_line import Command
from engine.checkpoint.run_folder import check_writable
from engine.evaluation.session import build_session as build_eval_session
from engine.plan.training import plan_training
from engine.run.flops import forward_flops
from engine.run.folder import log_options, recipe_line
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
    logger = RunLogger(None, context, shows_all=command.debug)
    log_options(command, logger)
    if command.config.eval.enabled:
        check_writable(Path(command.config.save))
        session = build_eval_session(command, context, logger)
        config, model, lines = session.plan.config, session.meta_model, session.lines
    else:
        plan = plan_training(command, context, logger, find_batch_size)
        check_writable(plan.run_folder or Path(plan.config.save))
        trained = build_session(plan, context, logger)
        config, state, lines = plan.config, trained.state, [recipe_line(command), *trained.lines]
        model = state.meta_model
        logits = torch.zeros(2, config.model.num_logits, device=context.device)
        build_loss(config.loss, config.train.smoothing, None)(logits, logits.argmax(1))  # a plugin's function may raise
        if context.is_main and (baseline := measure_baseline(config.data, plan.train, plan.val)):
            lines.append(str(baseline))
        if not config.model.tune.solves_head:  # which has no batches
            lines.append(f"Batch: {plan.batch}; peak learning rate {state.schedule.peak_lr:.3g}")
    flops = f"{forward_flops(model, config.data) / 1e9:.2f} GFLOPs per image (a multiply-add counts as two)"
    logger.begin("Dry run: all checks passed", *lines, f"Forward pass: {flops}")
    return 0
