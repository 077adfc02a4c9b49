"""The section MODEL: the keys that all families share. `configs/schema/families/` has the keys of each family."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from configs.data_sets import IMAGENET_CLASSES
from configs.schema.section import Name, OptionalPath, Probability, Section, as_names


def _check_tune(tune: str) -> str:
    if not re.fullmatch(r"full|head|lora|probe|last:[1-9][0-9]{0,3}", tune):
        raise ValueError("must be full, head, last:N with a number of blocks N, lora or probe")
    return tune


class Lora(Section):
    """Low-rank adapters, for TUNE lora."""

    rank: int = Field(8, ge=1, description="rank of an adapter: the rows of A, the columns of B")
    alpha: float = Field(16.0, gt=0, description="an adapter adds ALPHA / RANK * B A to the weight of its layer")
    targets: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(as_names)] | None = Field(
        None,
        description="linear layers with adapters: paths or their ends, as [qkv, mlp.fc1]; null: all inside blocks",
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout rate of the inputs of A; one mask for all tokens of a forward pass"
    )


class Model(Section):
    type: str = "vit"
    name: Name = Field("vit", description="name in the log; for TYPE timm: timm's, hf-hub:ORG/NAME or local-dir:FOLDER")
    resume: OptionalPath = Field(
        None, description="checkpoint to resume (the whole state): a file, a run folder, or auto"
    )
    pretrained: OptionalPath = Field(
        None, description="initial weights: a file, an hf folder, hf-hub:ORG/NAME; for TYPE timm also 'timm'"
    )
    num_classes: int | None = Field(
        None, ge=1, description="number of classes; null: as many as the data has, for imagenet2012 always 1000"
    )
    tune: Annotated[str, AfterValidator(_check_tune)] = Field(
        "full", description="what is trained besides the head: full, head (nothing), last:N (blocks), lora, probe"
    )
    features: Literal["pre_logits", "token", "avg", "token_avg"] = Field(
        "pre_logits",
        description="input of the head, and output of -embed; pre_logits: the model's own; of a ViT also token: the "
        "class token; avg: the average of the patch tokens; token_avg: both",
    )
    lora: Lora = Lora()
    freeze_backbone: bool = Field(False, description="PaddleViT's key of TUNE head")
    dropout: Probability = Field(0.0, description="dropout rate after the position embedding and the projections")
    attention_dropout: Probability = Field(0.0, description="dropout rate of the attention weights")
    droppath: Probability = Field(
        0.0, description="drop-path rate of the last block, linear from 0 (CaiT, XCiT, CoaT, LeViT, MLPs: of all)"
    )
    grad_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass: less memory, about a third more computation"
    )
    attention: Literal["auto", "fused", "cudnn", "explicit"] = Field(
        "auto",
        description="fused: torch chooses the kernel; cudnn; explicit: softmax(q k^T) v; auto: fused only on a GPU",
    )
    channels_last: Literal["auto"] | bool = Field(
        "auto",
        description="NHWC memory format of weights and images; auto: on a GPU, for models with convolutions beyond "
        "the patch embedding, unless they are sharded or in O3",
    )

    @property
    def tuned(self) -> str:
        """The trained part: `tune`, or PaddleViT's key of it."""
        return "head" if self.freeze_backbone else self.tune

    @property
    def num_logits(self) -> int:
        """The width of the head: NUM_CLASSES, or 1000 if the model is built without data."""
        return IMAGENET_CLASSES if self.num_classes is None else self.num_classes

    @property
    def image_size_multiple(self) -> int:
        """The height and width of the images must be a multiple of this number of pixels."""
        return 1

    @model_validator(mode="after")
    def _check_frozen(self) -> "Model":
        if self.freeze_backbone and self.tune not in ("full", "head"):
            raise ValueError(f"FREEZE_BACKBONE is TUNE=head, not TUNE={self.tune}; remove one of them")
        return self

    @field_validator("type", mode="before")
    @classmethod
    def _in_lower_case(cls, name: object) -> object:
        return name.lower() if isinstance(name, str) else name
