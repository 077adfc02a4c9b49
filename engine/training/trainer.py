"""A run from its options to its result: builds the parts, resumes, decides when to evaluate, save and stop."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from timm.utils import ModelEmaV3

from configs.command_line import differences, to_yaml
from configs.schema import Config
from datasets.batch import Batch
from datasets.decoding.bad_images import BadImageList
from datasets.loading.batches import build_eval_loader, build_train_batches
from datasets.registry import read_samples
from datasets.sources.checks import notes_on
from datasets.transforms.device import build_eval_transform, build_train_transform
from engine.checkpoint.checkpoint import BEST, LAST, CheckpointWriter, saved_best
from engine.checkpoint.epoch_layout import EpochLayout
from engine.checkpoint.save_trigger import SaveTrigger
from engine.parallel.compile import compile_passes, eagerly
from engine.parallel.strategy import parallelize
from engine.precision.policy import Precision
from engine.progress import EpochProgress
from engine.telemetry.flops import build_mfu_meter
from engine.telemetry.reporter import Reporter, peak_memory_bytes, validation_line
from engine.training.choices import Choices, choose_attention
from engine.training.optimizer import build_optimizer, load_optimizer, set_lr
from engine.training.schedule import build_schedule
from engine.training.step import TooManySkippedSteps, TrainState, evaluate, train_one_epoch
from models.build import build_model
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError
from utils.logger import RunLogger
from utils.metrics import Metrics, MetricSums
from utils.seeding import derive_seed
from utils.signals import Interrupted, defer_signals
from utils.status import RunStatus

IN_EVALUATION = "in the evaluation"  # a note on a shortage of memory


@dataclass(frozen=True)
class Best:
    """The best evaluation so far; epochs count from 1."""

    top1: float
    top5: float
    epoch: int


class Trainer:
    """One training run, fresh or resumed from the `checkpoint` of `engine.checkpoint.checkpoint`."""

    def __init__(
        self, config: Config, context: ProcessContext, folder: Path, logger: RunLogger, checkpoint: dict | None
    ) -> None:
        self.config, self.context, self.folder, self.logger = config, context, folder, logger
        self.train_samples, self.val_samples = read_samples(
            config.data, config.model.num_classes, context, "train", "val"
        )
        self.bad_images = BadImageList(folder, context.rank)
        self.val_loader = build_eval_loader(
            config.data, self.val_samples, context, config.timeout_seconds, self.bad_images
        )
        self.train_batches = build_train_batches(
            config.data, config.train, self.train_samples, config.seed, context, config.timeout_seconds, self.bad_images
        )
        self.geometry = EpochLayout(
            len(self.train_samples), config.data.batch_size * context.world_size, config.train.accum_iter, config.seed
        )
        self.best: Best | None = None
        self.train_seconds, self.images = 0.0, 0
        self.choices = Choices(context, logger, checkpoint["choices"] if checkpoint else None)
        self.learner = build_train_state(config, context, self.geometry, logger, self.choices)
        logger.info(f"----- {context.world_size} process(es), {context.device}, {self.learner.precision.describe()}")
        classes = len(self.train_samples.class_names)
        logger.info(
            f"----- Data: {len(self.train_samples)} training images of {classes} classes, "
            f"{len(self.val_samples)} for validation; the model has {config.model.num_classes} classes"
        )
        if context.is_main:
            for note in notes_on(self.train_samples, self.val_samples):
                logger.info(f"----- Data: {note}")
        self.progress = self._progress(epoch=config.train.last_epoch)
        self._best_is_due = False
        if checkpoint:
            self._restore(checkpoint)
        shape = (2, config.data.image_channels, config.data.image_size, config.data.image_size)
        with self.learner.precision.autocast(), eagerly():
            images = torch.zeros(shape, device=context.device)
            self.learner.parallel = parallelize(self.learner.weights.computing, context, images)
        gauge = build_mfu_meter(self.learner.weights.full, config, self.learner.precision, context)
        logger.info(f"----- {gauge}")
        self.reporter = Reporter(config, context, folder, logger, self.learner.precision.scaler, gauge)
        self.guard = SaveTrigger(config, context)
        self.interrupted: Interrupted | None = None
        self._compiles = config.train.compile != "none"

    def _progress(self, epoch: int) -> EpochProgress:
        geometry = self.geometry
        return EpochProgress(
            epoch, geometry.steps_per_epoch, geometry.batches_per_epoch, MetricSums(self.context.device)
        )

    def train(self, status: RunStatus) -> dict[str, Any]:
        """Trains to the last epoch, to `TRAIN.MAX_STEPS`, or until a signal came (then `interrupted` is set).

        Returns:
            what `result.json` says: the best top-1 and top-5 in percent, where they are, speed and memory.
        """
        self.open(status)
        with defer_signals() as self.guard.signals:
            try:
                batches = self.batches()
                while self.progress.epoch < self.config.train.num_epochs and self._train_epoch(batches):
                    pass
            except Interrupted as signal:
                self.interrupted = signal
                self._save(is_best=False)
            self.wait_until_saved()
        result = self._result()
        self.reporter.finish(result)
        return result

    def open(self, status: RunStatus) -> None:
        """The run's tables and checkpoints; `status` is told of what is saved."""
        self._status = status
        if self.context.is_main:
            self._writer = CheckpointWriter(self.folder, self.config.keep_checkpoints, self._saved)
        self.reporter.start(self.progress.epoch, self.progress.step)
        self._start_counting()
        if self._best_is_due:
            self._save(is_best=True)

    def batches(self, num_epochs: int | None = None) -> Iterator[Batch]:
        """The batches from the run's position to the end of its last epoch, or of epoch `num_epochs`."""
        last_epoch = num_epochs or self.config.train.num_epochs
        return self.train_batches.iterate(self.progress.epoch, self._batches_done(), last_epoch)

    def _train_epoch(self, batches: Iterator[Batch]) -> bool:
        """Trains, evaluates, records and saves one epoch; False when `TRAIN.MAX_STEPS` ends the run."""
        progress = self.progress
        first_step = progress.epoch * progress.steps
        max_steps = self.config.train.max_steps
        stop_step = progress.steps if max_steps is None else min(progress.steps, max_steps - first_step)
        self.reporter.start_epoch(progress)
        self._start_counting()
        try:
            train_one_epoch(self.learner, batches, progress, stop_step, self.after_step)
        except TooManySkippedSteps as stop:
            self.reporter.stop(progress)
            self.learner.precision.scaler.restart()
            self._save(is_best=False)
            self.wait_until_saved()
            broadcast_object(None, self.context)  # who raises ends the others: not before it is saved
            raise TooManySkippedSteps(f"{stop} The weights of before are saved in {self.folder / LAST}") from None
        if progress.done_steps < progress.steps:
            self._save(is_best=False)
            return False
        epochs_done = progress.epoch + 1
        validation = self._evaluate(epochs_done) if self._is_due(epochs_done, self.config.validate_freq) else None
        is_best = validation is not None and (self.best is None or validation.top1 > self.best.top1)
        if is_best:
            self.best = Best(validation.top1, validation.top5, epochs_done)
        self.reporter.end_epoch(progress, validation, self.train_seconds)
        self.progress = self._progress(epochs_done)
        stops = max_steps is not None and epochs_done * progress.steps >= max_steps
        if is_best or stops or self._is_due(epochs_done, self.config.save_freq):
            self._save(is_best)
        self.reporter.draw()
        return not stops

    def train_steps(self, batches: Iterator[Batch], steps: int) -> None:
        """Trains on, through as many epochs as it takes, and ends none: for measuring."""
        while steps:
            if self.progress.done_steps == self.progress.steps:
                self.progress = self._progress(self.progress.epoch + 1)
            progress = self.progress
            if progress.done_steps == 0:
                self.reporter.start_epoch(progress)
                self._start_counting()
            stop_step = min(progress.steps, progress.done_steps + steps)
            steps -= stop_step - progress.done_steps
            train_one_epoch(self.learner, batches, progress, stop_step, self.after_step)

    def after_step(self, progress: EpochProgress) -> None:
        """Counts, reports, saves where it is due; on every rank."""
        now, images = time.perf_counter(), self._images_done()
        self.train_seconds += now - self._counted_until
        if self._compiles:
            self._compiles = False
            self.logger.info(f"----- Compiled: the first step took {now - self._counted_until:.1f} seconds")
        self.images += images - self._images_counted
        self._counted_until, self._images_counted = now, images
        self.reporter.after_step(progress)
        if self.context.is_main:
            self._writer.check()
        if self.guard.wants_save(progress.step):
            self._save(is_best=False)

    def _start_counting(self) -> None:
        self._counted_until, self._images_counted = time.perf_counter(), self._images_done()

    def _after_batch(self) -> None:
        """Of an evaluation; the state is that of the epoch's end, not evaluated yet."""
        if self.guard.wants_save():
            self._save(is_best=False)

    def _images_done(self) -> int:
        """Of the present epoch, over all ranks."""
        return self._batches_done() * self.geometry.batch_size

    def _batches_done(self) -> int:
        """Of the present epoch, on each rank; the last step may have had a short window."""
        return min(self.progress.done_steps * self.geometry.accum_iter, self.progress.batches)

    def _is_due(self, epochs_done: int, every: int) -> bool:
        return epochs_done % every == 0 or epochs_done == self.config.train.num_epochs

    def _evaluate(self, epochs_done: int) -> Metrics:
        started = time.perf_counter()
        learner = self.learner
        try:
            metrics = evaluate(
                learner.eval_model,
                self.val_loader,
                learner.eval_transform,
                learner.precision,
                self.context,
                self._after_batch,
            )
        except torch.OutOfMemoryError as error:
            error.add_note(IN_EVALUATION)
            raise
        title = f"Epoch[{epochs_done:03d}/{self.config.train.num_epochs:03d}], "
        self.logger.info(validation_line(title, metrics, len(self.val_samples), time.perf_counter() - started))
        return metrics

    def _save(self, is_best: bool) -> None:
        """Every rank must call it; the main process writes, beside what follows."""
        learner, progress = self.learner, self.progress
        self.guard.saved()
        sums = progress.sums.reduced(self.context)
        if not self.context.is_main:
            return
        state = {
            "model": learner.weights.kept.state_dict(),
            "ema": learner.ema.module.state_dict() if learner.ema else None,
            "optimizer": learner.optimizer.state_dict(),
            "optimizer_name": self.config.train.optimizer.name,
            "precision": learner.precision.state_dict(),
            "epoch": progress.epoch,
            "done_steps": progress.done_steps,
            "sums": sums,
            "geometry": asdict(self.geometry),
            "best": asdict(self.best) if self.best else None,
            "train_seconds": self.train_seconds,
            "images": self.images,
            "choices": self.choices.made,
            "options": to_yaml(self.config),
        }
        at_epoch_end = progress.done_steps == 0 and self._is_due(progress.epoch, self.config.save_freq)
        periodic = f"epoch-{progress.epoch:03d}" if at_epoch_end else None
        self.reporter.sync()
        self._writer.save(state, is_best, periodic)

    def wait_until_saved(self) -> None:
        if self.context.is_main:
            self._writer.wait()

    def _saved(self, path: Path, state: dict[str, Any]) -> None:
        self.logger.info(f"----- Save model: {path}")
        step = state["epoch"] * self.progress.steps + state["done_steps"]
        self._status.update(checkpoint=str(path), epoch=state["epoch"], step=step)

    def _restore(self, checkpoint: dict[str, Any]) -> None:
        """Raises UserError where the run cannot go on from it."""
        learner, options = self.learner, self.config.train
        if (checkpoint["ema"] is None) != (learner.ema is None):
            raise UserError("TRAIN.MODEL_EMA: is not what the checkpoint was trained with; set it alike to resume")
        if checkpoint["optimizer_name"] != options.optimizer.name:
            raise UserError(
                f"TRAIN.OPTIMIZER.NAME: the checkpoint was trained with {checkpoint['optimizer_name']}; set it alike"
            )
        if options.last_epoch not in (0, checkpoint["epoch"]):
            raise UserError(f"-last_epoch {options.last_epoch}: the checkpoint has {checkpoint['epoch']}; leave it out")
        if checkpoint["epoch"] > options.num_epochs:
            raise UserError(f"TRAIN.NUM_EPOCHS {options.num_epochs}: the checkpoint has {checkpoint['epoch']} already")
        done_steps = self.geometry.steps_done(checkpoint)
        try:
            learner.weights.kept.load_state_dict(checkpoint["model"])
            learner.weights.reload()
            if learner.ema:
                learner.ema.module.load_state_dict(checkpoint["ema"])
            load_optimizer(learner.optimizer, checkpoint["optimizer"])
            learner.precision.load_state_dict(checkpoint["precision"])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            first = shorten(str(error).partition("\n")[2] or str(error), 300, placeholder=" ...")
            raise UserError(f"-resume: the checkpoint is of another model: {first}; make MODEL as it was") from None
        self.progress = self._progress(checkpoint["epoch"])
        self.progress.done_steps = done_steps
        self.progress.lr = learner.schedule.lr_at(max(self.progress.step - 1, 0))
        set_lr(learner.optimizer, self.progress.lr)
        if self.context.is_main:
            self.progress.sums.sums.copy_(checkpoint["sums"])
        best = checkpoint["best"]
        is_saved = broadcast_object(best and self.context.is_main and best == saved_best(self.folder), self.context)
        is_this = bool(best) and (best["epoch"], 0) == (checkpoint["epoch"], checkpoint["done_steps"])
        if is_saved or is_this:  # else that file is gone, or belongs to what is now undone
            self.best = Best(**best)
        self._best_is_due = is_this and not is_saved  # the run was killed before that file was there
        self.train_seconds, self.images = checkpoint["train_seconds"], checkpoint["images"]
        self.logger.info(f"----- Resume: epoch {checkpoint['epoch'] + 1}, step {done_steps}")
        changed = differences(checkpoint["options"], to_yaml(self.config))
        if changed:
            self.logger.info(f"----- Resume: options that differ from the checkpoint's: {'; '.join(changed)}")

    def _result(self) -> dict[str, Any]:
        return {
            "top1": self.best.top1 if self.best else None,
            "top5": self.best.top5 if self.best else None,
            "epoch": self.best.epoch if self.best else None,
            "checkpoint": str(self.folder / (BEST if self.best else LAST)),
            "images_per_second": self.images / max(self.train_seconds, 1e-9),
            "train_seconds": self.train_seconds,
            "peak_memory_bytes": peak_memory_bytes(self.context.device),
            "finished": self.progress.epoch == self.config.train.num_epochs,
        }


def build_train_state(
    config: Config, context: ProcessContext, geometry: EpochLayout, logger: RunLogger, choices: Choices | None = None
) -> TrainState:
    """The model and all around it, alike on every rank."""
    torch.manual_seed(derive_seed(config.seed, "initialization"))
    model, notes = build_model(config, context.device)
    for note in notes:
        logger.info(f"----- Pretrained: {note}")
    options = config.train
    global_batch_size = geometry.batch_size * geometry.accum_iter
    precision = Precision(config.amp, context.device)
    choices = choices or Choices(context, logger)
    choose_attention(model, config.model, config.data.batch_size, precision, choices)
    precision.prepare(model)
    ema = ModelEmaV3(model, decay=options.model_ema_decay) if options.model_ema else None
    weights = precision.weights(model)
    compiled = compile_passes(weights.computing, options, context)
    if compiled:
        logger.info(f"----- Compile: {compiled}, in the first step")
    return TrainState(
        config=config,
        context=context,
        weights=weights,
        parallel=weights.computing,
        ema=ema,
        optimizer=build_optimizer(weights.full, options),
        precision=precision,
        schedule=build_schedule(options, geometry.steps_per_epoch, global_batch_size),
        transform=build_train_transform(config.data, options, config.model.num_classes).to(context.device),
        eval_transform=build_eval_transform(config.data).to(context.device),
    )
