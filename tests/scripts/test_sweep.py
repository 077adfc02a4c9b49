"""`scripts/sweep.py`: the grid, the devices, runs that fail, are interrupted and go on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

from conftest import ROOT, cli, config_for, refused
from pytest import fixture, mark, raises

from configs.command_line import to_yaml
from engine.checkpoint.run_folder import lock_run_folder
from scripts import sweep
from utils.errors import Unavailable, UserError
from utils.files import read_json
from utils.notes import SWEEP

DIGITS = cli(
    "-dataset=digits -opts DATA.IMAGE_SIZE=8 MODEL.PATCH_SIZE=4 DATA.IMAGE_CHANNELS=1 "
    "DATA.IMAGENET_MEAN=[0.5] DATA.IMAGENET_STD=[0.25] DATA.FOLDS=3 MODEL.DEPTH=1 "
    "MODEL.EMBED_DIM=16 MODEL.NUM_HEADS=2"
)
# A program in place of the entry script: it notes its arguments and devices, and writes the status of a run.
FAKE = """
import json, os, sys, time
from pathlib import Path
flags = dict(flag.split("=", 1) for flag in sys.argv[1:] if "=" in flag)
folder = Path(flags.get("-resume") or f"{flags['-output']}/{flags['-name']}-20260101-12-00")
folder.mkdir(exist_ok=True)
time.sleep(0.3)
(folder / "config.yaml").touch()  # a run with TRAIN.MINUTES has decided its epochs
is_first = not (folder / "argv.json").exists()
began = time.time()
time.sleep(0.8)
facts = [sys.argv[1:], os.environ.get("CUDA_VISIBLE_DEVICES"), began, time.time()]
(folder / "argv.json").write_text(json.dumps(facts))
fails = "SEED=1" in folder.name and is_first
(folder / "status.json").write_text(json.dumps({"state": "failed" if fails else "finished", "checkpoint": "last.pth"}))
print("error: the first time" if fails else "fine")
sys.exit(2 if fails else 0)
"""


def devices(number: int) -> list[dict[str, str]]:
    return [{"CUDA_VISIBLE_DEVICES": str(device)} for device in range(number)]


def read_all(root: Path, name: str) -> list:
    """This file of each run of a sweep."""
    return [json.loads(path.read_text()) for path in sorted(root.glob(f"*/*/{name}"))]


@fixture
def fake(tmp_path, monkeypatch):
    """Replaces the entry script and the report; returns the folders that are compared."""
    (tmp_path / "fake.py").write_text(FAKE)
    compared = []
    monkeypatch.setattr("scripts.sweep.ENTRY", tmp_path / "fake.py")
    monkeypatch.setattr("scripts.sweep.report.main", compared.extend)
    return compared


def test_a_grid_has_a_run_per_combination_in_a_folder_of_its_options():
    sets = ["DATA.FOLD=0..2", "TRAIN.BASE_LR=1e-3,2e-3"]
    root, runs, speeds = sweep.read_grid(sets, DIGITS)
    assert list(runs) == [f"FOLD={fold},BASE_LR={rate}" for fold in range(3) for rate in ("1e-3", "2e-3")]
    assert not speeds
    assert runs["FOLD=1,BASE_LR=2e-3"][-2:] == ["DATA.FOLD=1", "TRAIN.BASE_LR=2e-3"]
    assert root.parent == Path("output")
    assert sweep.read_grid(sets, ["-num_workers=1", *DIGITS])[0] == root
    assert sweep.read_grid(["DATA.FOLD=0..1", "TRAIN.BASE_LR=1e-3"], DIGITS)[0] == root  # the grid may grow
    assert sweep.read_grid(sets, ["-epochs=7", *DIGITS])[0] != root  # other options are another sweep
    assert sweep.read_values("1,[2, 3],{A: 1, B: 2}") == ["1", "[2, 3]", "{A: 1, B: 2}"]


def test_runs_are_spread_over_the_visible_gpus(monkeypatch):
    monkeypatch.setattr("scripts.sweep.visible_gpus", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")

    def used(*counts):
        return [environment["CUDA_VISIBLE_DEVICES"] for environment in sweep._environments(*counts)]

    assert (used(None, None), used(2, None), used(2, 3)) == (["2", "5", "7"], ["2", "5"], ["2", "5", "2"])
    with refused(r"-gpus 4: only 3 GPU"):
        used(4, None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert sweep._environments(2, None) == devices(2)
    monkeypatch.setattr("scripts.sweep.visible_gpus", lambda: 0)
    assert len(sweep._environments(None, None)) == 1
    assert len(sweep._environments(None, 2)) == 2


@mark.slow
def test_a_failing_run_stops_no_other_one_and_is_resumed_by_the_same_command(tmp_path, fake, monkeypatch, capfd):
    monkeypatch.setattr("scripts.sweep._environments", lambda *_: devices(2))
    argv = [*cli(f"-output={tmp_path} -set SEED=0..3 -set=DATA.FOLD=1"), *DIGITS]
    find = Mock(wraps=sweep.newest_runs)
    monkeypatch.setattr("scripts.sweep.newest_runs", find)
    assert sweep.main(argv) == 1
    assert find.call_count == 1  # it reads a file of each run
    printed = capfd.readouterr()
    assert printed.err == "failed: SEED=1,FOLD=1: status 2: error: the first time\n"
    facts = read_all(tmp_path, "argv.json")
    assert [len(facts), {device for _, device, *_ in facts}] == [4, {"0", "1"}]
    spans = sorted((began, ended) for _, _, began, ended in facts)
    assert spans[1][0] < spans[0][1] < spans[2][1]
    assert spans[3][0] > spans[0][1]  # two at a time
    assert sweep.main(argv) == 0
    again = read_all(tmp_path, "argv.json")
    folder = fake[-1] + "/SEED=1,FOLD=1-20260101-12-00"
    assert again[1][0] == [*facts[1][0], f"-cfg={folder}/config.yaml", f"-resume={folder}"]
    assert again[:1] + again[2:] == facts[:1] + facts[2:]  # no other one ran
    assert fake == [fake[0]] * 2
    assert "3 done" in capfd.readouterr().out
    monkeypatch.setattr("engine.checkpoint.run_folder._LOCK_SECONDS", 0.1)
    with lock_run_folder(Path(fake[0])), raises((Unavailable, UserError), match=fake[0]):  # by another process
        sweep.main(argv)


@mark.slow
def test_with_minutes_the_first_run_of_each_speed_decides_the_epochs(tmp_path, fake, monkeypatch):
    """The other ones start when it has: two speeds, which three devices train at a time."""
    monkeypatch.setattr("scripts.sweep._environments", lambda *_: devices(3))
    argv = [*cli(f"-output={tmp_path} -minutes=1 -set=MODEL.MLP_RATIO=2,4 -set=DATA.FOLD=0..2"), *DIGITS]
    assert sweep.main([*argv, "TRAIN.WARMUP_EPOCHS=1"]) == 0
    (root,) = tmp_path.glob("*-sweep-*")
    speeds = read_json(root / "sweep.json")
    assert speeds == {
        f"MLP_RATIO={m},FOLD={fold}": f"1 minutes,MODEL.MLP_RATIO={m}" for m in (2, 4) for fold in range(3)
    }
    for m in (2, 4):
        began, decided = zip(*(_times(path) for path in sorted(root.glob(f"MLP_RATIO={m}*/"))), strict=True)
        assert began[0] == min(began)
        assert min(began[1:]) > decided[0]
    _, _, speeds = sweep.read_grid(["TRAIN.BASE_LR=1e-3,2e-3", "SEED=0..1"], ["-minutes=1", *DIGITS, "DATA.FOLD=0"])
    assert set(speeds.values()) == {"1 minutes"}
    assert len(speeds) == 4  # rates are compared after the same epochs


def _times(folder):
    """The times at which the run began and had decided."""
    return json.loads((folder / "argv.json").read_text())[2], (folder / "config.yaml").stat().st_mtime


def test_null_leaves_a_key_that_cannot_be_null_as_the_recipe_has_it():
    """Keys of MODEL have another default in each family; a run without any other option has no -opts of its own."""
    argv = [*DIGITS, "DATA.FOLD=0", "LOSS.NAME=bce"]
    _, runs, _ = sweep.read_grid(["LOSS.NAME=null,cross_entropy", "TRAIN.GRAD_CLIP=null,1"], argv)
    assert runs["NAME=null,GRAD_CLIP=null"][-2:] == ["-opts", "TRAIN.GRAD_CLIP=null"]
    assert config_for(*runs["NAME=null,GRAD_CLIP=1"]).loss.name == "bce"
    _, runs, _ = sweep.read_grid(["MODEL.EMBED_DIM=null,32"], argv)
    widths = [config_for(*run).model.embed_dim for run in runs.values()]
    assert widths == [16, 32]


def test_a_run_with_the_options_of_a_member_is_no_member(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep_folder = tmp_path / "sweep"
    run = tmp_path / "sweep/SEED=0-20260101-12-00"
    run.mkdir(parents=True)
    member = config_for(f"-output={sweep_folder}", *DIGITS, "DATA.FOLD=0")
    assert f"SAVE: {sweep_folder}" in to_yaml(member)  # of an ordinary run
    (sweep_folder / SWEEP).touch()
    (run / "config.yaml").write_text(to_yaml(member))
    (run / "status.json").write_text("{}")
    copy = tmp_path / "copy.yaml"
    copy.write_bytes((run / "config.yaml").read_bytes())
    for words in ([f"-cfg={copy}"], ["-eval", f"-resume={run}"], ["-predict", f"-resume={run}"]):
        assert config_for(*words).save == "./output"
    assert config_for(f"-resume={run}", "-output=other").save == "other"


@mark.slow
def test_ctrl_c_saves_the_runs_and_the_same_command_continues(tmp_path):
    few = cli("DATA.FOLD=0 SAVE_FREQ=1 VALIDATE_FREQ=30")
    argv = [*cli(f"-output={tmp_path} -set=SEED=0,1 -jobs=2 -epochs=30"), *DIGITS, *few]
    command = [sys.executable, str(ROOT / "scripts/sweep.py"), *argv]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while len([one for one in read_all(tmp_path, "status.json") if one["checkpoint"]]) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130, process.communicate()
    ended = read_all(tmp_path, "status.json")
    assert "interrupted" in {status["state"] for status in ended}  # a fast one may have finished
    for status in ended:
        with raises(ProcessLookupError):
            os.kill(status["pid"], 0)
    subprocess.run(command, capture_output=True, check=True)
    assert [status["state"] for status in read_all(tmp_path, "status.json")] == ["finished"] * 2
