"""Model and data options -> a model on its device: `MODEL.TYPE` -> constructor, weights, trained parameters, kernels.

A family of PaddleViT's is an entry in `configs/schema/families/`, which `build_family` reads: options -> timm's
constructor and arguments. `CONSTRUCTORS` has the families for which no name of timm's has the right arguments. The
docstrings of the functions say how the model differs from timm's of the same name.
"""

import copy
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from warnings import catch_warnings

import timm
import torch
from timm.layers import ConvNormAct, GroupNorm1
from timm.models import VisionTransformer, get_pretrained_cfg
from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg
from timm.models.convmixer import ConvMixer
from timm.models.metaformer import MetaFormer
from timm.models.mlp_mixer import Affine, GatedMlp, MixerBlock, MlpMixer, ResBlock, SpatialGatingBlock
from timm.models.mobilevit import MobileVitBlock  # its import makes the block type "mobilevit" known
from timm.models.volo import VOLO
from torch import Tensor, nn

from configs.schema import Data
from configs.schema.families.registry import FAMILIES
from configs.schema.model import Model
from configs.yaml_io import Values
from models.blocks import pool_tokens
from models.kernels import select_attention, use_fast_dropout
from models.recompute import enable_grad_checkpointing
from models.timm_model import build_timm, check_image_size, check_name, errors_of_building, shared_arguments
from models.transformers_model import build_transformers
from models.tuning import tune
from models.vit import build_vit
from models.weights.choose import EVALUATE, FINE_TUNE, Purpose, choose
from models.weights.fit import Fitted, fit_published, load_pretrained, output_layers
from models.weights.names import head_names
from models.weights.read import WeightsFile, read_weights
from utils.device import on_meta_device
from utils.errors import UserError
from utils.library_compat import init_weights_of


def build_family(options: Model, data: Data) -> nn.Module:
    """The model of `options`, by the table `FAMILIES`. Raises UserError for an option that it does not accept."""
    family = FAMILIES[options.type]
    arguments = shared_arguments(options, data) | family.arguments(options, data)
    with errors_of_building(f"MODEL.TYPE: {options.type}", data):
        name = family.timm(options) if callable(family.timm) else family.timm
        model = timm.create_model(name, **arguments) if name else CONSTRUCTORS[options.type](**arguments)
    for name, module in model.named_modules():
        for pattern, eps in family.norm_eps.items():
            if re.fullmatch(pattern, name):
                module.eps = eps
    check_image_size(model, f"MODEL.TYPE {options.type}", data)
    return model


def convmixer(activation: str, **arguments: Any) -> nn.Module:
    """timm's ConvMixer; `activation` is a class of torch.nn."""
    return ConvMixer(act_layer=getattr(nn, activation), **arguments)


def coat(**arguments: Any) -> nn.Module:
    """timm's CoaT, whose parallel blocks have an MLP for each of their three scales instead of one MLP for all."""
    model: Any = timm.create_model("coat_lite_tiny", **arguments)
    for block in model.parallel_blocks or ():
        block.mlp3, block.mlp4 = (copy.deepcopy(block.mlp2).apply(init_weights_of(model)) for _ in range(2))
    return model


def fine_tuned_mae(**arguments: Any) -> VisionTransformer:
    """timm's ViT with PaddleViT's position embedding, which is not in its weight files.

    Token p has sin(p / 10000^(j/D)) at the even positions j and the cosine of the same angle after it. The class token
    is number 0 and the patches follow row by row: one dimension, unlike the paper's two.
    """
    model: Any = timm.create_model("vit_base_patch16_224", **arguments)
    num_tokens, embed_dim = model.pos_embed.shape[1:]
    even = torch.arange(0, embed_dim, 2, dtype=torch.float64)
    angles = torch.arange(num_tokens, dtype=torch.float64)[:, None] / 10000 ** (even / embed_dim)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :embed_dim]
    model.pos_embed.requires_grad_(False).copy_(table)
    return model


class _NormThenPool(GroupNorm1):
    """(B, C, H, W) -> (B, C): a norm over channels and pixels, then the mean over the pixels."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).mean((2, 3))


def poolformer(**arguments: Any) -> nn.Module:
    """timm's PoolFormer, whose head normalizes before it pools."""
    return MetaFormer(
        global_pool="",
        output_norm=_NormThenPool,
        downsample_norm=None,
        norm_layers=GroupNorm1,
        mlp_act=nn.GELU,
        mlp_bias=True,
        res_scale_init_values=(None,) * 4,
        use_mlp_head=False,
        **arguments,
    )


def halonet(
    stages: tuple[tuple[str, ...], ...],
    widths: tuple[int, ...],
    strides: tuple[int, ...],
    num_heads: tuple[int, ...],
    block_size: int,
    halo_size: int,
    activation: str,
    **arguments: Any,
) -> nn.Module:
    """A HaloNet; `stages` are the blocks of each stage, "bottle" or "attn"; the other lists have a value per stage."""
    blocks = []
    for stage, kinds in enumerate(stages):
        # timm uses the stride of the first block of a stage, and the attention of blocks that have one.
        shape: Values = {"d": 1, "c": widths[stage], "s": strides[stage], "gs": 0, "br": 0.25}
        attention = {"block_size": block_size, "halo_size": halo_size, "num_heads": num_heads[stage]}
        shape |= {"self_attn_layer": "halo", "self_attn_kwargs": attention}
        types = ("self_attn" if kind == "attn" else kind for kind in kinds)
        blocks.append(tuple(ByoBlockCfg(type=one, **shape) for one in types))
    # timm's tiered stem of 64 channels is PaddleViT's: 24, 32, 64.
    config = ByoModelCfg(tuple(blocks), stem_chs=64, stem_type="tiered", stem_pool="maxpool", act_layer=activation)
    return ByobNet(config, **arguments)


def mobileone(
    depths: tuple[int, ...],
    widths: tuple[int, ...],
    strides: tuple[int, ...],
    num_branches: tuple[int, ...],
    use_se: bool,
    **arguments: Any,
) -> nn.Module:
    """A MobileOne; the lists have an entry per stage, the first of which is the stem.

    As in the authors' code, `use_se` adds squeeze and excitation to the last stage and the second half of the fourth.
    """
    previous = widths[0]
    stages = []
    for stage in range(1, len(depths)):
        blocks = []
        for block in range(depths[stage]):
            has_se = use_se and (stage == 4 or (stage == 3 and block >= depths[3] // 2))
            branches = num_branches[stage]
            stride = strides[stage]  # timm uses it in the first block
            blocks.append(_mobileone_block(previous, stride, has_se, gs=1, num_conv_branches=branches))
            blocks.append(_mobileone_block(widths[stage], 1, has_se, gs=0, num_conv_branches=branches, kernel_size=1))
            previous = widths[stage]
        stages.append(tuple(blocks))
    return ByobNet(ByoModelCfg(blocks=tuple(stages), stem_type="one", stem_chs=widths[0]), **arguments)


def _mobileone_block(width: int, stride: int, has_se: bool, gs: int, **block_kwargs: int) -> ByoBlockCfg:
    se: Values = {"attn_layer": "se", "attn_kwargs": {"rd_channels": width // 16}} if has_se else {}
    return ByoBlockCfg(type="one", d=1, c=width, s=stride, gs=gs, block_kwargs=block_kwargs, **se)


def mobilevit(dims: tuple[int, ...], transformer_dims: tuple[int, ...], **arguments: Any) -> nn.Module:
    """A MobileViT whose inverted residuals expand 4 times, with a norm and an activation after each convolution.

    dims: channels of the stem, the 7 inverted residuals and the last convolution.
    """
    depths = (2, 4, 3)  # in PaddleViT, for any DEPTHS
    transformers = []
    for width, transformer_dim, depth in zip(dims[5:8], transformer_dims, depths, strict=True):
        kwargs = {"transformer_dim": transformer_dim, "transformer_depth": depth, "patch_size": 2, "num_heads": 8}
        transformer = ByoBlockCfg(type="mobilevit", d=1, c=width, s=1, block_kwargs=kwargs)
        transformers.append((_residual(width, stride=2), transformer))
    first = (_residual(dims[1], stride=1),)
    second = (_residual(dims[2], stride=2), _residual(dims[3], stride=1), _residual(dims[4], stride=1))
    config = ByoModelCfg(
        blocks=(first, second, *transformers),
        stem_chs=dims[0],
        stem_type="3x3",
        stem_pool="",
        downsample="",
        act_layer="silu",
        num_features=dims[8],
    )
    model = ByobNet(config, **arguments)
    for block in (module for module in model.modules() if isinstance(module, MobileVitBlock)):
        plain = block.conv_1x1
        block.add_module("conv_1x1", ConvNormAct(plain.in_channels, plain.out_channels, 1, act_layer=nn.SiLU))
    return model


def _residual(width: int, stride: int) -> ByoBlockCfg:
    kwargs = {"bottle_in": True, "linear_out": True}
    return ByoBlockCfg(type="bottle", d=1, c=width, s=stride, gs=1, br=4.0, block_kwargs=kwargs)


CONSTRUCTORS: dict[str, Callable[..., nn.Module]] = {  # where timm's names fix arguments
    "coat": coat,
    "coat_lite": coat,
    "convmixer": convmixer,
    "gatedmlp": partial(MlpMixer, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp),
    "halo": halonet,
    "mae": fine_tuned_mae,
    "mixer": partial(MlpMixer, block_layer=MixerBlock, mlp_ratio=(0.5, 4.0)),
    "mobileone": mobileone,
    "mobilevit": mobilevit,
    "poolformer": poolformer,
    "resmlp": partial(MlpMixer, block_layer=ResBlock, norm_layer=Affine),
    "volo": VOLO,
}


MODELS: dict[str, Callable[[Any, Data], nn.Module]]
MODELS = {"vit": build_vit, "timm": build_timm, "transformers": build_transformers}


def build_model(
    options: Model,
    data: Data,
    device: torch.device,
    purpose: Purpose = FINE_TUNE,
    weights_size: tuple[int, int] | None = None,
) -> tuple[nn.Module, Fitted]:
    """The model of `options` on `device`, with its pretrained weights, and how they fit it.

    weights_size: height and width of the images of the weights, see `load_pretrained`.
    Raises UserError: the model cannot be built, or the weights do not fit it.
    """
    model = _construct(options, data)
    fitted = Fitted()
    if options.pretrained == "timm":
        fitted = fit_published(model, options, purpose)
    elif options.pretrained:
        try:
            fitted = load_pretrained(model, options.pretrained, options, purpose, weights_size)
        except UserError as error:
            size = _size_that_fits(model, options, data, purpose, weights_size)
            if not size:
                raise
            problem = f"are weights of another image size than {data.image_size}, to which timm does not resize them"
            raise UserError(f"{options.pretrained}: {problem}; give -image_size={size}") from error
    if not purpose.needs_head:
        tune(model, options)
    if options.grad_checkpointing is True:
        enable_grad_checkpointing(model, options.name)
    select_attention(model, options.attention, device)
    if device.type == "cpu":
        use_fast_dropout(model)
    return model.to(device), fitted


def _size_that_fits(
    model: nn.Module, options: Model, data: Data, purpose: Purpose, weights_size: tuple[int, int] | None
) -> str:
    """-image_size of the weights, or of timm's, if they fit the model at that size; '' if they fit at neither."""
    published = getattr(model, "default_cfg", None) or {}
    for size in (weights_size, tuple(published.get("input_size", ()))[1:]):
        if not size or size == data.input_size:  # other errors do not read the weights again
            continue
        with suppress(Exception), catch_warnings(action="ignore"):  # of many types, by family
            other = build_on_meta(options, data.changed(image_size=size))
            load_pretrained(other, str(options.pretrained), options, purpose, size)
            return ",".join(map(str, dict.fromkeys(size)))
    return ""


def outputs_of_weights(options: Model, data: Data, weights: WeightsFile | None = None) -> int | None:
    """The number of outputs of the weights MODEL.PRETRAINED; None if they have no head. Builds no tensor.

    Raises UserError: as `build_model`.
    """
    if options.pretrained == "timm":
        check_name(options.name)
        published = get_pretrained_cfg(options.name)
        if not published:
            return None
        return published.num_classes or None
    model = build_on_meta(options, data)
    state = choose(weights or read_weights(str(options.pretrained)), model, options, EVALUATE).state
    names = (f"{layer}.weight" for head in head_names(model) for layer in output_layers(model, head))
    return next((state[name].shape[0] for name in names if name in state), None)


def build_on_meta(options: Model, data: Data) -> nn.Module:
    """The model without memory and weights. Raises UserError: as `build_model`."""
    with on_meta_device():
        return _construct(options.changed(pretrained=None), data)


def _construct(options: Model, data: Data) -> nn.Module:
    model = MODELS.get(options.type, build_family)(options, data)
    if options.features != "pre_logits":
        pool_tokens(model, options.features, options.num_logits)
    return model
