"""What is trained: `MODEL.TYPE` -> constructor."""

import torch
from torch import nn

from configs.schema import Config
from models.attention import EXPLICIT, use_attention
from models.dropout import use_fast_dropout
from models.timm_model import build_timm
from models.vit import build_vit
from models.weights.load import load_pretrained
from utils.errors import UserError

MODELS = {"vit": build_vit, "timm": build_timm}


def build_model(config: Config, device: torch.device) -> tuple[nn.Module, list[str]]:
    """The model of `config.model` on its device, with its pretrained weights, and what to say of those in the log.

    Raises:
        UserError: the model cannot be built or the weights do not fit it.
    """
    model = MODELS[config.model.type](config)
    notes: list[str] = []
    if config.model.pretrained and not (config.model.type == "timm" and config.model.pretrained == "timm"):
        notes = load_pretrained(model, config.model.pretrained, needs_head=config.eval)
    if config.model.freeze_backbone:
        freeze_backbone(model)
    return place(model, device), notes


def place(model: nn.Module, device: torch.device) -> nn.Module:
    """The model on its device, with the attention that mostly is faster there, and a dropout that is.

    On a CPU that is the explicit one: torch's fused kernels took 1.0 (fp32) to 3 times (bf16) as long for ViT's shapes.
    """
    if device.type == "cpu":
        use_attention(model, EXPLICIT)
        use_fast_dropout(model)
    return model.to(device)


def freeze_backbone(model: nn.Module) -> None:
    """Leaves only the head trainable.

    Raises:
        UserError: the model has no head with parameters.
    """
    model.requires_grad_(False)
    for head in _heads(model):
        head.requires_grad_(True)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("MODEL.FREEZE_BACKBONE: this model has no head to train")


def set_training(model: nn.Module, backbone_is_frozen: bool) -> None:
    """Training mode; a frozen backbone stays in evaluation mode, so that its dropout and statistics rest too."""
    model.train(not backbone_is_frozen)
    if backbone_is_frozen:
        for head in _heads(model):
            head.train()


def _heads(model: nn.Module) -> tuple[nn.Module, ...]:
    """One, or the two of a distilled model."""
    classifier = model.get_classifier()
    return classifier if isinstance(classifier, tuple) else (classifier,)
