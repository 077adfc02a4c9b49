"""The average of checkpoints, evaluated on the validation images and written as a checkpoint."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from configs.command_line import Command
from configs.yaml_io import write_yaml
from datasets.loading.loader import build_eval_loader
from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.run_folder import checkpoints_by_progress
from engine.checkpoint.weights_record import exported_entry, read_record
from engine.evaluation.session import build_eval_model
from models.weights.choose import EVALUATE
from models.weights.fit import load_pretrained
from models.weights.names import State
from scripts.weights.trained_model import TrainedModel, locate_weights, open_trained
from utils.distributed import single_process
from utils.errors import UserError, print_escaped
from utils.files import atomic_save


def write_average(sources: Sequence[Path], command: Command, output: Path | None) -> None:
    """Writes the uniform soup (Wortsman et al., 2022); default output: `average.pth` beside the first weights.

    sources: the folder of a run, for all its checkpoints; or several runs or files, for the best weights of each.
    Raises UserError: fewer than two checkpoints, weights of another model or other data, or no validation images.
    """
    paths = _checkpoints(sources[0]) if len(sources) == 1 else list(dict.fromkeys(map(locate_weights, sources)))
    if len(paths) < 2:
        raise UserError(f"{sources[0]}: an average needs two checkpoints; train with SAVE_FREQ=1, or name more runs")
    context = single_process()
    trained, samples = open_trained(command.with_weights(paths[0]), context)
    for path in paths[1:]:
        _check_same_data(trained, path)
    config, metric = trained.config, trained.config.best_metric
    built = build_eval_model(config, context, weights_size=trained.weights_size)
    state = built.fp32.state_dict()
    mean: State = {}
    for count, path in enumerate(paths):
        load_pretrained(built.fp32, str(path), config.model, EVALUATE)
        mean = add_to_mean(mean, state, count) if count else {name: tensor.clone() for name, tensor in state.items()}
        print_escaped(f"read: {path}")
    built.fp32.load_state_dict(mean)
    evaluator = replace(built.evaluator, thresholds=None)  # the average has its own
    batches = build_eval_loader(config.data, samples, context, config.timeout_seconds)
    found = evaluator.evaluate(evaluator.precision.compute_copy(built.fp32), batches)[0]
    trained, output = replace(trained, thresholds=found.thresholds), output or paths[0].with_name("average.pth")
    if any(name.endswith(".running_mean") for name in mean):
        print("Note: the running statistics of the batch norms are averaged, not measured again")
    weights = {name: tensor.to(state[name].dtype).cpu() for name, tensor in mean.items()}
    about = {"options": write_yaml(trained.options)} | trained.description | exported_entry(trained.split)
    atomic_save(output, {"model": weights} | about)  # a checkpoint without optimizer
    text = f"Saved: {output}, the mean of {len(paths)} weights, {metric.title} {metric.text(found.score)}"
    print_escaped(f"{text}; use it with -pretrained={shlex.quote(str(output))}")


def add_to_mean(mean: State, state: State, count: int) -> State:
    """The mean of `count` states with one more, in float64. Integers, such as counters, come from the first state."""
    return {
        name: tensor.double() + (state[name].double() - tensor.double()) / (count + 1)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in mean.items()
    }


def _checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, each position once. Damaged ones are left out, with a line."""
    found: dict[tuple[int, int], Path] = {}
    for path in checkpoints_by_progress(run):
        try:
            checkpoint = load_checkpoint(path)
        except UserError as error:
            print_escaped(f"skipped: {error}", file=sys.stderr)
            continue
        found.setdefault((checkpoint["epoch"], checkpoint["done_steps"]), path)
    return list(found.values())


def _check_same_data(trained: TrainedModel, path: Path) -> None:
    other = read_record(str(path))
    if other is None:
        return
    if (other.class_names or trained.class_names) != trained.class_names:
        raise UserError(f"{path}: was trained on other classes than {trained.weights}; give runs on the same data")
    own = trained.config.data.model_dump(by_alias=True, mode="json")
    if any(own[key] != value for key, value in other.preprocessing.items()):
        raise UserError(f"{path}: was trained with another preprocessing than {trained.weights}; give others")
    first = read_record(str(trained.weights))
    if trained.split and first and other.split != first.split:
        problem = f"{path}: holds out other images than {trained.weights}, so their average cannot be evaluated"
        fix = "average the predictions of all runs: main_single_gpu.py -predict PATH -resume RUN RUN2 ..."
        raise UserError(f"{problem}; {fix}")
