"""Before a training, blocks run by Triton's kernels and by torch's ops. Kernels: Triton's interpreter, on a CPU."""

import errno
import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import torch
from conftest import TINY_VIT, cli, log_of, train, values_of
from pytest import MonkeyPatch, approx, fixture, mark
from test_fused_blocks import CPU, TOKENS, few_programs, fused, kernels, make_model, proof
from torch import nn

import models
from configs.schema.model import Lora
from configs.yaml_io import parse_value
from engine.precision import policy
from models.tuning import add_adapters

HALF = torch.float16


@fixture(autouse=True)
def new_process(monkeypatch):
    monkeypatch.setattr(proof, "_faults", {})
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    few_programs(monkeypatch)


def fault_of(model, half_stream=False):
    return proof.find_fault(model, HALF, half_stream, CPU)


@mark.parametrize("half_stream, dtype", [(False, torch.float32), (True, torch.float32), (False, HALF)])
def test_right_kernels_pass(half_stream, dtype):
    model = make_model(proj_drop_rate=0.2, attn_drop_rate=0.2, drop_path_rate=0.5)
    assert fault_of(model.to(dtype), half_stream) == ""


def test_blocks_with_adapters_pass():
    model = make_model()
    add_adapters(model, Lora(RANK=2, TARGETS=["qkv", "proj"]), "vit")
    assert fault_of(model) == ""


class Planted:
    """A kernel, after which `damage` changes its arguments."""

    def __init__(self, name, damage):
        self.kernel = getattr(kernels, name)
        self.damage = damage

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.kernel[grid](*arguments, **options)
            self.damage(arguments, options)

        return launch


# The places of arguments that the kernels write
OUTPUTS = parse_value("{add_norm: 6, add_norm_back: 7, activate: 1, activate_back: 2, pack: 1}")
SUMS = parse_value("{add_norm_back: 9, activate_back: 3, pack: 2}")


def wrong_row(name, arguments, options):
    arguments[OUTPUTS[name]][TOKENS] = 0


def wrong_channel(name, arguments, options):
    arguments[OUTPUTS[name]][:, 7] *= 2


def wrong_sum(name, arguments, options):
    arguments[SUMS[name]][..., 7] *= 3


def failing(name, arguments, options):
    raise OSError(errno.ENOSPC, "No space left on device")


FAULTS = [(name, damage) for name in OUTPUTS for damage in (failing, wrong_row, wrong_channel)]
FAULTS += [(name, wrong_sum) for name in SUMS]


@mark.parametrize("name, damage", FAULTS)
def test_each_wrong_kernel_is_found(monkeypatch, name, damage):
    monkeypatch.setattr(kernels, name, Planted(name, partial(damage, name)))
    text = fault_of(make_model(depth=1))
    assert ("No space left" in text) if damage is failing else ("torch's ops differ" in text)


def test_kernels_with_dropout_that_do_not_run_are_found(monkeypatch):
    """Only the last block has a drop-path."""

    def fail(arguments, options):
        if arguments[2] is not None:
            raise RuntimeError("of a path")

    monkeypatch.setattr(kernels, "add_norm_back", Planted("add_norm_back", fail))
    assert "of a path" in fault_of(make_model(drop_path_rate=0.1))


def test_infinite_values_with_dropout_are_found(monkeypatch):
    def damage(arguments, options):
        if options["DROPS"]:
            arguments[1][2, 3] = torch.inf

    monkeypatch.setattr(kernels, "activate", Planted("activate", damage))
    assert "infinite" in fault_of(make_model(depth=1, proj_drop_rate=0.1))


def test_an_older_gpu_is_named(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))
    assert "8.0 and higher" in fault_of(make_model())


OTHER_MODELS = """
{num_heads: 4}
{img_size: 48}
{mlp_ratio: 2.0}
{proj_drop_rate: 0.1}
{drop_path_rate: 0.1}
{attn_drop_rate: 0.1}
"""


def test_a_plan_and_a_session_share_an_answer(monkeypatch):
    """The model of a plan has no memory. Other sizes, dtypes and rates have an answer of their own."""
    calls = []
    monkeypatch.setattr(proof, "_compare", lambda *arguments: calls.append(arguments))
    with torch.device("meta"):
        of_plan = make_model()
    for model in (of_plan, make_model()):
        assert fault_of(model) == ""
    assert len(calls) == 2  # two blocks
    others = [make_model(**options) for (options,) in values_of(OTHER_MODELS)]
    for number, model in enumerate([*others, make_model().half()], 2):
        fault_of(model)
        assert len(calls) == 2 * number


CAUSES = [
    (PermissionError(errno.EACCES, "Permission denied", "/home/other/.triton/cache/A"), "/home/other/.triton/cache/A"),
    (OSError(errno.EROFS, "Read-only file system", "/home/u/.triton/cache/A"), "Read-only file system"),
    (RuntimeError("Failed to find C compiler. Please specify via CC."), "C compiler"),
    (subprocess.CalledProcessError(1, ["gcc", "-I" * 200]), "its C compiler fails"),
    (RuntimeError(), "RuntimeError"),
]


@mark.parametrize("error, cause", CAUSES)
def test_a_cause_has_one_line_with_a_remedy(monkeypatch, error, cause):
    def fail(*_):
        raise error

    monkeypatch.setattr(kernels, "activate", Planted("activate", fail))
    text = fault_of(make_model())
    assert re.fullmatch(rf"Triton does not work on \S+: .*{cause}.*; it needs .*python3-dev.*TRITON_CACHE_DIR.*", text)
    assert len(text) < 400


def use_interpreter(patch):
    """The CPU is a GPU for fused blocks, whose kernels the interpreter runs. Returns the sizes of fused batches."""
    batches = []
    fuse = policy.use_fused_blocks
    find_fault = proof.find_fault

    def forward(self, x):
        if not (self.training and torch.is_grad_enabled()):
            return nn.Sequential.forward(self, x)
        batches.append(len(x))
        return fused.run_fused(self, x, HALF)

    for name, module in (("fused_blocks", fused), ("fused_proof", proof)):
        patch.setitem(sys.modules, f"models.{name}", module)
        patch.setattr(models, name, module, raising=False)
    patch.setattr(proof, "_faults", {})
    patch.setattr(proof, "find_fault", lambda model, half, half_stream, device: find_fault(model, half, False, CPU))
    patch.setattr(fused.FusedBlocks, "forward", forward)
    patch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    patch.setattr("models.build.use_fast_dropout", lambda model: None)
    gpu = torch.device("cuda", 0)
    patch.setattr(
        "engine.training.session.use_fused_blocks",
        lambda model, options, context: fuse(model, options, replace(context, device=gpu)),
    )
    return batches


OPTIONS = """
MODEL.NUM_CLASSES=1000 MODEL.ATTENTION=fused TRAIN.MAX_STEPS=2 TRAIN.NUM_EPOCHS=1 REPORT_FREQ=1 TRAIN.WARMUP_EPOCHS=0
DATA.NUM_WORKERS=0
"""


def trained(context, output, name="", damage=None, options=()):
    """The line on the blocks of a training, its losses, and the number of passes that were fused.

    damage: of a kernel of the last rank.
    """
    words = [*cli(f"-dataset=fake -batch_size=4 -output={output} -amp -amp_dtype=float16 -opts"), *TINY_VIT]
    with MonkeyPatch.context() as patch:
        batches = use_interpreter(patch)
        if damage and context.rank == context.world_size - 1:
            patch.setattr(kernels, name, Planted(name, partial(damage, name)))
        folder = train([*words, *cli(OPTIONS), *options], context)
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    lines = [line for line in log_of(folder).splitlines() if "Kernels: " in line]
    return lines, [row["loss"] for row in rows if row["kind"] == "report"], len(batches)


@mark.slow
def test_a_training_has_the_losses_of_torchs_ops(cpu, tmp_path):
    """By right kernels about, and with a wrong one exactly: its blocks are not fused."""
    _, expected, _ = trained(cpu, tmp_path / "torch", options=["MODEL.FUSED_BLOCKS=false"])
    assert len(expected) == 2
    (line,), losses, passes = trained(cpu, tmp_path / "fused")
    assert "2 blocks fused by Triton" in line
    assert passes == 2
    assert losses == approx(expected, rel=1e-3)
    for name, damage in (("pack", failing), ("activate_back", wrong_sum)):
        (line,), losses, passes = trained(cpu, tmp_path / name, name, damage)
        assert "blocks are not fused: Triton does not work on" in line
        assert (losses, passes) == (expected, 0)


@mark.slow
def test_a_fault_of_one_rank_ends_the_fused_blocks_of_all(ranks, tmp_path):
    expected = ranks(2)(trained, tmp_path / "torch", "", None, ["MODEL.FUSED_BLOCKS=false"])
    found = ranks(2)(trained, tmp_path / "fault", "activate", failing)
    for (_, losses, _), (lines, of_rank, passes) in zip(expected, found, strict=True):
        assert "blocks are not fused: Triton does not work on" in lines[0]
        assert "No space left" in lines[0]
        assert (of_rank, passes) == (losses, 0)
