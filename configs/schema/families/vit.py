"""PaddleViT's ViT, and the models of timm by name."""

from typing import Any, Literal

from pydantic import model_validator

from configs.schema.model import Model
from configs.schema.section import option


class PlainTransformer(Model):
    """Keys of a transformer whose blocks all have the same size."""

    patch_size: int = option(16, "height and width of a patch, pixels", ge=1)
    embed_dim: int = option(768, "channels of a token", ge=1)
    num_heads: int = option(12, "attention heads per block", ge=1)
    depth: int = option(12, "number of blocks", ge=1)
    mlp_ratio: float = option(4.0, "hidden channels of the MLP / EMBED_DIM", gt=0)
    qkv_bias: bool = option(True, "bias in the query, key and value projections")

    @property
    def image_size_multiple(self) -> int:
        return self.patch_size

    @model_validator(mode="after")
    def _check(self) -> "PlainTransformer":
        if getattr(self, "attn_head_size", None) is None and self.embed_dim % self.num_heads:
            raise ValueError(
                f"EMBED_DIM {self.embed_dim} is not a multiple of NUM_HEADS {self.num_heads}; change one of them"
            )
        return self


class ViT(PlainTransformer):
    type: Literal["vit"] = option("vit", "the family of the model: see registry.py")
    attn_head_size: int | None = option(None, "channels per head; null: EMBED_DIM / NUM_HEADS", ge=1)
    global_pool: Literal["token", "avg"] = option(
        "token", "input of the head: the class token, or the mean of the patches (without a class token)"
    )
    pos_embed: Literal["learned", "sincos2d"] = option(
        "learned", "position embedding: learned, or fixed sines and cosines"
    )
    stem: str | None = option(None, "timm network, such as resnet10t: features of stride PATCH_SIZE are the patches")
    init_values: float | None = option(None, "initial value of the layer scale; null: no layer scale", gt=0)

    @model_validator(mode="after")
    def _check_embeddings(self) -> "ViT":
        if self.pos_embed == "sincos2d" and self.embed_dim % 4:
            raise ValueError(f"POS_EMBED sincos2d needs an EMBED_DIM that is a multiple of 4, not {self.embed_dim}")
        if self.stem and self.patch_size not in (8, 16, 32):
            raise ValueError(f"STEM {self.stem} needs a PATCH_SIZE of 8, 16 or 32, not {self.patch_size}")
        return self


# Arguments of timm's models that have a key of their own.
OWN_KEYS = {
    "num_classes": "MODEL.NUM_CLASSES", "img_size": "DATA.IMAGE_SIZE", "in_chans": "DATA.IMAGE_CHANNELS",
    "drop_rate": "MODEL.DROPOUT", "drop_path_rate": "MODEL.DROPPATH", "attn_drop_rate": "MODEL.ATTENTION_DROPOUT",
}  # fmt: skip


class TimmModel(Model):  # type: ignore[no-redef]  # pydantic's plugin, on a field that is called kwargs
    type: Literal["timm"] = option("timm", "the timm model NAME")
    kwargs: dict[str, Any] | None = option(
        None, "other arguments of the model's class, such as {reg_tokens: 4, qk_norm: true}"
    )
