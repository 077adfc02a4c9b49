"""TRAIN.MINUTES: the epochs, and their steps, that fit into the time of a run, from the speed of its first steps."""

import math
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from configs.batch_plan import plan_batches
from configs.compare import with_defaults
from configs.load import RUN_OPTIONS
from configs.resolve import EPOCHS, probe_has_one_epoch
from configs.schema.train import Train
from configs.yaml_io import Values, read_yaml
from datasets.loading.loader import TrainBatches, build_eval_loader
from engine.checkpoint.run_folder import change_run_options, decided_run
from engine.evaluation.results import TOP_K
from engine.evaluation.session import build_evaluator
from engine.features.probe import Solved
from engine.plan.training import Plan
from engine.progress import EpochProgress, Evaluated, Observer
from engine.run.log import RunLogger
from engine.training.optimizer import EPOCHS_PER_REDUCTION
from engine.training.outputs import RunOutputs
from engine.training.session import Session, build_run_state
from engine.training.step import TrainState
from engine.training.trial import Trial
from utils.distributed import ProcessContext, broadcast_object
from utils.files import read_json
from utils.notes import SWEEP, Note
from utils.system import seconds_since_start

_TIMED_STEPS = 20
_MAX_TIMED_BATCHES = 16
_MAX_SHARE = 0.1  # of the time of a run, for the timed steps; half as much for more than four batches of an evaluation
_END_SECONDS = 4.0  # for the pictures and the page at the end
_USED_SHARE = 0.97  # of the time for steps and evaluations
_MISSED_SHARE = 0.02  # of the time, that changes no plan


def fit_into_minutes(plan: Plan, context: ProcessContext, logger: RunLogger, solved: Solved | None) -> Plan:
    """The plan of a new run with TRAIN.MINUTES, with the NUM_EPOCHS and EPOCH_STEPS that end it in time.

    A run whose head is `solved`, without time for a step, becomes the probe. Up to twenty steps, and a part of
    an evaluation, are timed on a state that is thrown away. A run of a sweep takes over the epochs of another one, see
    `decided_run`. A collective call: the main process decides.
    """
    train = plan.config.train
    if plan.found or train.minutes is None:
        return plan
    if folder := broadcast_object(decided_run(Path(plan.config.save), plan.config.name), context):
        return _as_in_sweep(plan, folder, context, logger)
    config = plan.config.with_train(epoch_steps=None)  # config.yaml of another run may have one
    plan = replace(plan, config=config)
    layout = plan.layout
    steps_per_epoch = layout.steps_per_epoch
    trial = Trial(context, lambda: build_run_state(plan, context, solved)[0])
    max_seconds = _MAX_SHARE * 60 * train.minutes
    trial.train(
        TrainBatches(config, plan.train, context, layout).iterate(0, 0, train.num_epochs),
        steps=min(_TIMED_STEPS, train.num_epochs * steps_per_epoch),
        max_seconds=max_seconds,
    )
    start = trial.state_seconds  # the run has it once more
    if train.compiles:  # else cuDNN's choice of algorithms, which takes most of the first step, is kept
        start = trial.first_step_seconds
    step = trial.step_seconds()
    evaluation, test = _time_evaluations(plan, trial.state, step, max_seconds / 2)

    end = train.model_ema * evaluation + test + _END_SECONDS  # of an average, the raw weights are evaluated, too
    left = 60 * train.minutes - seconds_since_start() - start - end
    figures = f"{step:.3g} s per step, {evaluation:.3g} s per evaluation, {left:.0f} s for both"
    title = f"TRAIN.MINUTES {train.minutes:g}: {figures}: "
    if solved and not trial.state.strategy.is_sharded and broadcast_object(left < step, context):
        logger.note(Note("screen", f"{title}no time for a step, so that the run is the probe"))
        return _as_probe(plan, context)
    epochs, steps = broadcast_object(epochs_in(left, step, evaluation / config.validate_freq, steps_per_epoch), context)
    text = f"----- {title}NUM_EPOCHS {epochs}"
    limit = None
    if steps < steps_per_epoch:
        limit = steps
        text += f", EPOCH_STEPS {limit} of {steps_per_epoch}"
    logger.log(text)
    values = _schedule(train, epochs)
    if config.name not in read_json(Path(config.save) / SWEEP):  # else it keeps them, for the other runs of its speed
        values["plans"] = ((0, 0, values["num_epochs"]),)
    return replace(plan, config=config.with_train(epoch_steps=limit, **values), evaluation_seconds=evaluation)


class NextPlans(Observer):
    """TRAIN.MINUTES: changes the horizon of the run after an epoch, by the speed of its last steps and evaluation."""

    def __init__(self, session: Session, outputs: RunOutputs) -> None:
        self._plan = session.plan
        self._position = session.position
        self._outputs = outputs
        self._steps = deque[float](maxlen=session.position.progress.steps + 1)  # seconds
        self._evaluation = session.plan.evaluation_seconds

    def after_step(self, progress: EpochProgress) -> None:
        self._steps.append(self._position.clock.lap_seconds)

    def after_evaluation(self, progress: EpochProgress, evaluated: Evaluated) -> None:
        self._evaluation = evaluated.seconds or self._evaluation

    def before_evaluation(self, progress: EpochProgress) -> None:
        """Keeps the plan while a later one is known, which a resumed run repeats."""
        done = progress.epoch + 1
        horizon = self._position.horizon
        context = self._outputs.reporter.context
        steps = [*self._steps][1:]  # the first one has waited for workers and kernels
        is_open = horizon.plans == horizon.plans_in_use and done > horizon.plans[-1][0]
        if not (is_open and steps and self._evaluation):
            return
        epochs = broadcast_object(self.epochs(done, progress.steps * fmean(steps), self._evaluation), context)
        if epochs == horizon.num_epochs:
            return
        since = max(done, self._plan.config.train.warmup_epochs)
        horizon.plans = (*horizon.plans, (since, horizon.in_first_plan(since), epochs))
        horizon.num_epochs = epochs
        self._outputs.logger.log(f"----- TRAIN.MINUTES: NUM_EPOCHS {epochs} from epoch {done} on")
        if context.is_main:
            change_run_options(self._outputs.folder, horizon.options)

    def epochs(self, done: int, steps: float, evaluation: float) -> int:
        """The NUM_EPOCHS that end nearest to TRAIN.MINUTES, but after the warm-up.

        They stay if they miss it by at most half an epoch, or 2%. done: epochs. steps, evaluation: seconds of the steps
        of an epoch, and of an evaluation.
        """
        plan = self._plan
        train = self._plan.config.train
        num_epochs = self._position.horizon.num_epochs
        assert train.minutes
        seconds = 60 * train.minutes
        epoch = steps + evaluation / plan.config.validate_freq
        evaluations = 1 + train.model_ema + len(plan.test or ()) / len(plan.val)  # after this epoch, and at the end
        before = self._position.clock.earlier_seconds + seconds_since_start()
        left = seconds - before - evaluations * evaluation - _END_SECONDS
        missed = abs(left - (num_epochs - done) * epoch)
        if missed <= max(epoch / 2, _MISSED_SHARE * seconds):
            return num_epochs
        return max(done + max(0, round(left / epoch)), int(train.warmup_epochs) + 1)


def _as_in_sweep(plan: Plan, folder: Path, context: ProcessContext, logger: RunLogger) -> Plan:
    """The plan with the epochs of the run in `folder`."""
    train = plan.config.train
    options = with_defaults(read_yaml(folder / RUN_OPTIONS))
    epochs = options[EPOCHS] - train.last_epoch
    logger.log(f"----- TRAIN.MINUTES {train.minutes:g}: NUM_EPOCHS {epochs} of {folder.name}, in this sweep")
    if options["MODEL.TUNE"] == "probe":
        return _as_probe(plan, context)
    steps = options["TRAIN.EPOCH_STEPS"]
    return replace(plan, config=plan.config.with_train(epoch_steps=steps, **_schedule(train, epochs)))


def _time_evaluations(plan: Plan, state: TrainState, step: float, seconds: float) -> tuple[float, float]:
    """Seconds of an evaluation of the validation and of the test images, from a part of the former.

    step: seconds. seconds: for more than four batches.
    """
    config = state.config
    context = state.context
    images = len(plan.val)
    size = config.data.eval_batch_size
    longest = step * size * context.world_size / plan.batch.global_size  # of a batch: less than in training
    batches = broadcast_object(min(max(4, int(seconds / longest)), _MAX_TIMED_BATCHES), context)
    first = max(0, math.ceil(images / size) - batches * context.world_size) * size
    skipping = config.with_data(on_bad_image="skip")  # the run names all unreadable images
    loader = build_eval_loader(skipping, plan.val, context, first=first)
    evaluator = build_evaluator(config, state.precision, state.strategy, context)
    ends = [time.perf_counter()]
    for _ in evaluator.classify(state.eval_model, loader, TOP_K, every=1):
        ends.append(time.perf_counter())  # without metrics: no image of this part may be readable
    first_batch = min(size, images) * context.world_size
    timed = (ends, images - first, first_batch)
    test = evaluation_seconds(*timed, len(plan.test)) if plan.test else 0.0
    return evaluation_seconds(*timed, images), test


def _as_probe(plan: Plan, context: ProcessContext) -> Plan:
    config = probe_has_one_epoch(plan.config.with_model(tune="probe"))
    return replace(plan, config=config, batch=plan_batches(config, context.world_size))


def evaluation_seconds(ends: list[float], timed: int, batch: int, images: int) -> float:
    """Seconds of an evaluation of `images`, from one of `timed` images; only its first batch waits for the workers.

    ends: its start and the ends of its batches, in seconds. batch: images of the first one, on all ranks.
    """
    seconds = ends[-1] - ends[0]
    after_first = timed - batch
    per_image = (ends[-1] - ends[1]) / after_first if after_first > 0 else seconds / timed
    return seconds + (images - timed) * per_image


def epochs_in(seconds: float, step: float, pause: float, steps_per_epoch: int) -> tuple[int, int]:
    """The fewest epochs that use `_USED_SHARE` of the time, and the steps of each; one step if the time is short.

    step, pause: seconds of a step, and between two epochs. Where no number of epochs uses so much, as few short epochs,
    it is the one that uses most.
    """
    fewest = max(1, int(seconds / (steps_per_epoch * step + pause)))
    choices = list[tuple[float, int, int]]()
    for epochs in range(fewest, 2 * fewest + 2):
        steps = min(max(1, int((seconds / epochs - pause) / step)), steps_per_epoch)
        used = epochs * (steps * step + pause)
        if used <= seconds or epochs == 1:
            choices.append((used, -epochs, steps))
    enough = (choice for choice in choices if choice[0] >= _USED_SHARE * seconds)
    _, epochs, steps = next(enough, max(choices))
    return -epochs, steps


def _schedule(train: Train, epochs: int) -> Values:
    """The values of TRAIN that make it a run of these epochs; warm-up, decay and mixing keep their shares."""
    share = (train.last_epoch + epochs) / train.horizon.plans_in_use[0][2]
    decay = train.lr_scheduler.decay_epochs or (EPOCHS_PER_REDUCTION if train.lr_scheduler.name == "step" else None)
    return {
        "num_epochs": train.last_epoch + epochs,
        "plans": (),
        "warmup_epochs": train.warmup_epochs * share,
        "mixup_off_epoch": train.mixup_off_epoch and max(1, round(train.mixup_off_epoch * share)),
        "lr_scheduler": train.lr_scheduler.changed(decay_epochs=decay and decay * share),
    }
