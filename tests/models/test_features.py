"""The features of a model: timm's pre_logits, and other choices of the tokens of a ViT."""

import copy

import pytest
import timm
import torch

from configs.reading.command_line import parse_command_line
from models.build import build_model
from models.features import FeatureModel, pool_tokens
from utils.errors import UserError

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
NAMES = ["test_vit", "test_convnext", "test_resnet", "deit_tiny_patch16_224"]


@pytest.mark.parametrize("name", NAMES)
def test_features_are_timms_pre_logits(name):
    images = torch.nn.functional.interpolate(IMAGES, 224 if "224" in name else 160)
    model = timm.create_model(name, num_classes=5).eval()
    with torch.inference_mode():
        features = FeatureModel(model, name)(images)
        expected = model.forward_head(model.forward_features(images), pre_logits=True)
        assert torch.equal(features, expected.flatten(1))
        assert torch.equal(model.get_classifier()(features), model(images))


def tiny_vit(features: str, *options: str) -> torch.nn.Module:
    tiny = ["MODEL.EMBED_DIM=24", "MODEL.DEPTH=2", "MODEL.NUM_HEADS=3", "MODEL.NUM_CLASSES=5"]
    config = parse_command_line(["-image_size=32", "-opts", *tiny, f"MODEL.FEATURES={features}", *options]).config
    torch.manual_seed(0)
    return build_model(config.model, config.data, torch.device("cpu"))[0].eval()


@pytest.mark.parametrize(("features", "width"), [("token", 24), ("avg", 24), ("token_avg", 48)])
def test_tokens_of_a_vit(features, width):
    model = tiny_vit(features)
    with torch.inference_mode():
        tokens = model.forward_features(IMAGES)
        parts = {"token": tokens[:, 0], "avg": tokens[:, 1:].mean(1)}
        found = FeatureModel(copy.deepcopy(model), "vit")(IMAGES)
        assert found.shape == (2, width) and model(IMAGES).shape == (2, 5)
        assert torch.equal(found, torch.cat([parts[name] for name in features.split("_")], dim=1))
        copied = copy.deepcopy(model)
        copied.head.weight.data.fill_(1.0)  # the copy uses its own head
        torch.testing.assert_close(copied(IMAGES), found.sum(1, keepdim=True) + copied.head.bias)


def test_pooling_that_a_model_lacks_is_refused():
    with pytest.raises(UserError, match=r"MODEL.FEATURES token: this model has no class token"):
        tiny_vit("token", "MODEL.GLOBAL_POOL=avg")
    with pytest.raises(UserError, match=r"MODEL.FEATURES avg: needs a ViT"):
        pool_tokens(timm.create_model("test_resnet"), "avg", 5)
    with pytest.raises(UserError, match="no classifier"):
        FeatureModel(torch.nn.Linear(3, 3), "linear")
