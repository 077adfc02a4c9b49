"""The private names of torch behave as utils/torch_compat.py expects. A failure here means that torch has changed."""

import platform
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from conftest import ROOT, environment
from pytest import mark
from torch import nn
from torch.utils.data import DataLoader

from utils import torch_compat

CPU = torch.device("cpu")


def test_fused_lerp(any_device):
    torch.manual_seed(0)
    starts, ends = ([torch.randn(shape, device=any_device.device) for shape in ((), (3,), (2, 5))] for _ in range(2))
    expected = torch._foreach_lerp(starts, ends, 0.3)
    copies = [end.clone() for end in ends]
    skipped = torch.zeros((), dtype=torch.bool, device=any_device.device)
    for step_is_skipped in (False, True):
        torch_compat.fused_lerp_(starts, ends, 0.3, skipped.fill_(step_is_skipped))
        assert all(map(torch.allclose, starts, expected))
        assert all(map(torch.equal, ends, copies))


@mark.usefixtures("cpu_group")
def test_process_group_timeout():
    torch_compat.set_process_group_timeout(timedelta(seconds=77))
    backend = dist.group.WORLD._get_backend(CPU)
    assert backend.options._timeout == timedelta(seconds=77)
    other = dist.new_group(timeout=timedelta(seconds=11))
    torch_compat.set_process_group_timeout(timedelta(seconds=33), other)
    assert [torch_compat.process_group_timeout(CPU, group).seconds for group in (None, other)] == [77, 33]


def test_compiled_backward_without_autocast():
    from torch._functorch import config

    before = config.backward_pass_autocast
    assert before in ("same_as_forward", "off")
    try:
        torch_compat.disable_autocast_in_compiled_backward()
        assert config.backward_pass_autocast == "off"
    finally:
        config.backward_pass_autocast = before


LATE_DYNAMO = """
import os, sys
import torch
from utils import torch_compat
torch_compat.import_dynamo_late()
from timm.optim import NAdamW
from timm.optim.kron import Kron
from torchvision.ops import roi_align

weight = torch.nn.Parameter(torch.ones(2, 2))
weight.grad = torch.ones(2, 2)
for kind in (torch.optim.AdamW, torch.optim.SGD, NAdamW):
    optimizer = kind([weight], lr=0.1)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
with torch.device("meta"), torch_compat.WithoutValues():
    torch.nn.Linear(2, 2)
with torch_compat.ProductCounter() as counter:
    torch.nn.Linear(2, 2)(torch.zeros(1, 2))
assert counter.flops == 2 * 2 * 4
assert not torch_compat.can_have_compiled() and "torch._dynamo.eval_frame" not in sys.modules

def compiles():
    calls = []
    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward
    assert torch.compile(lambda x: x.sin(), backend=backend)(torch.zeros(2)).sum() == 0 and calls

def imports_settings():
    import torch._dynamo.config as config
    assert config is torch._dynamo.config and config.__spec__.name == "torch._dynamo.config"

def imports_a_module():
    import torch._dynamo.testing
    from torch._dynamo.utils import counters
    assert counters is torch._dynamo.utils.counters and torch._dynamo.utils.__spec__.origin

def asks_torchvision():
    assert roi_align.__globals__["is_compile_supported"]("cpu") is True

def steps():
    Kron([weight], lr=0.1).step()

def a_plugin_excludes_a_function():
    @torch.compiler.disable(recursive=False)
    def own(x):
        assert not torch.compiler.is_compiling()
        return x
    def calls(x):
        return own(x) + 1
    assert torch.compile(calls, backend="eager")(torch.zeros(2)).sum() == 2

uses = (compiles, imports_settings, imports_a_module, asks_torchvision, steps, a_plugin_excludes_a_function)
for use in uses:
    if not os.fork():
        use()
        assert torch_compat.can_have_compiled() and torch._dynamo is sys.modules["torch._dynamo"]
        assert torch._dynamo.config.cache_size_limit == 1_000_000  # timm's Kron has set it, before the import
        compiles()
        print("passed", flush=True)
        os._exit(0)
    os.wait()
"""


@mark.slow
def test_dynamo_is_imported_when_it_is_used():
    command = [sys.executable, "-c", LATE_DYNAMO]
    run = subprocess.run(command, cwd=ROOT, env=environment(""), capture_output=True, text=True)
    assert run.stdout.split() == 6 * ["passed"], run.stderr


def test_release_loader_event():
    iterator = iter(DataLoader([1, 2], num_workers=1))
    iterator._workers_done_event._cond._lock.acquire()  # as a worker that was killed
    torch_compat.release_loader_event(iterator)
    assert list(iterator) == [torch.tensor([1]), torch.tensor([2])]


def test_is_compiled():
    module = nn.Linear(2, 2)
    assert not torch_compat.is_compiled(module)
    module.compile()
    assert torch_compat.is_compiled(module)


@mark.slow
def test_a_program_that_imports_the_training_can_compile():
    code = "import engine.training, torch; m = torch.nn.Linear(2, 2); m.compile()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_dropout_rates_of_attention():
    for op, place in torch_compat._ATTENTION.items():
        assert [argument.name for argument in op._schema.arguments].index("dropout_p") == place
        arguments = (None,) * place
        rates = ((), (0.0,), (0.1,))
        found = [torch_compat.is_attention_without_dropout(op, (*arguments, *rate)) for rate in rates]
        assert found == [True, True, False]
    assert not torch_compat.is_attention_without_dropout(torch.ops.aten.mul.Tensor, (None, None))


def test_the_instructions_of_an_x86_cpu_for_bfloat16_are_those_of_the_kernel():
    words = {*Path("/proc/cpuinfo").read_text().split()}
    if platform.machine() == "x86_64":
        assert torch_compat.has_bfloat16_instructions() == bool(words & {"avx512_bf16", "amx_tile"})
