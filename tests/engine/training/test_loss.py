"""Losses: equality with torch and timm, mixed targets, padding, class weights, no wait for a GPU."""

import numpy as np
import torch
import torch.nn.functional as F
from conftest import refused, seeded
from pytest import approx, mark
from timm.data.mixup import mixup_target
from timm.loss import AsymmetricLossMultiLabel, BinaryCrossEntropy, create_classification_loss
from torch import Tensor

from configs.schema import Loss
from datasets.batch import PADDING
from datasets.sources.samples import UNKNOWN
from engine.training.loss import build_loss, read_class_weights

CPU = torch.device("cpu")
B = 6
CLASSES = 5
KINDS = [{}, {"NAME": "bce"}, {"NAME": "bce", "TARGET_THRESHOLD": 0.2}, {"NAME": "asl"}]
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 4.0, 0.25])
of_each_kind = mark.parametrize("kind", KINDS, ids=str)
with_weights = mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])


def options(**values) -> Loss:
    return Loss.model_validate(values)


def logits_and_labels() -> tuple[Tensor, Tensor]:
    generator = seeded(0)
    return torch.randn(B, CLASSES, generator=generator), torch.randint(CLASSES, (B,), generator=generator)


def several_labels() -> Tensor:
    return torch.rand((B, CLASSES), generator=seeded(1)) < 0.4


@mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@with_weights
def test_cross_entropy_is_that_of_torch(smoothing, weights):
    logits, labels = logits_and_labels()
    mixed = mixup_target(labels, CLASSES, 0.3)
    for targets in (labels, mixed):
        expected = F.cross_entropy(logits, targets, weight=weights, reduction="sum", label_smoothing=smoothing)
        assert torch.equal(build_loss(options(), smoothing, weights)(logits, targets), expected)


@mark.parametrize("smoothing", [0.0, 0.1])
@mark.parametrize("threshold", [None, 0.2])
@with_weights
def test_binary_cross_entropy_is_that_of_timm(smoothing, threshold, weights):
    """timm's mixup smooths mixed targets; timm's loss returns the mean over the batch."""
    logits, labels = logits_and_labels()
    timm_loss = BinaryCrossEntropy(smoothing, threshold, pos_weight=weights)
    loss = build_loss(options(NAME="bce", TARGET_THRESHOLD=threshold), smoothing, weights)
    assert loss(logits, labels) / B == approx(timm_loss(logits, labels).item(), rel=1e-6)
    mixed = mixup_target(labels, CLASSES, 0.3)
    smoothed = mixup_target(labels, CLASSES, 0.3, smoothing)
    assert loss(logits, mixed) / B == approx(timm_loss(logits, smoothed).item(), rel=1e-6)


@of_each_kind
@with_weights
def test_padding_does_not_count(kind, weights):
    logits, labels = logits_and_labels()
    logits.requires_grad_()
    labels[[1, 4]] = PADDING
    loss = build_loss(options(**kind), 0.1, weights)
    total = loss(logits, labels)
    kept = labels != PADDING
    assert total.item() == approx(loss(logits[kept], labels[kept]).item(), rel=1e-6)
    total.backward()
    assert (logits.grad.abs().sum(1) > 0).tolist() == kept.tolist()


@of_each_kind
def test_half_precision_logits_give_a_loss_in_fp32(kind):
    logits, labels = logits_and_labels()
    loss = build_loss(options(**kind), 0.1, WEIGHTS)
    half = logits.bfloat16()
    assert loss(half, labels).dtype == torch.float32
    assert torch.equal(loss(half, labels), loss(half.float(), labels))


@of_each_kind
def test_the_host_does_not_wait_for_a_device(kind):
    """On the meta device, an op that reads a value raises."""
    logits, labels = (tensor.to("meta") for tensor in logits_and_labels())
    for targets in (labels, torch.empty(B, CLASSES, device="meta")):
        build_loss(options(**kind), 0.1, WEIGHTS.to("meta"))(logits.requires_grad_(), targets).backward()


@mark.parametrize("smoothing", [0.0, 0.1])
def test_several_labels_per_image_have_the_loss_of_timm(smoothing):
    """timm smooths labels only; for several labels the same formula holds."""
    logits, _ = logits_and_labels()
    targets = several_labels().to(torch.int8)
    dense = targets * (1 - smoothing) + smoothing / CLASSES
    expected = BinaryCrossEntropy(0.0, pos_weight=WEIGHTS, reduction="none")(logits, dense).mean(1)
    loss = build_loss(options(NAME="bce"), smoothing, WEIGHTS)
    assert loss(logits, targets).item() == approx(expected.sum().item(), rel=1e-6)


@mark.parametrize("name", ["bce", "asl"])
@mark.parametrize("mixes", [False, True])
def test_smoothing_of_several_labels_to_half_is_timms(name, mixes):
    """Also of a mixed batch, whose targets timm's mixup smooths. Without several labels the key has no effect."""
    logits, _ = logits_and_labels()
    hot = several_labels().float()
    targets = hot
    smoothed = hot
    if mixes:
        targets, smoothed = (mixup_target(hot, CLASSES, 0.3, s, multi_label=True) for s in (0.0, 0.1))
    timms = create_classification_loss(name, multi_label=True, smoothing=0.1, soft_targets=mixes)
    chosen = options(NAME=name, SMOOTH_TO_HALF=True)
    loss = build_loss(chosen, 0.1, multi_label=True)(logits, targets)
    assert loss.item() / B == approx(timms(logits, smoothed).item(), rel=1e-6)
    assert torch.equal(build_loss(chosen, 0.1)(logits, targets), build_loss(options(NAME=name), 0.1)(logits, targets))


@mark.parametrize("kwargs", [{}, {"gamma_neg": 2, "gamma_pos": 0, "clip": 0}])
@with_weights
def test_asymmetric_loss_is_that_of_timm(kwargs, weights):
    """Its sum over the classes, of several labels, of one, and of mixed ones; gradients too."""
    logits, labels = logits_and_labels()
    several = several_labels().to(torch.int8)
    loss = build_loss(options(NAME="asl", KWARGS=kwargs), 0, weights)
    theirs = AsymmetricLossMultiLabel(**kwargs, pos_weight=weights, reduction="sum")
    for targets in (several, labels, mixup_target(labels, CLASSES, 0.3)):
        dense = F.one_hot(labels, CLASSES) if targets.ndim == 1 else targets
        found, expected = (logits.clone().requires_grad_() for _ in range(2))
        total = loss(found, targets)
        reference = theirs(expected, dense)
        assert total.item() == approx(reference.item(), rel=1e-6)
        total.backward()
        reference.backward()
        assert torch.allclose(found.grad, expected.grad, rtol=1e-5)


@mark.parametrize("dtype", [torch.int8, torch.float32])
@with_weights
def test_unknown_labels_do_not_count(dtype, weights):
    """As torch's loss with a weight of 0 for their cells; gradients too. Also in mixed targets."""
    logits, _ = logits_and_labels()
    targets = several_labels().to(dtype)
    if dtype == torch.float32:
        targets *= 0.3
    known = torch.rand((B, CLASSES), generator=seeded(2)) < 0.6
    marked = targets.masked_fill(~known, UNKNOWN)
    marked[2] = PADDING
    known[2] = False
    found, expected = (logits.clone().requires_grad_() for _ in range(2))
    total = build_loss(options(NAME="bce"), 0, weights)(found, marked)
    reference = F.binary_cross_entropy_with_logits(
        expected, targets.float(), known.float(), pos_weight=weights, reduction="sum"
    )
    assert total.item() == approx(reference.item() / CLASSES, rel=1e-6)
    total.backward()
    reference.backward()
    assert torch.allclose(found.grad, expected.grad / CLASSES, rtol=1e-5)
    cells = AsymmetricLossMultiLabel(pos_weight=weights, reduction="none")(logits, targets)
    total = build_loss(options(NAME="asl"), 0, weights)(logits, marked)
    assert total.item() == approx(cells[known].sum().item(), rel=1e-6)


SEVERAL = np.zeros((400, 4), dtype=np.int8)
SEVERAL[:100, 0] = SEVERAL[:399, 1] = SEVERAL[:, 2] = 1
KNOWN = np.array([[1, 1], [0, UNKNOWN], [0, 0], [UNKNOWN, 0], [UNKNOWN, 0]], np.int8)


@mark.parametrize("targets, num_classes, weights", [
    (np.repeat([0, 1, 2], [10, 30, 60]), 3, [100 / 30, 100 / 90, 100 / 180]),  # their mean over the samples is 1
    (np.repeat([0, 2], [8, 2]), 4, [10 / 16, 5.0, 10 / 4, 5.0]),  # without samples: as a class with one
    (SEVERAL, 4, [3, 1 / 399, 1 / 400, 399]),  # torch's pos_weight: with 100 positive and 300 negative samples, 3
    (KNOWN, 2, [2, 3]),
])  # fmt: skip
def test_balanced_weights(targets, num_classes, weights):
    found = read_class_weights(options(CLASS_WEIGHTS="balanced"), targets, num_classes, CPU)
    assert found.tolist() == approx(weights)


def test_a_list_of_weights_has_a_value_per_class():
    given = options(CLASS_WEIGHTS=[1, 2.5, 3])
    assert read_class_weights(given, np.arange(3), 3, CPU).tolist() == [1, 2.5, 3]
    assert read_class_weights(options(), np.arange(3), 3, CPU) is None
    on_device = read_class_weights(given, np.arange(3), 3, torch.device("meta"))
    assert on_device.device.type == "meta"
    with refused(r"CLASS_WEIGHTS: .* 3 .* 10"):
        read_class_weights(given, np.arange(10), 10, CPU)
