"""Compiled training: the eager one's gradients, exact resumption, and nothing compiled for an evaluation."""

import pytest
import torch
from conftest import GREY, TINY_VIT, assert_same_state, rows, states, train
from torch import nn
from torch._dynamo.utils import counters

from configs.command_line import parse_command_line
from configs.schema import Amp, Train
from engine.parallel.compile import compile_model, run_eagerly
from engine.precision.policy import Precision
from models.build import build_model
from models.vit import build_vit
from utils.distributed import ProcessContext
from utils.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def anew():
    """What was compiled before is forgotten, as by a new process; torch's cache on the disk is not."""
    torch._dynamo.reset()
    counters.clear()


def compiled_graphs() -> int:
    return counters["stats"]["unique_graphs"] - 1  # the trifle that tries the compiler


def test_the_flag_is_short_for_the_option():
    assert parse_command_line(["-compile"]).config.train.compile == "default"
    assert parse_command_line(["-compile", "-opts", "TRAIN.COMPILE=max"]).config.train.compile == "max"
    assert parse_command_line([]).config.train.compile == "none"


def test_gradients_are_the_eager_ones_and_alike_blocks_are_compiled_once(cpu):
    config = parse_command_line(["-opts", *TINY_VIT, *GREY, "MODEL.DEPTH=3"]).config
    torch.manual_seed(0)
    model, images = build_vit(config.model, config.data), torch.randn(4, 1, 8, 8)
    nn.init.normal_(model.head.weight, std=0.1)
    precision = Precision(Amp.model_validate({"ENABLED": True, "CUSTOM_BLACK_LIST": ["linear", "matmul"]}), CPU)
    precision.apply_op_lists(model)
    names = list(model.state_dict())

    def gradients() -> list[torch.Tensor]:
        with precision.autocast():
            loss = model(images).float().square().sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    expected = gradients()
    assert compile_model(model, Train(COMPILE="default"), cpu) == "3 blocks"
    with run_eagerly():
        assert all(torch.equal(*pair) for pair in zip(gradients(), expected, strict=True))
    found = gradients()
    assert compiled_graphs() == 1 and list(model.state_dict()) == names
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=2e-2, atol=1e-3 * other.abs().max())


def test_a_stopped_run_resumes_bit_for_bit(digits_argv, tmp_path, cpu):
    """And nothing more is compiled for its evaluations, in batches of 50."""
    argv = [
        "-amp",
        "-compile",
        *digits_argv,
        "DATA.BATCH_SIZE_EVAL=50",
        "MODEL.DROPOUT=0.1",
        "MODEL.DROPPATH=0.25",
        "AMP.LEVEL=O3",
        "TRAIN.MODEL_EMA=true",
        "TRAIN.GRAD_CLIP=1.0",
        "TRAIN.ACCUM_ITER=2",
    ]
    unbroken = train([*argv, "TRAIN.MAX_STEPS=13"], cpu)
    assert compiled_graphs() == 2
    argv += [f"SAVE={tmp_path / 'stopped'}"]
    stopped = train([*argv, "TRAIN.MAX_STEPS=4"], cpu)
    torch._dynamo.reset()
    resumed = train([f"-resume={stopped}", *argv, "TRAIN.MAX_STEPS=13"], cpu)
    assert_same_state(states(resumed), states(unbroken))
    assert rows(resumed) == rows(unbroken)
    assert (resumed / "log.txt").read_text().count("Compiled: the first step took") == 2


def test_max_takes_the_whole_model_and_so_does_one_without_blocks(cpu):
    assert compile_model(nn.Sequential(nn.Linear(2, 2)), Train(COMPILE="default"), cpu) == "the whole model"
    config = parse_command_line(["-opts", *TINY_VIT]).config
    model = build_vit(config.model, config.data)
    assert compile_model(model, Train(COMPILE="max"), cpu) == "the whole model"
    assert compile_model(model, Train(), cpu) is None


@pytest.mark.parametrize(
    ("accum_iter", "ranks", "expected"),
    [(1, 1, "max-autotune"), (2, 1, "max-autotune-no-cudagraphs"), (1, 2, "max-autotune-no-cudagraphs")],
)
def test_graphs_are_replayed_on_a_gpu_where_no_gradient_outlives_them(accum_iter, ranks, expected, monkeypatch):
    monkeypatch.setattr("engine.parallel.compile._check_compiler", lambda device: None)
    gpu, options = torch.device("cuda"), Train(COMPILE="max", ACCUM_ITER=accum_iter)
    context = ProcessContext(0, 0, ranks, ranks, gpu)
    assert compile_model(nn.Linear(2, 2), options, context) == f"the whole model, {expected}"


def test_without_a_compiler_one_line_says_so(cpu, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, str(tmp_path / "no-compiler")))
    config = parse_command_line(["-opts", *TINY_VIT]).config
    model, _ = build_model(config.model, config.data, CPU)
    with pytest.raises(UserError, match=r"^TRAIN\.COMPILE: no working compiler: .*no-compiler.*; install"):
        compile_model(model, Train(COMPILE="default"), cpu)
