"""What each value of MODEL.TUNE trains; the frozen part has no graph and keeps no activations."""

import weakref

import pytest
import torch
from torch import nn

from configs.reading.command_line import parse_command_line
from models.build import build_model
from models.tuning.frozen import set_training
from utils.errors import UserError

VIT = ["MODEL.EMBED_DIM=24", "MODEL.DEPTH=4", "MODEL.NUM_HEADS=3", "MODEL.NUM_CLASSES=5"]
NORM_AND_HEAD = {"norm.weight", "norm.bias", "head.weight", "head.bias"}


def tuned_model(*options: str, size: int = 32, device: str = "cpu") -> nn.Module:
    """In training mode."""
    config = parse_command_line([f"-image_size={size}", "-opts", *options]).config
    torch.manual_seed(0)
    model, _ = build_model(config.model, config.data, torch.device(device))
    set_training(model, config.model.tuned)
    return model


def trained(model: nn.Module) -> set[str]:
    """The first two parts of the names of trained parameters."""
    return {".".join(name.split(".")[:2]) for name, value in model.named_parameters() if value.requires_grad}


class Kept:
    """A tensor that a graph keeps."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def kept_bytes(model: nn.Module, images: torch.Tensor) -> int:
    """The activations that are kept for the backward pass."""
    kept, weights = weakref.WeakSet(), {tensor.untyped_storage()._cdata for tensor in model.state_dict().values()}

    def pack(tensor: torch.Tensor) -> Kept:
        kept.add(one := Kept(tensor))
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
        loss = model(images).sum()
    storages = {one.tensor.untyped_storage()._cdata: one.tensor.untyped_storage() for one in kept}
    loss.backward()
    return sum(storage.nbytes() for address, storage in storages.items() if address not in weights)


def test_last_blocks_and_the_norm_after_them_are_trained():
    model = tuned_model(*VIT, "MODEL.TUNE=last:2", "MODEL.DROPOUT=0.5")
    assert trained(model) == NORM_AND_HEAD | {"blocks.2", "blocks.3"}
    modes = {path: module.training for path, module in model.named_modules()}
    assert modes["blocks.3.attn.proj_drop"] and modes["norm"] and modes["head_drop"] and modes["head"]
    assert not (modes["pos_drop"] or modes["blocks.1"] or modes["blocks.1.attn.proj_drop"])


@pytest.mark.parametrize(
    ("name", "tune", "expected"),
    [
        ("swin_tiny_patch4_window7_224", "last:3", {"layers.2", "layers.3", "norm.weight", "norm.bias", "head.fc"}),
        ("resnet18", "last:2", {"layer4.0", "layer4.1", "fc.weight", "fc.bias"}),
        ("xcit_nano_12_p16_224", "last:1", {"cls_attn_blocks.1", *NORM_AND_HEAD}),
    ],
)
def test_blocks_are_those_of_the_group_matcher(name, tune, expected):
    with torch.device("meta"):
        model = tuned_model(f"MODEL={{TYPE: timm, NAME: {name}, TUNE: '{tune}'}}", size=224, device="meta")
    assert trained(model) == expected


@pytest.mark.parametrize("extra", [(), ("MODEL.GRAD_CHECKPOINTING=true",)])
def test_activations_are_kept_for_the_trained_blocks_only(extra):
    """head: the input of the head, a view of all tokens. last:1: of one of four blocks, too."""
    images = torch.randn(4, 3, 32, 32)
    full, last, head = (kept_bytes(tuned_model(*VIT, *extra, tune), images)
                        for tune in ("MODEL.TUNE=full", "MODEL.TUNE=last:1", "MODEL.TUNE=head"))  # fmt: skip
    assert head == 4 * 5 * 24 * 4
    assert head < last < full / 4


REFUSED = {
    "last:5": ([*VIT, "MODEL.TUNE=last:5"], r"last:5: vit has 4 blocks"),
    "no matcher": (["MODEL={TYPE: timm, NAME: pit_ti_224, TUNE: 'last:1'}"], r"last:1: pit_ti_224 .*group_matcher"),
    "no blocks": (["MODEL={TYPE: timm, NAME: resnet18, TUNE: lora}"], r"lora: resnet18 has no linear layers"),
    "rank": ([*VIT, "MODEL.TUNE=lora", "MODEL.LORA.RANK=25"], r"RANK 25: blocks\.0\.attn\.qkv is only 24 wide"),
    "target": ([*VIT, "MODEL.TUNE=lora", "MODEL.LORA.TARGETS=[qvk]"], r"TARGETS: qvk .* qkv"),
    "head": ([*VIT, "MODEL.TUNE=lora", "MODEL.LORA.TARGETS=head"], r"TARGETS: head "),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_tuned_is_refused(case):
    options, line = REFUSED[case]
    with pytest.raises(UserError, match=line), torch.device("meta"):
        tuned_model(*options, size=224, device="meta")
