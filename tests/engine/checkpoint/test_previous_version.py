"""A run of the previous version, whose options, checkpoint and table lack the newer keys, resumes exactly."""

import torch
from conftest import assert_same_state, rows, states, train

from configs.reading.yaml_io import parse_value, read_yaml, write_yaml
from engine.checkpoint.reader import load_checkpoint
from utils.atomic_file import atomic_save

NEW_KEYS = {
    "TRAIN": ("LR_SCHEDULER", "SQRT_SCALED_LR", "MODEL_EMA_WARMUP", "MODEL_EMA_FORCE_CPU", "PATIENCE"),
    None: ("LOSS", "EVAL_RAW"),
}


def without_new_keys(options: dict) -> str:
    for section, keys in NEW_KEYS.items():
        for key in keys:
            del (options[section] if section else options)[key]
    return write_yaml(options)


def test_resume_without_the_new_keys(digits_argv, cpu, tmp_path):
    argv = [*digits_argv, "TRAIN.MODEL_EMA=true", "TRAIN.SMOOTHING=0.1", "TRAIN.LAYER_DECAY=0.8"]
    uninterrupted = train(argv, cpu)
    argv[2] = f"-output={tmp_path / 'previous'}"
    folder = train([*argv, "TRAIN.MAX_STEPS=25"], cpu)
    (folder / "config.yaml").write_text(without_new_keys(read_yaml(folder / "config.yaml")[0]))
    checkpoint = load_checkpoint(folder / "last.pth")
    atomic_save(folder / "last.pth", checkpoint | {"options": without_new_keys(parse_value(checkpoint["options"]))})
    lines = (folder / "metrics.csv").read_text().splitlines()
    (folder / "metrics.csv").write_text("".join(",".join(line.split(",")[:-5]) + "\r\n" for line in lines), newline="")
    train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=null"], cpu)
    assert_same_state(states(folder), states(uninterrupted))
    assert rows(folder) == rows(uninterrupted)
    log = (folder / "log.txt").read_text()
    assert "options that differ from the checkpoint: TRAIN.MAX_STEPS: 25, now None\n" in log


def test_the_state_of_the_average_needs_no_new_entry(digits_argv, cpu):
    """Its decay is a function of the step: a checkpoint with a warm-up of the average has the same entries."""
    folder = train([*digits_argv, "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_WARMUP=true", "TRAIN.MAX_STEPS=2"], cpu)
    state = load_checkpoint(folder / "last.pth")
    assert state["ema"].keys() == state["model"].keys()
    assert all(isinstance(value, torch.Tensor) for value in state["ema"].values())
