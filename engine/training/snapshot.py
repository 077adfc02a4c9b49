"""The checkpoints of a run: when to save inside an epoch; their content, from the state of a run and back; adapters."""

import math
import shutil
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from torch import Tensor

from configs.command_line import to_yaml
from configs.compare import changed_options, changes_training
from configs.parts import running_plugins
from configs.schema import Config
from configs.schema.operating_point import UNDECIDED, Decision
from configs.schema.train import Horizon
from configs.yaml_io import Values
from engine.checkpoint.files import LARGE, FoundCheckpoint, find_best
from engine.checkpoint.run_folder import AVERAGE, BEST
from engine.checkpoint.weights_record import ENTRY, decision_to_entries, read_decision
from engine.progress import EpochProgress, Observer, TrainClock
from engine.run.cost import count_parameters
from engine.run.log import RunLogger
from engine.training.optimizer import set_lr, zero_momentum
from engine.training.step import TrainState
from models.tuning import write_peft_folder
from utils.distributed import ProcessContext, RankExchange
from utils.errors import Unavailable, UserError
from utils.files import tensor_bytes
from utils.notes import Note
from utils.signals import Interrupted, PendingSignal

_SAVE = 1  # a request of the main process; a signal requests _SAVE + its number
FAIL = 100  # a request of the main process, above all others: to save, and to raise its error on all ranks


class SaveTrigger:
    """Decides after every step and every evaluation batch whether to save: after steps, after minutes, on signals.

    `signals` receives the signals of this process. The ranks exchange their requests, so that all have the same answer.
    """

    def __init__(self, config: Config, context: ProcessContext) -> None:
        self._exchange = RankExchange(context, config.timeout_seconds)
        self.every_steps = config.save_freq_steps or sys.maxsize
        self.every_seconds = math.inf
        if context.is_main and config.save_freq_minutes:  # the other ranks follow its clock
            self.every_seconds = 60 * config.save_freq_minutes
        self.signals = PendingSignal()
        self.saved()

    def saved(self) -> None:
        """Restarts the timer."""
        self._next_save = time.monotonic() + self.every_seconds

    def exchange(self, fails: bool, seconds: tuple[float, float] | None) -> tuple[int, Tensor | None]:
        """The greatest request of all ranks, FAIL if one fails, and the `seconds` of all; as `RankExchange.swap`."""
        is_time = time.monotonic() >= self._next_save
        if is_time:
            self._next_save = math.inf  # requests once
        request = self._signal_request() or (_SAVE if is_time else 0)
        return self._exchange.swap(FAIL if fails else request, seconds)

    def _signal_request(self) -> int:
        return self.signals.number and _SAVE + self.signals.number

    def _raise_signal(self, request: int) -> None:
        if _SAVE < request < FAIL:
            self.signals.note(request - _SAVE)
            raise Interrupted(request - _SAVE)

    def after_last_batch(self, *_: object) -> None:
        """Called after each batch of the evaluations at the end, which save nothing: the weights are freed by then.

        Raises Interrupted on all ranks: one has received a signal.
        """
        request, _seconds = self._exchange.swap(self._signal_request())
        self._raise_signal(request)

    def is_due(self, request: int, steps_done: int | None) -> bool:
        """Returns whether to save now. Without `steps_done` (in an evaluation) only the timer counts.

        request: the greatest of all ranks. Raises Interrupted: one has received a signal; save, then exit.
        """
        self._raise_signal(request)
        is_step = steps_done is not None and steps_done % self.every_steps == 0
        return is_step or request == _SAVE


@dataclass
class RunPosition:
    """The position of a run, and its results so far.

    config: the completed options.
    horizon: the end of the run, the one object that schedule, mixup and reporter ask, too.
    best: the best evaluation: the metrics by name, None if not finite, and the epoch, which counts from 1; None if
        there is none, or if no checkpoint has its weights.
    best_is_unsaved: the run was killed after it saved this position and before it wrote `best.pth`.
    best_path: the checkpoint of a resumed run with the weights of `best`.
    decision: of the evaluation of these weights; before it, the goal of its point.
    """

    config: Config
    horizon: Horizon
    progress: EpochProgress
    clock: TrainClock
    best: Values | None = None
    best_is_unsaved: bool = False
    best_path: Path | None = None
    decision: Decision = UNDECIDED

    def stops_early(self, epochs_done: int) -> bool:
        """Returns whether `TRAIN.PATIENCE` ends the run after this epoch."""
        train = self.config.train
        if train.patience is None or self.best is None or epochs_done == self.horizon.num_epochs:
            return False
        is_evaluated = epochs_done % self.config.validate_freq == 0
        return is_evaluated and epochs_done - self.best["epoch"] >= train.patience

    @property
    def has_ended(self) -> bool:
        """Whether no step is left; equal on all ranks."""
        epochs_done = self.progress.epoch
        if epochs_done == self.horizon.num_epochs:
            return True
        return not self.progress.done_steps and self.stops_early(epochs_done)


def take_snapshot(
    state: TrainState, position: RunPosition, class_names: Sequence[str] | None, split: Values | None
) -> Values:
    """The content of a checkpoint, see `Strategy.gather`; a collective call. split: its entry."""
    average = state.average
    progress = position.progress
    content = {
        "model": state.precision.weights.saved.state_dict(),
        AVERAGE: average.module.state_dict() if average else None,
        "optimizer": state.optimizer.state_dict(),
        "precision": state.precision.state_dict(),
        "epoch": progress.epoch,
        "done_steps": progress.done_steps,
        "sums": progress.sums.reduced(state.context),
        "geometry": state.layout.geometry,
        "best": position.best,
        "train_seconds": position.clock.seconds,
        "total_seconds": position.clock.total_seconds,
        "images": position.clock.images,
        "options": to_yaml(state.config, position.horizon.options),
        "class_names": class_names and list(class_names),
        ENTRY: split,
        **decision_to_entries(position.decision),
        "plugins": {plugin.entry: plugin.text for plugin in running_plugins()},
    }
    return state.strategy.gather(content)


@dataclass(eq=False)
class PeftFolder(Observer):
    """Writes the adapters, if there are any, of the best checkpoint; of the last one until there is a best one."""

    state: TrainState
    logger: RunLogger

    def after_save(self, path: Path, content: Values) -> None:
        options = self.state.config.model
        if options.tune != "lora" or (content["best"] and path.name != BEST):
            return
        try:
            write_peft_folder(path, content, self.state.meta_model, options.lora)
        except OSError as error:  # the checkpoint has the adapters, too
            self.logger.warn(f"the adapters cannot be written for peft: {error}")


def space_notes(state: TrainState, run_folder: Path | None) -> list[Note]:
    """The size of a checkpoint, with AdamW's two moments per parameter, and the free space. A warning: two do not fit.

    run_folder: of the run that is resumed; None for a new one in the folder SAVE, which may not exist yet.
    Raises Unavailable: not even one without moments fits.
    """
    saved = state.precision.weights.saved
    average = state.average
    models = [saved.state_dict(), average.module.state_dict() if average else {}]
    weights = tensor_bytes(models) / 1e6
    moments = 2 * 4 * count_parameters(saved)[1] / 1e6
    # last, previous, best
    size = weights + moments
    kept = 3 + state.config.keep_checkpoints
    need = f"about {size:,.1f} MB each, at most {kept} kept"
    folder = run_folder or Path(state.config.save)
    disk = shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists()))
    if not disk.total:  # a file system that does not tell, such as some in user space
        return [Note("log", f"Checkpoints: {need}")]
    free = disk.free / 1e6
    need = f"{need}, {free:,.1f} MB free in {folder}"
    other = "resume a copy of it elsewhere" if run_folder else "choose another folder with -output"
    if free < weights:
        raise Unavailable(f"Checkpoints: {need}: not one fits; free space, or {other}")
    if free < 2 * size:
        return [Note("warning", f"fewer than two checkpoints fit: {need}; free space, or {other}")]
    return [Note("log", f"Checkpoints: {need}")]


def restore(state: TrainState, logger: RunLogger, found: FoundCheckpoint | None) -> RunPosition:
    """Loads a checkpoint into the state of a run and returns its position; without one, the start of the run.

    Raises UserError: the options of the run do not fit the checkpoint.
    """
    config = state.config
    schedule = state.schedule
    if found is None:
        progress = state.new_progress(config.train.last_epoch)
        return RunPosition(config, state.horizon, progress, TrainClock(logger.started))
    checkpoint = found.state
    changed = changed_options(checkpoint["options"], to_yaml(config))
    changed.pop("TRAIN.PLANS", None)  # may have later ones
    best = checkpoint["best"]
    _check_options(config, checkpoint["epoch"], changed)
    done_steps = state.layout.steps_done(checkpoint)
    _load_state(state, checkpoint, changed)
    progress = state.new_progress(checkpoint["epoch"])
    progress.done_steps = done_steps
    progress.lr = schedule.lr_at(max(progress.step - 1, 0))
    set_lr(state.optimizer, progress.lr)
    if state.context.is_main:
        progress.sums.restore(checkpoint["sums"])
    rate = schedule.lr_at(progress.step)
    logger.log(f"----- Resume: epoch {progress.epoch + 1}, step {done_steps}, learning rate {rate:.3g}")
    for text in _remarks_on_resume(state, found, changed):
        logger.note(Note("screen", f"Resume: {text}"))
    clock = TrainClock(logger.started, checkpoint["train_seconds"], checkpoint["images"], checkpoint["total_seconds"])
    path = find_best(found, state.context)
    is_unsaved = path is None and found.place.is_best
    if not path and not is_unsaved:
        best = None
    return RunPosition(config, state.horizon, progress, clock, best, is_unsaved, path, read_decision(checkpoint))


def _remarks_on_resume(state: TrainState, found: FoundCheckpoint, changed: dict[str, tuple[Any, Any]]) -> list[str]:
    """What the options of this start change in the run, and what they cannot."""
    epoch = found.state["epoch"]
    remarks = []
    other_batch = state.layout.changed_global_batch(found.state)
    if other_batch:
        remarks.append(other_batch)
    if epoch == state.config.train.num_epochs:
        remarks.append(f"all {epoch} epochs are done")
    unused = ["MODEL.PRETRAINED"]
    if not state.config.train.plans:
        unused.append("TRAIN.MINUTES")
    if found.run_folder:
        unused.append("SAVE")  # else SAVE has the new folder
    given = [key for key, (_, now) in changed.items() if now and key in unused]
    remarks += [f"{key} has no effect in a run that is resumed" for key in given]
    listed = [f"{key}: {then}, now {now}" for key, (then, now) in changed.items() if key not in unused]
    if listed:
        remarks.append(f"options that differ from the checkpoint: {'; '.join(listed)}")
    return remarks


_SHAPING = ("MODEL.", "DATA.IMAGE_", "TRAIN.LAYER_DECAY", "TRAIN.HEAD_LR_SCALE", "TRAIN.WEIGHT_DECAY")  # of parameters


def _check_options(config: Config, epoch: int, changed: dict[str, tuple[Any, Any]]) -> None:
    """epoch: of the checkpoint."""
    last_epoch = config.train.last_epoch
    num_epochs = config.train.num_epochs
    unused = [key for key in changed if changes_training(key)]
    if epoch == num_epochs and unused:
        raise UserError(
            f"{', '.join(unused)}: no effect, as all {epoch} epochs of the checkpoint are done; "
            "train longer with -epochs, or start a new run with -pretrained"
        )
    if "TRAIN.LAST_EPOCH" in changed and last_epoch not in (0, epoch):
        raise UserError(f"-last_epoch {last_epoch}: the checkpoint is at epoch {epoch}; remove the flag")
    if epoch > num_epochs:
        raise UserError(
            f"TRAIN.NUM_EPOCHS {num_epochs}: the checkpoint has {epoch} finished epochs; "
            f"give more than {epoch} with -epochs"
        )


def _load_state(state: TrainState, checkpoint: Values, changed: Collection[str]) -> None:
    strategy = state.strategy
    weights = state.precision.weights
    try:
        strategy.load_model_state(weights.saved, checkpoint["model"])
        weights.sync_after_load()
        if state.average:
            strategy.load_model_state(state.average.module, checkpoint[AVERAGE])
        strategy.load_optimizer_state(state.optimizer, checkpoint["optimizer"])
        state.precision.load_state_dict(checkpoint["precision"], changed)
        zero_momentum(state.optimizer, state.config.train.optimizer)
        for entry in LARGE:  # closes the file
            del checkpoint[entry]
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        keys = [key for key in changed if key.startswith(_SHAPING)] or ["-resume"]
        first = shorten(str(error).partition("\n")[2] or str(error), 300, placeholder=" ...")
        raise UserError(
            f"{', '.join(keys)}: does not fit the checkpoint: {first}; "
            "set it as in the run, or start a new run, with -pretrained if the weights fit it"
        ) from None
