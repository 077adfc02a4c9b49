"""The section LOSS."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from configs.parts import LOSSES
from configs.schema.section import Floats, Section


class Loss(Section):  # type: ignore[no-redef]  # pydantic's plugin, on a field that is called kwargs
    """The training loss. `TRAIN.SMOOTHING` applies to all of them; the evaluation loss is always cross-entropy."""

    name: Annotated[str, AfterValidator(LOSSES.check_name)] = Field(
        "cross_entropy",
        description="cross_entropy; bce: of each class, binary (ResNet strikes back, DeiT III); or a plugin's",
    )
    kwargs: Annotated[dict[str, Any] | None, AfterValidator(LOSSES.check_kwargs)] = Field(
        None, description="options of a plugin's loss"
    )
    target_threshold: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="bce: targets above it, smoothed and mixed, become 1, others 0; null: soft targets",
    )
    class_weights: Literal["balanced"] | Floats | None = Field(
        None,
        description="factor of the loss of each class (bce: of its positive term); balanced: proportional to 1 / "
        "training images, with a mean of 1 over these images (DATA.MULTI_LABEL: images without / with the label); or "
        "a list of NUM_CLASSES values; null: 1",
    )

    @field_validator("class_weights")
    @classmethod
    def _check_weights(cls, weights: str | tuple[float, ...] | None) -> str | tuple[float, ...] | None:
        if isinstance(weights, tuple) and not (weights and min(weights) > 0):
            raise ValueError("each weight must be greater than 0")
        return weights

    @model_validator(mode="after")
    def _check(self) -> "Loss":
        if self.name != "bce" and self.target_threshold is not None:
            raise ValueError("TARGET_THRESHOLD applies to LOSS.NAME bce only; remove it or set LOSS.NAME=bce")
        return self
