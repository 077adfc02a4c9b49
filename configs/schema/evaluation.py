"""The section EVAL."""

from typing import Literal

from pydantic import Field

from configs.schema.section import Section


class Evaluation(Section):
    """Evaluations and predictions. In YAML, `EVAL: true` means `EVAL: {ENABLED: true}`."""

    enabled: bool = Field(False, description="evaluate only")
    tta: Literal["none", "flip"] = Field(
        "none",
        description="test-time augmentation, of the validation in training too; flip: the mean of the logits of an "
        "image and of its mirror image",
    )
