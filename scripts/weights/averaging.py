"""Averages of trained weights: uniform, and the greedy soup."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from models.weights.names import summarize_names
from utils.errors import UserError

State = dict[str, torch.Tensor]


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
    differing = [name for name in first.keys() | state.keys() if _shape(first, name) != _shape(state, name)]
    if differing:
        raise UserError(
            f"{path}: its weights have other names or shapes than those of {first_path} "
            f"({summarize_names(sorted(differing))}); give runs of one model"
        )


def _shape(state: State, name: str) -> torch.Size | None:
    return state[name].shape if name in state else None


def greedy_soup(
    ingredients: Sequence[Ingredient], read: Callable[[Path], State], score_of: Callable[[State], float]
) -> tuple[State, float, list[float | None]]:
    """The greedy soup (Wortsman et al., 2022, recipe 1): in the order of their scores, each ingredient is added to the
    average, and stays if the score of the average does not fall.

    Returns:
        the average; its score; for each of the sorted ingredients the score of the average with it, None for the
        first.
    """
    best = sorted(ingredients, key=lambda ingredient: -ingredient.score)
    kept = [read(best[0].path)]
    soup, score = kept[0], best[0].score
    trials: list[float | None] = [None]
    for ingredient in best[1:]:
        candidate = [*kept, read(ingredient.path)]
        mixed = average(candidate)
        trial = score_of(mixed)
        trials.append(trial)
        if trial >= score:
            kept, soup, score = candidate, mixed, trial
    return soup, score, trials
