"""The ViT: its stem, drop-path without computation of dropped samples, its initial weights."""

import timm
import torch
from conftest import cli, config_for, each_value, model_for, values_of
from pytest import approx, mark
from timm import create_model
from torch import nn
from torch.testing import assert_close

from models.vit import SampleDropBlock, add_residual, num_kept_samples

B = 16
C = 8
X = torch.randn(B, 5, C)


DROPPED = """
rate | of_attention | of_mlp
0.0 | false | false
0.099 | false | false
0.1 | true | false
0.199 | true | false
0.2 | true | true
"""


@each_value(DROPPED)
def test_samples_are_dropped_from_a_rate_on(rate, of_attention, of_mlp):
    assert SampleDropBlock(C, num_heads=2, drop_path=rate).drops_samples == (of_attention, of_mlp)


def test_number_of_kept_samples():
    assert [num_kept_samples(32, rate) for rate in (0.0, 0.04, 0.1, 0.5)] == [None, None, 29, 16]
    for batch_size in (1, 2, 3):
        assert all(num_kept_samples(batch_size, rate) in (None, 1) for rate in (0.1, 0.5, 0.7, 0.9, 1.0))


def test_training_keeps_half():
    torch.manual_seed(0)
    changed = (SampleDropBlock(C, num_heads=2, drop_path=0.5)(X) != X).flatten(1).any(1)
    assert B / 2 <= changed.sum() < B  # by one branch or both


def test_only_kept_samples_have_gradients():
    torch.manual_seed(0)
    branch = nn.Linear(C, C)
    x = X.clone().requires_grad_()
    seen = []
    output = add_residual(x, lambda part: (seen.append(part), branch(part))[1], 6)
    chosen = [next(i for i in range(B) if torch.equal(x[i], part)) for part in seen[0]]
    output.sum().backward()
    with_branch = (x.grad != 1).flatten(1).any(1)
    assert sorted(chosen) == with_branch.nonzero().flatten().tolist()
    assert len(chosen) == 6
    assert torch.allclose(branch.weight.grad[0], x[chosen].sum((0, 1)) * B / 6, atol=1e-5)


def test_a_branch_in_half_does_not_round_the_stream():
    assert add_residual(X, lambda part: part.half(), 8).dtype == torch.float32
    assert add_residual(X.half(), lambda part: part, 8).dtype == torch.float16


STEM = cli(
    "MODEL.STEM=resnet10t MODEL.EMBED_DIM=24 MODEL.DEPTH=2 MODEL.NUM_HEADS=3 "
    "MODEL.NUM_CLASSES=5 MODEL.GLOBAL_POOL=avg MODEL.INIT_VALUES=0.1"
)


def stem_model(*options: str) -> timm.models.VisionTransformer:
    return model_for(config_for("-image_size=64", "-opts", *STEM, *options))[0]


@mark.parametrize("stride", [8, 32])
def test_tokens_are_the_features_of_the_network_projected(stride):
    embed = stem_model(f"MODEL.PATCH_SIZE={stride}").patch_embed.eval()
    network = create_model("resnet10t", num_classes=0, output_stride=stride).eval()
    network.load_state_dict(embed.network.state_dict())
    images = torch.randn(2, 3, 64, 64)
    features = network.forward_features(images)
    tokens = features.flatten(2).mT @ embed.proj.weight.flatten(1).T + embed.proj.bias
    assert embed.num_patches == tokens.shape[1] == (64 // stride) ** 2
    assert_close(embed(images), tokens)


WIDE = cli("MODEL.EMBED_DIM=256 MODEL.DEPTH=1 MODEL.NUM_HEADS=4 DATA.IMAGE_SIZE=64 MODEL.PATCH_SIZE=8")


XAVIER = """
patch_embed.proj | 448
blocks.0.attn.qkv | 512
blocks.0.attn.proj | 512
head | 356
"""


def test_bounds_and_deviations():
    """Xavier uniform: within sqrt(6 / (inputs + outputs)); queries, keys and values are three matrices."""
    config = config_for("-opts", *WIDE, "MODEL.NUM_CLASSES=100")
    torch.manual_seed(0)
    vit, _ = model_for(config)
    for name, sides in values_of(XAVIER):
        weight = vit.get_submodule(name).weight
        bound = (6 / sides) ** 0.5
        assert 0.99 * bound < weight.abs().max().item() <= bound * (1 + 1e-6)
        assert weight.std().item() == approx(bound / 3**0.5, rel=0.02)
    assert vit.pos_embed.std().item() == approx(256**-0.5, rel=0.03)
    assert vit.blocks[0].mlp.fc1.weight.std().item() == approx((2 / (5 * 256)) ** 0.5, rel=0.03)
