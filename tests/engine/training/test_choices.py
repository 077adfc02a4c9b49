"""What is chosen by measuring is the same for all who ask, and for a run that is resumed."""

import time

import pytest
import timm
import torch
from conftest import TINY_VIT, assert_same_state, states, train

from configs.command_line import parse_command_line
from configs.schema import Amp
from engine.checkpoint.checkpoint import load_checkpoint
from engine.precision.policy import Precision
from engine.training.choices import Choices, choose_attention
from models import attention
from models.attention import AttentionShape, attention_seconds, attention_shape
from models.build import build_model

CPU = torch.device("cpu")


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str) -> None:
        self.lines.append(message)


def fastest(cpu, seconds: dict[str, float], kept: dict | None = None, question: str = "") -> tuple[str, str]:
    """The choice, and what the log says of it."""
    log = Log()
    choices = Choices(cpu, log, kept)
    choice = choices.fastest(
        "attention", ("fused", "explicit"), lambda: {"test": question or repr(seconds)}, lambda: seconds
    )
    assert choices.made == {"attention": choice}
    return choice, log.lines[0]


def test_the_fastest_is_taken_and_the_first_where_it_is_as_good(cpu):
    assert fastest(cpu, {"fused": 3.0, "explicit": 2.0}) == (
        "explicit", "----- Attention: explicit, 1.50 times as fast as fused"
    )  # fmt: skip
    assert fastest(cpu, {"fused": 1.02, "explicit": 1.0})[0] == "fused"
    assert fastest(cpu, {"fused": 1.0, "explicit": 2.0})[1].endswith("fused, 2.00 times as fast as explicit")


def test_it_is_measured_once_and_the_checkpoint_has_the_last_word(cpu):
    first, second = {"fused": 1.0, "explicit": 2.0}, {"fused": 2.0, "explicit": 1.0}
    assert [fastest(cpu, seconds, question="once")[0] for seconds in (first, second)] == ["fused", "fused"]
    kept = {"attention": "explicit"}
    assert fastest(cpu, first, kept) == ("explicit", "----- Attention: explicit, as in the checkpoint")
    assert fastest(cpu, first, {"attention": "unheard of"})[0] == "fused"


def test_both_kinds_are_measured_and_chance_is_left_alone():
    state = torch.get_rng_state()
    shape = AttentionShape(tokens=5, heads=2, head_size=4, dropout=0.1)
    for dtype in (torch.float32, torch.bfloat16):
        autocast = Precision(Amp.model_validate({"ENABLED": dtype == torch.bfloat16}), CPU).autocast
        seconds = attention_seconds(shape, 2, CPU, dtype, autocast)
        assert set(seconds) == {"fused", "explicit"} and all(0 < value < 10 for value in seconds.values())
    assert torch.equal(state, torch.get_rng_state())


def test_the_shape_is_the_models_own():
    vit = timm.create_model("deit_tiny_distilled_patch16_224", attn_drop_rate=0.5)
    shape = attention_shape(vit)
    assert shape == AttentionShape(tokens=198, heads=3, head_size=64, dropout=0.5)
    assert shape.batch_size(256, CPU) == 35 and shape.batch_size(4, CPU) == 4
    assert attention_shape(timm.create_model("resnet18")) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["MODEL.ATTENTION=fused"], True),
        (["MODEL.ATTENTION=explicit"], False),
        (["AMP.ENABLED=true", "AMP.CUSTOM_BLACK_LIST=[softmax]"], False),
        (["MODEL.TYPE=timm", "MODEL.NAME=swin_tiny_patch4_window7_224", "DATA.IMAGE_SIZE=224"], False),
        (["MODEL.TYPE=timm", "MODEL.NAME=swin_tiny_patch4_window7_224", "DATA.IMAGE_SIZE=224",
          "MODEL.ATTENTION=fused"], True),
    ],
    ids=["fused", "explicit", "a listed softmax", "windows", "windows, fused"],
)  # fmt: skip
def test_an_option_and_a_listed_softmax_settle_it(cpu, options, expected):
    tiny = [] if "MODEL.TYPE=timm" in options else TINY_VIT
    config = parse_command_line(["-opts", *tiny, *options]).config
    model, _ = build_model(config, CPU)
    choices = Choices(cpu, Log())
    choose_attention(model, config.model, 4, Precision(config.amp, CPU), choices)
    kinds = {module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")}
    assert kinds == {expected} and not choices.made


@pytest.mark.parametrize("kind", ["fused", "explicit"])
def test_a_resumed_run_computes_as_it_did(digits_argv, tmp_path, cpu, monkeypatch, kind):
    """Whatever would be measured now."""
    other = {"fused": "explicit", "explicit": "fused"}[kind]

    def measured(fast):
        monkeypatch.setattr(
            "engine.training.choices.found_once", lambda *_: {"fused": 1 + (fast != "fused"), "explicit": 1.5}
        )

    measured(kind)
    unbroken = train([*digits_argv, "TRAIN.MAX_STEPS=8"], cpu)
    argv = [*digits_argv, f"SAVE={tmp_path / 'stopped'}"]
    stopped = train([*argv, "TRAIN.MAX_STEPS=4"], cpu)
    assert load_checkpoint(stopped / "last.pth")["choices"] == {"attention": kind}
    measured(other)
    resumed = train([f"-resume={stopped}", *argv, "TRAIN.MAX_STEPS=8"], cpu)
    assert_same_state(states(resumed), states(unbroken))
    assert f"Attention: {kind}, as in the checkpoint" in (resumed / "log.txt").read_text()


def test_waiting_is_no_work_of_an_attention(monkeypatch):
    """On a busy machine the way that waits more often for its turn would lose."""
    passes = attention.torch.autograd.grad

    def waits_long(*arguments):
        time.sleep(0.02)
        return passes(*arguments)

    monkeypatch.setattr(attention.torch.autograd, "grad", waits_long)
    threads = torch.get_num_threads()
    shape = AttentionShape(tokens=5, heads=2, head_size=4, dropout=0.0)
    seconds = attention_seconds(shape, 2, CPU, torch.float32, Precision(Amp(), CPU).autocast)
    assert all(value < 0.02 for value in seconds.values()) and torch.get_num_threads() == threads
