"""The keys of PaddleViT's ViT and of timm's models by name, and the parts of a family: keys, defaults, its model and
tensor names in timm. Pure data, without torch.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Literal

from configs.schema.data import Data
from configs.schema.model import Model
from configs.schema.section import Count, Positive, option, optional
from configs.yaml_io import Values

QKV_BIAS = option(True, "bias in the query, key and value projections")


class PlainTransformer(Model):
    """Keys of a transformer whose blocks all have the same size."""

    size_multiple = "patch_size"
    patch_size: Count = option(16, "height and width of a patch, pixels")
    embed_dim: Count = option(768, "channels of a token")
    num_heads: Count = option(12, "attention heads per block")
    depth: Count = option(12, "number of blocks")
    mlp_ratio: Positive = option(4.0, "hidden channels of the MLP / EMBED_DIM")
    qkv_bias: bool = QKV_BIAS

    def _problems(self) -> Iterator[str]:
        if getattr(self, "attn_head_size", None) is None and self.embed_dim % self.num_heads:
            yield f"EMBED_DIM {self.embed_dim} is not a multiple of NUM_HEADS {self.num_heads}; change one of them"


class ViT(PlainTransformer):
    type: str = option("vit", "the family of the model: see registry.py")
    attn_head_size: int | None = optional("channels per head; null: EMBED_DIM / NUM_HEADS", ge=1)
    global_pool: Literal["token", "avg"] = option(
        "token", "input of the head: the class token, or the mean of the patches (without a class token)"
    )
    pos_embed: Literal["learned", "sincos2d", "sincos2d_bigvision"] = option(
        "learned", "position embedding: learned, or sines and cosines by timm's formula, or by big_vision's"
    )
    stem: str | None = optional("timm network, such as resnet10t: features of stride PATCH_SIZE are the patches")
    init_values: float | None = optional("initial value of the layer scale; null: no layer scale", gt=0)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.pos_embed != "learned" and self.embed_dim % 4:
            yield f"POS_EMBED {self.pos_embed} needs an EMBED_DIM that is a multiple of 4, not {self.embed_dim}"
        if self.stem and self.patch_size not in (8, 16, 32):
            yield f"STEM {self.stem} needs a PATCH_SIZE of 8, 16 or 32, not {self.patch_size}"


# Arguments of timm's models that have a key of their own.
OWN_KEYS = {
    "num_classes": "MODEL.NUM_CLASSES", "img_size": "DATA.IMAGE_SIZE", "in_chans": "DATA.IMAGE_CHANNELS",
    "drop_rate": "MODEL.DROPOUT", "drop_path_rate": "MODEL.DROPPATH", "attn_drop_rate": "MODEL.ATTENTION_DROPOUT",
}  # fmt: skip


class TimmModel(Model):  # type: ignore[no-redef]  # pydantic's plugin, on a field that is called kwargs
    type: str = option("timm", "the timm model NAME")
    kwargs: Values | None = optional("other arguments of the class, such as {reg_tokens: 4, qk_norm: true}")
    dropout: float | None = optional("timm's drop_rate; null: the model's own", ge=0, le=1)  # type: ignore[assignment]
    droppath: float | None = optional("timm's drop_path_rate; null: the model's own", ge=0, le=1)  # type: ignore[assignment]


class TransformersModel(Model):  # type: ignore[no-redef]
    type: str = option("transformers", "a model of the package transformers")
    kwargs: Values | None = optional("its config.json, which -model=hf:ORG/NAME or local-dir:FOLDER reads")


# Regular expressions and their replacements, for the names of tensors.
Renames = Mapping[str, str | Callable[[re.Match[str]], str]]


def renames_in(table: str) -> Renames:
    """The renames in lines 'EXPRESSION REPLACEMENT', of which the latter may be empty.

    {1-2} in a replacement is the number in the first group minus 2.
    """
    lines = [line.partition(" ") for line in table.strip().splitlines()]
    return {expression: partial(_replacement, template) for expression, _, template in lines}


def _replacement(template: str, match: re.Match[str]) -> str:
    return re.sub(r"{(\d)([+-]\d)}", lambda one: str(int(match[int(one[1])]) + int(one[2])), match.expand(template))


# timm's arguments for DROPOUT of PaddleViT's transformers.
DROPOUTS = "pos_drop_rate proj_drop_rate"

# Values that many families of PaddleViT share in their `config.py`.
_IMAGENET = {"IMAGENET_MEAN": (0.485, 0.456, 0.406), "IMAGENET_STD": (0.229, 0.224, 0.225)}
_AUGMENTATION = {
    "SMOOTHING": 0.1, "COLOR_JITTER": 0.4, "RAND_AUGMENT": True, "MIXUP_ALPHA": 0.8, "CUTMIX_ALPHA": 1.0,
    "RANDOM_ERASE_PROB": 0.25,
}  # fmt: skip
_SCHEDULE = {"WARMUP_EPOCHS": 5, "WEIGHT_DECAY": 0.05, "BASE_LR": 5e-4, "LINEAR_SCALED_LR": 512}
HALF = {"IMAGENET_MEAN": (0.5, 0.5, 0.5), "IMAGENET_STD": (0.5, 0.5, 0.5)}
# Families whose data pipeline in PaddleViT crops and flips only: these keys of their `config.py` have no effect.
CROP_AND_FLIP = {"COLOR_JITTER": 0.0, "RAND_AUGMENT": False, "RANDOM_ERASE_PROB": 0.0}
MOBILE_TRAINING = CROP_AND_FLIP | {
    "WARMUP_EPOCHS": 3, "WEIGHT_DECAY": 0.01, "BASE_LR": 2e-3, "WARMUP_START_LR": 2e-4, "END_LR": 2e-4,
    "LINEAR_SCALED_LR": None, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.9996,
}  # fmt: skip


def per_stage(default: tuple[Any, ...], meaning: str) -> Any:
    """A key with a list of as many values as `default`."""
    return option(default, meaning, min_length=len(default), max_length=len(default))


def arguments(*keys: str, dropout: str = "", **renamed: str) -> Callable[[Model, Data], Values]:
    """The rule that makes arguments of a constructor from the section MODEL.

    keys: words, the arguments and the keys of the same names, "cnn.dim" for the key DIM of the section CNN; "img_size"
    is DATA.IMAGE_SIZE. renamed: arguments with other names. dropout: words, the arguments that are DROPOUT; PaddleViT
    has none before the head.
    """
    words = " ".join(keys).split()
    paths = {word.rpartition(".")[2]: word for word in words} | renamed | dict.fromkeys(dropout.split(), "dropout")

    def build(model: Model, data: Data) -> Values:
        values = {name: attrgetter(path)(model) for name, path in paths.items() if name != "img_size"}
        if "img_size" in paths:
            values["img_size"] = data.image_size
        if dropout:
            values["drop_rate"] = 0.0
        return values

    return build


@dataclass(frozen=True)
class Family:
    """A family of PaddleViT's, built by timm: the attribute `family` of its section MODEL, whose `type` names it.

    arguments: the options -> arguments of that name or class, without the number of classes and input channels. They
        override the arguments that all families share, such as drop_rate.
    droppath, data, train: MODEL.DROPPATH, and values of the sections DATA and TRAIN by key, that differ from the ones
        that most families share. From the family's `config.py` in PaddleViT, or its code.
    timm: a name of timm's, or a function of the options; None if models/build.py constructs the model.
    teacher_distils: whether TRAIN.DISTILLATION_TYPE is hard by default if TRAIN.TEACHER_WEIGHTS is given, as in a
        script of PaddleViT's for distillation.
    renames: a table of `renames_in`, applied to each name of PaddleViT's .pdparams, in this order; or a function of the
        options.
    split: pattern of a renamed tensor, with the groups before and after the name of its module -> the modules that get
        equal parts of its first axis.
    dropped: names in the .pdparams of tensors that timm computes itself; patterns for a whole name.
    norm_eps: pattern of the name of a norm -> its epsilon in PaddleViT, where timm has another one.
    computed: names of float tensors of the model that are not in the .pdparams; patterns for a whole name.
    """

    arguments: Callable[[Any, Data], Values]
    droppath: float = 0.0
    data: Values = field(default_factory=dict)
    train: Values = field(default_factory=dict)
    timm: str | Callable[[Any], str] | None = None
    teacher_distils: bool = False
    renames: str | Callable[[Any], Renames] = ""
    split: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dropped: Sequence[str] = ()
    norm_eps: Mapping[str, float] = field(default_factory=dict)
    computed: Sequence[str] = ()

    @property
    def defaults(self) -> Values:
        """ImageNet's normalization, DeiT's augmentation and schedule, and the family's own values, by dotted key."""
        sections: dict[str, Values]
        sections = {"DATA": _IMAGENET | self.data, "MODEL": {}, "TRAIN": _AUGMENTATION | _SCHEDULE | self.train}
        if self.droppath:
            sections["MODEL"] = {"DROPPATH": self.droppath}
        return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
