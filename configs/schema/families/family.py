"""A model family: its keys, its defaults, its model and tensor names in timm. Pure data, without torch."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from configs.schema.data import Data
from configs.schema.model import Model

# A regular expression and its replacement, for the names of tensors.
Rename = tuple[str, str | Callable[[re.Match[str]], str]]


def shifted(before: str, after: str, by: int) -> Callable[[re.Match[str]], str]:
    """A replacement `before{N + by}after` for a pattern whose first group is the number N."""
    return lambda match: f"{before}{int(match[1]) + by}{after}"


def dropout_arguments(model: Model) -> dict[str, float]:
    """DROPOUT of PaddleViT's transformers: after the position embedding and the projections, not before the head."""
    return {"pos_drop_rate": model.dropout, "proj_drop_rate": model.dropout, "drop_rate": 0.0}


def transformer_arguments(model: Any, data: Data) -> dict[str, Any]:
    """Names and values that timm's transformers with blocks of one size have in common with PaddleViT's keys."""
    keys = ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias")
    return {"img_size": data.image_size} | {key: getattr(model, key) for key in keys} | dropout_arguments(model)


@dataclass(frozen=True)
class Family:
    """A family of PaddleViT's, built by timm.

    Attributes:
        title: as its paper writes it.
        keys: the section MODEL of the family; its `type` is a Literal of the one name of MODEL.TYPE, in lower case.
        defaults: values by section and key that differ from the general ones. From the family's `config.py` in
            PaddleViT, or its code.
        timm: a name of timm's; 'module:Class' if the name does not accept the arguments; or a function of the options.
        arguments: the options -> arguments of that name or class, without the number of classes and input channels.
            They override the arguments that all families share, such as drop_rate.
        renames: applied to each name of PaddleViT's .pdparams, in this order; or a function of the options.
        split: pattern of a renamed tensor, with the groups before and after the name of its module -> the modules that
            get equal parts of its first axis.
        dropped: names in the .pdparams of tensors that timm computes itself; patterns for a whole name.
        norm_eps: pattern of the name of a norm -> its epsilon in PaddleViT, where timm has another one.
        computed: names of float tensors of the model that are not in the .pdparams; patterns for a whole name.
        paddle_classes: the number of logits in PaddleViT's code, if it ignores NUM_CLASSES.
        ignored: options outside MODEL of the family's files, by section and key, whose only value changes nothing.
        corrections: lines for the log about defects of PaddleViT that this project does not repeat.
        differs: a line for the log about the difference from timm's model of this name; empty if there is none.
    """

    title: str
    keys: type[Model]
    timm: str | Callable[[Any], str]
    arguments: Callable[[Any, Data], dict[str, Any]]
    defaults: Mapping[str, Mapping[str, Any]]
    renames: Sequence[Rename] | Callable[[Any], Sequence[Rename]] = ()
    split: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dropped: Sequence[str] = ()
    norm_eps: Mapping[str, float] = field(default_factory=dict)
    computed: Sequence[str] = ()
    paddle_classes: int | None = None
    ignored: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    corrections: Sequence[str] = ()
    differs: str = ""

    @property
    def type(self) -> str:
        """The name in MODEL.TYPE, in lower case."""
        name: str = self.keys.model_fields["type"].default
        return name

    def timm_for(self, options: Model) -> str:
        return self.timm(options) if callable(self.timm) else self.timm

    def renames_for(self, options: Model) -> Sequence[Rename]:
        return self.renames(options) if callable(self.renames) else self.renames
