"""Precision: dtypes, one step from gradients to weights and their average, and the switches of the process."""

import torch
import torch.nn.functional as F
from conftest import ROOT, assert_same_state, cli, config_for, each_value, model_for, rows, seeded, states, train
from fake_gpu import CONTEXT, GPU, fake_gpu
from precision_cases import BF16, CPU, FP32, policy
from pytest import approx, fixture, importorskip, mark
from timm import create_model
from timm.utils import ModelEmaV3
from torch import nn
from torch.torch_version import TorchVersion

from configs.schema import Amp
from engine.precision import policy as policies
from engine.precision.master_weights import WeightAverage
from engine.precision.policy import Precision, set_process_switches, use_fused_blocks

DTYPES = """
options | dtype
{} | float32
{ENABLED: true} | bfloat16
{ENABLED: true, DTYPE: float16} | float16
"""


@each_value(DTYPES)
def test_autocast_dtype_on_a_cpu(options, dtype):
    precision = Precision(Amp.model_validate(options), CPU)
    with precision.autocast():
        assert nn.Linear(4, 4)(torch.ones(1, 4)).dtype == getattr(torch, dtype)
    assert any("100 times slower" in text for text in precision.misfits()) == (dtype == "float16")


@mark.gpu
def test_autocast_on_a_gpu_is_fp16_with_loss_scaling():
    precision = Precision(Amp.model_validate({"ENABLED": True}), torch.device("cuda"))
    assert precision.dtype == torch.float16
    assert isinstance(precision.scaler, torch.amp.GradScaler)  # what `-amp` promises: autocast and GradScaler
    assert precision.scaler.get_scale() == 2.0**16


STREAMS = """
options | half_stream
{DTYPE: bfloat16} | true
{DTYPE: float16} | false
{DTYPE: bfloat16, CUSTOM_BLACK_LIST: [add]} | false
{DTYPE: bfloat16, CUSTOM_WHITE_LIST: [add, layer_norm]} | true  # PRESET bf16_stream
{DTYPE: float16, CUSTOM_BLACK_LIST: [cross_entropy, head, log_softmax, 'patch_embed.*']} | false
{DTYPE: bfloat16, CUSTOM_BLACK_LIST: [add, softmax]} |
{DTYPE: bfloat16, CUSTOM_WHITE_LIST: [gelu]} |
{DTYPE: bfloat16, CUSTOM_BLACK_LIST: [blocks.1.mlp]} |
"""


@each_value(STREAMS)
def test_fused_blocks_add_in_bfloat16_unless_the_lists_say_otherwise(options, half_stream, monkeypatch):
    """Lists that change nothing in a block leave them on; other lists are named."""
    importorskip("triton")
    streams = []

    monkeypatch.setattr("models.fused_proof.find_fault", lambda *_: "")
    monkeypatch.setattr("models.fused_blocks.fuse_blocks", lambda model, half: streams.append(half))
    model = create_model("test_vit")
    number, text = use_fused_blocks(model, Amp.model_validate({"ENABLED": True} | options), CONTEXT)
    if half_stream is None:
        assert (number, streams) == (0, [])
        assert "CUSTOM_" in text
    else:
        assert (number, streams) == (len(model.blocks), [half_stream])
    assert ("[add] undoes it" in text) == (half_stream is True and "CUSTOM_WHITE_LIST" not in options)


def test_a_vit_without_fused_blocks_has_a_reason_and_another_model_none():
    importorskip("triton")
    options = Amp.model_validate({"ENABLED": True})
    model = create_model("test_vit")
    assert use_fused_blocks(nn.Module(), options, CONTEXT) == (0, "")
    assert use_fused_blocks(model, Amp(), CONTEXT) == (0, "")
    model.set_grad_checkpointing(True)
    number, _ = use_fused_blocks(model, options, CONTEXT)
    assert number == 0


KINDS = """
options
{}
{ENABLED: true, DTYPE: float16, INIT_LOSS_SCALING: 8.0}
{ENABLED: true, LEVEL: O2}
"""


@mark.parametrize("max_norm", [None, 0.1])
@mark.parametrize("fused", [True, False])
@each_value(KINDS)
def test_step_returns_the_gradient_norm_before_clipping(options, fused, max_norm):
    precision = Precision(Amp.model_validate(options), CPU)
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    compute = precision.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    images = torch.randn(3, 8)
    with precision.autocast():
        loss = compute(images).float().square().sum()
    precision.scaler.scale(loss).backward()
    expected = torch.cat([parameter.grad.float().flatten() for parameter in compute.parameters()]).norm()
    norm = precision.step(optimizer, max_norm, seed=0)
    assert norm.item() == approx(expected.item() / precision.scaler.get_scale(), rel=1e-5)
    assert all(parameter.grad is None for parameter in (*model.parameters(), *compute.parameters()))


@mark.parametrize("emulates", [True, False])
@mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gpu_that_emulates_bfloat16_is_named(monkeypatch, emulates, dtype):
    """A T4 computes bfloat16 in fp32."""
    supported = lambda including_emulation: including_emulation or not emulates  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    precision = policy(dtype=dtype)
    precision.device = torch.device("cuda")
    assert len(precision.misfits()) == (emulates and dtype == "bfloat16")
    if dtype == "float16":
        assert ("-amp_dtype=bfloat16" in precision.suggest_fix(None)) is not emulates


@mark.parametrize("is_supported", [False, True])
def test_a_cpu_without_instructions_for_bfloat16_has_one_warning(monkeypatch, is_supported):
    monkeypatch.setattr(policies, "has_bfloat16_instructions", lambda: is_supported)
    assert len(Precision(Amp.model_validate({"ENABLED": True}), CPU).misfits()) == (not is_supported)
    assert Precision(Amp(), CPU).misfits() == []


AUTOCAST = {  # op -> its call, and its dtype for fp32 and for bf16, of autocast on a GPU
    "linear": (lambda x: F.linear(x, x[0]), (BF16, BF16)),
    "softmax": (lambda x: x.softmax(-1), (FP32, FP32)),
    "gelu": (F.gelu, (FP32, BF16)),
    "rms_norm": (lambda x: F.rms_norm(x, (8,)), (FP32, FP32 if TorchVersion(torch.__version__) >= (2, 12) else BF16)),
}


@mark.parametrize("call, expected", AUTOCAST.values(), ids=AUTOCAST.keys())
def test_ops_that_no_list_names_have_the_dtype_of_autocast(call, expected):
    """As docs/amp.md has it, also for versions of torch."""
    with fake_gpu(), policy(device=GPU).autocast():
        found = tuple(call(torch.zeros(8, 8, device=GPU, dtype=dtype)).dtype for dtype in (FP32, BF16))
    assert found == expected


# The switches of the process


@fixture
def switch(nondeterministic_after_test):
    def set_for(device, *options):
        argv = ["-dataset=digits", *(["-opts", *options] if options else [])]
        set_process_switches(config_for(*argv), device)

    yield set_for
    set_for(CPU)


SWITCHES = """
options | expected
[SEED=1] | false
[AMP=true] | true
[AMP=true, AMP.TF32=false] | false
"""


@each_value(SWITCHES)
def test_tf32_follows_amp_unless_set(switch, options, expected):
    switch(CPU, *options)
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is expected


def test_parts_of_half_products_are_added_in_float32(switch):
    matmul = torch.backends.cuda.matmul
    matmul.allow_fp16_reduced_precision_reduction = True
    switch(CPU, "SEED=1")
    assert not matmul.allow_fp16_reduced_precision_reduction
    assert not matmul.allow_bf16_reduced_precision_reduction


def test_deterministic_runs_do_not_select_algorithms_by_time(switch):
    switch(torch.device("cuda:0"), "SEED=1")
    assert torch.backends.cudnn.benchmark
    switch(torch.device("cuda:0"), "DETERMINISTIC=true")
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    switch(CPU, "SEED=1")
    assert not torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()


NOT_SKIPPED = torch.tensor(False)


@mark.parametrize("warmup", [False, True, "copy"])
def test_the_average_is_that_of_timm(warmup):
    """timm counts steps from 1, and its decay is 0 at the first, also without a warm-up: copy. False is constant.

    A skipped step does not change it.
    """
    model = nn.Linear(4, 3, bias=False)
    generator = seeded(0)
    ours = WeightAverage(model, 0.9, warmup)
    timms = ModelEmaV3(model, 0.9, use_warmup=warmup is True)
    for step in range(40):
        value = torch.randn(3, 4, generator=generator)
        model.weight.data.copy_(value)
        ours.set_step(step)
        ours.update(NOT_SKIPPED)
        timms.update(model, step + 1 if warmup else 9)
        assert torch.allclose(ours.module.weight, timms.module.weight, atol=1e-6)
        assert not warmup or step or torch.allclose(ours.module.weight, model.weight)
    before = ours.module.weight.clone()
    model.weight.data.zero_()
    ours.update(torch.tensor(True))
    assert torch.equal(ours.module.weight, before)


def test_tensors_with_several_names_are_averaged_once():
    """CoaT has its position encodings under two names or more."""
    config = config_for(f"-cfg={ROOT / 'tests/fixtures/families/CoaT/model.yaml'}")
    model, _ = model_for(config)
    average = WeightAverage(model, 0.5)
    start = {name: value.clone() for name, value in average.module.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    average.update(NOT_SKIPPED)
    for name, parameter in average.module.named_parameters():
        assert torch.allclose(parameter, start[name] + 0.5, atol=1e-5), name


AVERAGE = cli("TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_DECAY=0.9 TRAIN.MODEL_EMA_WARMUP=true")


@mark.slow
def test_raw_weights_are_evaluated_beside_their_average(digits_argv):
    """The raw weights equal the weights of a run without an average; the average decides the best checkpoint."""
    both = train([*digits_argv, *AVERAGE, "EVAL_RAW=true"])
    average = train([*digits_argv, *AVERAGE])
    raw = train(digits_argv)
    for row, of_average, of_raw in zip(rows(both), rows(average), rows(raw), strict=True):
        names = [name for name in row if name.startswith("raw_val_")]
        assert [row[name] for name in names] == [of_raw[name.removeprefix("raw_")] for name in names]
        unseen = {} if row["epoch"] == "2" else dict.fromkeys(names, "")  # the last evaluation has them in any case
        assert row | unseen == of_average
        assert row["raw_val_loss"] != row["val_loss"]
    assert_same_state(states(both), states(average))
