"""Wrong arguments of a script: one line that names the flag, the key or the file, before any work."""

import shlex
from importlib import import_module

import torch
from conftest import each_row, line_of
from pytest import fail
from test_sweep import DIGITS

from scripts.benchmarks import benchmark_input, benchmark_train

SWEEP = shlex.join(DIGITS)
# Script, arguments, a part of the error. RUN: the folder of a run, EMPTY: an empty folder
CASES = """
script | words | part
average_checkpoints |  | give the folder of a run
average_checkpoints | RUN -output=x.safetensors | must end with .pth
average_checkpoints | RUN OTHER | other.pth:
average_checkpoints | RUN CLASSES | was trained with other classes
export |  | python scripts/export.py output/RUN -format onnx
export | RUN -format pdparams | invalid choice
export | RUN -format safetensors -output=x.bin | ends with .safetensors
export | RUN/best.pth -format hf -output=RUN/best.pth | one that was exported
export | RUN -format hf -output=RUN | one that was exported
export | RUN -format hf -no_check -check=a.npz | -no_check
export | EMPTY -format hf | no checkpoint
export | RUN/.. -format hf | /../
export | RUN -format hf -dataset=folder -data_path=EMPTY/gone | gone
make_shards | -output=EMPTY/x -dataset=fake | -dataset fake:
make_shards | -output=EMPTY/x -shard_mb=nan | -shard_mb
index_shards | -data_path=http://127.0.0.1:9/{0..1}.tar | http://127.0.0.1:9:
sweep | -set=DATA.FOLD=0..3 SWEEP | FOLD is 3: with FOLDS 3
sweep | -set=SEED SWEEP | expected KEY=VALUES
sweep | -set=SEED=0-4 SWEEP | SEED
sweep | -set=SEED=0..2 -set=SEED=4 SWEEP | each key once
sweep | -set=SEED=0..999999999 -set=DATA.FOLD=0..2 SWEEP | 3,000,000,000 combinations
sweep | -set=DATA.FOLD=1,1 SWEEP | the name FOLD=1 is taken
sweep | -set=DATA.FOLD=0 -resume=auto SWEEP | remove -resume
benchmark_gpu | -output=EMPTY -parts=jpg | jpeg
benchmark_input | -data=/no/such/folder | /no/such/folder:
benchmark_train | -programs=jpeg,timm | -timm_train
benchmark_train | -opts TRAIN.MIXUP_ALPHA=0.2 | TRAIN.MIXUP_ALPHA
benchmark_train | -opts AMP.LEVEL=O2 | AMP.LEVEL
benchmark_train | -modes=O1-bf61 | O1-bf16
benchmark_train | -programs=bare -modes=O1-bf16,O2-bf16 | AMP.LEVEL
"""


@each_row(CASES)
def test_wrong_arguments_are_one_line(script, words, part, trained_digits, tmp_path, monkeypatch):
    for benchmark in (benchmark_input, benchmark_train):
        monkeypatch.setattr(benchmark, "compare", lambda *_: fail("a measurement started"))
    (tmp_path / "empty").mkdir()
    names = {"EMPTY": tmp_path / "empty", "SWEEP": SWEEP}
    if "RUN" in words:
        names["RUN"] = trained_digits()
        state = torch.load(names["RUN"] / "best.pth")
        others = {
            "OTHER": {"model": {"norm.bias": torch.ones(3)}},
            "CLASSES": state | {"class_names": list("abcdefghij")},
        }
        for name, content in others.items():
            torch.save(content, path := tmp_path / f"{name.lower()}.pth")
            names[name] = path
    for name, path in names.items():
        words = words.replace(name, str(path))
    folder = "scripts.benchmarks." if script.startswith("benchmark") else "scripts."
    assert part in line_of(import_module(folder + script).main, shlex.split(words))
