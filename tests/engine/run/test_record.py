"""The record of a run: its states, rows and facts; a full disk; what a kill leaves."""

import errno
import json
import math
from itertools import pairwise
from pathlib import Path

from conftest import cells_of, cli, each_value, log_of, read_result, train, values_of
from pytest import mark

from engine.checkpoint.files import load_checkpoint
from engine.report.contents import best_epoch
from engine.run.facts import Devices, Environment, ImagesRead, Model, Start, TrainingData, read_fact
from engine.run.record import (
    COLUMNS,
    MAX_CHARS,
    ROWS,
    RUN,
    TABLE,
    RunRecord,
    read_metrics,
    read_run,
    record_end_of_ranks,
)
from utils.files import read_json
from utils.metric_table import METRICS
from utils.notes import LAUNCH_FOLDER, STATUS
from utils.tables import read_csv_rows


def record_in(folder: Path, command: str | None = None, is_main: bool = True, **values) -> RunRecord:
    record = RunRecord(is_main)
    record.open(folder, command, **{"pid": 1, "host": "a"} | values)
    return record


def no_warning(text: str):
    raise AssertionError(text)


# States


def test_the_first_final_state_is_kept(tmp_path):
    main = record_in(tmp_path)
    other = record_in(tmp_path, is_main=False)
    main.update(state="stopping", signal="SIGTERM")
    main.update(checkpoint="last.pth", signal=None)
    assert read_json(tmp_path / STATUS)["state"] == "stopping"
    other.update(state="failed", message="3.jpg: is no image")
    main.update(checkpoint="newer.pth")
    main.update(state="interrupted", signal="SIGTERM")
    main.add_warning("late")
    run = read_run(tmp_path)
    status = read_json(tmp_path / STATUS)
    assert (run["state"], run["message"], run["checkpoint"]) == ("failed", "3.jpg: is no image", "last.pth")
    assert run["signal"] is None
    assert status.items() <= run.items()
    record_in(tmp_path)  # resumed
    assert read_json(tmp_path / STATUS)["state"] == "running"
    assert read_run(tmp_path)["starts"] == 2


def test_the_launcher_overrules_the_states_of_ranks_which_do_not_know_the_lost_one(tmp_path, monkeypatch):
    monkeypatch.setenv(LAUNCH_FOLDER, str(launch := tmp_path / "launch"))
    launch.mkdir()
    assert record_end_of_ranks(launch, state="failed", message="before there was a run") is None
    for state, kept in cells_of("running |\ninterrupted |\nfailed |\nfinished | finished"):
        main = record_in(tmp_path, "again")
        main.update(state=state, message="lost its connection", checkpoint="last.pth")
        record_in(tmp_path, is_main=False, pid=2)  # another rank
        resume = record_end_of_ranks(launch, state="failed", message="rank 1 was killed")
        assert read_run(tmp_path)["state"] == read_json(tmp_path / STATUS)["state"] == (kept or "failed")
        assert (read_run(tmp_path)["message"] == "rank 1 was killed") == (resume == "again") == (not kept)
    record_in(tmp_path).update(state="failed", message="disk: full")
    assert record_end_of_ranks(launch, state="interrupted") is None
    assert read_run(tmp_path)["message"] == "disk: full"


def test_the_record_of_a_resumed_run_is_its_own(tmp_path):
    """The first run was suspended while another process took its lock; a rank of it fails now."""
    suspended = record_in(tmp_path)
    resumed = record_in(tmp_path, host="b")
    suspended.update(state="failed", message="rank 0 has ended")
    resumed.update(state="finished")
    suspended.add_warning("late")
    run = read_run(tmp_path)
    assert (run["state"], run["host"], run["message"], run["warnings"]) == ("finished", "b", None, {})


def test_the_first_process_that_fails_writes_why_and_how_to_resume_into_the_log(tmp_path):
    """The command that resumes is known from the first checkpoint on."""
    command = "python main.py -resume=run"
    main = record_in(tmp_path, command)
    other = record_in(tmp_path, command, is_main=False)
    assert main.update(slow_rank={"rank": 1}) is read_json(tmp_path / STATUS)["resume"] is None
    assert main.update(checkpoint="last.pth") == read_json(tmp_path / STATUS)["resume"] == command
    assert other.update(state="failed", message="rank 0\x1b has ended") == command
    assert main.update(state="failed", message="late") is None
    lines = log_of(tmp_path).splitlines()
    assert [line[20:] for line in lines] == ["error: rank 0\\x1b has ended", f"resume with: {command}"]


@mark.parametrize("message", ["no space: " + "x" * 900, "short"])
def test_a_full_disk_has_room_for_the_last_state(tmp_path, monkeypatch, message):
    record = record_in(tmp_path)
    record.update(slow_rank={"host": "a" * 100})  # the text becomes shorter

    def full_disk(path, text):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("engine.run.record.atomic_write", full_disk)
    record.update(slow_rank=None, state="failed", message=message)
    written = read_json(tmp_path / STATUS)
    assert (written["state"], written["message"]) == ("failed", message)
    record.add_warning("x" * 10**5)
    record.values["message"] = "x" * 10**5  # would need another block
    record.update()
    assert read_json(tmp_path / STATUS) == written


def test_numbers_that_json_lacks_are_null(tmp_path):
    record = record_in(tmp_path)
    record.set_result(loss=math.nan, top1=1.0, ece=math.inf)
    record.update(state="finished")
    result = json.loads((tmp_path / RUN).read_text(), parse_constant=no_warning)["result"]
    assert (result["loss"], result["top1"], result["top5"], result["ece"]) == (None, 1.0, None, None)


# Rows


def add_epoch(record: RunRecord, epoch: int):
    record.add_row("report", epoch=epoch, step=10 * epoch - 5, loss=math.nan)
    record.add_row("evaluation", epoch=epoch, step=10 * epoch, val_loss=epoch / 10)
    record.add_row("epoch", epoch=epoch, step=10 * epoch, lr=0.5)


def test_rows_after_the_checkpoint_are_dropped(tmp_path):
    record = record_in(tmp_path)
    record.open_rows(0, 0)
    for epoch in (1, 2, 3):
        add_epoch(record, epoch)
    text = (tmp_path / ROWS).read_text()
    resumed = record_in(tmp_path)
    resumed.open_rows(1, 18)
    kept = [[row["kind"], row["epoch"], row["step"]] for row in read_metrics(tmp_path)[0]]
    assert kept == values_of("report | 1 | 5\nevaluation | 1 | 10\nepoch | 1 | 10\nreport | 2 | 15")
    assert [row["epoch"] for row in read_csv_rows(tmp_path / TABLE)] == ["1"]
    resumed.add_row("evaluation", epoch=2, step=20, val_loss=0.2)
    resumed.add_row("epoch", epoch=2, step=20, lr=0.5)
    add_epoch(resumed, 3)
    assert (tmp_path / ROWS).read_text() == text
    assert "NaN" not in text
    rows = read_csv_rows(tmp_path / TABLE)
    assert [*rows[0]] == COLUMNS
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [row["val_loss"] for row in rows] == ["0.1", "0.2", "0.3"]
    assert {row["val_top1"] for row in rows} == {""}


DAMAGED = (
    b"{", b"[]", b"7", b"{}", b"\xff\xfe",
    b'{"kind": "epoch", "epoch": 1}', b'{"kind": "other", "epoch": 1, "step": 1}',
    b'{"kind": ["epoch"], "epoch": 1, "step": 1}', b'{"kind": "epoch", "epoch": "one", "step": 1}', b"[" * 100_000
)  # fmt: skip


def test_an_epoch_adds_its_own_row_to_metrics_csv(tmp_path):
    """Epoch 0 is of a probe, without a row of the kind epoch. A crash has cut the last row."""
    record = record_in(tmp_path)
    table = tmp_path / TABLE
    record.open_rows(0, 0)
    inode = table.stat().st_ino
    record.add_row("evaluation", epoch=0, step=0, val_loss=0.5)
    sizes = []
    for epoch in range(1, 6):
        add_epoch(record, epoch)
        sizes.append(table.stat().st_size)
    assert len({after - before for before, after in pairwise(sizes)}) == 1
    assert table.stat().st_ino == inode
    whole = table.read_bytes()
    assert [row["epoch"] for row in read_csv_rows(table)] == [*"012345"]
    table.write_bytes(whole[:-3])
    resumed = record_in(tmp_path)
    resumed.open_rows(3, 30)
    for epoch in (4, 5):
        add_epoch(resumed, epoch)
    assert table.read_bytes() == whole


def test_damaged_rows_are_left_out_and_the_file_is_kept(tmp_path):
    """For people whose disk or editor has damaged a record: the rows may be saved by hand."""
    record = record_in(tmp_path)
    row = b'{"kind": "epoch", "epoch": 1, "step": 4}\n'
    whole = b"\n".join(DAMAGED) + b"\n" + row + row[:20]  # the last one: after a kill
    (tmp_path / ROWS).write_bytes(whole)
    assert f" {len(DAMAGED)} damaged" in record.open_rows(4, 40)
    assert (tmp_path / ROWS).read_bytes() == row
    assert (tmp_path / "metrics.damaged.jsonl").read_bytes() == whole
    assert record.open_rows(4, 40) == ""


def test_the_best_epoch_has_the_highest_top1_then_the_lowest_loss():
    figures = values_of("10 | 1.5\n30 | 1.2\n30 | 1.1\n30 | 1.1\n |")
    rows = [{"epoch": epoch, "val_top1": top1, "val_loss": loss} for epoch, (top1, loss) in enumerate(figures, 1)]
    top1, loss, macro_f1 = (METRICS[name] for name in ("top1", "loss", "macro_f1"))
    assert best_epoch(rows, top1) == (3, 30.0)
    assert best_epoch(rows[4:], top1) is None
    assert best_epoch(rows, loss) == (3, 1.1)
    assert best_epoch(rows, macro_f1) is None


# Facts


def test_facts_and_warnings_of_all_starts(tmp_path):
    long = "w" * 2 * MAX_CHARS
    for processes in (1, 2):
        record = RunRecord()
        record.add_fact(Devices(processes, "cpu", "float32"))
        record.add_warning(long)
        record.open(tmp_path, pid=1, host="a")
        record.add_warning("later")
    run = read_run(tmp_path)
    assert run["starts"] == 2
    assert run["warnings"] == {long[:MAX_CHARS]: 2, "later": 2}
    assert read_fact(run, Devices).processes == 2
    assert read_fact(run, Model) is None


@mark.parametrize("text", ["", "{", "[]", "[" * 100_000])
def test_a_damaged_record_is_begun_anew(tmp_path, text):
    (tmp_path / RUN).write_text(text)
    record_in(tmp_path).add_warning("one")
    assert read_run(tmp_path)["starts"] == 1
    assert read_run(tmp_path)["warnings"] == {"one": 1}


DAMAGED_FACTS = """
values
null
7
cpu
{}
{processes: many, device: cpu, precision: float32}
"""


@each_value(DAMAGED_FACTS)
def test_a_damaged_fact_is_none(values):
    assert read_fact({"facts": {"Devices": values}}, Devices) is None


def test_a_run_records_itself_and_its_log_has_the_lines_of_the_facts(digits_argv):
    options = cli("TRAIN.MAX_STEPS=3 TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_WARMUP=false MODEL.TUNE=head")
    options += ["TRAIN.MODEL_EMA_DECAY=0.9999", "LOSS.CLASS_WEIGHTS=balanced"]
    folder = train([*digits_argv, *options])
    before = read_result(folder)
    train(cli(f"-resume={folder} -opts TRAIN.MAX_STEPS=4"))
    run = read_run(folder)
    log = log_of(folder)
    kinds = (Start, Devices, Environment, TrainingData, Model, ImagesRead)
    facts = {kind: read_fact(run, kind) for kind in kinds}
    assert run["facts"].keys() == {*(kind.__name__ for kind in facts), "Preprocessing"}
    assert run["starts"] == 2
    assert facts[Start].folder == str(folder)
    data = facts[TrainingData]
    assert data == TrainingData(179, 360, 0, 10, 10, data.validation_digest)
    assert len(data.validation_digest) == 16
    assert all(f" ----- {fact}\n" in log for fact in facts.values())
    head = 10 * 16 + 10  # classes, embed_dim
    assert (facts[Model].trainable, before["trainable_parameters"]) == (head, head)
    assert before["parameters"] > 20 * head
    assert 0 < before["train_seconds"] < before["total_seconds"]
    assert read_result(folder)["total_seconds"] > load_checkpoint(folder / "previous.pth")["total_seconds"] > 0
