"""The decisions of a training run: when to evaluate, save and stop."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from configs.schema.operating_point import Decision
from configs.yaml_io import Values
from datasets.batch import Batch
from engine.checkpoint.files import CheckpointWriter
from engine.checkpoint.run_folder import BEST, LAST
from engine.checkpoint.weights_record import split_to_entry
from engine.evaluation.evaluate import EvaluationImages
from engine.evaluation.results import SampleResults, classes_without_images
from engine.features.probe import Solved
from engine.parallel import CompiledParts
from engine.progress import EpochProgress, Evaluated, Metrics, Observer
from engine.run.baseline import BaselineThread
from engine.run.cost import SlowRanks
from engine.run.reporter import log_validation
from engine.training.minutes import NextPlans
from engine.training.optimizer import UntrainedParameters
from engine.training.outputs import ImagesTable, RunOutputs, RunReport
from engine.training.session import Session
from engine.training.snapshot import FAIL, PeftFolder, SaveTrigger, take_snapshot
from engine.training.step import NonFiniteGradients, train_steps
from engine.training.train_batch import TrainBatch
from utils.distributed import broadcast_object, call_on_main
from utils.errors import UserError
from utils.signals import Interrupted
from utils.threads import DaemonPool

_ENDLESS = 10**6  # epochs, of a run that plans again
_WRITE_TIMES = 20  # time since the last save / time of its write: at least, for a save before an evaluation


class Trainer:
    """Trains a run from its start, or from a checkpoint, to its end.

    interrupted: the signal that ended the training.
    """

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        self.session = session
        self.outputs = outputs
        self.plan = session.plan
        self.state = session.state
        self.position = session.position
        self.config = self.plan.config
        self.context = self.state.context
        self.logger = outputs.logger
        self.record = outputs.record
        self.reporter = outputs.reporter
        config = self.config
        context = self.context
        is_main = self.context.is_main
        self.split_entry = split_to_entry(self.plan.split)
        self.max_steps = config.train.max_steps or sys.maxsize
        # Sharded models gather weights in the forward pass, and DDP sends buffers: they wait for other ranks.
        is_sharded = self.state.strategy.is_sharded
        is_local = not is_sharded and not [*self.state.wrapped.buffers()]
        self.slow_ranks = SlowRanks(is_local, context, self.record)
        self.trigger = SaveTrigger(config, context)
        self.interrupted: Interrupted | None = None
        self._solved: Solved | None = None
        self._evaluation_seconds: float | None = None  # of the last one, unless features gave its results
        self._saved_step = self.progress.step
        self._save_started = -math.inf
        self._write_seconds = 0.0
        self.report = RunReport(outputs, config, self.position.horizon)
        self.writer: CheckpointWriter | None = None  # on a rank that writes no checkpoints
        if is_main:
            self.record.on_end = partial(self.report.update, now=True)
            # `Strategy.gather` copies a sharded state.
            self.writer = CheckpointWriter(outputs.folder, config.keep_checkpoints, self._on_written, is_sharded)
            # A launcher may kill the run a second after the signal, while it is being saved.
            update = partial(self.record.update, state="stopping")
            thread = DaemonPool(1)
            self.trigger.signals.on_first = lambda name: thread.submit(partial(update, signal=name))
        self.observers = self._observers()

    def _observers(self) -> list[Observer]:
        plan = self.plan
        data = self.config.data
        is_main = self.context.is_main
        self.baseline = BaselineThread(data, plan.train, plan.val, self.logger, is_main)
        # A resumed run has warned of parameters, and a probe has read all images.
        is_new = plan.found is None and not self.config.model.solves_head
        reads_ahead = self.session.batches.prefetched_batches > 0 and data.on_bad_image == "error"
        is_due = is_new and reads_ahead and is_main
        self.eval_images = EvaluationImages((plan.val, plan.test), data.image_channels, is_due)
        self.images_table = ImagesTable(plan, self.outputs)
        observers: list[Observer] = []
        compute = self.state.precision.weights.compute
        if self.config.train.compiles:
            recomputes = self.config.model.grad_checkpointing is True
            observers.append(CompiledParts(compute, recomputes, self.position.clock, self.logger.note))
        observers.append(self.reporter)
        if self.config.train.minutes:
            observers.append(NextPlans(self.session, self.outputs))
        if is_new:
            observers.append(UntrainedParameters(compute, self.logger))
        observers += [self.eval_images, TrainBatch(self.session, self.outputs), self.baseline, self.images_table]
        return [*observers, self.report, PeftFolder(self.state, self.logger)]

    @property
    def progress(self) -> EpochProgress:
        return self.position.progress

    def train(self) -> None:
        """Trains to the last epoch, to `TRAIN.MAX_STEPS`, or until a signal arrives."""
        session = self.session
        progress = self.progress
        batches: Iterator[Batch] = iter(())
        if not self.position.has_ended:  # the workers start
            horizon = self.position.horizon
            epochs = _ENDLESS if horizon.plans else horizon.num_epochs
            batches = session.batches.iterate(
                progress.epoch, progress.done_batches, epochs, session.bad_images, session.val_batches
            )
        with self.started():
            if session.solved:
                self._save_probe(session.solved)
            while not self.position.has_ended:
                progress = self.progress
                stop_step = min(progress.steps, self.max_steps - progress.epoch * progress.steps)
                self.start_epoch()
                try:
                    train_steps(self.state, batches, progress, stop_step, self.after_step)
                except NonFiniteGradients as error:
                    self.reporter.stop(progress)
                    self.state.precision.scaler.restart()
                    self._save()
                    self._wait_on_all_ranks()
                    last = self.outputs.folder / LAST
                    raise NonFiniteGradients(f"{error} The last good weights are in {last}") from None
                if progress.done_steps < progress.steps:  # TRAIN.MAX_STEPS ends the run inside an epoch
                    self._save()
                    break
                if not self.end_epoch():
                    break

    @contextmanager
    def started(self) -> Iterator[None]:
        """Opens the tables. A signal ends the body after a step or a batch, and the run is saved."""
        self.reporter.start(self.progress.epoch, self.progress.step)
        if self.position.best_is_unsaved:
            self._save(is_best=True)
        try:
            yield
        except Interrupted as signal:
            self.interrupted = signal
            self._save()
        except UserError:
            with suppress(UserError):
                self.wait_until_saved()
            raise
        self.wait_until_saved()

    def use_solved(self, solved: Solved) -> None:
        """The next evaluation takes its results from the features of this head."""
        self._solved = solved
        self.record.set_result(probe_l2=solved.l2, knn_top1=solved.knn_top1)

    def _save_probe(self, solved: Solved) -> None:
        """The probe is epoch 0: a checkpoint with its evaluation, the best one so far."""
        self.use_solved(solved)
        evaluated = self._evaluate_epoch(0)
        self.record.set_result(probe_score=evaluated.metrics.score)
        self._save(is_best=True)
        call_on_main(lambda: self.report.update(evaluated), self.context)

    def _is_due(self, epochs_done: int, every: int) -> bool:
        """Returns whether an action with a period of `every` epochs is due; it always is after the last epoch."""
        return epochs_done % every == 0 or epochs_done == self.position.horizon.num_epochs

    def start_epoch(self) -> None:
        """Starts the clocks of an epoch, or of the rest of one. The next weights have decided nothing."""
        self.position.decision = Decision(point=self.position.decision.goal)
        self.reporter.start_epoch(self.progress)
        self.position.clock.start(self._images_done())

    def end_epoch(self) -> bool:
        """Evaluates, reports and saves what is due after all steps of an epoch; returns whether the run continues."""
        progress = self.progress
        epochs_done = progress.epoch + 1
        for observer in self.observers:
            observer.before_evaluation(progress)
        evaluated = None
        is_best = False
        if self._is_due(epochs_done, self.config.validate_freq):
            self._save_before_evaluation()
            evaluated = self._evaluate_epoch(epochs_done)
            is_best = evaluated.is_best
        is_last = epochs_done == self.position.horizon.num_epochs or progress.step >= self.max_steps
        ends = is_last or self.position.stops_early(epochs_done)
        for observer in self.observers:
            observer.after_epoch(progress, ends)
        self.position.progress = self.state.new_progress(epochs_done)
        if is_best or ends or self._is_due(epochs_done, self.config.save_freq):
            self._save(is_best)
        draws = ends and is_best and not self.state.strategy.is_sharded  # while the best weights are in memory
        call_on_main(lambda: self.report.update(evaluated, now=draws), self.context)
        return not ends

    def _save_before_evaluation(self) -> None:
        """Saves unless it takes too long: an evaluation that fails, for example at a bad image, then costs no epoch."""
        seconds = time.monotonic() - self._save_started
        is_worth_it = self._saved_step < self.progress.step and seconds >= _WRITE_TIMES * self._write_seconds
        if broadcast_object(is_worth_it, self.context):
            self._save()

    def after_step(self, progress: EpochProgress) -> None:
        """Reports the step, and saves if a checkpoint is due; called on every rank."""
        self.position.clock.lap(self._images_done())
        for observer in self.observers:
            observer.after_step(progress)
        if self.writer:
            self.writer.check()
        self._save_if_due(progress.step, self.state.timer.take())

    def after_eval_batch(self, *_: object) -> None:
        """A run resumed from a checkpoint that is saved here repeats the evaluation."""
        self._save_if_due()

    def _save_if_due(self, steps_done: int | None = None, seconds: tuple[float, float] | None = None) -> None:
        """Exchanges the request to save and, after a step, its `seconds` with the other ranks.

        Raises UserError: the main process has found unreadable images; the run is saved.
        """
        error = self.eval_images.error()
        request, seconds_of_ranks = self.trigger.exchange(error is not None, seconds)
        if seconds_of_ranks is not None and (note := self.slow_ranks.add_step(seconds_of_ranks)):
            self.logger.note(note)
        if request == FAIL:
            self._save()
            self._wait_on_all_ranks()
            error = broadcast_object(error, self.context)
            assert error
            raise error
        if self.trigger.is_due(request, steps_done):
            self._save()

    def _images_done(self) -> int:
        """Images trained on in this epoch, over all ranks."""
        return self.progress.done_batches * self.state.layout.batch.micro_step_size

    def _evaluate_epoch(self, epochs_done: int) -> Evaluated:
        """The evaluation after so many epochs, of which the observers are told.

        The raw weights are evaluated beside an average: with EVAL_RAW in each evaluation, else in the last one.
        """
        state = self.state
        position = self.position
        num_epochs = position.horizon.num_epochs
        title = f"Epoch[{epochs_done:03d}/{num_epochs:03d}], " if epochs_done else "Probe, "
        model = state.eval_model
        metrics, results = self._evaluate(model, title)
        rank = metrics.metric.rank
        is_best = rank(metrics.values) > rank(position.best or {})
        is_last = epochs_done == num_epochs or (not is_best and position.stops_early(epochs_done))
        raw = None
        if state.average and epochs_done and (self.config.eval_raw or is_last):
            raw, _ = self._evaluate(state.precision.weights.compute, f"{title}Raw weights, ")
            self.record.set_result(average_score=metrics.score, raw_score=raw.score)
        self.record.set_result(samples=metrics.samples)
        position.decision = metrics.decision
        if is_best:
            position.best = {"epoch": epochs_done} | metrics.known
        # The main process alone draws attention maps, and a sharded model needs all ranks in each pass.
        drawn = None if state.strategy.is_sharded else model
        evaluated = Evaluated(drawn, metrics, results, epochs_done, raw, is_best, self._evaluation_seconds)
        for observer in self.observers:
            observer.after_evaluation(self.progress, evaluated)
        return evaluated

    def _evaluate(self, model: nn.Module, title: str) -> tuple[Metrics, SampleResults | None]:
        """The metrics, and the results on the main process; the log has a line that begins with `title`."""
        started = time.perf_counter()
        session = self.session
        if solved := self._solved:
            self._solved = None
            metrics, results = session.evaluator.share(solved.results, self.plan.val)
        else:
            evaluator = replace(session.evaluator, before_error=self._wait_on_all_ranks)
            metrics, results = evaluator.evaluate(model, session.val_batches, self.after_eval_batch)
            self._evaluation_seconds = time.perf_counter() - started
        seconds = time.perf_counter() - started
        val = self.plan.val
        log_validation(self.logger, title, metrics, self.config.model.num_logits, seconds)
        skipped = len(val) - metrics.samples
        self.logger.warn_of_skipped("validation", skipped, classes_without_images(results, val))
        if not math.isfinite(metrics.score) and self.position.best is None:
            self.logger.warn(
                f"EVAL.BEST_METRIC {metrics.best} is undefined on these validation images; the lowest loss decides"
            )
        return metrics, results

    def _save(self, is_best: bool = False) -> None:
        """A collective call; the main process writes in the background."""
        self.trigger.saved()
        is_later = self.progress.step != self._saved_step
        self._saved_step = self.progress.step
        self._save_started = time.monotonic()
        if self.state.strategy.is_sharded:  # the main process has room for one state in host memory
            self._wait_on_all_ranks()
        content = take_snapshot(self.state, self.position, self.plan.class_names, self.split_entry)

        def write() -> None:  # in the background, if the last checkpoint is on the disk and there is memory
            assert self.writer
            self.record.sync()
            epoch = content["epoch"]
            at_epoch_end = content["done_steps"] == 0 < epoch and self._is_due(epoch, self.config.save_freq)
            self.writer.save(content, is_best, f"epoch-{epoch:03d}" if at_epoch_end else None, is_later)

        call_on_main(write, self.context)

    def _wait_on_all_ranks(self) -> None:
        """For the checkpoint, before all ranks raise one error: the first one ends the others, and the record."""
        call_on_main(self.wait_until_saved, self.context)

    def wait_until_saved(self) -> None:
        if self.writer:
            self.writer.wait()

    def _on_written(self, path: Path, content: Values) -> None:
        """Called by the writer's thread."""
        self._write_seconds = time.monotonic() - self._save_started
        self.logger.log(f"----- Save model: {path}")
        for observer in self.observers:
            observer.after_save(path, content)
        step = content["epoch"] * self.state.layout.steps_per_epoch + content["done_steps"]
        if content["best"]:
            self.record.set_best(content["best"], self.outputs.folder / BEST)
        self.record.update(checkpoint=str(path.absolute()), epoch=content["epoch"], step=step)
