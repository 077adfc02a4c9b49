"""The builder of a run: the only code besides the commands that reads the whole `Config`.

Every part is made once: data, model, precision, optimizer, the wrapped model, reporter.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from configs.command_line import to_yaml
from configs.compare import non_default_options
from configs.schema import Config
from datasets.decoding.bad_images import BadImageList
from datasets.loading.batches import build_eval_loader
from datasets.sources.checks import notes_on
from datasets.transforms.device import build_train_transform
from engine.checkpoint.epoch_layout import EpochLayout
from engine.checkpoint.trained_on import describe_data
from engine.parallel.build import build_strategy
from engine.parallel.compile import compile_model, run_eagerly
from engine.parallel.strategy import Sharding, Strategy
from engine.precision.norms import keeps_fp32_weights
from engine.precision.policy import Precision
from engine.run.facts import Devices, Fact, Model, TrainingData
from engine.run.log import RunLogger
from engine.run.loggers.group import LoggerGroup
from engine.run.mfu.flops import copy_to_meta
from engine.run.mfu.meter import build_mfu_meter
from engine.run.reporter import Reporter
from engine.run.timing.step_timer import StepTimer
from engine.training.distillation import build_step_loss
from engine.training.eval_model import (
    apply_op_lists,
    attention_notes,
    build_eval_files,
    build_evaluator,
    dummy_images,
)
from engine.training.loss import build_loss, read_class_weights
from engine.training.optimizer import build_optimizer, check_sharded_optimizer
from engine.training.run_data import RunData, build_batches
from engine.training.schedule import build_schedule, lr_warning
from engine.training.state import Plan, Run, TrainState
from engine.training.step_graph import StepGraph, build_step_graph
from engine.training.weight_average import WeightAverage, average_warning, build_average
from models.attention import allow_kernels
from models.build import build_model
from models.convolutions import prepare_convolutions
from utils.device import cpu_warning
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.seeding import derive_seed


def build_run(config: Config, samples: RunData, context: ProcessContext, folder: Path | None, logger: RunLogger) -> Run:
    """Builds all parts of a training run, identical on every rank.

    `folder` receives its files. Without one, call `Run.in_folder` before the run starts.

    `config` and `samples` are those that `read_run_data` returns.

    Raises:
        UserError: an option or the weights are wrong.
    """
    data, train = config.data, config.train
    bad_images = BadImageList(folder, context.rank)
    timeout = config.timeout_seconds
    batches, layout = build_batches(config, samples, context, bad_images)
    class_weights = read_class_weights(config.loss, samples.train.targets, config.model.num_classes, context.device)
    state, notes = build_train_state(config, context, layout, class_weights, samples.class_names)
    _log_parts(config.model.num_classes, context, logger, state, notes, samples, layout)
    precision = state.precision
    meter = build_mfu_meter(state.meta_model, data, precision.dtype, precision.tf32, context)
    parameters = sum(parameter.numel() for parameter in state.meta_model.parameters())
    logger.record(Model(parameters, meter.flops_per_image, meter.peak_flops_per_second))
    total_steps = train.num_epochs * layout.steps_per_epoch
    rate_warnings = lr_warning(train, layout.global_batch_size), average_warning(train, total_steps)
    for warning in filter(None, (*samples.warnings, *rate_warnings, cpu_warning(context.device))):
        logger.warn(f"Warning: {warning}")
    return Run(
        context=context,
        folder=folder,
        logger=logger,
        batches=batches,
        bad_images=bad_images,
        val_batches=build_eval_loader(data, samples.val, context, timeout, bad_images),
        num_val_samples=len(samples.val),
        eval_files=build_eval_files(config, samples.val, state.evaluator, folder),
        num_classes=config.model.num_classes,
        layout=layout,
        state=state,
        compiles=train.compile != "none",
        reporter=Reporter(
            context,
            folder,
            logger,
            precision.scaler,
            meter,
            state.timer,
            num_epochs=train.num_epochs,
            report_freq=config.report_freq,
            images_per_epoch=layout.batches_per_epoch * layout.batch_size,
            max_steps=train.max_steps,
            loggers=LoggerGroup(config.loggers, to_yaml(config), non_default_options(config), logger),
        ),
        plan=_build_plan(config),
        timeout_seconds=timeout,
        optimizer_name=train.optimizer.name,
        restarts_schedule=train.restart_schedule,
        last_epoch=train.last_epoch,
        options=to_yaml(config),
        description=describe_data(data, samples.class_names),
    )


def build_train_state(
    config: Config,
    context: ProcessContext,
    layout: EpochLayout,
    class_weights: torch.Tensor | None = None,
    class_names: Sequence[str] | None = None,
) -> tuple[TrainState, list[str | Fact]]:
    """Everything that a training step uses, and lines for the log. One process needs no process group.

    class_weights: of the loss, (classes,), on the device. class_names: of the data, None if it has none; a teacher must
    have the same.
    """
    train = config.train.model_copy(update={"accum_iter": layout.accum_iter})
    config, data, device = config.model_copy(update={"train": train}), config.data, context.device
    allow_kernels(config.model.attention, device)
    torch.manual_seed(derive_seed(config.seed, "initialization"))
    model, notes = build_model(config.model, data, device)
    notes = [f"Pretrained: {note}" for note in notes]
    strategy = build_strategy(config.parallel, context)
    precision = Precision(config.amp, device, strategy.total_norm, strategy.is_sharded)
    precision.check_ranks(context)
    is_fixed = strategy.is_sharded or precision.level == "O3"
    notes += prepare_convolutions(model, config.model.channels_last, device, is_fixed)
    apply_op_lists(model, config.model.attention, precision)
    base_loss = build_loss(config.loss, train.smoothing, class_weights)
    loss, teacher_notes = build_step_loss(base_loss, train, model, config.model, data, precision, class_names)
    average, meta_model = build_average(model, train), copy_to_meta(model)
    notes += [*teacher_notes, *_shard(config, strategy, precision, model, average)]
    compute_model = precision.attach(model)
    optimizer = build_optimizer(model, train)
    graph, compile_notes = _compile(config, context, strategy, precision, optimizer)
    notes += compile_notes
    if class_weights is not None:
        notes.append(f"Loss: class weights from {class_weights.min():.3g} to {class_weights.max():.3g}")
    images = dummy_images(data, context)
    with precision.autocast(), run_eagerly(), torch.no_grad():
        notes += attention_notes(compute_model, images)
    with precision.autocast(), run_eagerly():  # torch 2.10 would reuse casts of the pass without gradients
        wrapped = strategy.wrap(compute_model, images)
    state = TrainState(
        precision=precision,
        strategy=strategy,
        model=wrapped,
        meta_model=meta_model,
        average=average,
        optimizer=optimizer,
        schedule=build_schedule(train, layout.steps_per_epoch, layout.global_batch_size),
        loss=loss,
        transform=build_train_transform(data, train, config.model.num_logits).to(device),
        evaluator=build_evaluator(config, precision, strategy, context),
        batch_size=data.batch_size,
        accum_iter=train.accum_iter,
        max_norm=train.grad_clip,
        freeze_backbone=config.model.freeze_backbone,
        seed=config.seed,
        rank=context.rank,
        timer=StepTimer(device),
        graph=graph,
    )
    return state, notes


def _compile(
    config: Config, context: ProcessContext, strategy: Strategy, precision: Precision, optimizer: torch.optim.Optimizer
) -> tuple[StepGraph | None, list[str]]:
    """Applies TRAIN.COMPILE; returns the graph of whole steps, if there is one, and lines for the log."""
    graph, note = build_step_graph(config, context, strategy, precision, optimizer)
    model = precision.weights.compute
    compiled = compile_model(model, config.train, context, strategy.is_sharded, graph is not None)
    return graph, [f"Compile: {compiled}, in the first step{note}"] if compiled else []


def _shard(
    config: Config, strategy: Strategy, precision: Precision, model: nn.Module, average: WeightAverage | None
) -> list[str]:
    """Shards the model and its average if the strategy does so; returns lines for the log.

    Raises:
        UserError: an option does not work with sharded weights.
    """
    name, train = config.parallel.strategy, config.train
    if not strategy.is_sharded:
        return [] if name == "ddp" else [f"Parallel: one process; PARALLEL.STRATEGY {name} has no effect"]
    check_sharded_optimizer(train.optimizer, config.parallel.offload)
    if train.model_ema_force_cpu:
        raise UserError(
            f"TRAIN.MODEL_EMA_FORCE_CPU: {name} shards the average; set it to false, or PARALLEL.OFFLOAD=true"
        )
    sharding = Sharding(precision.gathered_dtype, keeps_fp32_weights)
    about = strategy.shard(model, average and average.module, sharding)
    if average:
        average.follow(model)
    return [f"Parallel: {name}: {about}"]


def _build_plan(config: Config) -> Plan:
    return Plan(
        num_epochs=config.train.num_epochs,
        max_steps=config.train.max_steps,
        validate_freq=config.validate_freq,
        patience=config.train.patience,
        evaluates_raw=config.eval_raw,
        save_freq=config.save_freq,
        save_freq_steps=config.save_freq_steps,
        save_freq_minutes=config.save_freq_minutes,
        keep_checkpoints=config.keep_checkpoints,
    )


def _log_parts(
    num_classes: int,
    context: ProcessContext,
    logger: RunLogger,
    state: TrainState,
    notes: list[str | Fact],
    samples: RunData,
    layout: EpochLayout,
) -> None:
    for note in notes:
        logger.note(note)
    if layout.whole_steps:
        logger.info(f"----- Global batch: {layout.describe(context.world_size)}; TRAIN.ACCUM_ITER is not used")
    logger.record(Devices(context.world_size, str(context.device), state.precision.describe()))
    logger.record(
        TrainingData(
            training=len(samples.train),
            validation=len(samples.val),
            test=len(samples.test) if samples.test else 0,
            classes=len(samples.train.class_names),
            model_classes=num_classes,
        )
    )
    if context.is_main:
        for note in notes_on(samples.train, samples.val, samples.test):
            logger.note(f"Data: {note}")
