"""Blocks of transformers' models: their number, order, the last ones that are trained, and weights without decay."""

import yaml
from conftest import cells_of, optimizer_of, refused, slow
from pytest import mark
from torch import nn
from transformers_models import transformers_model

from configs.schema import Train
from models.blocks import blocks_of
from models.weights.names import head_names

CONFIGURATIONS = yaml.safe_load("""
vit: &vit {hidden_size: 32, num_hidden_layers: 3, num_attention_heads: 2, intermediate_size: 64, patch_size: 8,
           image_size: 64, mlp_ratio: 2}
deit: *vit
dinov2: *vit
dinov2_with_registers: *vit
dinov3_vit: *vit
ijepa: *vit
vit_msn: *vit
beit: &beit {<<: *vit, use_relative_position_bias: true}
data2vec-vision: *beit
clip: &tower {vision_config: *vit}
metaclip_2: *tower
siglip: *tower
convnext: &stages {hidden_sizes: [8, 8, 8, 16], depths: [1, 2, 1, 1], num_attention_heads: [1, 1, 1, 1], image_size: 64}
convnextv2: *stages
poolformer: *stages
pvt: *stages
pvt_v2: *stages
segformer: *stages
dinov3_convnext: {<<: *stages, depths: [2, 2, 2, 2]}
resnet: &resnet {<<: *stages, embedding_size: 8, groups_width: 8, num_groups: 4}
bit: *resnet
regnet: *resnet
swin: &windows {embed_dim: 8, depths: [1, 2], num_heads: [2, 2], window_size: 4, image_size: 64}
donut-swin: *windows
swinv2: *windows
cvt: {embed_dim: [8, 8, 8], num_heads: [1, 1, 1], depth: [1, 2, 3]}
efficientnet: {width_coefficient: 0.25, depth_coefficient: 0.5, hidden_dim: 320}
focalnet: {embed_dim: 16, hidden_sizes: [16, 32, 64, 128], depths: [2, 2, 2, 2]}
hgnet_v2: {stage_in_channels: &eights [8, 8, 8, 8], stage_mid_channels: *eights, stage_out_channels: *eights,
           hidden_sizes: *eights, stem_channels: [3, 8, 8], stage_num_blocks: [1, 2, 1, 1],
           stage_numb_of_layers: [2, 2, 2, 2]}
hiera: {embed_dim: 8, depths: [1, 2, 1], num_heads: [1, 1, 1], num_query_pool: 2, image_size: [64, 64],
        masked_unit_attention: [true, true, false]}
levit: {image_size: 64}
mobilenet_v2: {depth_multiplier: 0.25}
mobilevit: {hidden_sizes: [16, 24, 32], num_attention_heads: 2, image_size: 64}
mobilevitv2: {width_multiplier: 0.25}
textnet: {conv_layer_kernel_sizes: [[[3, 3]], [[3, 3], [1, 3]]], conv_layer_strides: [[1], [2, 1]],
          hidden_sizes: [8, 8, 8], stem_out_channels: 8}
""")
# Read in the sources of transformers 5.24: the blocks, as lists with the number in each; parts of the names after the
# last block; parts of names between blocks, each with the number of the block before it; ends of the names of weights
# of several dimensions that do not decay, as in timm's models.
FAST = """
focalnet | focalnet.encoder.stages.*.layers 2 2 2 2 | focalnet.layernorm | 0.down 2, 1.down 4, 2.down 6 |
hgnet_v2 | encoder.stages.*.blocks 1 2 1 1 | | 1.down 1, 2.down 3, 3.down 4 |
pvt | pvt.encoder.block.* 1 2 1 1 | encoder.layer_norm | ings.1 1, ings.2 3, ings.3 4 | cls_token position_embeddings
swinv2 | swinv2.encoder.layers.*.blocks 1 2 | swinv2.layernorm | 0.down 1 | logit_scale mlp.0.weight mlp.2.weight
"""
OTHERS = """
beit | beit.layers 3 | pooler | | cls_token bias_table
bit | bit.encoder.stages.*.layers 1 2 1 1 | bit.norm | |
clip | vision_model.encoder.layers 3 | post_layernorm | | position_embedding.weight
convnext | convnext.encoder.stages.*.layers 1 2 1 1 | convnext.layernorm | 1.down 1, 2.down 3, 3.down 4 |
convnextv2 | convnextv2.encoder.stages.*.layers 1 2 1 1 | 2.layern | 1.down 1, 2.down 3, 3.down 4 | grn.weight grn.bias
cvt | cvt.encoder.stages.*.layers 1 2 3 | layernorm | 1.embedding 1, 2.embedding 3, cls_token 3 | cls_token
data2vec-vision | data2vec_vision.encoder.layer 3 | pooler | | cls_token bias_table
deit | deit.layers 3 | deit.layernorm | | cls_token distillation_token position_embeddings
dinov2 | dinov2.encoder.layer 3 | dinov2.layernorm | | cls_token mask_token position_embeddings
dinov2_with_registers | dinov2_with_registers.encoder.layer 3 | rs.layernorm | | _token _tokens position_embeddings
dinov3_convnext | model.stages.*.layers 2 2 2 2 | layer_norm. | 1.down 2, 2.down 4, 3.down 6 |
dinov3_vit | model.layer 3 | norm. | | cls_token mask_token register_tokens
donut-swin | donut.encoder.layers.*.blocks 1 2 | | 0.down 1 | bias_table
efficientnet | efficientnet.encoder.blocks 10 | encoder.top_ | |
hiera | hiera.encoder.stages.*.layers 1 2 1 | pooler | | position_embeddings
ijepa | ijepa.layers 3 | ijepa.layernorm | | position_embeddings
metaclip_2 | vision_model.encoder.layers 3 | post_layernorm | | position_embedding.weight
mobilenet_v2 | mobilenet_v2.layer 16 | v2.conv_1x1 | |
mobilevit | mobilevit.encoder.layer.*.layer 1 3, mobilevit.encoder.layer.*.transformer.layer 0 0 2 4 3 | \
    4.layernorm 4.conv_p 4.fusion conv_1x1_exp | 2.down 4, 2.conv_k 4, 2.conv_1 4, 2.layernorm 6, 2.conv_p 6, \
    2.fusion 6, 3.down 6, 3.conv_k 6, 3.conv_1 6, 3.layernorm 10, 3.conv_p 10, 3.fusion 10, 4.down 10, 4.conv_k 10, \
    4.conv_1 10 |
mobilevitv2 | mobilevitv2.encoder.layer.*.layer 1 2, mobilevitv2.encoder.layer.*.transformer.layer 0 0 2 4 3 | \
    4.layernorm 4.conv_p | 2.down 3, 2.conv_k 3, 2.conv_1 3, 2.layernorm 5, 2.conv_p 5, 3.down 5, 3.conv_k 5, \
    3.conv_1 5, 3.layernorm 9, 3.conv_p 9, 4.down 9, 4.conv_k 9, 4.conv_1 9 |
poolformer | poolformer.encoder.block.* 1 2 1 1 | norm. | ings.1 1, ings.2 3, ings.3 4 |
pvt_v2 | pvt_v2.encoder.layers.*.blocks 1 2 1 1 | 3.layer_norm | 0.la 1, 1.pa 1, 1.la 3, 2.pa 3, 2.la 4, 3.pa 4 |
regnet | regnet.encoder.stages.*.layers 1 2 1 1 | | |
resnet | resnet.encoder.stages.*.layers 1 2 1 1 | | |
segformer | segformer.stages.*.blocks 1 2 1 1 | 3.layer_norm | 0.la 1, 1.pa 1, 1.la 3, 2.pa 3, 2.la 4, 3.pa 4 |
siglip | vision_model.encoder.layers 3 | post_layernorm model.head | | position_embedding.weight
swin | swin.encoder.layers.*.blocks 1 2 | swin.layernorm | 0.down 1 | bias_table
textnet | textnet.encoder.stages.*.stage 1 2 | | |
vit | vit.layers 3 | vit.layernorm | | cls_token position_embeddings
vit_msn | vit.layers 3 | vit.layernorm | | cls_token position_embeddings
"""


def small_model(kind: str, tune: str = "full") -> nn.Module:
    return transformers_model(kind, CONFIGURATIONS.get(kind, {}), 64, NUM_CLASSES=3, TUNE=tune)


def paths_in(lists: str) -> list[str]:
    """Of 'LIST NUMBER', or of 'LIST.* NUMBER NUMBER' with a number for each list."""
    pattern, *numbers = lists.split()
    paths = []
    for stage, number in enumerate(numbers):
        paths += [f"{pattern.replace('*', str(stage))}.{index}" for index in range(int(number))]
    return paths


@mark.parametrize("rows", [FAST, slow(OTHERS)])
def test_blocks_their_order_and_weights_without_decay(rows):
    for kind, lists, after, between, undecayed in cells_of(rows):
        blocks = [path for one in lists.split(", ") for path in paths_in(one)]
        model = small_model(kind)
        names = {module: path for path, module in model.named_modules()}
        assert [names[block] for block in blocks_of(model)] == blocks, kind
        numbers = {f"{path}.": number for number, path in enumerate(blocks, 1)}
        numbers |= {f"{path}.": len(blocks) + 1 for path in head_names(model)}
        numbers |= dict.fromkeys(after.split(), len(blocks))
        numbers |= {part: int(number) for part, number in (row.split() for row in between.split(", ") if row)}
        layers = {}
        for name, _ in model.named_parameters():
            layers[name] = next((number for part, number in numbers.items() if part in name), 0)
        optimizer = optimizer_of(model, Train.model_validate({"LAYER_DECAY": 0.5}))
        names = {weight: name for name, weight in model.named_parameters()}
        kept = set[str]()
        for group in optimizer.param_groups:
            for weight in group["params"]:
                assert group["lr_scale"] == 0.5 ** (len(blocks) + 1 - layers[names[weight]]), names[weight]
            if not group["weight_decay"]:
                kept |= {names[weight] for weight in group["params"] if weight.ndim > 1}
        ends = undecayed.split()
        assert {name for name in layers if ends and name.endswith(tuple(ends))} == kept, kind
        assert all(any(name.endswith(end) for name in kept) for end in ends), kind
        last = {name for name, one in small_model(kind, "last:1").named_parameters() if one.requires_grad}
        assert last == {name for name, layer in layers.items() if layer >= len(blocks)}, kind


@mark.parametrize("kind", ["levit", "mobilenet_v1"])  # the items of their lists are halves of blocks
def test_blocks_that_are_unknown_are_refused(kind):
    with refused(rf"^MODEL\.TUNE last:1: {kind} [^\n]*$"):
        small_model(kind, "last:1")
    model = small_model(kind)
    with refused(r"^TRAIN\.LAYER_DECAY: [^\n]*$"):
        optimizer_of(model, Train.model_validate({"LAYER_DECAY": 0.5}))
    for group in optimizer_of(model, Train()).param_groups:
        for name, weight in model.named_parameters():
            if any(weight is one for one in group["params"]):
                assert bool(group["weight_decay"]) == (weight.ndim > 1 and "attention_biases" not in name), name
