"""Earlier YAML files of PaddleViT, and what its files mean by an empty text."""

import pytest

from configs.reading.command_line import parse_command_line
from utils.errors import Findings, UserError


def parse(folder, text: str, *flags: str):
    (folder / "old.yaml").write_text(text)
    return parse_command_line([f"-cfg={folder / 'old.yaml'}", *flags])


EARLIER = """
MODEL: {TYPE: PiT, NAME: pit_xs, DISTILL: true, RESUME: '', PRETRAINED: '', DROP_PATH: 0.2,
        TRANS: {PATCH_SIZE: 16, STRIDE: 8, BASE_DIMS: [48, 48, 48], DEPTH: [2, 6, 4], HEADS: [2, 4, 8]}}
TRAIN: {RANDAUGMENT: false, NORMALIZE_TARGET: true, MULTI_SCALE_SAMPLER_DDP: false,
        LR_SCHEDULER: {NAME: warmupcosine, MILESTONES: '30, 60, 90', DECAY_EPOCHS: 30, DECAY_RATE: 0.1}}
TAG: default
LOCAL_RANK: 0
NGPUS: -1
"""
UNUSED = {
    *("LOCAL_RANK", "NGPUS", "TAG", "TRAIN.LR_SCHEDULER.DECAY_EPOCHS", "TRAIN.LR_SCHEDULER.DECAY_RATE"),
    *("TRAIN.LR_SCHEDULER.MILESTONES", "TRAIN.MULTI_SCALE_SAMPLER_DDP", "TRAIN.NORMALIZE_TARGET"),
}


def test_an_earlier_file_gives_the_model_of_its_keys_and_one_warning(tmp_path):
    command = parse(tmp_path, EARLIER)
    model, train = command.config.model, command.config.train
    assert (model.depth, model.num_heads, model.base_dims) == ((2, 6, 4), (2, 4, 8), (48, 48, 48))
    assert (model.distilled, model.droppath, model.resume, model.pretrained) == (True, 0.2, None, None)
    assert (train.rand_augment, train.lr_scheduler.name) == (False, "cosine")
    (warning,) = (note for note in command.notes if note.startswith("Warning: "))
    assert set(warning.partition("without effect: ")[2].partition(";")[0].split(", ")) == UNUSED
    assert "MODEL.TRANS.HEADS -> MODEL.NUM_HEADS" in warning and "MODEL.DISTILL -> MODEL.DISTILLED" in warning


def test_the_higher_layer_and_then_the_present_name_win(tmp_path):
    text = "MODEL: {DEPTH: 3, TRANS: {DEPTH: 12, NUM_HEADS: 4, EMBED_DIM: 64}}"
    model = parse(tmp_path, text, "-opts", "MODEL.EMBED_DIM=32").config.model
    assert (model.depth, model.num_heads, model.embed_dim) == (3, 4, 32)
    (tmp_path / "base.yaml").write_text("MODEL: {TYPE: deit, DROPPATH: 0.1, DEPTH: 3}")
    model = parse(tmp_path, "BASE: [base.yaml]\nMODEL: {DROP_PATH: 0.2}").config.model
    assert (model.droppath, model.depth) == (0.2, 3)
    assert not parse(tmp_path, "MODEL: {TYPE: deit, DISTILL: false}").config.model.distilled


def test_the_sizes_of_maes_decoder_have_no_effect(tmp_path):
    sizes = "ENCODER: {EMBED_DIM: 24, DEPTH: 1, NUM_HEADS: 2}"
    text = f"MODEL: {{TYPE: MAE, TRANS: {{{sizes}, DECODER: {{EMBED_DIM: 8, DEPTH: 1, NUM_HEADS: 1}}}}}}"
    model = parse(tmp_path, text).config.model
    assert model.trans.encoder.embed_dim == 24 and not hasattr(model.trans, "decoder")


def test_all_mistakes_are_named_in_one_message(tmp_path):
    text = "SEED: -1\nTAGS: a\nMODEL:\n  TRANS:\n    MLP_DIM: 9\n    DEPHT: 2\nDATA:\n  IMAGE_SIZE: big\ntrain: {}"
    with pytest.raises(Findings) as error:
        parse(tmp_path, text)
    headline, *lines = str(error.value).split("\n")
    assert headline == "6 options are wrong:"
    found = {line.partition(f"{tmp_path / 'old.yaml'}:")[2].partition(";")[0].partition(" is ")[0] for line in lines}
    assert found == {
        *("1: SEED", "2: unknown key TAGS", "5: unknown key MODEL.MLP_DIM", "6: unknown key MODEL.DEPHT"),
        *("8: DATA.IMAGE_SIZE", "9: unknown key train"),
    }


@pytest.mark.parametrize(
    "key", ["TRAIN: {MULTI_SCALE_SAMPLER_DDP: true}", "MODEL: {TYPE: deit, TRANS: {ENCODER: {DEPTH: 2}}}"]
)
def test_an_old_key_that_is_on_is_no_key_without_effect(key, tmp_path):
    with pytest.raises(UserError, match=r"unknown key (TRAIN.MULTI_SCALE|MODEL.ENCODER)"):
        parse(tmp_path, key)


@pytest.mark.parametrize("flag", ["-resume=", "-pretrained="])
def test_an_empty_flag_is_an_error(flag):
    """Such as -pretrained=$WEIGHTS without the variable: a run without the weights would be a wrong result."""
    with pytest.raises(UserError, match=f"^{flag[:-1]} is empty"):
        parse_command_line([flag, "-dataset=digits"])
