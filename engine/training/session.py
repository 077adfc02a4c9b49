"""The session of a training run: its plan as objects, among them the state of a step.

The session decides no option, and writes nothing. `engine/training/outputs.py` opens the outputs when it is ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from timm.layers import convert_sync_batchnorm
from torch import nn

from configs.batch_plan import EpochLayout
from configs.schema import Config
from configs.schema.operating_point import TO_CHOOSE
from configs.yaml_io import Values
from datasets.loading.loader import BadImageList, Loader, TrainBatches, build_eval_loader
from datasets.sources.checks import digest_of, notes_on
from datasets.sources.class_names import find_ambiguity, map_labels, names_of_labels, rename_classes
from engine.checkpoint.run_folder import HELD_OUT_FILE
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.session import apply_op_lists, build_evaluator
from engine.features.probe import Solved, set_head
from engine.parallel import build_strategy, compile_model, run_eagerly
from engine.plan.decision import note_on_goal, operating_goal
from engine.plan.training import Plan
from engine.precision.master_weights import WeightAverage
from engine.precision.policy import Precision, set_process_switches, use_fused_blocks
from engine.run.cost import copy_to_meta, timer_of
from engine.run.facts import Devices, TrainingData
from engine.run.folder import record_environment
from engine.run.log import RunLogger
from engine.training.describe import (
    HeadClasses,
    describe_on_screen,
    find_misfits,
    notes_on_batches,
    notes_on_one_process,
    notes_on_optimizer,
    notes_on_rates,
    notes_on_teacher,
    notes_on_weights,
)
from engine.training.loss import build_step_loss
from engine.training.optimizer import build_optimizer, check_sharded_optimizer, lr_factor, scales_by_weights
from engine.training.snapshot import RunPosition, restore
from engine.training.step import TrainState
from models.build import build_model
from models.fast import noise, prepare_convolutions
from models.kernels import AUTO, fuse_plain_attention
from models.recompute import store_products
from models.tuning import set_training
from models.weights.choose import FINE_TUNE, Purpose
from models.weights.fit import Fitted
from utils.distributed import ProcessContext, call_on_main
from utils.errors import UserError
from utils.notes import Note
from utils.seeding import derive_seed
from utils.torch_compat import BatchNorm


@dataclass(frozen=True)
class Session:
    """The state of a training run at its position, and the batches of this rank.

    val_batches: for `evaluator`. bad_images: of this rank; it needs a folder before batches are loaded. solved: the
    head that a new run starts from. lines: on the screen before the first step.
    """

    plan: Plan
    state: TrainState
    position: RunPosition
    batches: TrainBatches
    val_batches: Loader
    evaluator: Evaluator
    bad_images: BadImageList
    solved: Solved | None = None
    lines: Sequence[str] = ()


def build_training_session(
    plan: Plan, context: ProcessContext, logger: RunLogger, solved: Solved | None = None
) -> Session:
    """Builds all parts of a training run, identical on every rank, and restores the checkpoint of the plan.

    solved: the head to start from.
    Raises UserError: an option, the weights or the checkpoint are wrong.
    """
    config = plan.config
    goal = operating_goal(config, names_of_labels(plan.val, config.model.num_logits))
    bad_images = BadImageList(context.rank)
    batches = TrainBatches(config, plan.train, context, plan.layout)
    state, notes, fitted = build_run_state(plan, context, solved)
    devices = Devices(context.world_size, str(context.device), state.precision.describe())
    logger.note(*note_on_goal(goal, plan.val), *notes, devices)
    images = TrainingData(
        training=len(plan.train),
        validation=len(plan.val),
        test=len(plan.test or ()),
        classes=len(plan.train.class_names),
        model_classes=config.model.num_logits,
        validation_digest=call_on_main(lambda: digest_of(plan.val), context) or "",
        groups=tuple(len({*samples.groups}) for samples in (plan.train, plan.val) if samples.groups is not None),
    )
    logger.note(images, plan.preprocessing)
    if plan.split:
        logger.log(f"----- Data: held-out images: SHA-256 {plan.split.digest}, listed in a run's {HELD_OUT_FILE}")
    is_weighted = config.data.balanced_sampling or bool(config.loss.class_weights)
    remarks = call_on_main(lambda: notes_on(plan.train, plan.val, plan.test, is_weighted), context)  # may read images
    for remark in (*plan.notes, *(remarks or ()), batches.workers_note):
        logger.note(remark.on("Data"))
    logger.note(*find_misfits(state, is_new=plan.found is None))
    for text in state.precision.misfits():
        logger.warn(text)
    record_environment(context, logger, plan.run_folder)
    position = restore(state, logger, plan.found)
    return Session(
        plan=plan,
        state=state,
        position=position,
        batches=batches,
        val_batches=build_eval_loader(config, plan.val, context, bad_images),
        evaluator=build_evaluator(config, state.precision, state.strategy, context, TO_CHOOSE._replace(point=goal)),
        bad_images=bad_images,
        solved=solved,
        lines=describe_on_screen(state, fitted, images, plan.class_names, position.progress if plan.found else None),
    )


def build_run_state(
    plan: Plan, context: ProcessContext, solved: Solved | None
) -> tuple[TrainState, list[Note], Fitted]:
    """The state of a run before its first step, notes on it, and how its initial weights fit.

    solved: the head to start from.
    Raises UserError: as `build_train_state`; or the weights do not fit.
    """
    config = plan.config
    classes = match_classes(plan)
    purpose = replace(FINE_TUNE, head_rows=classes.rows, zero_head=not scales_by_weights(config.train.optimizer))
    changes: Values = {}
    if plan.found:  # a checkpoint has all weights, and the pretrained ones may be missing then
        changes["pretrained"] = None
    model, fitted = initial_model(config, context.device, purpose, plan.start.image_size, **changes)
    if solved:
        set_head(model, solved)
    state, notes = build_train_state(config, context, plan.layout, model, plan.train.targets, plan.class_names)
    notes = notes_on_weights(fitted, classes, has_solved_head=solved is not None) + notes
    if config.model.type == "timm":
        notes += notes_on_rates(state.meta_model, config.model)
    return state, notes + notes_on_batches(plan.layout), fitted


def initial_model(
    config: Config,
    device: torch.device,
    purpose: Purpose = FINE_TUNE,
    weights_size: tuple[int, int] | None = None,
    **changes: Any,
) -> tuple[nn.Module, Fitted]:
    """As `build_model`, with `changes` of MODEL. The switches come before the first operation.

    The weights are drawn from SEED alone.
    """
    set_process_switches(config, device)
    torch.manual_seed(derive_seed(config.seed, "initialization"))
    return build_model(config.model.changed(**changes), config.data, device, purpose, weights_size)


def build_train_state(
    config: Config,
    context: ProcessContext,
    layout: EpochLayout,
    model: nn.Module,
    targets: np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
) -> tuple[TrainState, list[Note]]:
    """Everything that a training step uses, and notes on its parts. One process needs no process group.

    Each part works on the result of those before it. The batch norms, memory format and op lists of the model, and the
    loss, which turns on a second head for a teacher, change it before the average and the description copy it. Sharding
    replaces its parameters: `attach`, which makes them the master weights of a copy, and the optimizer come after it.
    Compilation and the wrapper of the strategy are around the module that is computed, and last.

    model: as from `initial_model`. targets, class_names: of the training data; None in a trial, which has none.
    Raises UserError: an option does not work with this model, device or strategy.
    """
    train = config.train
    device = context.device
    strategy = build_strategy(config.parallel, context)
    precision = Precision(config.amp, device, strategy.total_norm, strategy.is_sharded)
    precision.check_ranks(context)
    if config.parallel.sync_bn and context.world_size > 1:
        model = synchronize_batch_norms(model, device)
    notes = _choose_kernels(model, config, precision, strategy.is_sharded)
    if config.model.grad_checkpointing == "cheap":
        store_products(model, copy_to_meta(model), config.data.image_shape, config.model.name)
    loss, teacher = build_step_loss(config, model, precision, targets, class_names)

    meta_model = copy_to_meta(model)
    _check_batch_norms(meta_model, config, context.world_size)
    if teacher:
        notes += notes_on_teacher(teacher)
    average = None
    if train.model_ema:
        average = WeightAverage(model, train.model_ema_decay, train.model_ema_warmup)
    if strategy.is_sharded:
        if config.model.tune == "lora":  # fully_shard reads `weight`, the effective weight, as the parameter
            raise UserError(
                f"MODEL.TUNE lora: {config.parallel.strategy} cannot shard adapters; use PARALLEL.STRATEGY=ddp"
            )
        check_sharded_optimizer(train.optimizer)
        sharding = strategy.shard(model, average and average.module, precision.gathered_dtype)
        notes.append(Note("log", f"Parallel: {config.parallel.strategy}: {sharding}"))
        if average:
            average.follow(model)
    elif context.world_size == 1:
        notes += notes_on_one_process(config.parallel)
    compute_model = precision.attach(model)
    peak_lr = train.base_lr * lr_factor(train, layout.batch.global_size)
    optimizer = build_optimizer(model, train, peak_lr)
    if not config.model.solves_head:  # which takes no step of the optimizer
        notes += notes_on_optimizer(optimizer, peak_lr, train, layout.batch.global_size)

    compiled = compile_model(compute_model, train, context, strategy.is_sharded)
    if compiled:
        notes.append(Note("log", f"Compile: {compiled}, in the first step"))
    elif config.model.fused_blocks:
        _, kernels = use_fused_blocks(compute_model, config.amp, context)
        if kernels:
            notes.append(Note("log", f"Kernels: {kernels} (MODEL.FUSED_BLOCKS)"))
    images = torch.zeros((2, *config.data.image_shape), device=device)  # as batch norms need
    with precision.autocast(), run_eagerly():
        wrapped = strategy.wrap(compute_model, images)
    state = TrainState(
        config=config,
        horizon=train.horizon,
        context=context,
        layout=layout,
        precision=precision,
        strategy=strategy,
        wrapped=wrapped,
        meta_model=meta_model,
        average=average,
        optimizer=optimizer,
        loss=loss,
        timer=timer_of(device),
    )
    return state, notes


def _choose_kernels(model: nn.Module, config: Config, precision: Precision, is_sharded: bool) -> list[Note]:
    """Sets the memory format of convolutions, the dtypes of listed ops, and attention; the note on what stays slow.

    In float32 on a CPU, timm's plain attention without dropout is fused. Raises UserError: as `prepare_convolutions`.
    """
    device = precision.device
    images = noise(config.data.image_shape, device)
    is_fixed = is_sharded or precision.level == "O3"
    problem = prepare_convolutions(model, config.model.channels_last, images, is_fixed)
    apply_op_lists(model, config.model.attention, precision)
    if config.model.attention == AUTO and device.type == "cpu" and precision.dtype == torch.float32:
        fuse_plain_attention(model)
    return [Note("log", f"Kernels: {problem}")] if problem else []


def _check_batch_norms(meta_model: nn.Module, config: Config, num_ranks: int) -> None:
    """Raises UserError: in the training on one image, a batch norm sees one value per channel."""
    is_synchronized = config.parallel.sync_bn and num_ranks > 1
    if config.data.micro_batch > 1 or is_synchronized:
        return
    set_training(meta_model, config.model)
    image = torch.empty((1, *config.data.image_shape), device="meta")
    try:
        meta_model(image)
    except Exception as error:  # others are of the meta device
        if "1 value per channel" in str(error):
            raise UserError(
                f"-batch_size=1: a batch norm of {config.model.name} sees one value per channel; "
                "use -batch_size=2, or a larger -image_size"
            ) from None
    meta_model.eval()


def match_classes(plan: Plan) -> HeadClasses:
    """The classes of a new run's data in the head of its weights."""
    data = plan.config.data
    options = plan.config.model
    class_names = plan.class_names
    record = plan.start
    if not class_names or plan.found or not options.pretrained:
        return HeadClasses()
    if record.class_names:
        names = rename_classes(record.class_names, data.rename)
        rows = map_labels(class_names, names, str(options.pretrained)).tolist()
        kept = [name for name, row in zip(class_names, rows, strict=True) if row >= 0]
        new = [name for name, row in zip(class_names, rows, strict=True) if row < 0]
        rows += [-1] * (options.num_logits - len(rows))
        return HeadClasses(rows[: options.num_logits], kept, new)
    ambiguity = find_ambiguity(class_names)
    if data.classes or options.pretrained == "timm" or not ambiguity:
        return HeadClasses()
    return HeadClasses([-1] * options.num_logits, ambiguity=ambiguity)


def synchronize_batch_norms(model: nn.Module, device: torch.device) -> nn.Module:
    """PARALLEL.SYNC_BN, by timm's conversion to torch's SyncBatchNorm; names and values of the state dict stay."""
    if not any(isinstance(module, BatchNorm) for module in model.modules()):
        raise UserError("PARALLEL.SYNC_BN: this model has no batch norms; set it to false")
    if device.type != "cuda":
        raise UserError("PARALLEL.SYNC_BN: torch has no kernels for CPUs; set it to false")
    converted: nn.Module = convert_sync_batchnorm(model)
    return converted
