"""MODEL.STEM: a ViT whose patches are embedded by the stages of a convolutional network of timm's."""

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay

from configs.reading.command_line import parse_command_line
from models.build import build_model
from utils.errors import UserError

TINY = [
    "MODEL.STEM=resnet10t", "MODEL.EMBED_DIM=24", "MODEL.DEPTH=2", "MODEL.NUM_HEADS=3", "MODEL.NUM_CLASSES=5",
    "MODEL.GLOBAL_POOL=avg", "MODEL.INIT_VALUES=0.1",
]  # fmt: skip


def stem_model(*options: str) -> timm.models.VisionTransformer:
    config = parse_command_line(["-image_size=64", "-opts", *TINY, *options]).config
    return build_model(config.model, config.data, torch.device("cpu"))[0]


@pytest.mark.parametrize("stride", [8, 32])
def test_tokens_are_the_features_of_the_network_projected(stride):
    embed = stem_model(f"MODEL.PATCH_SIZE={stride}").patch_embed.eval()
    network = timm.create_model("resnet10t", num_classes=0, output_stride=stride).eval()
    network.load_state_dict(embed.network.state_dict())
    images = torch.randn(2, 3, 64, 64)
    features = network.forward_features(images)
    tokens = features.flatten(2).mT @ embed.proj.weight.flatten(1).T + embed.proj.bias
    assert embed.num_patches == tokens.shape[1] == (64 // stride) ** 2
    torch.testing.assert_close(embed(images), tokens)


def test_last_blocks_train_without_the_stem():
    model = stem_model("MODEL.TUNE=last:1")
    trained = {name.split(".")[0] + name.split(".")[1] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"blocks1", "fc_normweight", "fc_normbias", "headweight", "headbias"}


def test_layer_decay_puts_the_stem_into_the_first_layer():
    model = stem_model()
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    scale_of = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    assert {scale_of[id(p)] for p in model.patch_embed.parameters()} == {min(scale_of.values())} == {0.5**3}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["MODEL.STEM=resnet10"], "resnet10t"),
        (["MODEL.STEM=resnet10t", "MODEL.PATCH_SIZE=4"], "PATCH_SIZE of 8, 16 or 32"),
        (["MODEL.STEM=levit_128s"], "levit_128s has no features of stride 16"),
    ],
)
def test_a_network_that_does_not_fit(options, named):
    with pytest.raises(UserError, match=named):
        stem_model(*options)
