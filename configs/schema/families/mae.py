"""MAE (He et al., 2021), fine-tuning: ViT with PaddleViT's fixed position embedding. Pre-training is not available."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from configs.schema.families.deit import RENAMES as DEIT_RENAMES
from configs.schema.families.family import CROP_AND_FLIP, DROPOUTS, Family, arguments, family_defaults
from configs.schema.model import Model
from configs.schema.section import Probability, Section


class Encoder(Section):
    embed_dim: int = Field(768, ge=1, description="channels of a token")
    depth: int = Field(12, ge=1, description="number of blocks")
    num_heads: int = Field(12, ge=1, description="attention heads per block")


class Trans(Section):
    patch_size: int = Field(16, ge=1, description="height and width of a patch, pixels")
    mlp_ratio: float = Field(4.0, gt=0, description="hidden channels of the MLP / EMBED_DIM")
    qkv_bias: bool = Field(True, description="bias in the query, key and value projections")
    mask_ratio: Probability = Field(0.75, description="for pre-training: not used")
    encoder: Encoder = Encoder()
    decoder: Annotated[None, BeforeValidator(lambda sizes: None)] = Field(
        None, description="the decoder of MAE's pre-training: not used"
    )


class MAE(Model):
    type: Literal["mae"] = "mae"
    mae_pretrain: bool = Field(False, description="MAE's pre-training: not available")
    trans: Trans = Trans()

    @field_validator("mae_pretrain")
    @classmethod
    def _refuse(cls, pre_trains: bool) -> bool:
        if pre_trains:
            raise ValueError("pre-training is not available; set it to false")
        return pre_trains

    @property
    def image_size_multiple(self) -> int:
        return self.trans.patch_size


MAE_FINETUNING = Family(
    "MAE",
    MAE,
    timm="models.families.mae:fine_tuned_mae",
    arguments=arguments(
        *("img_size", "trans.patch_size", "trans.encoder.embed_dim", "trans.encoder.depth", "trans.encoder.num_heads"),
        *("trans.mlp_ratio", "trans.qkv_bias"),
        dropout=DROPOUTS,
    ),
    defaults=family_defaults(
        data={"RANDOM_CROP_SCALE": (0.05, 1.0)},
        train={
            **CROP_AND_FLIP,
            "NUM_EPOCHS": 800,
            "WARMUP_EPOCHS": 40,
            "BASE_LR": 1.5e-4,
            "LINEAR_SCALED_LR": 256,
            "OPTIMIZER": {"BETAS": (0.9, 0.95)},
            "RAND_AUGMENT_LAYERS": 9,
            "RAND_AUGMENT_MAGNITUDE": 5,
        },
    ),
    renames=[(r"^patch_embedding\.cls_token$", "cls_token"), *DEIT_RENAMES],
    computed=["pos_embed"],
    corrections=[
        "MODEL.NUM_CLASSES has an effect; PaddleViT's MAE ignores it and has 1000 classes",
        "TRAIN.RAND_AUGMENT_LAYERS and RAND_AUGMENT_MAGNITUDE have an effect; PaddleViT's MAE always uses 2 and 9",
    ],
    differs="a fixed position embedding by the number of the token, as in PaddleViT, in place of a learned one",
)
