"""A run's folder: its name, its options, when it is created and changed; the commands that a run prints."""

import shlex
from pathlib import Path

import pytest
from conftest import train

from configs.reading.command_line import parse_command_line
from engine.commands.run import run
from engine.run.folder import next_command, start_log
from utils.errors import UserError


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_flags_override_the_options_of_the_folder_and_a_recipe_replaces_them(digits_run, tmp_path):
    folder = digits_run("TRAIN.MAX_STEPS=3")
    config = parse_command_line([f"-resume={folder}", "-batch_size=32", "-opts", "REPORT_FREQ=7"]).config
    assert (config.data.batch_size, config.report_freq, config.model.embed_dim) == (32, 7, 16)
    (tmp_path / "other.yaml").write_text("SEED: 5")
    config = parse_command_line([f"-cfg={tmp_path / 'other.yaml'}", f"-resume={folder}"]).config
    assert (config.seed, config.model.embed_dim) == (5, 768)


def test_options_that_a_resumed_run_replaces_are_kept_with_their_step(digits_run, cpu):
    folder = digits_run("TRAIN.MAX_STEPS=3")
    first = (folder / "config.yaml").read_text()
    train([f"-resume={folder}"], cpu)
    assert (folder / "config.yaml").read_text() == first and not [*folder.glob("config-*")]
    train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=5"], cpu)
    second = (folder / "config.yaml").read_text()
    train([f"-resume={folder}"], cpu)  # the same options again
    train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=6"], cpu)
    assert "MAX_STEPS: 6" in (folder / "config.yaml").read_text()
    kept = {path.name: path.read_text() for path in folder.glob("config-*")}
    assert kept == {"config-step-000003.yaml": first, "config-step-000005.yaml": second}


@pytest.mark.parametrize("option", ["MODEL.EMBED_DIM=32", "DATA.DATASET=unknown", "TRAIN.OPTIMIZER.NAME=SGD"])
def test_a_failed_resume_does_not_change_the_run(digits_run, cpu, option):
    folder = digits_run("TRAIN.MAX_STEPS=3")
    before = contents(folder)
    with pytest.raises(UserError):
        run(parse_command_line([f"-resume={folder}", "-opts", option]), cpu)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "flags", [["-data_path=/nowhere", "-dataset=folder"], ["-pretrained=none.pth"], ["-profile", "-pretrained=n.pth"]]
)
def test_a_failed_start_leaves_no_folder(digits_argv, cpu, tmp_path, flags):
    with pytest.raises(UserError):
        run(parse_command_line([*digits_argv[:1], *flags, *digits_argv[1:]]), cpu)
    assert not (tmp_path / "out").exists()


def test_name_of_a_folder(tmp_path):
    (tmp_path / "small.yaml").write_text("MODEL: {NAME: vit_small}")
    recipe = f"-cfg={tmp_path / 'small.yaml'}"
    assert parse_command_line([]).run_name == "vit"
    assert parse_command_line([recipe]).run_name == "small"
    assert parse_command_line([recipe, "-opts", "NAME=mine"]).run_name == "mine"
    (tmp_path / "config.yaml").write_text("MODEL: {NAME: vit_small}")
    assert parse_command_line([f"-cfg={tmp_path / 'config.yaml'}"]).run_name == "vit_small"
    (tmp_path / ".yaml").write_text("MODEL: {NAME: vit_small}")  # PaddleViT's PiT has such a file
    assert parse_command_line([f"-cfg={tmp_path / '.yaml'}"]).run_name == "vit_small"
    (tmp_path / "a\tb.yaml").touch()
    assert parse_command_line([f"-cfg={tmp_path}/a\tb.yaml"]).run_name == "a_b"
    for name in ("a/b", "''", "x" * 101):
        with pytest.raises(UserError, match=r"NAME is .*: must be a printable name without /"):
            parse_command_line(["-opts", f"NAME={name}"])


def test_printed_command_is_quoted_and_repeats_processes_and_device():
    command = parse_command_line(["-ngpus=3", "-device=cpu"], "main_multi_gpu.py")
    python, *words = shlex.split(next_command(command, "-resume=a folder"))
    assert python.rpartition("/")[2].startswith("python")
    assert words == ["main_multi_gpu.py", "-ngpus=3", "-device=cpu", "-resume=a folder"]


@pytest.mark.parametrize(("local", "processes"), [("4", ["-ngpus=4"]), ("2", [])])
def test_printed_command_needs_no_launcher_on_one_host(monkeypatch, local, processes):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    printed = shlex.split(next_command(parse_command_line([], "main_multi_gpu.py"), "-resume=x"))
    assert printed[1:] == ["main_multi_gpu.py", *processes, "-resume=x"]


def test_the_log_names_the_defaults_of_a_family_and_how_it_differs(cpu, tmp_path, capsys):
    def log(name):
        start_log(parse_command_line([f"-output={tmp_path}", "-opts", f"MODEL.TYPE={name}"]), cpu)
        return capsys.readouterr().out

    assert "Defaults of MODEL.TYPE volo: DATA.IMAGENET_MEAN, DATA.IMAGENET_STD, " in log("volo")
    assert "VOLO, unlike PaddleViT's: the default of TRAIN.END_LR is 1e-5" in log("volo")
    assert "MAE, unlike timm's: a fixed position embedding" in log("mae")
    assert "unlike" not in log("cait")
