"""Compiled training: gradients close to eager mode, exact resume, and no compilation for evaluations."""

import os
from pathlib import Path
from unittest.mock import MagicMock

import torch
from conftest import (
    CPU,
    GREY,
    ROOT,
    SMALL_BATCHES,
    TINY_RESNET,
    TINY_VIT,
    assert_same_run,
    assert_same_state,
    cells_of,
    cli,
    config_for,
    model_for,
    refused,
    run_script,
    slow,
    states,
    train,
)
from pytest import approx, fixture, mark
from timm import create_model
from timm.layers import DropPath, convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from configs.batch_plan import BatchPlan, EpochLayout
from configs.schema import Amp, Parallel, Train
from datasets.batch import Batch
from engine.parallel import DDP, FSDP, CompiledParts, compile_model, run_eagerly
from engine.precision.policy import Precision
from engine.progress import EpochProgress, MetricSums, TrainClock
from engine.training.step import train_steps
from engine.training.trial import state_without_data
from models.blocks import local_tensor, share_drop_path
from models.build import build_model
from models.kernels import select_attention
from models.vit import build_vit
from utils.distributed import ProcessContext
from utils.torch_compat import is_compiled, is_dynamo_late


@fixture(autouse=True)
def reset_compiler():
    """Drops compiled graphs and counters, as a new process does; torch's cache on disk remains."""
    if not is_dynamo_late():
        torch._dynamo.reset()
        counters().clear()


def counters() -> dict:
    return torch._dynamo.utils.counters


@fixture
def backend(monkeypatch):
    """Chooses what compiles modules. Without the check, no code need be generated."""
    monkeypatch.setattr("engine.parallel.check_compiler", lambda device: None)
    compile_module = nn.Module.compile

    def use(name):
        monkeypatch.setattr(nn.Module, "compile", lambda module, **_: compile_module(module, backend=name))

    return use


def compile_blocks(model: nn.Module, **options) -> str | None:
    return compile_model(model, Train(COMPILE="default"), CPU, **options)


def compiled_graphs() -> int:
    return counters()["stats"]["unique_graphs"] - 1  # without the graph of the compiler check


@mark.slow
def test_the_entry_script_compiles():
    """In a process whose modules have its own order: the compiler pickles classes that it finds in one of them."""
    run_script("main_single_gpu.py", "-cfg=configs/vit_digits.yaml", "-compile", "-dry_run")


@mark.slow
def test_gradients_match_eager_mode_and_equal_blocks_share_a_graph():
    config = config_for("-opts", *TINY_VIT, *GREY, "MODEL.DEPTH=3")
    torch.manual_seed(0)
    model = build_vit(config.model, config.data)
    images = torch.randn(4, 1, 8, 8)
    nn.init.normal_(model.head.weight, std=0.1)
    precision = Precision(Amp.model_validate({"ENABLED": True, "CUSTOM_BLACK_LIST": ["linear", "matmul"]}), CPU.device)
    precision.apply_op_lists(model)
    select_attention(model, "fused", CPU.device)
    names = list(model.state_dict())

    def gradients():
        with precision.autocast():
            loss = model(images).float().square().sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    expected = gradients()
    assert compile_blocks(model) == "3 blocks"
    with run_eagerly():
        assert_same_state(gradients(), expected)
    found = gradients()
    assert compiled_graphs() == 1
    assert list(model.state_dict()) == names
    for actual, reference in zip(found, expected, strict=True):
        assert torch.allclose(actual, reference, rtol=2e-2, atol=1e-3 * reference.abs().max())


@mark.slow
def test_resume_is_bit_exact(digits_argv, tmp_path):
    """Evaluations in batches of 50 compile no further graphs."""
    argv = ["-amp", "-compile", *digits_argv, "DATA.BATCH_SIZE_EVAL=50", "MODEL.DROPOUT=0.1", "MODEL.DROPPATH=0.25"]
    argv += [SMALL_BATCHES, *cli("AMP.LEVEL=O3 TRAIN.MODEL_EMA=true TRAIN.GRAD_CLIP=1.0 TRAIN.ACCUM_ITER=2")]
    uninterrupted = train([*argv, "TRAIN.MAX_STEPS=13"])
    assert compiled_graphs() == 2
    argv += [f"SAVE={tmp_path / 'stopped'}"]
    stopped = train([*argv, "TRAIN.MAX_STEPS=4"])
    torch._dynamo.reset()
    resumed = train([f"-resume={stopped}", *argv, "TRAIN.MAX_STEPS=13"])
    assert_same_run(resumed, uninterrupted)


# TRAIN.COMPILE, device, micro-steps, ranks, the mode
MODES = """
max | cuda | 1 | 1 | max-autotune
max | cuda | 2 | 1 | max-autotune-no-cudagraphs
max | cuda | 1 | 2 | max-autotune-no-cudagraphs
max | cpu | 1 | 1 |
model | cuda | 1 | 1 |
default | cuda | 1 | 1 |
"""


@mark.parametrize("value, device, accum_iter, ranks, mode", cells_of(MODES))
def test_cuda_graphs_need_one_gpu_and_no_accumulation(value, device, accum_iter, ranks, mode, backend, monkeypatch):
    """The log names the mode that `torch.compile` is given."""
    modes = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, dynamic, mode: modes.append(mode or ""))
    options = Train(COMPILE=value, ACCUM_ITER=int(accum_iter))
    context = ProcessContext(0, 0, int(ranks), int(ranks), torch.device(device))
    for is_sharded, part in ((False, "the whole model"), (True, "1 blocks")):  # nn.Linear has no blocks
        note = compile_model(nn.Linear(2, 2), options, context, is_sharded)
        assert note.split(", ") == [part, *mode.split()]
    assert modes == [mode, mode]
    assert compile_model(nn.Linear(2, 2), Train(), context) is None


@mark.gpu
@mark.parametrize("accum_iter", [1, 2])
@mark.parametrize("mode", ["default", "max"])
def test_compiled_training_on_a_gpu_equals_eager_training(digits_argv, gpu, mode, accum_iter):
    """With `max` and without accumulation, CUDA graphs replay the passes."""
    argv = ["-amp", *digits_argv, f"TRAIN.ACCUM_ITER={accum_iter}", "TRAIN.GRAD_CLIP=1.0", "TRAIN.MAX_STEPS=10"]
    folders = [train([*argv, f"TRAIN.COMPILE={compiled}"], gpu) for compiled in ("none", mode)]
    eager, compiled = (parameters_to_vector(states(folder)["model"].values()) for folder in folders)
    initial = parameters_to_vector(states(train([*argv, "TRAIN.MAX_STEPS=1"], gpu))["model"].values())
    assert (compiled - eager).norm() < 0.05 * (eager - initial).norm()


def compile_nothing(context: ProcessContext):
    compile_model(nn.Identity(), Train(COMPILE="model"), context)


@mark.parametrize("variable", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", None])
@mark.parametrize("is_link", [False, True])
def test_a_cache_of_another_user_is_refused(cpu, tmp_path, monkeypatch, variable, is_link):
    """For users of shared hosts: anyone may make /tmp/torchinductor_USER first, and torch runs the code in it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    compile_nothing(cpu)
    (folder,) = tmp_path.glob("torchinductor_*")  # a new one is the user's alone
    assert folder.stat().st_mode & 0o777 == 0o700
    if variable:
        monkeypatch.setenv(variable, str(folder := tmp_path / "named"))
        compile_nothing(cpu)
    name = "lstat" if is_link else "stat"  # of a link, the target or the link is theirs
    status = getattr(os, name)

    def of_other(path, **options):
        theirs = os.stat_result((*status(path)[:4], os.geteuid() + 1, *status(path)[5:]))
        return theirs if Path(path) == folder else status(path, **options)

    monkeypatch.setattr(os, name, of_other)
    with refused(f"{folder} belongs to another user"):
        compile_nothing(cpu)


def test_a_cache_that_cannot_be_created_is_named_before_training(cpu, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with refused(r"^TRAIN\.COMPILE: .*file/cache: cannot be created: Not a directory; set TORCHINDUCTOR_CACHE_DIR"):
        compile_nothing(cpu)


def test_a_compiler_that_fails_is_named_before_training(cpu, monkeypatch):
    error = RuntimeError("InvalidCxxCompiler: No working C++ compiler found\ndetails")
    monkeypatch.setattr(torch, "compile", MagicMock(side_effect=error))
    with refused(r"^TRAIN\.COMPILE: .*compiler found; .*torchinductor"):
        compile_nothing(cpu)


@mark.slow
def test_sharded_model_is_compiled_block_by_block(cpu_group, backend, monkeypatch):
    """Also with drop-path: two blocks drop samples, here the same ones. The backend generates no code."""
    backend("aot_eager")
    config = config_for("-opts", *TINY_VIT, *GREY, "MODEL.DEPTH=3", "MODEL.DROPPATH=0.2")
    images = torch.randn(20, 1, 8, 8)
    gradients = []
    torch.compile(torch.sin, backend="eager")(images)  # lists the functions of torch once: before the stand-in
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.linspace(0, 0.99, 20).view(*size))
    for compiled in (False, True):
        torch.manual_seed(0)
        model = build_vit(config.model, config.data)
        nn.init.normal_(model.head.weight, std=0.1)
        FSDP(Parallel(STRATEGY="fsdp"), CPU).shard(model, None, lambda module: None)
        if compiled:
            assert compile_blocks(model, is_sharded=True) == "3 blocks"
        names = list(model.state_dict())
        model(images).square().sum().backward()
        gradients.append([local_tensor(parameter.grad) for parameter in model.parameters()])
        assert list(model.state_dict()) == names
        assert all(map(is_compiled, model.blocks)) == compiled
    assert compiled_graphs() >= 2
    for actual, reference in zip(*gradients, strict=True):
        assert torch.allclose(actual, reference, rtol=1e-4, atol=1e-6)


@fixture
def graphs(backend) -> list[torch.fx.GraphModule]:
    """The graphs that are compiled; they run as traced."""
    found = list[torch.fx.GraphModule]()

    def keep(graph, inputs):
        found.append(graph)
        return graph.forward

    backend(keep)
    return found


@mark.slow
def test_equal_blocks_are_one_graph_also_under_ddp(graphs, cpu_group):
    """A bucket of 1 MiB ends inside a block of ViT-Tiny."""
    config = config_for("-opts", "MODEL.EMBED_DIM=192", "MODEL.NUM_HEADS=3", "MODEL.DEPTH=3", *GREY)
    model = build_vit(config.model, config.data.model_copy(update={"image_size": 32}))
    compile_blocks(model)
    images = torch.randn(2, 1, 32, 32)
    with run_eagerly():
        model = DDP(CPU.device, Parallel()).wrap(model, images)
    for _ in range(2):
        model(images).sum().backward()
    assert len(graphs) == 1
    assert not counters()["graph_break"]


DROP_PATH_MODELS = {
    "vit": cli("MODEL.EMBED_DIM=24 MODEL.NUM_HEADS=3 MODEL.PATCH_SIZE=8 MODEL.INIT_VALUES=0.5"),
    "timm": ["MODEL.TYPE=timm", "MODEL.NAME=vit_tiny_patch16_224"],
    "cait": ["MODEL.TYPE=timm", "MODEL.NAME=cait_xxs24_224"],
}


def drop_path_model(name: str, rate: float, depth: int = 12) -> nn.Module:
    key = f"MODEL.DEPTH={depth}" if name == "vit" else f"MODEL.KWARGS={{depth: {depth}, patch_size: 8}}"
    options = [*DROP_PATH_MODELS[name], key, "MODEL.NUM_CLASSES=5", f"MODEL.DROPPATH={rate}"]
    torch.manual_seed(0)
    return model_for(config_for("-image_size=32", "-opts", *options))[0].train()


def gradients_with_seed(model: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    loss = model(images).log_softmax(-1)[:, 0].sum()
    return torch.autograd.grad(loss, list(model.parameters()))


@mark.slow
@mark.parametrize("name", ["vit", "timm", "cait"])
def test_blocks_of_any_drop_path_rate_are_one_graph(graphs, name, monkeypatch):
    """Eager passes stay bit for bit; the compiled passes have the gradients of their own ops, run eagerly."""
    model = drop_path_model(name, 0.09, depth=6)
    images = torch.randn(8, 3, 32, 32)
    names = list(model.state_dict())
    before = gradients_with_seed(model, images)
    assert compile_blocks(model) == f"{len(model.blocks)} blocks"
    found = gradients_with_seed(model, images)
    assert len(graphs) == 1
    assert not counters()["graph_break"]
    assert list(model.state_dict()) == names
    with run_eagerly():
        assert_same_state(gradients_with_seed(model, images), before)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        expected = gradients_with_seed(model, images)
    for actual, reference in zip(found, expected, strict=True):
        assert torch.allclose(actual, reference, rtol=1e-4, atol=1e-6 * max(1, reference.abs().max()))


@mark.slow
def test_a_block_that_drops_samples_has_a_graph_of_its_own(graphs):
    """Of four blocks, with rates from 0 to 0.2, the last two drop 2 and 3 of 16 samples on a CPU."""
    model = drop_path_model("vit", 0.2, depth=4)
    compile_blocks(model)
    gradients_with_seed(model, torch.randn(16, 3, 32, 32))
    assert [block.drops_samples for block in model.blocks[1:]] == [(False, False), (True, False), (True, True)]
    assert len(graphs) == 3


@mark.parametrize("half", [torch.float32, torch.bfloat16])
def test_a_compiled_drop_path_keeps_its_share_of_samples(half, monkeypatch):
    """Also with rate 1, and with the scale of timm's in its dtype."""
    block = nn.Sequential(nn.Linear(1, 1), *(DropPath(rate) for rate in (0.0, 0.3, 1.0)))
    model = nn.Module()
    model.blocks = nn.Sequential(block)
    share_drop_path(model)
    assert all(type(drop) is not DropPath for drop in block[1:])
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.manual_seed(0)
    ones = torch.ones(4000, 2, dtype=half)
    same, some, none = (drop(ones) for drop in block[1:])
    assert torch.equal(same, ones)
    assert not none.any()
    assert some.dtype == half
    assert some.unique().tolist() == [0.0, torch.tensor(1 / 0.7).to(half).item()]
    assert some.bool().float().mean().item() == approx(0.7, abs=0.03)
    assert torch.equal(some[:, 0], some[:, 1])


def train_two_steps(*argv: str) -> nn.Module:
    """The model after two steps of two micro-steps each, on noise."""
    config = config_for(*argv, "TRAIN.ACCUM_ITER=2", "DATA.BATCH_SIZE=4")
    state = state_without_data(config, CPU, EpochLayout(64, BatchPlan(4, 2), config.seed))
    torch.manual_seed(0)
    images = torch.randint(256, (4, 3, *config.data.input_size), dtype=torch.uint8)
    batches = (Batch(images, torch.arange(4), 4) for _ in range(4))
    train_steps(state, batches, state.new_progress(0), 2, lambda progress: None)
    return state.precision.weights.compute


XCIT = [f"-cfg={ROOT / 'tests/fixtures/families/XCiT/model.yaml'}", "-opts"]
RESNET = ["-opts", *TINY_RESNET]


@mark.parametrize("converts", [False, True], ids=["own norms", "synchronized norms"])
@mark.parametrize(
    "argv, compiled, mode",
    [
        (XCIT, "none", "true"),
        (RESNET, "none", "true"),
        (RESNET, "none", "cheap"),
        slow(XCIT, "default", "true"),
        slow(XCIT, "default", "cheap"),
        slow(XCIT, "model", "true"),
        slow(RESNET, "model", "cheap"),
    ],
)
def test_a_recomputed_batch_norm_counts_each_batch_once(argv, compiled, mode, converts, backend, monkeypatch):
    """Its running statistics are the ones of a training that recomputes nothing."""
    backend("aot_eager")
    build = build_model
    if converts:
        monkeypatch.setattr(
            "engine.training.session.build_model", lambda *args: (convert_sync_batchnorm(build(*args)[0]), None)
        )
    plain = dict(train_two_steps(*argv, "MODEL.GRAD_CHECKPOINTING=false").named_buffers())
    recomputed = train_two_steps(*argv, f"MODEL.GRAD_CHECKPOINTING={mode}", f"TRAIN.COMPILE={compiled}")
    counts = set()
    for name, value in recomputed.named_buffers():
        if "tracked" in name:
            counts.add(int(value))
        if "running" in name:
            assert torch.allclose(value, plain[name], atol=0.01), name  # compiled blocks round differently
    assert counts == {4}


@mark.slow
def test_the_modules_in_stages_are_compiled_with_checkpoints(graphs):
    """timm's `checkpoint_seq` does not call the six stages, but the twelve modules inside them."""
    model = create_model("mobilenetv3_small_050", num_classes=2)
    model.set_grad_checkpointing(True)
    assert compile_blocks(model) == "12 blocks"
    notes = []
    parts = CompiledParts(model, True, TrainClock(0.0), notes.append)
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    for _ in range(2):
        parts.after_step(EpochProgress(0, 2, 2, MetricSums(torch.device("cpu"))))
    (note,) = notes
    assert graphs
    assert "12 of 12" in note.text
