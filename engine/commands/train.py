"""The commands that train: a run, a profile of a few steps, and a dry run, which checks all that a run needs."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from configs.command_line import Command
from datasets.loading.loader import cache_images
from engine.checkpoint.run_folder import check_writable
from engine.evaluation.session import build_evaluation_session
from engine.plan.training import plan_training
from engine.run import cost
from engine.run.baseline import measure_baseline
from engine.run.folder import log_options, recipe_line, start_log
from engine.run.log import RunLogger
from engine.training.batch_size import find_batch_size
from engine.training.end import finish_run
from engine.training.loss import build_loss
from engine.training.minutes import fit_into_minutes
from engine.training.outputs import open_outputs, open_profile, refuse_other_images
from engine.training.probe_run import run_probe, solve_new_head
from engine.training.session import build_training_session
from engine.training.trainer import Trainer
from utils.distributed import ProcessContext, call_on_main
from utils.signals import handle_signals


def train(command: Command, context: ProcessContext) -> int:
    """Trains, from the start or from a checkpoint, or fits the head of a probe. Returns 0, or the status of a signal.

    Options, data and checkpoint are checked before the folder of the run is created, or changed. The main process locks
    it; the folder of a resumed run before its checkpoint is read.
    """
    logger = start_log(command, context)
    with ExitStack() as locks:
        plan = plan_training(command, context, logger, find_batch_size, locks)
        if plan.config.data.image_hashes != "none":
            for samples in plan.splits.values():
                samples.hash_content()
        solved = solve_new_head(plan, context, logger)
        plan = fit_into_minutes(plan, context, logger, solved)
        reads = plan.steps * plan.batch.global_size  # a profile and a dry run read too few images for a cache
        if note := cache_images([plan.train, plan.val], plan.config.data, reads, context):
            logger.note(note.on("Data"))
        session = build_training_session(plan, context, logger, solved)
        outputs = open_outputs(command, session, logger, locks)
        locks.callback(outputs.reporter.close)  # if training fails
        trainer = Trainer(session, outputs)
        handle_signals(trainer.trigger.signals.receive)  # from here on all ranks end together
        if plan.config.model.solves_head:
            run_probe(trainer)
        else:
            trainer.train()
        return finish_run(command, trainer)


def profile(command: Command, context: ProcessContext) -> int:
    """Trains a few steps, without checkpoints, and prints the time of each phase."""
    from engine.profiling.profiler import profile_run  # no run needs it

    logger = start_log(command, context)
    command = replace(command, config=command.config.changed(loggers=()))  # a profile is no result
    session = build_training_session(plan_training(command, context, logger, find_batch_size), context, logger)
    profile_run(session, open_profile(command, session, logger))
    return 0


def dry_run(command: Command, context: ProcessContext) -> int:
    """Builds data, model, optimizer and the state to resume from, and checks that the output folder is writable.

    Raises UserError: the first problem that would stop the run.
    """
    logger = RunLogger(context, shows_all=command.flags.debug)
    log_options(command, logger)
    if command.config.eval.enabled:
        check_writable(Path(command.config.save))
        session = build_evaluation_session(command, context, logger)
        config = session.plan.config
        model = session.meta_model
        lines = session.lines
    else:
        plan = plan_training(command, context, logger, find_batch_size)
        check_writable(plan.run_folder or Path(plan.config.save))
        trained = build_training_session(plan, context, logger)
        refuse_other_images(command, trained, logger)
        config = plan.config
        state = trained.state
        lines = [recipe_line(command), *trained.lines]
        model = state.meta_model
        logits = torch.zeros(2, config.model.num_logits, device=context.device)
        build_loss(config.loss, config.train.smoothing, None)(logits, logits.argmax(1))  # a plugin's function may raise
        baseline = call_on_main(lambda: measure_baseline(config.data, plan.train, plan.val), context)
        if baseline:
            lines.append(str(baseline))
        if not config.model.solves_head:  # which has no batches
            lines.append(f"Batch: {plan.batch}; peak learning rate {state.schedule.peak_lr:.3g}")
    flops = f"{cost.flops_per_image(model, config.data, trains=False) / 1e9:.2f} GFLOPs"
    flops = f"Forward pass: {flops} per image (a multiply-add counts as two)"
    logger.begin("Dry run: all checks passed", *lines, flops)
    return 0
