"""Gradients of three ranks: buckets, 16-bit hooks, non-finite values; and synchronized batch norms of two."""

import torch
from conftest import TINY_RESNET, assert_same_state, cli, refused, values_of
from pytest import mark
from sharding_cases import batches, build, difference, train, weights
from timm import create_model
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from configs.schema import Amp, Parallel
from datasets.batch import Batch
from engine.parallel import DDP, unused_parameters
from engine.precision.policy import Precision
from engine.training.session import synchronize_batch_norms
from utils.distributed import ProcessContext

RANKS = 3


# The case, its options, the relative error of the mean gradient, buckets
EXCHANGES = """
default | {} | 1e-6 | 2
per parameter | {BUCKET_MB: 0.0} | 1e-6 | 10
fp16 | {COMM_HOOK: fp16} | 6e-4 | 2
"""


def exchange(context: ProcessContext, options: dict) -> dict:
    """Gradients after the exchange in two passes over the same data; then a step with a gradient of 1e6 on rank 1."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(400, 400) for _ in range(5)))
    precision = Precision(Amp(), context.device)
    compute_model = precision.attach(model)
    strategy = DDP(context.device, Parallel.model_validate(options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(3, 8, 400)[context.rank]
    wrapped = strategy.wrap(compute_model, images)

    def gradients():
        precision.scaler.backward(wrapped(images).square().sum(), samples=8)
        found = parameters_to_vector(parameter.grad for parameter in model.parameters()).clone()
        model.zero_grad()
        return found

    first = gradients()
    second = gradients()
    own = torch.autograd.grad(model(images).square().sum() / 8, list(model.parameters()))
    mean = parameters_to_vector(own) / context.world_size
    torch.distributed.all_reduce(mean)
    before = parameters_to_vector(model.parameters()).clone()
    precision.scaler.backward(wrapped(images).square().sum() * (1e6 if context.rank == 1 else 1.0), samples=8)
    infinite = parameters_to_vector(parameter.grad for parameter in model.parameters()).isinf().any().item()
    precision.step(optimizer, max_norm=None, seed=0)
    return {
        "error": ((first - mean).norm() / mean.norm()).item(),
        "checksum": first.double().sum().item(),
        "repeats": torch.equal(first, second),
        "infinite": infinite,
        "updates": not torch.equal(parameters_to_vector(model.parameters()), before),
        "buckets": len(wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")),
    }


@mark.slow
@mark.parametrize("kind, options, error, buckets", values_of(EXCHANGES))
def test_each_rank_has_the_mean_gradient(ranks, kind, options, error, buckets):
    """A hook rounds to its dtype before and during the sum; all ranks see a gradient beyond the range of fp16.

    DDP regroups its buckets after its first pass, which the warm-up runs: the first step sums as all later steps.
    """
    overflows = kind == "fp16"
    reports = ranks(RANKS)(exchange, options)
    for report in reports:
        assert report["checksum"] == reports[0]["checksum"]
        assert report["error"] < error
        assert report["repeats"]
        assert (report["infinite"], report["updates"]) == (overflows, not overflows)
    assert not overflows or reports[0]["error"] > error / 20
    assert reports[0]["buckets"] == buckets


def test_a_model_with_two_outputs_is_wrapped(cpu_group):
    """A distilled model: DDP's warm-up has gradients of both heads."""
    model = VisionTransformerDistilled(img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=5)
    model.set_distilled_training(True)
    wrapped = DDP(torch.device("cpu"), Parallel()).wrap(model.train(), images := torch.randn(2, 3, 16, 16))
    torch.cat(wrapped(images)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def weights_in_o3(context: ProcessContext) -> dict[str, Tensor]:
    state = build(["AMP.ENABLED=true", "AMP.LEVEL=O3"], context)
    train(state, context)
    return weights(state)


@mark.slow
def test_stochastic_rounding_draws_the_same_numbers_on_all_ranks(ranks):
    first, *others = ranks(RANKS)(weights_in_o3)
    for other in others:
        assert_same_state(other, first)


# PARALLEL.SYNC_BN: two ranks train the weights and statistics of one process with the whole batch

STEPS = 3
OPTIONS = [*TINY_RESNET, *cli("TRAIN.OPTIMIZER.NAME=sgd TRAIN.BASE_LR=0.1 TRAIN.WARMUP_EPOCHS=0 SEED=3")]
CASES = {
    "fp32": [],
    "norm with activation": ["MODEL.NAME=test_byobnet"],
    "accumulation": ["TRAIN.ACCUM_ITER=2", "TRAIN.GRAD_CLIP=0.01"],
    "recomputed": ["MODEL.GRAD_CHECKPOINTING=true"],
}


def trained(context: ProcessContext, options: list[str], whole: bool = False) -> dict[str, Tensor]:
    """The weights after three steps, with this rank's batches or with the batches of both ranks as one."""
    sizes = [f"DATA.BATCH_SIZE={8 if whole else 4}"]
    state = build([*options, *sizes], context, OPTIONS)
    data = batches(context, size=32, channels=3)
    if whole:
        parts = [batches(ProcessContext(rank, rank, 2, 2, context.device), size=32, channels=3) for rank in (0, 1)]
        data = (
            Batch(torch.cat([one.images, other.images]), torch.cat([one.targets, other.targets]), 8)
            for one, other in zip(*parts, strict=True)
        )
    if context.device.type == "cuda":
        data = (Batch(batch.images.to(context.device), batch.targets.to(context.device), 8) for batch in data)
    train(state, context, STEPS, data)
    return {name: tensor.cpu() for name, tensor in weights(state).items()}


@mark.gpu
@mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@mark.parametrize("options", CASES.values(), ids=CASES)
def test_two_gpus_equal_one_with_the_whole_batch(ranks, options):
    one = ProcessContext(0, 0, 1, 1, torch.device("cuda:0"))
    alone = trained(one, options, whole=True)
    first, second = ranks(2, "0,1")(trained, [*options, "PARALLEL.SYNC_BN=true"])
    assert difference(first, second) == 0
    assert difference(first, alone) < 1e-4


@mark.parametrize("name, reason", [("test_vit", "no batch norms"), ("test_resnet", "no kernels for CPUs")])
def test_a_model_without_batch_norms_and_cpus_are_refused(name, reason, cpu):
    with refused(rf"^PARALLEL.SYNC_BN: .*{reason}"):
        synchronize_batch_norms(create_model(name), cpu.device)


def test_parameters_without_a_gradient_are_named_and_nothing_stays():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.register_parameter("extra", nn.Parameter(torch.ones(2)))
    assert unused_parameters(model, torch.randn(3, 4), model) == ["extra"]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model[1].running_mean.any()
