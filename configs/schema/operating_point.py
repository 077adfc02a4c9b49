"""The operating point of a class (EVAL.OPERATING_POINT), and all that weights decide by. Without torch and numpy."""

import math
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_Share = Annotated[float, Field(gt=0, lt=1)]


class Goal(BaseModel):
    """The class of an operating point, and the sensitivity or the specificity that its threshold reaches.

    groups: whether a group has the class if any of its images has it. by_limit: whether the one-sided 95% limit of
    Clopper and Pearson reaches it, so that most such thresholds reach it on other images.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True)
    name: Annotated[str, BeforeValidator(str), Field(alias="class")]
    sensitivity: _Share | None = None
    specificity: _Share | None = None
    groups: Literal["any"] | None = None
    by_limit: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.sensitivity is None) == (self.specificity is None):
            raise ValueError("class and one figure are needed, as {class: malignant, specificity: 0.95}")
        return self

    @property
    def title(self) -> str:
        """'95% specificity' of 0.95, or '95% specificity by its limit'."""
        figure = "specificity" if self.specificity else "sensitivity"
        return f"{100 * getattr(self, figure):g}% {figure}{' by its limit' * self.by_limit}"


class OperatingPoint(Goal):
    """A threshold of the score of a class against the others, see `SampleResults.scores`.

    label: of the class. is_chosen: whether images have decided on the thresholds; None if they cannot reach the goal.
    group_threshold: of the means of groups. Its figures are the goal, not measured: files call them so.
    """

    sensitivity: Annotated[_Share | None, Field(alias="goal_sensitivity")] = None
    specificity: Annotated[_Share | None, Field(alias="goal_specificity")] = None
    label: Annotated[int, Field(ge=0)]
    is_chosen: bool = False
    threshold: float | None = None
    group_threshold: float | None = None


def probability_of(logit: float) -> float:
    """The probability whose log(p / (1 - p)) is the threshold of a point."""
    return 1 / (1 + math.exp(min(-logit, 700)))


class Decision(NamedTuple):
    """What a model predicts. thresholds: with several labels per image, the logits of `SampleResults.thresholds`.

    temperature: of `temper`, on whose scores the point is; None: images are to choose it, as a `point` that is not
    chosen, and thresholds that are None. tta, entries: the EVAL.TTA, and the values of MODEL.WEIGHTS_ENTRY, of the
    logits that decided.
    """

    thresholds: tuple[float, ...] | None = None
    point: OperatingPoint | None = None
    tta: str = "none"
    temperature: float | None = 1.0
    entries: tuple[str | None, ...] = (None, "model", "raw")

    @property
    def goal(self) -> OperatingPoint | None:
        """The point without its thresholds, which images are to choose."""
        thresholds = {"is_chosen": False, "threshold": None, "group_threshold": None}
        return self.point and self.point.model_copy(update=thresholds)


UNDECIDED = Decision()
TO_CHOOSE = Decision(temperature=None)
