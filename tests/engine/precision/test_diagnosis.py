"""A run whose gradients stay non-finite stops, weights intact, and names the module where it began."""

import math

import pytest
import timm
import torch
from conftest import only_run, run_script, train
from torch import nn

from engine.checkpoint.checkpoint import load_checkpoint
from engine.precision.non_finite import first_non_finite
from engine.training import trainer
from utils.errors import UserError


def vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, embed_dim=48, num_classes=5)


class Spoil(torch.autograd.Function):
    """The identity, but for what it does to the gradient."""

    @staticmethod
    def forward(ctx, value):
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.inf


def spoil_forward(module: nn.Module) -> None:
    module.register_forward_hook(lambda _, inputs, output: output * math.nan)


def spoil_backward(module: nn.Module) -> None:
    plain = module.forward
    module.forward = lambda x: plain(Spoil.apply(x))


def origin(model: nn.Module, images: torch.Tensor | None = None) -> str:
    images = torch.randn(4, 3, 32, 32) if images is None else images
    return str(first_non_finite(model, lambda: nn.functional.cross_entropy(model(images), torch.arange(4)).backward()))


@pytest.mark.parametrize(
    "path", ["patch_embed.proj", "blocks.0.norm1", "blocks.1.attn.qkv", "blocks.2.mlp.fc2", "head"]
)
def test_the_guilty_module_forward_and_backward(path):
    model = vit()
    spoil_forward(model.get_submodule(path))
    assert origin(model) == f"the output of {path}"
    if path == "patch_embed.proj":
        return  # images have no gradient
    model = vit()
    spoil_backward(model.get_submodule(path))
    assert origin(model) == f"the gradient at the input of {path}"


def test_an_op_between_modules_is_that_of_the_module_around_them():
    model = vit()
    for block in model.blocks:
        block.attn.fused_attn = False
    model.blocks[1].attn.scale = math.inf
    assert origin(model) == "the output of blocks.1.attn"


def test_parameters_images_loss():
    model = vit()
    model.blocks[1].mlp.fc1.weight.register_hook(lambda gradient: gradient * math.inf)
    assert origin(model) == "the gradient of the weight of blocks.1.mlp.fc1"
    assert origin(vit(), torch.full((4, 3, 32, 32), math.nan)) == "the images"
    model = vit()
    found = first_non_finite(model, lambda: (model(torch.randn(4, 3, 32, 32)).sum() * math.inf).backward())
    assert str(found).startswith("the gradient of the loss")
    assert origin(vit()) == "None"


def test_activations_in_place_do_not_matter():
    model = timm.create_model("test_resnet", num_classes=5)
    spoil_forward(model.layer2[0].conv2)
    assert origin(model) == "the output of layer2.0.conv2"
    assert not any(module._forward_hooks for name, module in model.named_modules() if name != "layer2.0.conv2")


def spoiled_from(step: int, path: str, monkeypatch) -> None:
    """Runs whose module at `path` gives NaN from that pass on."""
    build = trainer.build_train_state

    def build_spoiled(*args):
        learner, passes = build(*args), 0

        def spoil(module, inputs, output):
            nonlocal passes
            passes += module.training
            return output * math.nan if passes > step and module.training else output

        learner.weights.computing.get_submodule(path).register_forward_hook(spoil)
        return learner

    monkeypatch.setattr(trainer, "build_train_state", build_spoiled)


@pytest.mark.parametrize("amp", [["AMP=false"], ["AMP=true"], ["AMP.ENABLED=true", "AMP.DTYPE=float16"],
                                 ["AMP.ENABLED=true", "AMP.LEVEL=O2"], ["AMP.ENABLED=true", "AMP.LEVEL=O3"]],
                         ids=["fp32", "bf16", "fp16", "O2", "O3"])  # fmt: skip
def test_overflow_for_ever_stops_within_20_steps(digits_argv, cpu, monkeypatch, amp, tmp_path):
    good = train([*digits_argv, *amp, "TRAIN.MAX_STEPS=5"], cpu)
    expected = load_checkpoint(good / "last.pth")
    spoiled_from(5, "blocks.1.mlp.fc1", monkeypatch)
    argv = [*digits_argv, *amp, f"SAVE={tmp_path / 'bad'}"]
    with pytest.raises(
        UserError, match=r"18 steps in a row, up to step 23, .*: the output of blocks\.1\.mlp\.fc1\. "
    ) as stop:
        train(argv, cpu)
    state = load_checkpoint(only_run(tmp_path / "bad") / "last.pth")
    assert state["epoch"] * 22 + state["done_steps"] == 5 + 17  # the last one is to be tried again
    assert all(torch.equal(value, state["model"][name]) for name, value in expected["model"].items())
    advice = str(stop.value)
    assert "last.pth" in advice
    assert ("CUSTOM_BLACK_LIST [blocks.1.*]" in advice) == (amp != ["AMP=false"] and "AMP.LEVEL=O3" not in amp)
    assert ("-amp_dtype=bfloat16" in advice) == ("AMP.DTYPE=float16" in amp)


def test_it_can_be_resumed_with_a_scale_that_searches_anew(digits_argv, cpu, monkeypatch, tmp_path):
    spoiled_from(2, "blocks.1.mlp.fc1", monkeypatch)
    argv = ["-amp_dtype=float16", *digits_argv, "TRAIN.NUM_EPOCHS=1"]
    with pytest.raises(UserError, match="18 steps in a row, up to step 20"):
        train(argv, cpu)
    folder = only_run(tmp_path / "out")
    assert (folder / "loss_scale.png").exists()
    step, _, *scale = (folder / "steps.csv").read_text().splitlines()[-1].split(",")
    assert (step, scale) == ("20", ["1.0", "18"])
    monkeypatch.undo()
    train([f"-resume={folder}", *argv], cpu)
    steps = [line.split(",")[0] for line in (folder / "steps.csv").read_text().splitlines()[1:]]
    assert steps == ["20", "22"]  # each once, though step 20 was tried twice
    scaler = load_checkpoint(folder / "last.pth")["precision"]["scaler"]
    assert scaler["scale"] == 65536 and scaler["counts"] == [18, 0, 0]


RESNET = ["MODEL.TYPE=timm", "MODEL.NAME=test_resnet", "DATA.IMAGE_SIZE=32"]


def resnet_argv(digits_argv: list[str]) -> list[str]:
    """The same run of a model with running statistics."""
    vit_keys = tuple(f"MODEL.{key}" for key in ("PATCH_SIZE", "EMBED_DIM", "NUM_HEADS", "DEPTH"))
    return [*(word for word in digits_argv if not word.startswith(vit_keys)), *RESNET]


def test_the_search_leaves_no_nan_in_running_statistics(digits_argv, cpu, monkeypatch, tmp_path):
    spoiled_from(2, "layer1.0.conv1", monkeypatch)
    argv = [*resnet_argv(digits_argv), "AMP.MAX_SKIPPED_STEPS=2"]
    with pytest.raises(UserError, match=r"the output of layer1\.0\.conv1\."):
        train(argv, cpu)
    state = load_checkpoint(only_run(tmp_path / "out") / "last.pth")
    assert state["done_steps"] == 3
    assert all(value.isfinite().all() for value in state["model"].values())


@pytest.mark.parametrize("model", ["vit", "resnet"])
@pytest.mark.parametrize("amp", ["AMP=false", "AMP=true"])
def test_a_nan_image_leaves_all_of_the_model_finite(digits_argv, cpu, monkeypatch, model, amp):
    """One batch of the epoch has a NaN pixel: that step is skipped, the others count."""
    build = trainer.build_train_state

    def build_spoiled(*args):
        learner, batches = build(*args), 0

        def spoil(module, inputs, outputs):
            nonlocal batches
            batches += 1
            images, targets = outputs
            return (images.index_fill(0, torch.tensor([3]), math.nan), targets) if batches == 2 else outputs

        learner.transform.register_forward_hook(spoil)
        return learner

    monkeypatch.setattr(trainer, "build_train_state", build_spoiled)
    argv = resnet_argv(digits_argv) if model == "resnet" else digits_argv
    folder = train([*argv, amp, "TRAIN.NUM_EPOCHS=1", "TRAIN.MAX_STEPS=3", "TRAIN.MODEL_EMA=true"], cpu)
    state = load_checkpoint(folder / "last.pth")
    assert state["precision"]["scaler"]["counts"][0] == 1
    for part in ("model", "ema"):
        assert all(value.isfinite().all() for value in state[part].values())
    if model == "resnet":
        assert state["model"]["bn1.running_mean"].any()


def test_two_ranks_stop_together_and_with_one_checkpoint(digits_argv, tmp_path):
    """A learning rate of 1e30 is one that no later forward pass survives."""
    rate = ["TRAIN.BASE_LR=1e30", "TRAIN.WARMUP_EPOCHS=0"]
    printed = run_script("main_multi_gpu.py", "-ngpus=2", "-amp", *digits_argv, *rate, status=1)
    assert printed.count("error: 18 steps in a row, up to step 19, were skipped") == 1
    assert "First not finite: the output of " in printed and "Traceback" not in printed
    state = load_checkpoint(only_run(tmp_path / "out") / "last.pth")
    assert state["epoch"] * 11 + state["done_steps"] == 18  # 1437 images, 2 x 64 in a step
    assert all(value.isfinite().all() for value in state["model"].values())
