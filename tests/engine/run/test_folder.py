"""A run's folder and its options; links in it; the commands that a run prints; its environment, without secrets."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from conftest import ROOT, cli, config_for, each_row, refused, rows, run_here, train
from pytest import mark, raises

from configs.command_line import parse_command_line
from engine.checkpoint import run_folder
from engine.checkpoint.run_folder import lock_run_folder, make_run_folder
from engine.run import folder as folder_module
from engine.run.facts import Environment, read_fact
from engine.run.folder import PACKAGES, next_command, record_environment
from engine.run.log import RunLogger
from engine.run.record import RUN, read_run
from utils.distributed import ProcessContext
from utils.errors import REFUSED, Unavailable, UserError, from_here
from utils.files import own_file


def test_flags_override_the_options_of_the_folder_and_a_recipe_replaces_them(digits_run, tmp_path):
    folder = digits_run("TRAIN.MAX_STEPS=3")
    config = config_for(f"-resume={folder}", "-batch_size=32", "-opts", "REPORT_FREQ=7")
    assert (config.data.batch_size, config.report_freq, config.model.embed_dim) == (32, 7, 16)
    (tmp_path / "other.yaml").write_text("SEED: 5")
    config = config_for(f"-cfg={tmp_path / 'other.yaml'}", f"-resume={folder}")
    assert (config.seed, config.model.embed_dim) == (5, 768)


def test_options_that_a_resumed_run_replaces_are_kept_with_their_step(digits_run):
    folder = digits_run("TRAIN.MAX_STEPS=3")
    first = (folder / "config.yaml").read_text()
    train([f"-resume={folder}"])
    assert (folder / "config.yaml").read_text() == first
    assert not [*folder.glob("config-*")]
    train(cli(f"-resume={folder} -opts TRAIN.MAX_STEPS=5"))
    second = (folder / "config.yaml").read_text()
    train(cli(f"-resume={folder} -opts TRAIN.MAX_STEPS=6"))
    assert "MAX_STEPS: 6" in (folder / "config.yaml").read_text()
    kept = {path.name: path.read_text() for path in folder.glob("config-*")}
    assert kept == {"config-step-000003.yaml": first, "config-step-000005.yaml": second}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@mark.slow
@mark.parametrize("kind", ["links", "pipes"])
def test_a_resumed_run_changes_no_file_outside_its_folder(digits_run, digits_argv, tmp_path, kind):
    """For people who resume a run in a folder of somebody else: links could lead to their files, pipes block them."""
    folder = digits_run()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "bad_images_0.csv").touch()
    for path in sorted(folder.iterdir()):
        if kind == "links":
            path.symlink_to(path.rename(elsewhere / path.name))
        elif path.is_file() and path.suffix not in (".pth", ".yaml"):
            path.unlink()
            os.mkfifo(path)
    before = contents(elsewhere)
    refused = set[str]()
    for _ in range(10):
        try:
            train([*digits_argv, "TRAIN.NUM_EPOCHS=3", f"-resume={folder}"])
        except UserError as error:
            name = str(error).partition(": ")[0]
            os.unlink(name)
            refused.add(Path(name).name)
        else:
            break
    assert contents(elsewhere) == before
    in_place = {".lock", "log.txt", "bad_images_0.csv"}  # files that are not replaced when a run starts
    assert refused == in_place | {"details" if kind == "links" else "metrics.jsonl"}
    assert not (folder / "last.pth").is_symlink()
    assert len(rows(folder)) == (3 if kind == "links" else 1)  # the rows of the first epochs were a pipe


def test_a_device_is_not_changed():
    with refused("^/dev/null: is a pipe or a device; "):
        own_file("/dev/null", os.O_RDWR)


def test_a_copy_by_hard_links_is_another_run(digits_run, digits_argv, tmp_path, monkeypatch):
    """For `cp -al RUN copy`, `rsync --link-dest` and DVC: the copy is resumed while the run continues, which stays."""
    monkeypatch.setattr(run_folder, "_LOCK_SECONDS", 0.0)
    run = digits_run()
    (run / "bad_images_0.csv").touch()
    with lock_run_folder(run):
        copy = Path(shutil.copytree(run, tmp_path / "copy", copy_function=os.link))
        before = contents(run)
        with raises(Unavailable, match=rf"process {os.getpid()} on \S+; "), lock_run_folder(run):
            pass
        train([*digits_argv, "TRAIN.NUM_EPOCHS=3", f"-resume={copy}"])
        assert contents(run) == before
        assert (copy / "log.txt").read_bytes().startswith(before[run / "log.txt"])
        with raises(Unavailable), lock_run_folder(run):
            pass
        with lock_run_folder(copy), raises(Unavailable), lock_run_folder(copy):
            pass


def test_a_folder_of_read_only_files_is_made_writable_by_the_advice():
    """For copies by DVC and git-annex, whose files are read-only."""
    folder = Path(tempfile.mkdtemp())  # in /tmp, which the other user reaches
    user = os.geteuid()
    other = user or 65534  # no mode of a file stops root
    (folder / ".lock").touch(0o444)
    for path in (folder, folder / ".lock"):
        os.chown(path, other, -1)
    try:
        os.seteuid(other)
        with refused("is read-only; ") as error, lock_run_folder(folder):
            pass
        assert error.value.status == REFUSED
        subprocess.run(str(error.value).rpartition(": ")[2], shell=True, check=True, user=other)
        with lock_run_folder(folder):
            pass
    finally:
        os.seteuid(user)
        shutil.rmtree(folder)


FAILED_STARTS = """
flags
-data_path=/nowhere -dataset=folder
-pretrained=none.pth
-profile -pretrained=n.pth
"""


@each_row(FAILED_STARTS)
def test_a_failed_start_leaves_no_folder(digits_argv, tmp_path, flags):
    with raises(UserError):
        run_here(*digits_argv[:1], *cli(flags), *digits_argv[1:])
    assert not (tmp_path / "out").exists()


def test_name_of_a_folder(tmp_path):
    assert parse_command_line([]).run_name == "vit"
    names = {"small.yaml": "small", "config.yaml": "vit_small", "a\tb.yaml": "a_b"}
    names[".yaml"] = "vit_small"  # PaddleViT's PiT has such a file
    for file, name in names.items():
        (tmp_path / file).write_text("MODEL: {NAME: vit_small}")
        recipe = f"-cfg={tmp_path / file}"
        assert parse_command_line([recipe]).run_name == name
        assert parse_command_line([recipe, "-opts", "NAME=mine"]).run_name == "mine"
    with refused("at most 100 characters"):
        parse_command_line(["-opts", f"NAME={'x' * 101}"])


def test_name_of_the_evaluation_of_a_sweep(tmp_path, monkeypatch):
    run = tmp_path / "sweep" / "SEED=1-20260101-12-00"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("{NAME: SEED=1, MODEL: {NAME: vit_small}}")
    (run / "status.json").write_text('{"state": "finished"}')
    (tmp_path / "sweep/sweep.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "sweep")
    for sweep in (tmp_path / "sweep", "."):
        argv = ["-eval", f"-resume={sweep}"]
        assert parse_command_line(argv).run_name == "sweep"
        assert parse_command_line([*argv, "-name=mine"]).run_name == "mine"
        assert parse_command_line([*argv, "-opts", "NAME=mine"]).run_name == "mine"


def test_printed_command_is_quoted_and_repeats_processes_and_device():
    command = parse_command_line(["-ngpus=3", "-device=cpu"], "main_multi_gpu.py")
    python, *words = shlex.split(from_here(next_command(command, f"-resume={Path.cwd() / 'a folder'}")))
    assert python.rpartition("/")[2].startswith("python")
    assert words == ["main_multi_gpu.py", "-ngpus=3", "-device=cpu", "-resume=a folder"]


NEEDS_GIT = mark.skipif(not shutil.which("git"), reason="needs git")


def record(folder: Path, context: ProcessContext, resumed: Path | None = None) -> Environment:
    logger = RunLogger(context)
    logger.open(folder)
    logger.record.open(folder)
    record_environment(context, logger, resumed)
    return read_fact(read_run(folder), Environment)


def test_the_versions_are_those_of_the_required_packages(tmp_path, cpu):
    required = (ROOT / "requirements.txt").read_text().partition("# Optional")[0]
    assert set(PACKAGES) >= set(re.findall(r"^([\w-]+)>=", required, re.MULTILINE)) != set()
    parts = record(tmp_path, cpu).parts
    assert parts["torch"] == torch.__version__.partition("+")[0]
    assert parts["Python"] in sys.version
    assert parts["devices"].startswith("1 x CPU ")
    assert "driver" not in parts


def test_secrets_are_not_recorded(tmp_path, cpu, monkeypatch):
    url = "https://me:hunter2@host/a?sig=hunter2"
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    monkeypatch.setattr(sys, "orig_argv", ["python", "main.py", f"-data_path={url}", f"-opts A='{url}' B=[{url},c d]"])
    found = record(tmp_path, cpu)
    assert found.command.startswith("python main.py ")
    assert "https://***@host/a?***" in found.command
    assert "hunter2" not in (tmp_path / RUN).read_text()


def git(folder: Path, *arguments: str) -> str:
    settings = cli("-c user.name=a -c user.email=a@b")
    return subprocess.run(
        ["git", "-C", folder, *settings, *arguments], check=True, capture_output=True, text=True
    ).stdout


@NEEDS_GIT
def test_the_commit_is_the_one_of_the_clone(tmp_path, cpu, monkeypatch):
    clone = tmp_path / "clone"
    git(tmp_path, "init", "-q", str(clone))
    (clone / "tracked").write_text("1")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "first")
    monkeypatch.setattr(folder_module, "_PROJECT", clone)
    (clone / "untracked").touch()
    commit = git(clone, "rev-parse", "HEAD").strip()
    with monkeypatch.context() as hook:  # a training that a hook starts, such as post-commit
        hook.setenv("GIT_INDEX_FILE", str(tmp_path / "another"))
        assert record(tmp_path, cpu).parts["commit"] == commit
    (clone / "tracked").write_text("2")
    assert record(tmp_path, cpu).parts["commit"] == f"{commit}-dirty"


def test_a_resumed_run_names_what_has_changed(tmp_path, cpu):
    folders = [tmp_path / name for name in ("same", "changed", "without_facts")]
    for folder in folders:
        folder.mkdir()
    same, changed, without_facts = folders
    parts = record(same, cpu).parts
    before = {name: part for name, part in parts.items() if name != "timm"} | {"torch": "2.9.0", "driver": "570"}
    other = RunLogger(cpu)
    other.open(changed)
    other.record.open(changed)
    other.note(Environment("", before, []))
    for folder in folders:
        record(tmp_path, cpu, folder)
    (warning,) = read_run(tmp_path)["warnings"]
    changes = f"torch 2.9.0 -> {parts['torch']}, timm none -> {parts['timm']}, driver 570 -> none"
    assert warning.endswith(f": {changes}")
    assert not read_run(without_facts)


@mark.parametrize("kind", ["a file", "a dangling link"])
def test_a_root_that_is_no_folder_is_refused(tmp_path, kind):
    root = tmp_path / "output"
    if kind == "a file":
        root.touch()
    else:
        root.symlink_to(tmp_path / "nowhere")
    with refused("SAVE: .*output"):
        make_run_folder(root, "vit")
