"""Averages of checkpoints, evaluated on the validation images and written as a checkpoint."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from configs.reading.command_line import Command
from configs.schema import Config
from datasets.loading.batches import build_eval_loader
from engine.checkpoint.paths import checkpoints_by_progress, periodic
from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.trained_on import read_trained_on
from engine.training.eval_model import EvalModel, build_eval_model
from models.weights.families import paddle_converter
from models.weights.names import summarize_names
from models.weights.read import read_weights
from scripts.weights.files import write_torch
from scripts.weights.trained_model import TrainedModel, locate_weights, open_trained
from utils.distributed import single_process
from utils.errors import UserError, escape_control_characters
from utils.tables import aligned_table, read_rows

State = dict[str, torch.Tensor]
_MAX_COLUMN_CHARS = 100


@dataclass(frozen=True)
class Ingredient:
    """Weights that may become part of an average.

    score: top-1 or mean average precision on the validation data, percent. note: how it is known.
    """

    path: Path
    epoch: int | None
    score: float
    note: str


def average(states: Sequence[State]) -> State:
    """The mean of each floating-point tensor, computed in float64; other tensors come from the first state."""
    first = states[0]
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }


def check_shapes(path: Path, state: State, first_path: Path, first: State) -> None:
    """Raises a UserError unless both states have the same tensors, of the same shapes."""
    shapes, first_shapes = ({name: tensor.shape for name, tensor in one.items()} for one in (state, first))
    differing = {name for name, _ in shapes.items() ^ first_shapes.items()}
    if differing:
        raise UserError(
            f"{path}: its weights have other names or shapes than the weights of {first_path} "
            f"({summarize_names(sorted(differing))}); give runs of one model"
        )


def greedy_soup(
    ingredients: Sequence[Ingredient], read: Callable[[Path], State], score_of: Callable[[State], float]
) -> tuple[State, float, list[tuple[float, bool]]]:
    """The greedy soup (Wortsman et al., 2022, recipe 1): in the order of their scores, each ingredient is added to the
    average, and stays if the score of the average does not fall.

    Args:
        ingredients: the best one first.

    Returns:
        the average; its score; for each ingredient the score of the average with it, and whether it stays.
    """
    soup, score = read(ingredients[0].path), ingredients[0].score
    kept, trials = [soup], [(score, True)]
    for ingredient in ingredients[1:]:
        candidate = [*kept, read(ingredient.path)]
        mixed = average(candidate)
        trial = score_of(mixed)
        trials.append((trial, trial >= score))
        if trial >= score:
            kept, soup, score = candidate, mixed, trial
    return soup, score, trials


def write_uniform(run: Path, best: int, command: Command, output: Path | None) -> None:
    """Writes the average of the `best` checkpoints of a run; default output: `average.pth` in its folder.

    Raises:
        UserError: the run has one checkpoint, or the validation images are missing.
    """
    evaluation = _Evaluation(locate_weights(run), command)
    found = find_ingredients(run, lambda path: evaluation.score(evaluation.read(path)))
    chosen = sorted(found, key=lambda ingredient: -ingredient.score)[:best]
    if len(chosen) < 2:
        raise UserError(f"{run}: has {len(chosen)} checkpoint; train with -opts SAVE_FREQ=1 for more")
    if len(chosen) < best:
        print(f"{len(chosen)} of {best}: the run has no others (KEEP_CHECKPOINTS)")
    state = average([evaluation.read(ingredient.path) for ingredient in chosen])
    score = evaluation.score(state)
    rows = [(one.path.name, str(one.epoch), f"{one.score:.2f}", one.note) for one in chosen]
    _print_table(
        ("checkpoint", "epoch", f"{evaluation.score_name} %", ""),
        [*rows, ("average", "", f"{score:.2f}", "evaluated")],
    )
    evaluation.save(state, score, output, "average.pth")
    gain = round(score, 2) - round(chosen[0].score, 2)
    if gain <= 0:
        relation = "worse" if gain < 0 else "not better"
        _print(f"Note: the average is {relation} than {chosen[0].path} ({chosen[0].score:.2f}%): use that")


def write_soup(sources: Sequence[Path], command: Command, output: Path | None) -> None:
    """Writes the greedy soup of weight files and folders of runs; default output: `soup.pth` beside the first.

    Raises:
        UserError: weights of another model or other data, or the validation images are missing.
    """
    paths = list(dict.fromkeys(map(locate_weights, sources)))
    evaluation = _Evaluation(paths[0], command)
    for path in paths[1:]:
        _check_same_data(evaluation.trained, path)
    ingredients = [Ingredient(path, None, evaluation.score(evaluation.read(path)), "") for path in paths]
    ingredients.sort(key=lambda one: -one.score)
    state, score, trials = greedy_soup(ingredients, evaluation.read, evaluation.score)
    rows = [
        (str(one.path), f"{one.score:.2f}", f"{trial:.2f}", "added" if is_added else "left out")
        for one, (trial, is_added) in zip(ingredients, trials, strict=True)
    ]
    _print_table(("weights", f"{evaluation.score_name} %", f"soup {evaluation.score_name} %", ""), rows)
    evaluation.save(state, score, output, "soup.pth")
    if not any(is_added for _, is_added in trials[1:]):
        _print(f"Note: this is no average: it holds the weights of {ingredients[0].path} alone; no others joined")


class _Evaluation:
    """Evaluates states of one model on the validation images, as -eval does."""

    def __init__(self, weights: Path, command: Command) -> None:
        context = single_process()
        self.trained = trained = open_trained(command.with_weights(weights), context)
        self.built: EvalModel = build_eval_model(trained.config, context)
        config = trained.config
        self.batches = build_eval_loader(config.data, trained.samples, context, config.timeout_seconds)
        self.own = self.built.fp32.state_dict()

    def read(self, path: Path) -> State:
        """The weights of a file; raises a UserError if they belong to another model."""
        options: Config = self.trained.config
        state = read_weights(str(path), paddle_converter(options.model, self.built.fp32))
        check_shapes(path, state, self.trained.weights, self.own)
        return state

    def score(self, state: State) -> float:
        """Top-1, or with DATA.MULTI_LABEL the mean average precision, in percent."""
        self.built.fp32.load_state_dict(state)
        model = self.built.evaluator.precision.compute_copy(self.built.fp32)
        return self.built.evaluator.evaluate(model, self.batches)[0].score

    @property
    def score_name(self) -> str:
        return "mAP" if self.trained.config.data.multi_label else "top-1"

    def save(self, state: State, score: float, output: Path | None, name: str) -> None:
        """Writes `output`, by default the file `name` beside the weights, and says so."""
        trained = self.trained
        output = output or trained.weights.with_name(name)
        write_torch(output, state, trained.description, trained.options)
        if any(key.endswith(".running_mean") for key in state):
            print("Note: the running statistics of the batch norms are averaged, not measured again")
        _print(f"Saved: {output}, {self.score_name} {score:.2f}%; use it with -pretrained={output}")


def find_ingredients(run: Path, evaluate: Callable[[Path], float]) -> list[Ingredient]:
    """The checkpoints of a run, each position once, with the score in `metrics.csv`, or from `evaluate`.

    Damaged checkpoints are left out, with a line.
    """
    epochs = periodic(run)[::-1]
    paths = [*epochs, *sorted(set(checkpoints_by_progress(run)) - set(epochs))]  # the others: best, last, previous
    recorded = _recorded_scores(run)
    found: dict[tuple[int, int], Ingredient] = {}
    for path in paths:
        try:
            checkpoint = load_checkpoint(path)
        except UserError as error:
            print(escape_control_characters(f"skipped: {error}"), file=sys.stderr)
            continue
        epoch, done_steps = position = checkpoint["epoch"], checkpoint["done_steps"]
        if position in found or position == (0, 0):
            continue
        score = None if done_steps else recorded.get(epoch)
        note = "evaluated" if score is None else "metrics.csv"
        found[position] = Ingredient(path, epoch, evaluate(path) if score is None else score, note)
    return list(found.values())


def _recorded_scores(run: Path) -> dict[int, float]:
    """The score in percent of each evaluated epoch; of the averaged weights where the run has them."""
    try:
        rows = read_rows(run / "metrics.csv")
        scores = {int(row["epoch"]): row.get("val_mean_ap") or row["val_top1"] for row in rows}
        return {epoch: float(score) for epoch, score in scores.items() if score}
    except (OSError, KeyError, ValueError):
        return {}


def _check_same_data(trained: TrainedModel, path: Path) -> None:
    other = read_trained_on(str(path))
    if other is None:
        return
    if (other.class_names or trained.class_names) != trained.class_names:
        raise UserError(f"{path}: was trained on other classes than {trained.weights}; give runs on the same data")
    preprocessing = trained.description["preprocessing"]
    if (other.preprocessing or preprocessing) != preprocessing:
        raise UserError(f"{path}: was trained with another preprocessing than {trained.weights}; give others")


def _print(text: str) -> None:
    print(escape_control_characters(text))


def _print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    print(aligned_table(header, rows, _MAX_COLUMN_CHARS))
