"""DATA.GREY_RANGE: 16-bit gray images whose values use a part of the range."""

import pickle
import re

import numpy as np
import pytest
from conftest import samples_for
from PIL import Image

from configs.reading.command_line import parse_command_line
from datasets.sources.checks import notes_on

FLAGS = ["-dataset=folder", "-batch_size=8", "-num_workers=0"]


@pytest.fixture
def twelve_bits(tmp_path):
    """Class folders of 16-bit images with values in 0..4095, and one defective pixel of 65535."""
    for number in range(40):
        values = np.random.default_rng(number).integers(0, 4096, (40, 40), dtype=np.uint16)
        values[0, :2] = 0, 4095
        if number == 0:
            values[1, 1] = 65535
        path = tmp_path / "data" / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(path)
    return tmp_path / "data"


def config_for(root, *options):
    return parse_command_line([*FLAGS, f"-data_path={root}", "-opts", "SEED=0", *options]).config


def warnings_about(root, cpu, *options):
    notes = notes_on(*samples_for(config_for(root, *options), cpu, "train", "val"))
    return [note for note in notes if "levels" in note]


@pytest.mark.parametrize("grey_range", ["[0, 4095]", "[1000, 2000]"])
def test_values_are_mapped_linearly(twelve_bits, cpu, grey_range):
    config = config_for(twelve_bits, f"DATA.GREY_RANGE={grey_range}")
    (samples,) = samples_for(config, cpu, "train")
    low, high = config.data.grey_range
    for received in (samples, pickle.loads(pickle.dumps(samples))):  # as a loading worker receives them
        pixels = received.open(3, 1).pixels[0].numpy()
        values = np.array(Image.open(samples.name(3))).astype(float)
        assert np.abs(pixels - np.clip((values - low) * 255 / (high - low), 0, 255)).max() <= 0.51
        assert (pixels.min(), pixels.max()) == (0, 255)
    assert (samples.open(3, 3).pixels.numpy() == pixels).all()


def test_few_levels_are_a_warning(twelve_bits, cpu):
    (warning,) = warnings_about(twelve_bits, cpu)
    assert re.search(r"values from \d to 409\d become 17 of 256 levels; set DATA\.GREY_RANGE=\[\d, 409\d\]", warning)
    assert warnings_about(twelve_bits, cpu, "DATA.GREY_RANGE=[0, 4095]") == []
