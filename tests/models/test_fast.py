"""The contract of fast paths: a model keeps those that leave its logits equal, and a proof leaves no trace."""

import copy
from collections import Counter
from functools import partial

import torch
from conftest import CPU, cells_of
from dispatch import DispatchMode, op_name
from pytest import mark, raises
from timm import create_model
from timm.layers import StdConv2d
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

from models.fast import ATTENTION, CHANNELS_LAST, NORMS, noise, prepare_convolutions, use_fast_paths
from models.kernels import EXPLICIT, use_attention

ALL = (ATTENTION, CHANNELS_LAST, NORMS)


def randomized(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, with explicit attention and random scales and statistics of its batch norms."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_var is not None:
            for scale, shift in ((module.weight, module.bias), (module.running_var, module.running_mean)):
                scale.data.uniform_(0.5, 1.5)
                shift.data.uniform_(-0.5, 0.5)
    use_attention(model, EXPLICIT)
    return model.eval()


def tried(model: nn.Module, *names: str, size: int = 32, half: bool = False) -> str:
    """The words about fast paths; raises AssertionError if they change logits, buffers or the state of torch."""
    torch.manual_seed(1)
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=half)
    images = torch.randn(4, 3, size, size)
    with torch.no_grad(), autocast():
        expected = copy.deepcopy(model)(images.clone())
    buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    tolerance = 1e-2 if half else 1e-4
    text = use_fast_paths(model, names or ALL, noise((3, size, size), CPU.device), tolerance, autocast)
    assert torch.equal(torch.get_rng_state(), state)
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name][0] and torch.equal(buffer, buffers[name][1]), name
    if not getattr(model, "is_random", False):
        with torch.no_grad(), autocast():
            difference = (model(images) - expected).abs().max()
        assert not difference > 2 * tolerance * expected.abs().max()
    return text


class Net(nn.Module):
    """(B, 3, S, S) -> (B, 10). kind: what it does that a fast path has to find out.

    Weights are computed by a parametrization (weight norm, as orthogonal ones), or by a hook (spectral norm, as pruned
    ones).
    """

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.is_random = kind == "random"
        self.conv = nn.Conv2d(3, 16, 3)
        self.norm = nn.BatchNorm2d(16, track_running_stats=kind != "batch statistics")
        self.next = StdConv2d(16, 16, 3) if kind == "computed weights" else nn.Conv2d(16, 16, 3)
        self.other = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 4, 10)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("result", torch.zeros(2, 10))
        if kind == "weight norm":
            parametrizations.weight_norm(self.conv)
        elif kind == "spectral norm":
            spectral_norm(self.conv)
        elif kind == "zero head":
            nn.init.zeros_(self.fc.weight)
        elif kind == "large bias":
            nn.init.normal_(self.fc.weight, std=5.0)
            self.fc.bias.data[0] = 1000.0
        elif kind == "nan":
            nn.init.constant_(self.fc.bias.data, torch.nan)

    def forward(self, images: Tensor) -> Tensor:
        found = self.conv(images)
        x = self.norm(found).relu()
        normed = self.other(self.next(x))
        if self.kind == "read twice":
            normed = normed + found.std()
        elif self.kind == "large bias":
            normed = normed + 0.05 * (found - found.mean((2, 3), keepdim=True))[..., 2:, 2:]
        elif self.kind == "two calls":
            normed = normed + self.norm(self.conv(images.flip(-1)))[..., 2:, 2:]
        elif self.kind == "random":
            normed = normed + torch.rand(())
        elif self.kind == "state":
            self.calls += 1
            normed = normed * self.calls
        elif self.kind == "in place":
            images.mul_(2)
        pooled = nn.functional.adaptive_avg_pool2d(normed, 2)
        logits = self.fc(pooled.view(len(images), -1) if self.kind == "view" else pooled.flatten(1))
        if self.kind == "buffer as result" and len(logits) == 2:
            return self.result.copy_(logits)
        return logits


FOUND = """
plain | channels last, folded batch norms
two calls | channels last, folded batch norms
in place | channels last, folded batch norms
buffer as result | channels last, folded batch norms
read twice | channels last, folded batch norms for 1 of 2 (other logits)
large bias | channels last, folded batch norms for 1 of 2 (other logits)
computed weights | channels last, folded batch norms for 1 of 2 (other logits)
weight norm | channels last, folded batch norms for 1 of 2 (weights or statistics are computed in each pass)
batch statistics | channels last, folded batch norms for 1 of 2 (weights or statistics are computed in each pass)
spectral norm | channels last, folded batch norms for 1 of 2 (weights or statistics are computed in each pass)
random | no channels last (other logits), no folded batch norms (other logits)
state | no channels last (other logits), no folded batch norms (other logits)
zero head | no fast paths (the logits of noise do not vary)
nan | no fast paths (the logits of noise do not vary)
"""


@mark.parametrize("kind, text", cells_of(FOUND))
def test_a_model_keeps_what_leaves_its_logits_equal(kind, text):
    torch.manual_seed(0)
    assert tried(randomized(Net(kind))) == text


def test_a_view_needs_the_other_memory_format_and_trains_in_it():
    torch.manual_seed(0)
    model = randomized(Net("view"))
    assert tried(model).startswith("no channels last (view size is not compatible")
    images = noise((3, 32, 32), CPU.device)
    assert prepare_convolutions(model.train(), "auto", images).startswith("no channels last (view size")
    assert model.training and model.conv.weight.is_contiguous()
    assert model(images).shape == (2, 10)


def test_an_error_about_memory_is_raised():
    model = randomized(Net("plain"))
    model.fc.forward = lambda x: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory"))
    with raises(torch.OutOfMemoryError):
        use_fast_paths(model, ALL, noise((3, 32, 32), CPU.device), 1e-4, partial(torch.autocast, "cpu", enabled=False))


FOLDED = """
test_resnet | 0
test_efficientnet | 0  # norms with their activation
densenet121 | 62  # norms of concatenated outputs stay
test_coatnet | 2  # one output is read twice
"""
SIZED = {"test_coatnet": {"img_size": 64}}


@mark.parametrize("name, left", cells_of(FOLDED))
def test_folded_batch_norms_are_no_ops(name, left):
    """left: batch norms per pass that stay."""
    torch.manual_seed(0)
    model = randomized(create_model(name, num_classes=10, **SIZED.get(name, {})))
    tried(model, CHANNELS_LAST, NORMS, size=64)
    counts = Counter()

    class Counts(DispatchMode):
        def __torch_dispatch__(self, op, types, arguments=(), keywords=None):
            counts[op_name(op)] += 1
            return op(*arguments, **(keywords or {}))

    with torch.no_grad(), Counts():
        model(torch.randn(2, 3, 64, 64))
    assert counts["native_batch_norm"] + counts["_native_batch_norm_legit_no_training"] == int(left)
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in convolutions)
