"""Triton's compiler without a GPU: the launches of fused blocks are recorded, and compiled for GPUs of all kinds."""

import re
import subprocess
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from pytest import MonkeyPatch, fixture, importorskip, mark
from timm import create_model
from timm.models.vision_transformer import Block
from torch import nn
from torch.torch_version import TorchVersion

triton = importorskip("triton")
from conftest import log_of, train  # noqa: E402
from triton import knobs  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia import driver as nvidia  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime import build  # noqa: E402

from configs.yaml_io import parse_value  # noqa: E402
from models import fused_proof  # noqa: E402
from models.fused_blocks import run_fused  # noqa: E402

NVIDIA = [GPUTarget("cuda", number, 32) for number in (80, 89, 90, 100, 120)]  # 86 is 89 without 8-bit floats
AMD = GPUTarget("hip", "gfx942", 64)
MAX_SPILLS = 0 if TorchVersion(triton.__version__) >= (3, 8) else 16  # bytes; Triton 3.6's for an A100
CPU = torch.device("cpu")
HALF = torch.float16
BF16 = torch.bfloat16
MAX_SHARED = 99 * 1024  # bytes, of the consumers' GPUs
MAX_REGISTERS = 65536  # of a program


@contextmanager
def gpu_of(target, find_device=lambda: 0):
    """Triton's driver of a GPU that does not exist. find_device: the driver's first call."""
    driver = SimpleNamespace(
        get_current_device=find_device, get_current_target=lambda: target, get_current_stream=lambda device: 0
    )
    with MonkeyPatch.context() as patch:
        patch.setattr(triton.runtime.driver, "_active", driver)
        patch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
        patch.setattr("models.fused_proof._faults", {})
        yield


@contextmanager
def recorded(target=NVIDIA[0]):
    """The launches inside, which are not compiled, by their kernel and its specialization."""
    launches = {}

    def record(key, fn, compile, **_):
        launches[fn.jit_function.__name__, key] = SimpleNamespace(kernel=fn.jit_function, **compile)
        return True

    with gpu_of(target), MonkeyPatch.context() as patch:
        patch.setattr(knobs.runtime, "jit_cache_hook", record)
        yield launches


def all_launches(target=NVIDIA[0]):
    """Of a training of ViT-S, B and L, with and without drops, in both dtypes."""
    with recorded(target) as launches, MonkeyPatch.context() as patch:
        patch.setattr("torch.autocast", lambda *_, **options: nullcontext())  # meta tensors have none
        for width in (384, 768, 1024):
            for half, stream in ((HALF, torch.float32), (BF16, BF16)):
                rate = 0.1 * ((width == 768) == (half == HALF))
                with torch.device("meta"):
                    options = {"qkv_bias": True, "proj_drop": rate, "drop_path": rate}
                    blocks = nn.Sequential(*(Block(width, width // 64, **options) for _ in range(2)))
                    x = torch.zeros(4, 197, width, dtype=stream, requires_grad=True)
                run_fused(blocks, x, half).sum().backward()
    return launches.values()


def compiled(launch, target):
    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.configs[0])
    options = {"num_warps": launch.num_warps, "enable_fp_fusion": launch.enable_fp_fusion}
    return triton.compile(source, target=target, options=options)


@fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


@mark.slow
@mark.parametrize("target", NVIDIA, ids=str)
def test_every_kernel_compiles_for_every_gpu(own_cache, target):
    launches = all_launches(target)
    assert {launch.kernel.__name__ for launch in launches} == {
        "add_norm", "add_norm_back", "activate", "activate_back", "pack"
    }  # fmt: skip
    assert len(launches) <= 40
    cubin = own_cache / "kernel.cubin"
    for launch in launches:
        kernel = compiled(launch, target)
        assert kernel.metadata.shared <= MAX_SHARED
        cubin.write_bytes(kernel.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
        assert registers * 32 * kernel.metadata.num_warps < MAX_REGISTERS
        assert stack <= MAX_SPILLS


@mark.slow
def test_every_kernel_compiles_for_amd(own_cache):
    for launch in all_launches(AMD):
        kernel = compiled(launch, AMD)
        assert kernel.metadata.shared <= MAX_SHARED
        used = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count):\s+(\d+)", kernel.asm["amdgcn"]))
        assert int(used["vgpr_count"]) <= 256
        assert used["vgpr_spill_count"] == used["sgpr_spill_count"] == "0"


def test_multiply_adds_are_fused_whatever_the_default(monkeypatch):
    monkeypatch.setattr(knobs.language, "default_fp_fusion", False)
    assert all(launch.enable_fp_fusion for launch in all_launches())


def small_vit(**options):
    sizes = parse_value("{img_size: 32, embed_dim: 64, num_heads: 2, depth: 3, num_classes: 0}")
    return create_model("vit_tiny_patch16_224", **sizes, **options).train()


@mark.parametrize("rates", [{}, {"proj_drop_rate": 0.1, "attn_drop_rate": 0.1, "drop_path_rate": 0.1}], ids=len)
@mark.parametrize("half, half_stream, weights", [
    (HALF, False, torch.float32), (BF16, True, torch.float32), (BF16, True, BF16), (HALF, False, HALF)
])  # fmt: skip
def test_training_launches_no_kernel_that_the_proof_did_not(monkeypatch, rates, half, half_stream, weights):
    """With batches of any size. Nothing is computed: the results have any values."""
    model = small_vit(**rates).to(weights)
    monkeypatch.setattr("models.fused_proof._differ", lambda *_: False)
    monkeypatch.setattr("torch.Tensor.isfinite", lambda self: torch.tensor(True))
    with recorded() as of_proof:
        assert fused_proof.find_fault(model, half, half_stream, CPU) == ""
    with recorded() as of_training:
        for batch in (1, 2, 3, 16):
            stream = half if half_stream else weights
            x = torch.randn(batch, 5, 64).to(stream).requires_grad_()
            run_fused(model.blocks, x, half).sum().backward()
    assert len(of_training) >= 6
    assert of_training.keys() <= of_proof.keys()


def fault_of_compiler(find_device=lambda: 0):
    with gpu_of(NVIDIA[0], find_device):
        return fused_proof.find_fault(small_vit(), HALF, False, CPU)


def test_a_cache_without_a_place_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert str(tmp_path) in fault_of_compiler()


@mark.parametrize("is_missing", [False, True])
def test_a_compiler_that_fails_is_named(monkeypatch, own_cache, capfd, is_missing):
    """Python's headers are missing, or the compiler is."""
    if is_missing:
        monkeypatch.setenv("CC", "no-compiler")
    else:
        monkeypatch.setattr("sysconfig.get_paths", lambda **_: {"include": str(own_cache)})
    monkeypatch.setattr("triton.backends.nvidia.driver.libcuda_dirs", lambda: ["/usr/lib"])
    if hasattr(build, "_find_compiler"):  # Triton of torch 2.10 keeps no compiler
        build._find_compiler.cache_clear()
    cause = "no-compiler" if is_missing else "its C compiler fails; .*python3-dev"
    assert re.search(cause, fault_of_compiler(nvidia.CudaUtils))
    if hasattr(build, "_find_compiler"):  # Triton of torch 2.10 keeps no compiler
        build._find_compiler.cache_clear()


@mark.gpu
@mark.parametrize("options", [(), ("MODEL.DROPOUT=0.1", "MODEL.DROPPATH=0.1"), ("AMP.LEVEL=O2",)], ids=str)
def test_no_later_step_compiles_a_kernel(digits_argv, gpu, monkeypatch, options):
    late = []
    compiles = []
    find_fault = fused_proof.find_fault

    def find(*arguments):
        late.clear()
        found = find_fault(*arguments)
        compiles.extend(late)
        late.clear()
        return found

    monkeypatch.setattr("models.fused_proof._faults", {})
    monkeypatch.setattr("models.fused_proof.find_fault", find)
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda fn, **_: late.append(fn.name))
    folder = train([*digits_argv, *options, "AMP.ENABLED=true"], gpu)
    assert "blocks fused by Triton" in log_of(folder)
    assert not late
