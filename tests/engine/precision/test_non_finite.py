"""A run with persistent non-finite gradients aborts with finite weights and names the first non-finite module."""

import itertools
import json
import math
import re
import shlex
from collections.abc import Callable

import torch
from conftest import (
    GREY,
    SMALL_BATCHES,
    TINY_RESNET,
    assert_same_state,
    cli,
    config_for,
    only_run,
    refused,
    run_script,
    slow,
    step_rows,
    train,
    values_of,
)
from precision_cases import vit
from pytest import fixture, mark
from timm import create_model
from torch import Tensor, nn

from engine.checkpoint.files import load_checkpoint
from engine.precision.non_finite import first_non_finite
from engine.training import session
from engine.training.step import TrainState


class InfiniteGradient(torch.autograd.Function):
    """The identity in the forward pass; multiplies the gradient by infinity."""

    @staticmethod
    def forward(ctx, value):
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.inf


def make_output_nan(module: nn.Module):
    module.register_forward_hook(lambda _, inputs, output: output * math.nan)


def make_input_gradient_infinite(module: nn.Module):
    original = module.forward
    module.forward = lambda x: original(InfiniteGradient.apply(x))


def find_origin(model: nn.Module, images: Tensor | None = None) -> str:
    """Returns the description of the first non-finite value."""
    images = torch.randn(4, 3, 32, 32) if images is None else images
    return str(first_non_finite(model, lambda: nn.functional.cross_entropy(model(images), torch.arange(4)).backward()))


@mark.parametrize("path", ["patch_embed.proj", "blocks.1.attn.qkv", "head"])
def test_names_the_module_in_the_forward_and_backward_pass(path):
    model = vit(depth=3)
    make_output_nan(model.get_submodule(path))
    assert find_origin(model) == f"the output of {path}"
    if path == "patch_embed.proj":
        return  # images have no gradient
    model = vit(depth=3)
    make_input_gradient_infinite(model.get_submodule(path))
    assert find_origin(model) == f"the gradient at the input of {path}"


def test_names_the_parent_module_of_a_functional_op():
    model = vit(depth=3)
    model.blocks[1].attn.scale = math.inf
    assert find_origin(model) == "the output of blocks.1.attn"


def test_names_the_parameter_the_images_and_the_loss():
    model = vit(depth=3)
    model.blocks[1].mlp.fc1.weight.register_hook(lambda gradient: gradient * math.inf)
    assert find_origin(model) == "the gradient of the weight of blocks.1.mlp.fc1"
    assert find_origin(vit(depth=3), torch.full((4, 3, 32, 32), math.nan)) == "the images"
    model = vit(depth=3)
    found = first_non_finite(model, lambda: (model(torch.randn(4, 3, 32, 32)).sum() * math.inf).backward())
    assert str(found).startswith("the gradient of the loss")
    assert find_origin(vit(depth=3)) == "None"


def test_in_place_activations_do_not_hide_the_module():
    model = create_model("test_resnet", num_classes=5)
    make_output_nan(model.layer2[0].conv2)
    assert find_origin(model) == "the output of layer2.0.conv2"
    assert not any(module._forward_hooks for name, module in model.named_modules() if name != "layer2.0.conv2")


def hook_into(monkeypatch, module_of: Callable[[TrainState], nn.Module], hook: Callable):
    """hook(number, output): the output of training pass `number` of the module, which counts from 1."""
    build_state = session.build_train_state
    numbers = itertools.count(1)

    def build_with_hook(*args):
        state, notes = build_state(*args)
        module_of(state).register_forward_hook(
            lambda module, _, output: hook(next(numbers), output) if module.training else output
        )
        return state, notes

    monkeypatch.setattr("engine.training.session.build_train_state", build_with_hook)


def inject_nan_after(step: int, path: str, monkeypatch):
    """Makes the module at `path` return NaN in training, after its first `step` passes."""
    module_of = lambda state: state.precision.weights.compute.get_submodule(path)  # noqa: E731
    hook_into(monkeypatch, module_of, lambda number, output: output * math.nan if number > step else output)


FAST = """
AMP=false | false | false
AMP=true AMP.DTYPE=float16 AMP.CUSTOM_BLACK_LIST=[gelu] | true | true
"""
SLOW = """
AMP=true | true | false
AMP=true AMP.LEVEL=O2 | true | false
AMP=true AMP.LEVEL=O3 | false | false
"""
PRECISIONS = [*values_of(FAST), *(slow(*row) for row in values_of(SLOW))]


@mark.parametrize("amp, names_block, names_dtype", PRECISIONS)
def test_persistent_nan_aborts_within_20_steps(digits_argv, monkeypatch, amp, names_block, names_dtype, tmp_path):
    finite = train([*digits_argv, SMALL_BATCHES, *amp.split(), "TRAIN.MAX_STEPS=5"])
    expected = load_checkpoint(finite / "last.pth")
    inject_nan_after(5, "blocks.1.mlp.fc1", monkeypatch)
    argv = [*digits_argv, SMALL_BATCHES, *amp.split(), f"SAVE={tmp_path / 'bad'}"]
    with refused(r"18 .* step 23, .*: the output of blocks\.1\.mlp\.fc1\. ") as error:
        train(argv)
    state = load_checkpoint(only_run(tmp_path / "bad") / "last.pth")
    assert state["epoch"] * 22 + state["done_steps"] == 5 + 17  # a resumed run repeats the last step
    assert_same_state(state["model"], expected["model"])
    message = str(error.value)
    typed = "".join(re.findall(r'Try (-opts ".*?")', message))
    lists = config_for(*argv, *shlex.split(typed)).amp.custom_black_list
    assert ("blocks.1.*" in lists) == names_block
    assert ("gelu" in lists) == names_dtype
    assert ("-amp_dtype=bfloat16" in message) == names_dtype


def test_resume_after_an_abort_restarts_the_loss_scale(digits_argv, monkeypatch, tmp_path):
    inject_nan_after(2, "blocks.1.mlp.fc1", monkeypatch)
    argv = ["-amp_dtype=float16", *digits_argv, SMALL_BATCHES, "TRAIN.NUM_EPOCHS=1"]
    with refused(r"18 .* step 20"):
        train(argv)
    folder = only_run(tmp_path / "out")
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["loss_scale"], last["skipped_steps"]) == (20, 1, 18)
    monkeypatch.undo()
    train([f"-resume={folder}", *argv])
    assert [row["step"] for row in step_rows(folder)] == [1, 20, 22]  # one row per step, although step 20 ran twice
    scaler = load_checkpoint(folder / "last.pth")["precision"]["scaler"]
    assert scaler["scale"] == 65536
    assert scaler["counts"] == [18, 0]


@fixture
def resnet_argv(tmp_path) -> list[str]:
    """A model with running statistics."""
    return [*cli(f"-dataset=digits -batch_size=64 -output={tmp_path / 'out'} -opts"), *GREY, *TINY_RESNET]


def test_search_for_the_module_keeps_running_statistics_finite(resnet_argv, monkeypatch, tmp_path):
    inject_nan_after(2, "layer1.0.conv1", monkeypatch)
    with refused(r"the output of layer1\.0\.conv1\."):
        train([*resnet_argv, "AMP.MAX_SKIPPED_STEPS=2"])
    state = load_checkpoint(only_run(tmp_path / "out") / "last.pth")
    assert state["done_steps"] == 3
    assert all(value.isfinite().all() for value in state["model"].values())


@mark.parametrize("amp", [slow("AMP=false"), "AMP=true"])
def test_running_statistics_stay_finite_after_a_nan_image(resnet_argv, monkeypatch, amp):
    """The second batch has an image of NaN values: its step is skipped, the other steps are applied."""

    def inject_nan(number, outputs):
        images, targets = outputs
        return (images.index_fill(0, torch.tensor([3]), math.nan), targets) if number == 2 else outputs

    hook_into(monkeypatch, lambda state: state.transform, inject_nan)
    folder = train([*resnet_argv, amp, "TRAIN.MAX_STEPS=3", "TRAIN.MODEL_EMA=true"])
    state = load_checkpoint(folder / "last.pth")
    assert state["precision"]["scaler"]["counts"][0] == 1
    for part in ("model", "state_dict_ema"):
        assert all(value.isfinite().all() for value in state[part].values())
    assert state["model"]["bn1.running_mean"].any()
    assert state["model"]["bn1.num_batches_tracked"] == state["state_dict_ema"]["bn1.num_batches_tracked"] == 2


@mark.slow
def test_two_ranks_abort_together_and_save_one_checkpoint(digits_argv, tmp_path):
    """With a learning rate of 1e30, every forward pass after the first applied step is non-finite."""
    rate = [SMALL_BATCHES, "TRAIN.BASE_LR=1e30", "TRAIN.WARMUP_EPOCHS=0"]
    printed = run_script("main_multi_gpu.py", "-ngpus=2", "-amp", *digits_argv, *rate, status=2)
    assert printed.count("error: Non-finite gradients for 18 consecutive steps, up to step 19") == 1
    assert "Traceback" not in printed
    state = load_checkpoint(only_run(tmp_path / "out") / "last.pth")
    assert state["epoch"] * 11 + state["done_steps"] == 18  # 179 images, 2 x 8 per step
    assert all(value.isfinite().all() for value in state["model"].values())
