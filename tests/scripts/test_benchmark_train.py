"""benchmark_train.py: a small run of the entry script and of a train.py. No test here asserts a time."""

import json

import pytest
from conftest import TINY_VIT

from scripts.benchmarks import benchmark_train
from scripts.benchmarks.benchmark_train import make_images

TINY = ["-batch_size=4", "-num_workers=0", "-opts", *TINY_VIT, "MODEL.NAME=vit_tiny_patch16_224"]

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
    paths = [f"-timm_train={train_py}", f"-data={tmp_path / 'images'}", f"-json={tmp_path / 'a.json'}"]
    assert benchmark_train.main([*flags, *paths, *TINY]) == 0
    result = json.loads((tmp_path / "a.json").read_text())
    assert len(result["ratios"]["jpeg / timm"]) == 1 and result["environment"]["batch size"] == 4
    assert min(result["figures"]["jpeg"]["peak_memory_bytes"]) > 1e8
    assert result["figures"]["timm"].keys() == {"images_per_second", "cpu_seconds_per_second", "seconds_to_first_line"}
