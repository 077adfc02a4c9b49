"""The section TRAIN.LR_SCHEDULER."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from configs.schema.section import Section

_PADDLEVIT_NAMES = {"warmupcosine": "cosine"}


class LRScheduler(Section):
    """The decay of the learning rate after the warm-up."""

    name: Annotated[
        Literal["cosine", "step", "linear", "wsd"],
        BeforeValidator(lambda name: _PADDLEVIT_NAMES.get(name, name) if isinstance(name, str) else name),
    ] = Field(
        "cosine",
        description="cosine (or PaddleViT's warmupcosine) and linear: decay to END_LR; step: multiply by DECAY_RATE "
        "every DECAY_EPOCHS, not below END_LR; wsd: constant, then a linear decay to END_LR in the last DECAY_EPOCHS",
    )
    decay_epochs: float | None = Field(
        None,
        gt=0,
        description="step: epochs between two reductions, counted from the first epoch, warm-up included; wsd: epochs "
        "of the final decay; null: 30, for wsd a fifth of NUM_EPOCHS",
    )
    decay_rate: float = Field(0.1, gt=0, le=1, description="step: factor of each reduction")

    @model_validator(mode="after")
    def _check(self) -> "LRScheduler":
        if self.decay_epochs is not None and self.name not in ("step", "wsd"):
            raise ValueError(f"DECAY_EPOCHS applies to NAME step and wsd, not to {self.name}; remove it or change NAME")
        if self.decay_rate != type(self).model_fields["decay_rate"].default and self.name != "step":
            raise ValueError(f"DECAY_RATE applies to NAME step, not to {self.name}; remove it or change NAME")
        return self
