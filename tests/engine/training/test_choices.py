"""What is chosen by measuring is the same for all who ask, and for a run that is resumed."""

import pytest
import torch
from conftest import TINY_VIT

from configs.command_line import parse_command_line
from datasets.registry import read_samples
from engine.precision.policy import Precision
from engine.training.choices import Choices, choose_attention, choose_decode
from models.build import build_model
from utils.errors import UserError

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
def test_an_option_and_a_listed_softmax_settle_it(options, expected):
    tiny = [] if "MODEL.TYPE=timm" in options else TINY_VIT
    config = parse_command_line(["-opts", *tiny, *options]).config
    model, _ = build_model(config.model, config.data, CPU)
    choose_attention(model, config.model, Precision(config.amp, CPU))
    kinds = {module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")}
    assert kinds == {expected}


@pytest.mark.parametrize(("decode", "chosen"), [("host", "host"), ("auto", "host"), ("device", None)])
def test_a_cpu_decodes_as_the_host(digits_argv, cpu, decode, chosen):
    config = parse_command_line([*digits_argv, f"DATA.DECODE={decode}"]).config
    (samples,) = read_samples(config, cpu, "train")
    choices = Choices(cpu, Log())
    if chosen:
        assert choose_decode(samples, config, choices) == chosen and not choices.made
    else:
        with pytest.raises(UserError, match="no GPU with nvJPEG in torchvision"):
            choose_decode(samples, config, choices)
