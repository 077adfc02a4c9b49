"""Gradient checkpointing saves memory. Gradients, random numbers and running statistics are identical."""

import pytest
import torch
from conftest import ROOT, assert_same_state
from torch import nn

from configs.command_line import parse_command_line
from engine.precision.policy import Precision
from models.build import build_model

CPU = torch.device("cpu")
RANDOM = ["MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.1", "MODEL.DROPPATH=0.3"]
VIT = ["MODEL.EMBED_DIM=24", "MODEL.DEPTH=4", "MODEL.NUM_HEADS=3", "MODEL.NUM_CLASSES=5", *RANDOM]
LISTS = ["AMP.CUSTOM_BLACK_LIST=[softmax, gelu, blocks.2.*]", "AMP.CUSTOM_WHITE_LIST=[layer_norm]"]
CASES = {
    "fp32": VIT,
    "O1, op lists": [*VIT, "AMP.ENABLED=true", *LISTS],
    "O3, op lists": [*VIT, "AMP={ENABLED: true, LEVEL: O3}", *LISTS],
    "frozen backbone": [*VIT, "MODEL.TUNE=head"],
    "convolutions": ["MODEL={TYPE: timm, NAME: resnet18, NUM_CLASSES: 5, DROPPATH: 0.1}"],
}


def training_pass(options: list[str], checkpointing: bool) -> tuple[dict, int]:
    """Gradients, buffers and the next random number after a pass, and the bytes that the forward pass saved."""
    argv = ["-image_size=32", "-opts", *options, f"MODEL.GRAD_CHECKPOINTING={str(checkpointing).lower()}"]
    config = parse_command_line(argv).config
    torch.manual_seed(0)
    model, _ = build_model(config.model, config.data, CPU)
    for head in (module for module in (model.get_classifier(),) if isinstance(module, nn.Linear)):
        nn.init.normal_(head.weight)
    precision = Precision(config.amp, CPU)
    precision.apply_op_lists(model)
    model = precision.compute_copy(model).train()
    images, saved = torch.randn(16, 3, 32, 32), {}
    torch.manual_seed(1)

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor  # kept, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), precision.autocast():
        logits = model(images)
    logits.float().logsumexp(1).square().sum().backward()
    state = {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
    state |= dict(model.named_buffers()) | {"random": torch.rand(1), "logits": logits}
    return state, sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_bit_identical_and_less_is_saved(case):
    plain, plain_bytes = training_pass(CASES[case], checkpointing=False)
    checkpointed, checkpointed_bytes = training_pass(CASES[case], checkpointing=True)
    assert_same_state({k: v for k, v in checkpointed.items() if v is not None},
                      {k: v for k, v in plain.items() if v is not None})  # fmt: skip
    assert plain.keys() == checkpointed.keys()
    if "frozen" not in case:
        assert checkpointed_bytes < 0.5 * plain_bytes


@pytest.mark.parametrize("family", ["SwinTransformer", "PVTv2", "LeViT", "CaiT"])
def test_gradients_and_statistics_of_families_are_bit_identical(family):
    """Without a class token, with convolutions, with batch norm and two heads, with class attention."""
    recipe, results = ROOT / "tests/fixtures/families" / family / "model.yaml", []
    for checkpointing in ("false", "true"):
        options = [f"MODEL.GRAD_CHECKPOINTING={checkpointing}", "MODEL.DROPPATH=0.2"]
        options += ["MODEL.DISTILLED=true"] * (family == "LeViT")
        config = parse_command_line([f"-cfg={recipe}", "-opts", *options]).config
        torch.manual_seed(0)
        model, _ = build_model(config.model, config.data, CPU)
        for layer in (module for module in model.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(layer.weight, std=0.1)
        model.train()(torch.randn(2, 3, config.data.image_size, config.data.image_size)).square().sum().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        results.append(gradients | dict(model.named_buffers()))
    assert_same_state(*results)
