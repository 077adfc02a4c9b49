"""The features of a model: the input of its classifier, and how a ViT pools them (`MODEL.FEATURES`).

Legend: B images per batch, N tokens, F width of the features.
"""

from types import MethodType
from typing import Any

import torch
from torch import nn

from models.timm_model import classifiers
from utils.errors import UserError


class FeatureModel(nn.Module):
    """Images (B, C, S, S) -> the input (B, F) of the classifier of `model`, of which this is a view.

    Of timm's models it is `forward_head(forward_features(images), pre_logits=True)`, if that is one vector per image.
    Raises UserError for a model without a classifier.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.heads = model, classifiers(model)
        if not self.heads:
            raise UserError(f"{name}: this family has no classifier whose input are features; use another model")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        hook = self.heads[0].register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        try:
            self.model(images)
        finally:
            hook.remove()
        return found[0].flatten(1)

    def backbone(self) -> list[torch.Tensor]:
        """The tensors that the features depend on: all parameters and buffers except the classifier's."""
        of_head = {id(tensor) for head in self.heads for tensor in head.parameters()}
        return [tensor for tensor in (*self.model.parameters(), *self.model.buffers()) if id(tensor) not in of_head]


def pool_tokens(model: Any, kind: str, num_classes: int) -> None:
    """Makes the class token, the average of the patch tokens, or both (DINOv2's probe) the features of a ViT.

    kind: 'token', 'avg' or 'token_avg', whose features are twice as wide and get a new classifier.

    Raises:
        UserError: the model has no class token, or another head than one linear layer on pooled tokens.
    """
    first, head = getattr(model, "num_prefix_tokens", None), getattr(model, "head", None)
    if first is None or not isinstance(head, nn.Linear) or not hasattr(model, "forward_head"):
        raise UserError(f"MODEL.FEATURES {kind}: needs a ViT with one linear head; use pre_logits")
    if "token" in kind and getattr(model, "cls_token", None) is None:
        raise UserError(f"MODEL.FEATURES {kind}: this model has no class token; use avg or pre_logits")

    def forward_head(self: Any, tokens: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        parts = {"token": tokens[:, 0], "avg": tokens[:, first:].mean(dim=1)}
        norm = getattr(self, "fc_norm", nn.Identity())
        features = torch.cat([norm(parts[name]) for name in kind.split("_")], dim=-1)
        return features if pre_logits else self.head(features)

    model.forward_head = MethodType(forward_head, model)
    if kind == "token_avg":
        model.head = nn.Linear(2 * head.in_features, num_classes)
