"""The parts that all benchmarks share: turns, ratios, tables, seeds, reasons of failures; benchmark_input.py and
benchmark_train.py on a few images. No test asserts a time."""

import json

import pytest
from conftest import TINY_VIT, samples_for

from configs.command_line import parse_command_line
from datasets.loading.loader import BatchReader
from datasets.transforms.device import Normalize
from datasets.transforms.host import build_host_transform
from scripts.benchmarks import benchmark_input, benchmark_train
from scripts.benchmarks.benchmark_train import link_images, make_images
from scripts.benchmarks.turns import ratio_table, seed_table, speed_ratios, take_turns
from utils.errors import UserError


def test_contenders_take_turns_and_one_that_failed_gets_no_more(tmp_path):
    file, turns, written = tmp_path / "a.json", [], []

    def measure(name: str, number: int) -> dict[str, float]:
        if turns:
            written.append(json.loads(file.read_text())["figures"])
        turns.append((name, number))
        if name == "b" and number == 1:
            raise UserError("no memory")
        return {"images_per_second": len(turns)}

    figures = {name: {} for name in "abc"}
    take_turns(figures, 3, measure, file)
    assert [name for name, _ in turns] == [*"abc", *"cba", *"ac"]
    assert figures["a"] == {"images_per_second": [1, 6, 7]}
    assert figures["b"] == {"images_per_second": [2], "failed": "no memory"}
    assert json.loads(file.read_text())["figures"] == figures
    assert written[0] == {"a": {"images_per_second": [1]}, "b": {}, "c": {}} and len(written) == 7
    with pytest.raises(UserError, match="b: no memory"):
        take_turns({"b": {}}, 2, lambda name, _: measure(name, 1), None)


def test_a_ratio_compares_turns_of_one_round():
    speeds = {"jpeg": [30.0, 90.0, 40.0], "timm": [20.0, 30.0], "ready": [30.0, 90.0, 50.0]}
    figures = {name: {"images_per_second": values} for name, values in speeds.items()} | {"bare": {"failed": "why"}}
    pairs = [("jpeg", "timm"), ("jpeg", "ready"), ("jpeg", "bare")]
    assert speed_ratios(figures, pairs) == {"jpeg / timm": [1.5, 3.0], "jpeg / ready": [1.0, 1.0, 0.8]}
    assert "| jpeg / ready | 1.000 (0.800 to 1.000) |" in ratio_table(figures, pairs)


def test_a_difference_is_shown_with_its_standard_error():
    top1 = {"fp32": [98, 99, 100], "O1": [98, 98, 98.2], "O2": [95]}
    figures = {name: {"top1": values} for name, values in top1.items()} | {"O3": {"top1": [90], "failed": "why"}}
    assert seed_table(figures, "fp32").splitlines()[2:] == [
        "| fp32 | 3 | 99.00 | 1.00 | 98.00 |  |",
        "| O1 | 3 | 98.07 | 0.12 | 98.00 | -0.93 +- 0.58 |",
        "| O2 | 1 | 95.00 |  | 95.00 |  |",
        "| O3 | failed: why |  |  |  |  |",
    ]


def test_all_contenders_apply_the_same_transform(tmp_path, cpu, monkeypatch):
    """Crops of the whole image that are always flipped have only one result."""
    link_images(make_images(tmp_path / "images", (64, 48), 8, noise=0.0), tmp_path / "data", 8)
    flags = ["-dataset=folder", f"-data_path={tmp_path / 'data'}", "-batch_size=8", "-num_workers=0", "-image_size=32"]
    whole = ["DATA.RANDOM_CROP_SCALE=[1.0, 1.0]", "DATA.RANDOM_CROP_RATIO=[1.3333333, 1.3333334]"]
    config = parse_command_line([*flags, "-opts", "MODEL.PATCH_SIZE=16", *whole, "DATA.HFLIP_PROB=1.0"]).config
    data, loaded = config.data, []
    original = benchmark_input.timm.data.create_loader

    def create_loader(*arguments, **options):
        return (loaded.append(batch) or batch for batch in original(*arguments, **options))

    monkeypatch.setattr(benchmark_input.timm.data, "create_loader", create_loader)
    next(benchmark_input.timm_batches(data, cpu.device))
    (timm_images, timm_targets), (samples,) = loaded[0], samples_for(config, cpu, "train")
    reader = BatchReader(samples, data, build_host_transform(data, config.train, config.seed))
    batch = reader.__getitems__([(0, index, 0) for index in range(8)])
    for index, image in enumerate(Normalize(data)(batch.images)):
        (timms,) = timm_images[timm_targets == batch.targets[index]]
        assert (image - timms).abs().mean() < 0.5 / 127.5


# Prints lines as timm's train.py does.
TIMM = """
import time
for step in range(0, 10000, 2):
    print(f"Train: 0 [{step:>4d}/9 (  1%)]  Loss: 2 (2)  Time: 0.020s,  200.00/s  (0.020s,  200.00/s)"
          "  LR: 1.0e-05  Data: 0.005 (0.005)", flush=True)
    time.sleep(0.02)
"""


@pytest.mark.slow
def test_rounds_of_the_entry_script_and_of_a_train_py(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (train_py := tmp_path / "train.py").write_text(TIMM)
    make_images(tmp_path / "images", (24, 16), count=16, noise=0.0)
    flags = ["-programs=jpeg,ready,timm", "-rounds=1", "-warmup=2", "-steps=4", "-interval=2"]
    tiny = ["-batch_size=4", "-num_workers=0", "-opts", *TINY_VIT, "MODEL.NAME=vit_tiny_patch16_224"]
    paths = [f"-timm_train={train_py}", f"-data={tmp_path / 'images'}", f"-json={tmp_path / 'a.json'}"]
    assert benchmark_train.main([*flags, *paths, *tiny]) == 0
    result = json.loads((tmp_path / "a.json").read_text())
    assert len(result["ratios"]["jpeg / timm"]) == 1 and result["environment"]["batch size"] == 4
    assert min(result["figures"]["jpeg"]["peak_memory_bytes"]) > 1e8
    assert result["figures"]["timm"].keys() == {"images_per_second", "cpu_seconds_per_second", "seconds_to_first_line"}
