"""FLOPs and their share of the peak: against closed forms."""

import json

import pytest
import timm
import torch
from conftest import train

from configs.command_line import parse_command_line
from engine.precision.policy import Precision
from engine.telemetry.flops import (
    MFUMeter,
    _devices,
    build_mfu_meter,
    forward_flops,
    matmul_flops_per_second,
    training_flops,
)
from models.build import build_model
from utils.distributed import ProcessContext

CPU = torch.device("cpu")


def config(*argv: str):
    return parse_command_line(list(argv)).config


def vit_forward_flops(width: int, depth: int, side: int, patch: int, channels: int, classes: int) -> tuple[int, int]:
    """Of the whole model and of its patch embedding; a multiply-add is two."""
    patches = (side // patch) ** 2
    tokens = patches + 1
    embedding = 2 * patches * channels * patch**2 * width
    block = 2 * tokens * 12 * width**2 + 2 * 2 * tokens**2 * width  # four projections; q k^T and its product with v
    return embedding + depth * block + 2 * width * classes, embedding


@pytest.mark.parametrize(
    ("recipe", "sizes"),
    [("vit_base_patch16_224", (768, 12, 224, 16, 3, 1000)), ("vit_tiny_patch16_224", (192, 12, 224, 16, 3, 1000))],
)
def test_a_vit_has_the_flops_of_its_closed_form(recipe, sizes):
    options = config(f"-cfg=configs/{recipe}.yaml")
    model, _ = build_model(options.model, options.data, torch.device("meta"))
    forward, embedding = vit_forward_flops(*sizes)
    assert forward_flops(model, options) == forward
    assert training_flops(model, options) == 3 * forward - embedding  # images have no gradient
    assert model.patch_embed.proj.weight.grad is None
    for block in model.blocks:
        block.attn.fused_attn = not block.attn.fused_attn
    assert training_flops(model, options) == 3 * forward - embedding


def test_a_frozen_backbone_costs_its_forward_pass():
    options = config("-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", "MODEL.FREEZE_BACKBONE=true")
    model, _ = build_model(options.model, options.data, CPU)
    forward, _ = vit_forward_flops(192, 12, 224, 16, 3, 1000)
    assert training_flops(model, options) == forward + 2 * 192 * 1000


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_precision_and_dropout_do_not_change_the_count(level):
    argv = ["-opts", "MODEL.DEPTH=2", "MODEL.EMBED_DIM=48", "DATA.IMAGE_SIZE=32", "MODEL.NUM_CLASSES=10"]
    plain = training_flops(build_model(config(*argv).model, config(*argv).data, CPU)[0], config(*argv))
    lists = ["AMP.CUSTOM_BLACK_LIST=[softmax,linear]", "MODEL.DROPOUT=0.1", "MODEL.DROPPATH=0.5"]
    options = config("-amp", *argv, f"AMP.LEVEL={level}", *lists)
    model, _ = build_model(options.model, options.data, CPU)
    precision = Precision(options.amp, CPU)
    precision.prepare(model)
    assert training_flops(precision.weights(model).full, options) == plain


def test_grouped_convolutions_count_their_groups():
    """A depthwise convolution's backward pass is twice its forward pass, but for the images' gradient."""
    options = config("-opts", "MODEL.TYPE=timm", "MODEL.NAME=efficientnet_b0", "DATA.IMAGE_SIZE=64")
    model = timm.create_model("efficientnet_b0")
    stem = 2 * 32**2 * 3 * 3**2 * 32
    assert training_flops(model, options) == 3 * forward_flops(model, options) - stem


def test_a_model_that_cannot_be_counted_has_no_figure(cpu):
    class Reads(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images * images.sum().item()

    options = config()
    gauge = build_mfu_meter(Reads(), options, Precision(options.amp, CPU), cpu)
    assert gauge.flops_per_image is None and gauge.tflops_per_second(10) is None and gauge.utilization(10) is None
    assert gauge.describe(10) == "" and str(gauge).startswith("FLOPs of this model cannot be counted; measured peak:")


def test_the_share_of_the_peak():
    gauge = MFUMeter(flops_per_image=int(105e9), peak_flops_per_second=790e12)
    assert gauge.tflops_per_second(3000) == pytest.approx(315)
    assert gauge.utilization(3000) == pytest.approx(315 / 790)
    assert gauge.describe(3000) == "TFLOP/s: 315 (39.9% of peak)"
    assert gauge.describe(30000) == "TFLOP/s: 3150 (399% of peak)"
    assert gauge.describe(0.03) == "TFLOP/s: 0.00315 (0.000399% of peak)"


def test_the_peak_is_of_the_precision(monkeypatch):
    monkeypatch.setattr("engine.telemetry.flops._SIZES", (64, 128))
    dtypes = []
    monkeypatch.setattr("engine.telemetry.flops.timed", lambda work, device: dtypes.append(work().dtype) or 0.01)
    assert matmul_flops_per_second(Precision(config("-amp").amp, CPU)) == pytest.approx(2 * 128**3 / 0.01)
    assert set(dtypes) == {torch.bfloat16}
    monkeypatch.setattr("engine.telemetry.flops._LONG_SECONDS", 0.005)
    assert matmul_flops_per_second(Precision(config().amp, CPU)) == pytest.approx(2 * 64**3 / 0.01)


@pytest.mark.parametrize(
    ("device", "ranks", "local_ranks", "threads", "expected"),
    [("cuda", 8, 4, 1, 8), ("cpu", 2, 2, 4, 2), ("cpu", 2, 2, 8, 1), ("cpu", 8, 4, 4, 4), ("cpu", 1, 1, 16, 1)],
)
def test_processes_on_cpus_share_their_cores(monkeypatch, device, ranks, local_ranks, threads, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    assert _devices(ProcessContext(0, 0, ranks, local_ranks, torch.device(device))) == expected


def test_the_measured_peak_is_kept(cpu, monkeypatch, tmp_path):
    monkeypatch.setenv("AMPVIT_CACHE", str(tmp_path))
    peaks = iter((1e12, 2e12))
    monkeypatch.setattr("engine.telemetry.flops.matmul_flops_per_second", lambda precision: next(peaks))
    options = config("-opts", "MODEL.DEPTH=1", "DATA.IMAGE_SIZE=32")
    model, _ = build_model(options.model, options.data, CPU)
    gauges = [build_mfu_meter(model, options, Precision(options.amp, CPU), cpu) for _ in range(2)]
    assert [gauge.peak_flops_per_second for gauge in gauges] == [1e12, 1e12]
    (file,) = tmp_path.iterdir()
    question = json.loads(file.read_text())["question"]
    assert question.keys() == {"what", "dtype", "tf32", "device", "torch", "threads"}


def test_tables_of_before_are_resumed(digits_argv, cpu):
    """Their rows have no figures for the columns that are new."""
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=22"], cpu)
    new = {"tflops_per_second", "model_flops_utilization"}
    lines = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    kept = [place for place, name in enumerate(lines[0]) if name not in new]
    assert len(kept) == len(lines[0]) - 2
    old = "".join(",".join(line[place] for place in kept) + "\r\n" for line in lines)
    (folder / "metrics.csv").write_text(old, newline="")
    train([f"-resume={folder}", *digits_argv], cpu)
    header, first, second = (folder / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(header.split(","), row.split(","), strict=True)) for row in (first, second)]
    assert [rows[0][name] for name in new] == ["", ""] and all(float(rows[1][name]) > 0 for name in new)
    assert rows[0]["images_per_second"] == dict(zip(lines[0], lines[1], strict=True))["images_per_second"]
