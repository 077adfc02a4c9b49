"""The page of a run: states, parts, hostile names, damaged files."""

import base64
import hashlib
import re
import shutil
import socket
import sys
from types import SimpleNamespace

from conftest import cli, each_row, each_value, log_of, read_result, refused, values_of
from PIL import Image
from pytest import fixture, importorskip, mark
from run_folders import (
    add_evaluation,
    make_evaluation_run,
    make_run,
    read_page,
    update_json,
    write_facts,
    write_json,
    write_rows,
)  # fmt: skip

from configs.command_line import parse_command_line
from configs.schema import Config
from configs.yaml_io import parse_value
from engine.commands.run import run as run_command
from engine.progress import Evaluated
from engine.report import charts
from engine.report import page as page_module
from engine.report.contents import read_contents
from engine.report.overview import class_lines, shift_by_weights, tiles_of
from engine.run.facts import Environment, PixelBaseline, TrainingData
from engine.run.record import REPORT
from engine.training import outputs
from engine.training.outputs import RunReport
from scripts import report
from utils.files import read_json
from utils.metric_table import METRICS
from utils.notes import UNFINISHED


@fixture
def run(tmp_path):
    folder = make_run(tmp_path / "digits-1", options=["TRAIN.BASE_LR=0.01", "DATA.IMAGE_SIZE=32"])
    add_evaluation(folder, ["cat", "dog", "fox"])
    return folder


def test_the_page_of_a_finished_run_has_all_parts_in_order(run):
    page = read_page(run)
    assert [tag["id"].removeprefix("section-") for tag in page.all("h2")] == [
        "model-and-data", "curves", "options", "classes", "calibration", "worst-mistakes", "warnings"
    ]  # fmt: skip
    assert "Confusion matrix Rows: true class" in page.text.partition("Model and data")[0]
    for shown in (
        "of 12 validation images 30.00% best validation top-1; epoch 3 of 300", "0.455 M parameters", "2 processes",
        "1437 training images", "TRAIN.BASE_LR 0.01 0.003", "have one training image", "fox 5.00%",
        "predicted fox 90.00%", "torch 2.14.1, commit 0123-dirty", "Hosts a, b", "python <b>"
    ):  # fmt: skip
        assert shown in page.text, shown
    assert len(page.all("img")) == 8
    assert page.all("img")[0]["alt"] == "Image of class fox, predicted as cat"
    captions = {tag["aria-labelledby"] for tag in page.all("svg")}
    assert len(captions) == 8  # six curves, the reliability diagram, and the accuracy by coverage
    assert 'data-name="accuracy" data-x="20 60 100" data-y="95 85 75"' in page.html


def test_a_calibration_error_before_the_temperature_says_so(run):
    calibrated = {"temperature": 2.0, "ece": 1.25}
    remarks = []
    for more in ({}, {"calibrated": calibrated}):
        update_json(run / "evaluation/summary.json", ece=4.5, **more)
        (tile,) = (tile for tile in tiles_of(read_contents(run))[1] if tile.value == "4.50%")
        remarks.append(bool(tile.remark))
    assert remarks == [False, True]
    text = read_page(run).text
    assert text.index("calibration error: 1.25%") < text.rindex("4.50%")


@mark.slow
def test_the_curves_are_a_picture_where_matplotlib_is_installed(run, monkeypatch):
    importorskip("matplotlib")
    assert report.main([str(run)]) == 0
    width, height = Image.open(run / "curves.png").size
    assert width == 700
    assert height % 300 == 0
    assert height > 300
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert report._as_png(charts.curves_of([read_contents(run)])) == b""


def test_the_page_loads_nothing_and_runs_only_its_own_script(run):
    page = read_page(run)
    (policy,) = (tag["content"] for tag in page.all("meta") if tag.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page.html, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    addresses = [value for _, tag in page.tags for key, value in tag.items() if key in ("src", "href", "srcset")]
    assert all(address.startswith(("data:image/jpeg;base64,", "#")) for address in addresses)
    assert not any("style" in tag or any(key.startswith("on") for key in tag) for _, tag in page.tags)


@mark.parametrize("state", UNFINISHED)
def test_a_killed_run_has_the_command_that_resumes_it(tmp_path, state):
    gone = {"state": state, "host": socket.gethostname(), "pid": 2**22 + 1}
    page = read_page(make_run(tmp_path / "a run", **gone))
    assert f"'-resume={tmp_path / 'a run'}'" in page.text.partition("Model and data")[0]


CLASSES = """
cat | 40 | 99
<newt> | 1 | 0
fox | 9 | 0
dog | 0 | ''  # there are no images
"""


def test_the_head_names_the_worst_class_of_a_run_of_high_accuracy(run):
    update_json(run / "evaluation/summary.json", macro_f1=82.9)
    table = [{"class": name, "count": count, "f1": f1} for name, count, f1 in values_of(CLASSES)]
    update_json(run / "evaluation/tables.json", per_class=table)
    head = read_page(run).text.partition("Model and data")[0]
    first, _, more = head.partition("More figures")
    chosen = "best of 3 epochs chosen on these images: too good"
    assert f"top-1; epoch 3 of 300; {chosen} validation worst class F1 0.00% fox, 9 images" in first
    assert "macro F1 82.90%" in more
    lost = "F1 0.00% (fox, 9 images; 2 of 3 classes have 0%)"
    assert class_lines(read_contents(run)) == [f"Classes: macro F1 82.90%, worst class {lost}"]
    shutil.copytree(run / "evaluation", run / "evaluation-test")
    test = [{"class": "cat", "count": 5, "f1": 80.0}]
    update_json(run / "evaluation-test/tables.json", per_class=test)
    update_json(run / "run.json", result={"top1": 30.0, "test": {"top1": 25.0}})
    first, _, more = read_page(run).text.partition("Model and data")[0].partition("More figures")
    assert "test worst class F1 80.00% cat, 5 images" in first
    assert "validation worst class F1 0.00%" in more
    figures = "test macro F1 82.90%, test worst class F1 80.00% (cat, 5 images)"
    assert class_lines(read_contents(run)) == [f"Classes: {figures}"]


TIMES = """
classes | of_class | times
2 | 91.5 | 1
3 | 80.0 | 2
3 | 91.5 | 2
"""


@each_value(TIMES)
def test_the_one_auroc_of_two_classes_is_shown_once(tmp_path, classes, of_class, times):
    """Of three classes, the one of a class is another figure than their mean, also where both are equal."""
    run = make_evaluation_run(tmp_path / "eval", ["cat", "dog", "fox"][:classes])
    ranked = {"class": "cat", "auroc": of_class, "interval": [80.0, 95.0]}
    update_json(run / "evaluation/summary.json", auroc=91.5, class_auroc=ranked)
    tables = read_json(run / "evaluation/tables.json")["per_class"]
    update_json(run / "evaluation/tables.json", per_class=[row | {"auroc": 91.5} for row in tables])
    page = read_page(run)
    assert len(re.findall(r"<dt><bdi>[^<]*AUROC[^<]*</bdi>", page.html)) == times
    assert ('<th scope="col">AUROC</th>' in page.html) == (classes == 3)


SHIFTS = """
weights | mean | found
balanced | 53.0 | 53.00% 25.00%
balanced | 29.0 |
null | 53.0 |
"""


@each_row(SHIFTS)
def test_weights_of_classes_that_shift_the_probabilities_are_named(tmp_path, weights, mean, found):
    options = cli(f"LOSS.CLASS_WEIGHTS={weights} DATA.MULTI_LABEL=true DATA.DATASET=csv LOSS.NAME=bce")
    folder = make_run(tmp_path / "a run", options=options)
    add_evaluation(folder, ["cat", "dog", "fox"])
    rows = [("cat", 3, float(mean)), ("dog", 6, 48.0), ("fox", 0, "")]
    classes = [{"class": name, "count": count, "probability": value} for name, count, value in rows]
    write_json(folder / "evaluation/tables.json", {"per_class": classes})
    shift = shift_by_weights(read_contents(folder))
    assert " ".join(re.findall(r"[\d.]+%", shift)) == found
    assert ("cat" in shift) == bool(found)
    assert shift in read_page(folder).text


def test_tables_of_groups_count_groups_and_files_have_their_folders(run):
    """Groups have no pictures."""
    shutil.copytree(run / "evaluation", run / "evaluation/groups", ignore=shutil.ignore_patterns("pictures"))
    page = read_page(run)
    assert re.findall(r"<code>([\w/-]*)coverage.csv", page.html) == ["evaluation/", "evaluation/groups/"]
    assert "Worst mistakes by group" in page.text
    assert "no pictures" not in page.text
    shutil.rmtree(run / "evaluation/pictures")
    assert "no pictures: evaluation/pictures" in read_page(run).text
    titles = re.findall(r"<thead><tr><th[^>]*>class<.*?</tr>", page.html)
    assert [re.sub("<[^>]*>", " ", row).split()[1] for row in titles] == ["images", "groups"]


SPLITS = """
split | word
val | 'validation '
train | 'training '
test | 'test '
 | ''
"""


@each_value(SPLITS)
def test_an_evaluation_has_the_name_of_its_split_and_no_curves(tmp_path, split, word):
    folder = make_evaluation_run(tmp_path / "eval-digits")
    update_json(folder / "evaluation/summary.json", split=split)
    page = read_page(folder)
    assert f"of 12 {word}images 87.50% {word}top-1" in page.text.partition("Model and data")[0]
    assert "Curves" not in page.text


SEVERAL_LABELS = """
summary: {epoch: 2, samples: 10, mean_ap: 50.0, loss: 1.0}
tables:
    per_class: [{label: 0, class: cat, count: 3, ap: 50.0}, {label: 1, class: dog, count: 0, ap: ''}]
    mistakes:
    - {index: 1, true: cat | dog, predicted: dog, probability: 60, loss: 1, path: 1.png, true_probability: ''}
"""


def test_a_multi_label_run_has_mean_ap_and_no_matrix(tmp_path):
    folder = make_run(tmp_path / "run", options=["DATA.DATASET=csv", "DATA.MULTI_LABEL=true"])
    write_rows(folder, [{"epoch": epoch, "val_mean_ap": 30.0 + 10 * epoch, "val_loss": 1.0} for epoch in (1, 2)])
    (folder / "evaluation").mkdir()
    for name, content in parse_value(SEVERAL_LABELS).items():
        write_json(folder / f"evaluation/{name}.json", content)
    page = read_page(folder)
    assert "true cat | dog most probable dog 60.00% loss 1, 1.png" in page.text
    assert 'class="wrong"' not in page.html
    assert "of 10 validation images 50.00% best validation mean AP; epoch 2 of 300" in page.text
    assert "dog 0 –" in page.text
    assert "Confusion" not in page.text
    assert "top-1" not in page.text.lower()


def test_the_first_row_has_the_result_and_what_it_is_worth(run):
    result = {"top1": 30.0, "test": {"top1": 25.0, "samples": 8}, "train_seconds": 90.0, "images_per_second": 7.0}
    update_json(run / "run.json", result=result | {"probe_score": 20.0, "specificity": 60.0})
    write_facts(run, [PixelBaseline(10.0, 5.0, 100, 20)])
    first, more = map(list, tiles_of(read_contents(run)))
    of_worst_class = "validation worst class"
    names = ["best validation top-1", "test top-1", "pixel baseline", "linear probe", of_worst_class, "training time"]
    assert [one.name for one in first] == names
    mean = f"validation {METRICS['specificity'].title}"
    assert {"validation loss", mean, "images/s"} <= {one.name for one in more}
    empty = tiles_of(read_contents(make_run(run.parent / "empty", 0)))
    assert [(one.name, one.value, one.remark) for one in empty[0]] == [("best validation top-1", "", "")]


def test_the_results_of_validation_and_test_have_their_intervals(run):
    update_json(run / "run.json", result={"top1": 30.0, "test": {"top1": 25.0, "samples": 8}})
    shutil.copytree(run / "evaluation", run / "evaluation-test")
    update_json(run / "evaluation" / "summary.json", interval=[12.34, 45.67])
    update_json(run / "evaluation-test" / "summary.json", interval=[9.96, 40.0])
    head = read_page(run).text.partition("Model and data")[0]
    assert "30.00% best validation top-1; 95% interval 12.34 to 45.67%; epoch 3 of 300" in head
    assert "of 12 test images 25.00% test top-1; 95% interval 9.96 to 40.00%" in head
    update_json(run / "evaluation" / "summary.json", epoch=2)  # the files of an earlier epoch
    head = read_page(run).text.partition("Model and data")[0]
    assert "12.34" not in head and "9.96" in head


@mark.parametrize("epoch", [2, 3])
def test_figures_of_an_earlier_epoch_than_the_best_one_say_so(epoch, run):
    """A run in progress, or a killed one, had no time for the files of its best epoch, 3."""
    update_json(run / "evaluation" / "summary.json", epoch=epoch)
    page = read_page(run)
    titles = [tag["id"] for tag in page.all("h2") if "of-epoch-2" in tag["id"]]
    names = [tile.name for part in tiles_of(read_contents(run)) for tile in part if "epoch 2" in tile.name]
    is_earlier = epoch == 2
    assert titles == [f"section-{one}-of-epoch-2" for one in ("classes", "calibration", "worst-mistakes")] * is_earlier
    assert names == ["epoch 2 validation worst class"] * is_earlier
    assert ("Confusion matrix of epoch 2" in page.text) == is_earlier


def test_a_copy_to_share_names_no_file_folder_host_or_person(run, tmp_path):
    """The page itself has each of them; class names and figures are in both."""
    options = cli("MODEL.PRETRAINED=backbone7.pth DATA.CLASSES=klassen7.txt DATA.IMAGE_ROOT=/home/anna7/bilder7")
    options += cli("DATA.DATASET=csv DATA.DATA_PATH=befunde7.csv DATA.GROUPS=patient7 TRAIN.BASE_LR=0.01")
    options += ["MODEL.TYPE=timm", "MODEL.NAME=resnet18"]
    folder = make_run(tmp_path / "both/digits-2", options=options)
    add_evaluation(folder, ["cat", "dog", "fox"])
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("resnet18", "local-dir:modell7"))
    facts = [Environment("python main.py -data_path=/home/anna7/bilder7", {"torch": "2.14"}, ["klinik7"])]
    write_facts(folder, [*facts, TrainingData(20, 10, 0, 3, 3)])
    warnings = {"bilder7/P100.jpg cannot be read": 1}
    update_json(folder / "run.json", warnings=warnings, state="failed", message="befunde7.csv is damaged")
    (folder / "suspects").mkdir()
    columns = "correction,split,path,label,predicted,probability,label_probability,margin"
    (folder / "suspects/suspects.csv").write_text(f"{columns}\n,val,bilder7/P200.jpg,cat,dog,90,1,-89\n")
    shutil.copytree(folder, tmp_path / "both/digits-3")
    update_json(tmp_path / "both/digits-3/run.json", state="finished")
    (tmp_path / "both/digits-3/report.html").touch()
    private = cli("7.pth klassen7 anna7 bilder7 befunde7 patient7 klinik7 P100 P200 modell7")
    page = read_page(folder).html
    assert all(word in page for word in private)
    private += [".jpg", ".png", ".csv", ".yaml", str(tmp_path), "data:image", 'href="digits']
    report.main([str(folder), "-share"])
    report.main([str(folder), str(tmp_path / "both/digits-3"), "-share"])
    for file in (folder / "share.html", tmp_path / "both/share.html"):
        text = file.read_text()
        assert [word for word in private if word in text] == []
        assert "30.00%" in text
        assert "digits-2" in text
    assert "TRAIN.BASE_LR" in (folder / "share.html").read_text()


HOSTILE = (
    "<script>alert(1)</script>", "</title><img src=x onerror=alert(1)>", "n" * 300, "two\nlines\r\x1b[31m",
    "right \u202eto left", "=HYPERLINK(1)", '" onmouseover="alert(1)', "{{ 7 * 7 }}", "\udcff", "a & b", ""
)  # fmt: skip


def test_hostile_names_stay_text(tmp_path):
    folder = make_run(tmp_path / "<b>run", state="failed", message="<script>alert(2)</script>\x1b[31m")
    update_json(folder / "run.json", class_names=HOSTILE, warnings={"<img src=x onerror=alert(3)>": 1})
    add_evaluation(folder, HOSTILE)
    page = read_page(folder)
    assert len(page.all("script")) == 1
    assert all(tag["src"].startswith("data:") for tag in page.all("img"))
    assert not [key for _, tag in page.tags for key in tag if key.startswith("on")]
    assert "{{ 7 * 7 }}" in page.text
    assert "<script>alert(2)</script>\\x1b[31m" in page.text
    assert "<b>run" in page.text
    assert all(character.isprintable() or character == "\n" for character in page.html)
    assert "right \\u202eto left" in page.text
    assert max(map(len, page.text.split())) < 100
    assert any(tag.get("title") == "n" * 300 for tag in page.all("bdi"))
    assert "'=" not in page.text
    assert "true =HYPERLINK(1) 5.00%" in page.text


def test_a_thousand_classes_have_a_filter_and_the_most_confused_pairs(tmp_path):
    page = read_page(make_evaluation_run(tmp_path / "run", [f"class {index}" for index in range(1000)]))
    assert page.text.count("25.00%") == 20
    assert "Confused pairs" in page.text
    assert "Confusion matrix" not in page.text
    assert page.all("input")
    assert len(page.html) < 500_000
    few = read_page(make_evaluation_run(tmp_path / "few", [f"class {index}" for index in range(50)]))
    assert "Confusion matrix" in few.text
    assert not few.all("input")
    assert "Confused pairs" not in few.text

    many = read_page(make_evaluation_run(tmp_path / "many", [f"class {index}" for index in range(2010)])).text
    assert "those with the lowest scores; 10 others" in many
    assert "class 2009" in many
    assert "class 9 4 " not in many


def test_damaged_files_leave_their_parts_out(run):
    (run / "suspects").mkdir()
    (run / "suspects/suspects.csv").write_bytes(b"path\n\xff\n")
    (run / "evaluation/pictures/2.jpg").unlink()
    (run / "evaluation/summary.json").write_text("{")
    page = read_page(run)
    assert "Worst mistakes" in page.text
    assert len(page.all("img")) == 7
    (run / "evaluation/tables.json").write_text("{")
    assert "Worst mistakes" not in read_page(run).text


def test_a_page_that_cannot_be_written_gives_one_line_in_a_run_and_keeps_the_old_page(run, monkeypatch):
    log: list[str] = []
    report = RunReport(
        SimpleNamespace(folder=run, logger=SimpleNamespace(warn=log.append)), Config(), Config().train.horizon
    )
    report.update(now=True)
    assert report.has_page
    old = (run / REPORT).read_bytes()

    def full(path, text, is_durable):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page_module, "atomic_write", full)
    for _ in range(3):
        report.update(now=True)
    assert log == ["report.html cannot be written: OSError: [Errno 28] No space left on device"]
    assert (run / REPORT).read_bytes() == old
    assert not report.has_page


PAGES = """
epochs | seconds | pages
13 | 1 | 1  # the end of a short run alone: its page is the first one, which takes longest
60 | 10 | 12
300 | 3600 | 301
"""


@each_row(PAGES)
def test_the_pages_of_a_run_take_a_fiftieth_of_its_time(monkeypatch, tmp_path, epochs, seconds, pages):
    """On a clock that stands while nothing works. A page takes a quarter of a second here."""
    clock = [0.0]
    written = []

    def write(folder):
        clock[0] += 0.25
        written.append(clock[0])

    monkeypatch.setattr(page_module, "write_report", write)
    monkeypatch.setattr(outputs, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    report = RunReport(SimpleNamespace(folder=tmp_path), Config(), Config().train.horizon)
    for _ in range(int(epochs)):
        clock[0] += int(seconds)
        report.update()
    report.update(Evaluated(None, None, None, epochs), now=True)  # of the end, which has a result later
    report.update(now=True)
    assert len(written) == int(pages)
    assert 0.25 * len(written) <= 0.02 * clock[0]
    assert written[-1] == clock[0]


def test_an_evaluation_without_jinja2_lacks_only_its_page(digits_run, cpu, tmp_path, monkeypatch):
    run_folder = digits_run()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    argv = cli(f"-eval -resume={run_folder} -output={tmp_path / 'evaluations'} -num_workers=0")
    run_command(parse_command_line(argv), cpu)
    (folder,) = (tmp_path / "evaluations").iterdir()
    assert read_result(folder)["finished"]
    assert not (folder / REPORT).exists()
    assert "report.html cannot be written: The page of a run: needs jinja2" in log_of(folder)
    with refused("needs jinja2"):
        report.main([str(folder)])


def test_one_epoch_is_no_curve_and_a_probe_lists_no_options_of_steps(tmp_path):
    for name, epochs, tune in (("probe", 1, "probe"), ("run", 2, "full")):
        folder = make_run(tmp_path / name, epochs, [f"MODEL.TUNE={tune}", "TRAIN.ACCUM_ITER=7"])
        page = read_page(folder)
        assert ("Throughput" in page.text, "TRAIN.ACCUM_ITER" in page.text) == (epochs > 1, tune == "full")
