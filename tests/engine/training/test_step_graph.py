"""Steps replayed as a CUDA graph replays them equal eager steps.

On a CPU `OpReplay` stands for a CUDA graph: it records the ops of a step, and a replay runs the same ops with the same
Python numbers on the same memory. A value that should change from step to step, but is no tensor, keeps its old value.
"""

from types import SimpleNamespace

import pytest
import torch
from conftest import GREY, TINY_VIT, assert_same_state, rows, states, step_rows, train
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from configs.reading.command_line import parse_command_line
from configs.schema import Amp, Parallel
from datasets.transforms.device import TrainTransform
from engine.parallel.ddp import DDP
from engine.parallel.strategy import Single
from engine.precision.policy import Precision
from engine.training.optimization.optimizer import build_optimizer
from engine.training.optimization.schedule import Schedule
from engine.training.step_graph import StepGraph, build_step_graph
from utils.distributed import ProcessContext
from utils.errors import UserError


class OpReplay(TorchDispatchMode):
    """`record` executes the ops, which a CUDA graph would not do: so the first replay does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.ops, self.replays = [], -1

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        assert op is not torch.ops.aten._local_scalar_dense.default, "the host reads a value of the device"
        result = op(*args, **(kwargs or {}))
        if op.namespace != "profiler":
            self.ops.append((op, args, kwargs or {}, result))
        return result

    def record(self, work):
        with self:
            return work()

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for op, args, kwargs, recorded in self.ops if self.replays else ():
            returns, outputs = op._schema.returns, op(*args, **kwargs)
            pairs = [(recorded, outputs)] if len(returns) == 1 else zip(recorded or (), outputs or (), strict=True)
            for (old, new), kind in zip(pairs, returns, strict=True):
                if kind.alias_info is None:
                    for target, value in zip(tree_leaves(old), tree_leaves(new), strict=True):
                        if isinstance(target, torch.Tensor):
                            target.copy_(value)


VIT = [*TINY_VIT, *GREY, "TRAIN.BASE_LR=3e-3"]
RESNET = [*GREY, "MODEL.TYPE=timm", "MODEL.NAME=test_resnet", "DATA.IMAGE_SIZE=16", "DATA.CROP_PCT=1.0"]
RESNET += ["MODEL.NUM_CLASSES=10", "TRAIN.NUM_EPOCHS=2", "TRAIN.WARMUP_EPOCHS=0.5", "TRAIN.BASE_LR=1e-3"]
REGULARIZED = ["MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.1", "MODEL.DROPPATH=0.3", "TRAIN.MIXUP_ALPHA=0.2"]
AVERAGED = ["TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_WARMUP=true", "TRAIN.GRAD_CLIP=0.5"]
FLOAT16 = ["AMP={ENABLED: true, DTYPE: float16, INIT_LOSS_SCALING: 1024, INCR_EVERY_N_STEPS: 2, INCR_RATIO: 8}"]


@pytest.mark.parametrize(
    "options",
    [
        [*VIT, *REGULARIZED, *AVERAGED],
        [*VIT, *AVERAGED, "AMP=true", "TRAIN.LAYER_DECAY=0.5"],
        [*VIT, *REGULARIZED, "AMP=true", "AMP.LEVEL=O2", "LOSS.NAME=bce"],
        [*VIT, *AVERAGED, *FLOAT16],
        [*RESNET, *AVERAGED, "TRAIN.OPTIMIZER.NAME=SGD"],
        [*RESNET, *AVERAGED, "MODEL.FREEZE_BACKBONE=true"],
        [*VIT, *AVERAGED, "AMP=true", "MODEL.TUNE=lora"],
    ],
    ids=["fp32", "O1", "O2", "O1 float16", "batch norm, SGD", "frozen", "adapters"],
)
def test_replayed_steps_equal_eager_steps(options, tmp_path, cpu, monkeypatch):
    """Two epochs of 11 steps and their evaluations: weights, moments, averages, sums and loss scale.

    Some batches have infinite pixels, so that their steps are skipped, and some have targets of another kind.
    """
    lr_at, transform = Schedule.lr_at, TrainTransform.forward

    def unusual(module, batch):
        images, targets = transform(module, batch)
        if batch.targets[0] < 5 and targets.ndim == 1:
            targets = torch.nn.functional.one_hot(targets, 10).float()
        return (images / 0 if batch.targets[1] < 3 else images), targets

    monkeypatch.setattr(TrainTransform, "forward", unusual)
    monkeypatch.setattr(Schedule, "lr_at", lambda *arguments: torch.tensor(lr_at(*arguments)).item())  # float32
    argv = ["-dataset=digits", "-batch_size=128", "-opts", *options, "REPORT_FREQ=1"]
    eager = train([*argv, f"SAVE={tmp_path / 'eager'}"], cpu)
    graphs: list[OpReplay] = []

    def new_graph() -> OpReplay:
        graphs.append(OpReplay())
        return graphs[-1]

    monkeypatch.setattr("engine.training.build.build_step_graph", lambda *parts: (StepGraph(parts[-1], new_graph), ""))
    replayed = train([*argv, f"SAVE={tmp_path / 'replayed'}"], cpu)
    assert len(graphs) == (1 if "TRAIN.MIXUP_ALPHA=0.2" in options else 2)
    assert sum(graph.replays for graph in graphs) >= 5
    assert_same_state(states(replayed), states(eager))
    assert rows(replayed) == rows(eager) and step_rows(replayed) == step_rows(eager)
    assert states(eager)["precision"]["scaler"]["counts"][0] >= 3


def test_a_replayed_step_exchanges_gradients(cpu, cpu_group):
    """The wrapper of a group of one: broadcasts of buffers and sums of gradients are recorded with the step."""
    (eager, _), (replayed, graph) = (ddp_losses(cpu.device, replays) for replays in (False, True))
    assert all(map(torch.equal, replayed, eager)) and graph.replays == 8
    exchanged = [op.name() for op, *_ in graph.ops if op.namespace == "c10d"]
    assert "c10d::allreduce_" in exchanged and "c10d::broadcast_" in exchanged


def ddp_losses(device: torch.device, replays: bool) -> tuple[list[torch.Tensor], OpReplay]:
    torch.manual_seed(0)
    model, precision = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Linear(64, 4)), Precision(Amp(), device)
    optimizer, wrapped = torch.optim.AdamW(model.parameters(), lr=0.125, fused=True), precision.attach(model)
    wrapped = DDP(device, Parallel()).wrap(wrapped, torch.zeros(2, 8))

    def step(images: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = nn.functional.cross_entropy(wrapped(images), targets)
        precision.scaler.backward(loss, samples=1)
        return loss.detach(), precision.step(optimizer, 1.0, 0)

    recorded, losses = OpReplay(), []
    graph = StepGraph(optimizer, lambda: recorded)
    for _ in range(20):
        batch = torch.randn(16, 8), torch.randint(0, 4, (16,))
        outputs = graph.run(step, *batch) if replays else step(*batch)
        losses += [output.clone() for output in outputs]
    return losses, recorded


@pytest.mark.parametrize(
    ("options", "ranks", "obstacle"),
    [
        (["TRAIN.MIXUP_ALPHA=0.8"], 1, None),
        (["TRAIN.MIXUP_ALPHA=0.8", "TRAIN.MIXUP_MODE=elem"], 2, None),
        (["TRAIN.MIXUP_ALPHA=0.8"], 2, "MIXUP_MODE"),
        (["DATA.ON_BAD_IMAGE=skip"], 2, "ON_BAD_IMAGE"),
        (["TRAIN.ACCUM_ITER=2"], 1, "accumulate"),
        (["AMP=true", "AMP.LEVEL=O3"], 1, "O3"),
        (["TRAIN.OPTIMIZER.NAME=lamb"], 1, "lamb"),
        (["TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_FORCE_CPU=true"], 1, "host memory"),
        (["PARALLEL.COMM_HOOK=bf16"], 2, "COMM_HOOK"),
        (["MODEL.GRAD_CHECKPOINTING=true"], 1, "GRAD_CHECKPOINTING"),
        (["TRAIN.COMPILE=model"], 1, ""),
    ],
)
def test_a_run_that_can_be_replayed_leaves_the_default_stream(options, ranks, obstacle, monkeypatch):
    """A fake stands for torch.cuda."""
    events: list[str] = []
    stream = SimpleNamespace(wait_stream=lambda other: events.append(f"wait for {other}"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "default")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda new: events.append("leave" if new is stream else "?"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    config = parse_command_line(["-opts", *VIT, "TRAIN.COMPILE=max", *options]).config
    optimizer, precision = build_optimizer(nn.Linear(2, 2), config.train), Precision(config.amp, torch.device("cpu"))
    gpu = ProcessContext(0, 0, ranks, ranks, torch.device("cuda:0"))
    graph, note = build_step_graph(config, gpu, Single(), precision, optimizer)
    assert (graph is None) == (obstacle is not None) and (obstacle or "") in note
    assert events == (["wait for default", "leave"] if graph else [])


def test_an_operation_that_cannot_be_recorded_ends_the_run_and_restores_the_optimizer():
    class Unrecordable(OpReplay):
        def record(self, work):
            raise RuntimeError("operation not permitted when stream is capturing")

    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=0.1, fused=True)
    graph, batch = StepGraph(optimizer, Unrecordable), torch.zeros(2)
    with pytest.raises(UserError, match=r"^TRAIN\.COMPILE max: .* stream is capturing; use"):
        for _ in range(20):
            graph.run(lambda images, targets: (images,), batch, batch)
    assert isinstance(optimizer.param_groups[0]["lr"], float) and not optimizer.param_groups[0]["capturable"]


@pytest.mark.gpu
@pytest.mark.parametrize("options", [[*REGULARIZED, *AVERAGED], [*FLOAT16, *AVERAGED]], ids=["fp32", "float16"])
def test_a_cuda_graph_equals_eager_steps(options, tmp_path, gpu, monkeypatch):
    """Kernels are the same, so only atomics and the float32 learning rate differ."""
    argv = ["-dataset=digits", "-batch_size=128", "-opts", *VIT, *options, "MODEL.ATTENTION=explicit"]
    eager = states(train([*argv, f"SAVE={tmp_path / 'eager'}"], gpu))
    monkeypatch.setattr("engine.training.build.compile_model", lambda *arguments: None)
    folder = train([*argv, "TRAIN.COMPILE=max", f"SAVE={tmp_path / 'graph'}"], gpu)
    for part in ("model", "ema"):
        actual, expected = (parameters_to_vector(state[part].values()) for state in (states(folder), eager))
        assert (actual - expected).norm() < 1e-3 * expected.norm()
    assert states(folder)["precision"]["scaler"]["counts"] == eager["precision"]["scaler"]["counts"]
