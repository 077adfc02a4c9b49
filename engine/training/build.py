"""Builds the state of a training: model, precision, strategy, optimizer, and the parts of a step."""

import torch
from timm.layers import convert_sync_batchnorm
from torch import nn

from configs.batch_plan import EpochLayout
from configs.schema import Config
from configs.schema.model import Model
from datasets.sources.class_order import find_ambiguity
from datasets.sources.samples import list_names, map_labels
from datasets.transforms.device import TrainTransform
from engine.evaluation.session import (
    apply_op_lists,
    attention_notes,
    dummy_images,
)
from engine.parallel.compile import compile_model, run_eagerly
from engine.parallel.strategy import Strategy, build_strategy, unused_parameters
from engine.plan.training import Plan
from engine.precision.master_weights import WeightAverage, build_average
from engine.precision.policy import Precision, set_process_switches
from engine.run.facts import Fact
from engine.run.flops import copy_to_meta, count_parameters
from engine.run.step_timer import StepTimer
from engine.training.losses.loss import StepLoss, build_loss, build_step_loss, read_class_weights
from engine.training.optimizer import (
    build_optimizer,
    build_schedule,
    check_sharded_optimizer,
    describe_optimizer,
    moments_per_parameter,
)
from engine.training.step import TrainState
from models.build import build_model
from models.kernels import prepare_convolutions
from models.tuning import adapter_size
from models.weights.fit import NO_KNOWN_CLASS
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.seeding import derive_seed
from utils.torch_compat import BatchNorm

_UNCLEAR = "the weights have no class names, so that no row of the head is kept"


def build_train_state(
    config: Config,
    context: ProcessContext,
    layout: EpochLayout,
    plan: Plan | None = None,
) -> tuple[TrainState, list[str | Fact]]:
    """Everything that a training step uses, and lines for the log. One process needs no process group.

    Each part works on the result of those before it. The switches come before the first operation. The model draws its
    weights from SEED alone. Its batch norms, memory format and op lists, and the loss, which turns on a second head for
    a teacher, change it before the average and the description copy it. Sharding replaces its parameters: `attach`,
    which makes them the master weights of a copy, and the optimizer come after it. Compilation and the wrapper of the
    strategy are around the module that is computed, and last.

    plan: of the run; without it, the run is a trial: it has no data.
    """
    train, device = config.train, context.device
    notes: list[str | Fact] = [*set_process_switches(config, device)]
    model, model_notes = _build_model(config, device, plan)
    strategy = build_strategy(config.parallel, context)
    precision = Precision(config.amp, device, strategy.total_norm, strategy.is_sharded)
    precision.check_ranks(context)
    model, prepared_notes = _prepare(model, config, context, strategy, precision)
    loss, loss_notes = _build_loss(config, device, plan, model, precision)
    average, meta_model = build_average(model, train), copy_to_meta(model)
    shard_notes = _shard(config, strategy, precision, model, average)
    compute_model = precision.attach(model)
    schedule = build_schedule(train, layout.steps_per_epoch, layout.batch.global_size)
    optimizer = build_optimizer(model, train, schedule.peak_lr)
    optimizer_notes = []
    if config.model.tuned != "probe":  # which takes no step of the optimizer
        optimizer_notes.append(f"Optimizer: {describe_optimizer(optimizer, train.optimizer)}")
    wrapped, wrap_notes = _wrap(compute_model, config, context, strategy, precision, is_trial=plan is None)
    notes += [*model_notes, *prepared_notes, *loss_notes, *shard_notes, *optimizer_notes, *wrap_notes]
    state = TrainState(
        config=config,
        context=context,
        layout=layout,
        precision=precision,
        strategy=strategy,
        wrapped=wrapped,
        meta_model=meta_model,
        average=average,
        optimizer=optimizer,
        schedule=schedule,
        loss=loss,
        transform=TrainTransform(config.data, train, config.model.num_logits).to(device),
        timer=StepTimer(device),
    )
    return state, notes


def synchronize_batch_norms(model: nn.Module, device: torch.device) -> nn.Module:
    """PARALLEL.SYNC_BN, by timm's conversion to torch's SyncBatchNorm; names and values of the state dict stay."""
    if not (has_norms := any(isinstance(module, BatchNorm) for module in model.modules())) or device.type != "cuda":
        reason = "torch has no kernels for CPUs" if has_norms else "this model has no batch norms"
        raise UserError(f"PARALLEL.SYNC_BN: {reason}; set it to false")
    converted: nn.Module = convert_sync_batchnorm(model)
    return converted


def _build_model(config: Config, device: torch.device, plan: Plan | None) -> tuple[nn.Module, list[str]]:
    """The model. A checkpoint has all weights; the pretrained ones may be missing by then."""
    torch.manual_seed(derive_seed(config.seed, "initialization"))
    options = config.with_model(pretrained=None).model if plan and plan.found else config.model
    rows, notes = _match_classes(options, plan)
    size = plan.weights.image_size if plan and plan.weights else None
    model, weight_notes = build_model(options, config.data, device, head_rows=rows, weights_size=size)
    if not any(NO_KNOWN_CLASS in note for note in weight_notes):  # the head is new for another reason
        notes = [note for note in notes if not note.startswith(_UNCLEAR)]
    return model, [*(f"Pretrained: {note}" for note in weight_notes + notes), *_describe_tuning(model, config)]


def _describe_tuning(model: nn.Module, config: Config) -> list[str]:
    """A log line: the trained part, and its fp32 memory beside training all weights; none for full and probe."""
    if (tuned := config.model.tuned) in ("full", "probe"):
        return []
    total, trained = count_parameters(model)
    moments, base = moments_per_parameter(config.train), total - adapter_size(model)
    states, full_states = (4e-6 * (1 + moments) * count for count in (trained, base))
    return [
        f"Tuned ({tuned}): {trained / 1e6:.3f} of {total / 1e6:.3f} M parameters; gradients and moments in fp32 take "
        f"{states:.1f} MB, {states + 4e-6 * total:.1f} MB with the weights (TUNE=full: {full_states:.1f} MB, "
        f"{full_states + 4e-6 * base:.1f} MB)"
    ]


def _prepare(
    model: nn.Module, config: Config, context: ProcessContext, strategy: Strategy, precision: Precision
) -> tuple[nn.Module, list[str]]:
    """The model with the batch norms, the memory format and the ops of the options."""
    if config.parallel.sync_bn and context.world_size > 1:
        model = synchronize_batch_norms(model, context.device)
    is_fixed = strategy.is_sharded or precision.level == "O3"
    notes = prepare_convolutions(model, config.model.channels_last, context.device, is_fixed)
    apply_op_lists(model, config.model.attention, precision)
    return model, notes


def _build_loss(
    config: Config, device: torch.device, plan: Plan | None, model: nn.Module, precision: Precision
) -> tuple[StepLoss, list[str]]:
    """The loss of a step, with the teacher if there is one."""
    class_weights, notes, train = None, list[str](), config.train
    if plan:
        class_weights = read_class_weights(config.loss, plan.train.targets, config.model.num_logits, device)
    if class_weights is not None:
        notes = [f"Loss: class weights from {class_weights.min():.3g} to {class_weights.max():.3g}"]
    loss = build_loss(config.loss, train.smoothing, class_weights)
    names = plan.class_names if plan else None
    step_loss, teacher_notes = build_step_loss(loss, train, model, config.model, config.data, precision, names)
    return step_loss, notes + teacher_notes


def _wrap(
    model: nn.Module,
    config: Config,
    context: ProcessContext,
    strategy: Strategy,
    precision: Precision,
    is_trial: bool,
) -> tuple[nn.Module, list[str | Fact]]:
    """The compiled model in the wrapper of the strategy."""
    notes, images = list[str | Fact](), dummy_images(config.data, context)
    if compiled := compile_model(model, config.train, context, strategy.is_sharded):
        notes.append(f"Compile: {compiled}, in the first step")
    with precision.autocast(), run_eagerly(), torch.no_grad():
        notes += attention_notes(model, images)
    with precision.autocast(), run_eagerly():  # torch 2.10 would reuse casts of the pass without gradients
        if not is_trial and (unused := unused_parameters(model, images)):
            notes.append(f"Warning: without a gradient, so never trained: {list_names(unused)}")
        return strategy.wrap(model, images), notes


def _match_classes(options: Model, plan: Plan | None) -> tuple[list[int] | None, list[str]]:
    """The rows of the weights' head that the classes keep, see `load_pretrained`, and a line for the log."""
    if plan is None or not plan.class_names or not options.pretrained:
        return None, []
    class_names, record = plan.class_names, plan.weights
    if not record or not record.class_names:
        ambiguity = None if plan.config.data.classes or options.pretrained == "timm" else find_ambiguity(class_names)
        if ambiguity is None:
            return None, []
        return [-1] * options.num_logits, [f"{_UNCLEAR}: {ambiguity}"]
    rows: list[int] = map_labels(class_names, record.class_names).tolist()
    known = [name for name, row in zip(class_names, rows, strict=True) if row >= 0]
    new = [name for name, row in zip(class_names, rows, strict=True) if row < 0]
    lists = [f"{len(names)} {kind} ({list_names(names)})" for kind, names in (("kept", known), ("new", new)) if names]
    rows += [-1] * (options.num_logits - len(rows))
    return rows[: options.num_logits], [f"classes of the head: {', '.join(lists)}"]


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
    if config.model.tuned == "lora":  # fully_shard reads `weight`, the effective weight, as the parameter
        raise UserError(f"MODEL.TUNE lora: {name} cannot shard adapters; use PARALLEL.STRATEGY=ddp")
    check_sharded_optimizer(train.optimizer)
    about = strategy.shard(model, average and average.module, precision.gathered_dtype)
    if average:
        average.follow(model)
    return [f"Parallel: {name}: {about}"]
