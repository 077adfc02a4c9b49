"""`scripts/report.py`: the page that compares runs, its table in the terminal, CSV; means over seeds and folds."""

import csv
import io
import os
import re
import socket
from itertools import product
from pathlib import Path

import numpy as np
from conftest import cells_of, cli, each_value, refused, values_of
from numpy.random import default_rng
from pytest import approx, fixture, mark
from run_folders import Reader, add_evaluation, make_evaluation_run, make_run, update_json, write_facts, write_rows
from scipy.special import log_expit, log_softmax
from sklearn.metrics import roc_auc_score, roc_curve

from engine.report.contents import read_contents
from engine.report.tables import compared_options
from engine.run.facts import EvaluationData, TrainingData
from scripts.report import main
from utils.files import read_json
from utils.tables import read_csv_rows


@fixture
def compare(capsys):
    """Returns the page of the folders, the lines of the table, and the lines about other folders."""

    def compare(*folders) -> tuple[Reader, list[str], list[str]]:
        assert main(list(map(str, folders))) == 0
        printed = capsys.readouterr()
        lines = printed.out.splitlines()
        page = Reader(Path(lines[-1].removeprefix("Page: ")).read_text(encoding="utf-8"))
        return page, lines, printed.err.splitlines()

    return compare


def test_runs_are_compared_by_result_options_and_curves(tmp_path, compare):
    one = make_run(tmp_path / "one", 3, ["TRAIN.BASE_LR=0.01"])
    result = {"top1": 51.0, "test": {"top1": 49.5}, "train_seconds": 3600.0}
    two = make_run(tmp_path / "two & more", 5, ["TRAIN.BASE_LR=0.02", "SEED=3"], result=result)
    (two / "report.html").touch()
    page, lines, problems = compare(one, two)
    assert problems == ["no mean over SEED: no two runs have the same TRAIN.BASE_LR"]
    assert lines[-1] == f"Page: {tmp_path / 'compare.html'}"
    assert [re.split(" {2,}", line) for line in lines[:3]] == cells_of("""
run | best validation top-1 | epoch | test top-1 | training time | state
two & more | 51.00% | 5 of 300 | 49.50% | 1h00m | finished
one | 30.00% | 3 of 300 | - | 3m00s | finished
""")
    assert lines[5:7] == ["two & more: SEED=3, TRAIN.BASE_LR=0.02", "one: SEED=0, TRAIN.BASE_LR=0.01"]
    assert "SEED 3 0 TRAIN.BASE_LR 0.02 0.01" in page.text
    assert "DATA.IMAGE_SIZE" not in page.text
    assert [tag["href"] for tag in page.all("a") if "report" in tag["href"]] == ["two%20%26%20more/report.html"]
    (validation,) = re.findall(r"<svg[^>]*><title[^>]*>Validation top-1<.*?</svg>", page.html, re.S)
    curves = re.findall(r'class="curve c(\d)".*?data-name="([^"]*)".*?data-y="([^"]*)"/>', validation)
    assert curves == [("0", "two &amp; more", "10 20 30 40 50"), ("1", "one", "10 20 30")]


def test_a_set_without_files_has_no_path(tmp_path):
    """It would be the default, of ImageNet."""
    options = {"digits": [], "images": ["DATA.DATASET=folder", "DATA.DATA_PATH=images"]}
    runs = [read_contents(make_run(tmp_path / name, 1, given)) for name, given in options.items()]
    assert compared_options(runs)["DATA.DATA_PATH"][0] is None


def test_runs_of_a_sweep_have_a_column_for_each_swept_key(tmp_path, compare):
    for rate, policy in product(("0.01", "0.02"), ("[rand-m9-mstd0.5,inc1]", "[rand-m7-mstd0.5,inc1]")):
        name = f"BASE_LR={rate},TRAIN_AUGMENTATIONS={policy},SEED=0-20260101-12-00"
        make_run(tmp_path / name, 3, [f"TRAIN.BASE_LR={rate}"])
    _, lines, _ = compare(*tmp_path.iterdir())
    cells = [re.split(" {2,}", line)[:4] for line in lines[:5]]
    assert cells[0] == ["BASE_LR", "TRAIN_AUGMENTATIONS", "SEED", "best validation top-1"]
    assert ["0.02", "[rand-m9-mstd0.5,inc1]", "0", "30.00%"] in cells
    assert len({(*row,) for row in cells}) == 5
    make_run(tmp_path / "other", 3)
    _, lines, _ = compare(*tmp_path.glob("*[!l]"))
    assert lines[0].startswith("run ")


def test_evaluations_and_failed_and_unfinished_runs_are_compared_too(tmp_path, compare):
    evaluation = make_evaluation_run(tmp_path / "evaluation")
    failed = make_run(tmp_path / "failed", 0, state="failed", message="out of memory " + "x" * 500)
    here = {"state": "running", "host": socket.gethostname()}
    killed = make_run(tmp_path / "killed", 2, pid=2**22 + 1, **here)
    running = make_run(tmp_path / "running", 0, pid=os.getpid(), **here)
    page, lines, problems = compare(failed, evaluation, killed, running, tmp_path / "missing")
    assert [line.split()[0] for line in lines[1:4]] == ["killed", "failed", "running"]
    assert "failed: out of memory" in lines[2]
    assert len(lines[2]) < 150
    assert set(lines[3].split()[1:-1]) == {"-"}
    assert re.split(" {2,}", lines[0])[:3] == ["run", "best validation top-1", "top-1"]
    missing, *left_out = problems
    assert "missing" in missing
    assert missing in page.text
    assert [line.split(": ")[1] for line in left_out] == ["killed", "failed", "running"]
    assert page.text.index("killed 20.00%") < page.text.index("87.50%")


@each_value("wrong\nx\n[x]\n{x: {}}\n1000000000000000000000000000000")
def test_a_record_with_wrong_types_does_not_hide_the_other_runs(tmp_path, compare, wrong):
    """Who compares a folder of many runs, one of them edited or written by a script, got a traceback and no page."""
    for key in read_json(make_run(tmp_path / "good", 2) / "run.json"):
        folder = make_run(tmp_path / key, 2, state="running", host=socket.gethostname())
        update_json(folder / "run.json", **{key: wrong})
    _, lines, _ = compare(tmp_path / "good", *tmp_path.iterdir())
    assert len(lines) > 10


def test_figures_of_different_validation_images_are_marked(tmp_path, compare):
    def run(name: str, images: int, digest: str) -> Path:
        folder = make_run(tmp_path / name)
        write_facts(folder, [TrainingData(1437, images, 0, 3, 3, digest)])
        return folder

    same = [run("a", 46, "d1"), run("b", 46, "d1"), run("old", 46, "")]
    page, lines, _ = compare(*same)
    assert "labels differ" not in page.text + "".join(lines)
    line = "The validation images or their labels differ, so that the figures cannot be compared: 46 of a, "
    for other, end in ((run("c", 46, "d2"), "46 of c"), (run("d", 93, "d3"), "93 of d")):
        page, lines, _ = compare(*same, other)
        assert f"{line}{end}" in lines
        assert f"{line}{end}" in page.text
    evaluations = []
    for name, split in cells_of("e | val\nf | val\ng | test"):
        folder = make_evaluation_run(tmp_path / name)
        update_json(folder / "evaluation/summary.json", split=split)
        write_facts(folder, [EvaluationData(8, 3, 3, split, digest=name)])
        evaluations.append(folder)
    page, lines, _ = compare(*evaluations)
    assert [shown.rpartition(": ")[2] for shown in lines if "labels differ" in shown] == ["8 of e, 8 of f"]


def test_folders_and_files_that_are_no_run_are_left_out_with_a_line(tmp_path, compare):
    prediction = make_evaluation_run(tmp_path / "predict-digits")
    make_run(tmp_path / "profile-digits")
    damaged = make_run(tmp_path / "damaged")
    (damaged / "config.yaml").write_text("- 1")
    (tmp_path / "notes").mkdir()
    (tmp_path / "compare.html").touch()
    make_run(tmp_path / "run")
    page, lines, problems = compare(*sorted(tmp_path.iterdir()))
    assert len(lines) == 7
    assert lines[1].startswith("run ")
    assert all(problem in page.text for problem in problems)
    names = ("damaged", "notes", "predict-digits", "profile-digits")
    for problem, name in zip(problems, names, strict=True):
        assert problem.startswith(f"left out: {tmp_path / name}")
    for words, named in {
        (prediction,): "predict-digits",
        (prediction, tmp_path / "notes"): "no run found",
        (tmp_path / "run", f"-output={tmp_path / 'gone/a.html'}"): r"gone/a.html: cannot be written .* -output$",
    }.items():
        with refused(named):
            main([*map(str, words)])


def test_csv_has_all_digits_and_all_options(tmp_path, capsys):
    keys = cli("BASE_LR END_LR SMOOTHING MIXUP_ALPHA MIXUP_PROB GRAD_CLIP WEIGHT_DECAY")
    options = [f"TRAIN.{key}=0.1" for key in keys]
    one = make_run(tmp_path / "one", 1, options)
    result = {"top1": 100 / 3, "pixel_baseline": 200 / 3, "majority_class": 10.0}
    two = make_run(tmp_path / "two", 1, result=result)
    evaluation = make_evaluation_run(tmp_path / "evaluation")
    update_json(evaluation / "evaluation/summary.json", split="test")
    assert main([str(one), str(two)]) == 0
    assert "1 more in the CSV" in capsys.readouterr().out
    assert main([*map(str, (one, two, evaluation)), "-csv"]) == 0
    printed = capsys.readouterr()
    best, other, evaluated = csv.DictReader(io.StringIO(printed.out))
    known = {"name": "two", "mean_ap": "", "split": "validation", "epoch": "1", "epochs": "300", "status": "finished"}
    assert best.items() >= known.items()
    assert [float(best[name]) for name in (*result, "train_seconds")] == [*result.values(), 60]
    assert not other["majority_class"]
    assert all(option in other["options"] for option in options)
    assert (evaluated["name"], evaluated["split"], evaluated["epochs"]) == ("evaluation", "test", "")
    assert printed.err == f"Page: {tmp_path / 'compare.html'}\n"


@each_value("columns | shown\n80 | 100\n400 | 400")
def test_the_table_fits_the_terminal_and_names_what_it_leaves_out(columns, shown, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", f"{columns}")
    keys = [f"TRAIN.{key}=0.125" for key in ("BASE_LR", "END_LR", "SMOOTHING", "MIXUP_ALPHA", "MIXUP_PROB")]
    result = {"top1": 30.0, "test": {"top1": 25.0}, "pixel_baseline": 20.0, "probe_score": 20.0, "train_seconds": 9.0}
    make_run(tmp_path / ("a" * 60), 3, keys, result=result, state="failed", message="out of memory " * 9)
    make_run(tmp_path / ("b" * 60), 3, result=result)
    assert main([str(tmp_path)]) == 0
    *lines, _ = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= shown
    page = Reader((tmp_path / "compare.html").read_text())
    for column in ("best validation top-1", "test top-1", "pixel baseline", "linear probe", "training time"):
        assert column in page.text
        assert (column in lines[0]) != any(line.startswith("On the page") and column in line for line in lines)
    assert ("training time" in lines[0]) == (shown == 400)


def test_a_page_of_a_part_of_the_runs_leaves_the_page_of_all_and_its_groups(tmp_path, compare):
    """Whatever is given first, and if the names are given in another form."""
    sweep = tmp_path / "output/sweep"
    runs = []
    for rate, seed in product((0.01, 0.02), (0, 1)):
        runs.append(make_run(sweep / f"{rate}-{seed}", 2, [f"TRAIN.BASE_LR={rate}", f"SEED={seed}"]))
    alone = make_run(tmp_path / "output/alone", 2)

    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in [*sweep.glob("*.[ch]*"), *sweep.parent.glob("*.[ch]*")]}

    compare(sweep)
    before = files()
    page = compare(sweep, alone)[1][-1]
    assert page == f"Page: {sweep.parent / 'compare.html'}"
    assert len(read_csv_rows(sweep.parent / "groups.csv")) == 2
    for part in (runs[:2], runs[1:3], [runs[0], alone]):
        compare(*part)
        compare(*(Path(os.path.relpath(run)) for run in part))
    assert before.items() <= files().items()
    assert len([*sweep.glob("compare-*.html")]) == 3
    (own,) = sweep.glob("compare-*-groups.csv")
    (group,) = read_csv_rows(own)
    assert group["runs"] == "2"
    assert compare(*runs)[1][-1] == f"Page: {sweep / 'compare.html'}"
    for run in runs[1::2]:
        run.rename(tmp_path / run.name)
    assert f"{sweep / 'groups.csv'}: is of other runs than the page; delete it" in compare(sweep)[2]


@mark.parametrize("epoch", [0, 1])
def test_seeds_whose_best_epoch_is_one_probe_are_not_compared(epoch, tmp_path, compare):
    for seed in range(2):
        write_rows(make_run(tmp_path / f"s{seed}", 2, [f"SEED={seed}"]), [{"epoch": epoch, "val_top1": 69.81}])
    _, _, problems = compare(tmp_path / "s0", tmp_path / "s1")
    assert any("epoch 0" in line for line in problems) == (epoch == 0)


def groups_of(folder: Path) -> list[dict[str, str]]:
    """The groups of all runs in the folder."""
    assert main([str(folder)]) == 0
    return read_csv_rows(folder / "groups.csv")


def test_groups_have_means_and_deviations(tmp_path, capsys):
    """Two seeds and three folds of each rate; each fold has 12 validation images of its own."""
    scores = {0.01: [50, 61, 72, 53, 64, 75.5], 0.02: [40, 40, 40, 40, 40, 43]}
    for rate, index in product(scores, range(6)):
        seed, fold = divmod(index, 3)
        keys = cli(f"DATA.FOLDS=3 DATA.FOLD={fold} SEED={seed} TRAIN.BASE_LR={rate}")
        score = scores[rate][index]
        result = {"top1": score, "test": {"top1": score / 2}}
        folder = make_run(tmp_path / f"{rate}-{seed}-{fold}", 2, keys, result=result)
        write_facts(folder, [TrainingData(24, 12, 0, 3, 3, f"fold {fold}")])
    rows = groups_of(tmp_path)
    assert [row["TRAIN.BASE_LR"] for row in rows] == ["0.01", "0.02"]  # the best run first
    for row, values in zip(rows, scores.values(), strict=True):
        assert (row["runs"], row["metric"]) == ("6", "top1")
        mean = np.mean(values)
        deviation = np.std(values, ddof=1)
        found = [float(row[name]) for name in ("mean", "std", "test_mean", "test_std")]
        assert np.allclose(found, [mean, deviation, mean / 2, deviation / 2], rtol=1e-12)
    printed = capsys.readouterr().out
    shown = f"0.02 top-1 6 {mean:.2f}% ± {deviation:.2f} {mean / 2:.2f}% ± {deviation / 2:.2f}"
    assert shown in re.sub(" +", " ", printed)
    assert "labels differ" not in printed  # each fold has images of its own


def test_runs_are_grouped_by_the_options_that_were_given(tmp_path, capsys):
    """Rules derive other epochs for each fold: one mean; of epochs that were given: no mean, and why."""
    for fold, (epochs, score) in enumerate(values_of("9 | 84.0\n6 | 55.0\n10 | 86.0")):
        keys = cli(f"DATA.FOLDS=3 DATA.FOLD={fold} TRAIN.NUM_EPOCHS={epochs} TRAIN.MINUTES=2")
        given = {"TRAIN.NUM_EPOCHS": 40, "DATA.FOLD": fold, "DATA.FOLDS": 3, "TRAIN.MINUTES": 2}
        make_run(tmp_path / f"fold-{fold}", 2, keys, given=given, result={"top1": score})
    (row,) = groups_of(tmp_path)
    assert (row["runs"], float(row["mean"])) == ("3", 75)
    assert "no figures out of fold" in capsys.readouterr().err
    for fold in range(3):
        given |= {"TRAIN.NUM_EPOCHS": (9, 6, 10)[fold], "DATA.FOLD": fold}
        update_json(tmp_path / f"fold-{fold}/run.json", given=given)
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "± " not in printed.out
    assert "no mean over DATA.FOLD: no two runs have the same TRAIN.NUM_EPOCHS" in printed.err


@mark.parametrize("further, has_curve", [([], True), (["TRAIN.BASE_LR={}"], False)], ids=["shares", "and rates"])
def test_a_learning_curve_is_the_gain_per_doubling(further, has_curve, tmp_path, compare):
    """Of the two largest shares, means of two seeds: from 60 to 90 by four times the images, so 15 points. Of a run and
    its repetition, the last one counts.
    """
    for share, scores in {0.05: (10, 12), 0.125: (58, 62), 0.5: (89, 91)}.items():
        for seed, score in enumerate(scores):
            keys = [f"DATA.FRACTION={share}", f"SEED={seed}", *(key.format(share) for key in further)]
            started = "2026-01-02 00:00:00+0000"
            make_run(tmp_path / f"{share}-{seed}", 2, keys, started=started, result={"top1": score})
    make_run(tmp_path / "failed", 2, ["DATA.FRACTION=1.0"], state="failed", result={"top1": 20})
    again = ["DATA.FRACTION=0.5", "SEED=1", *(key.format(0.5) for key in further)]
    make_run(tmp_path / "before", 2, again, started="2026-01-01 00:00:00+0000", result={"top1": 99})
    page, lines, _ = compare(*sorted(tmp_path.iterdir()))
    curve = "top-1: 60.00% with 12.5% of the training images, 90.00% with 50%: 15.00 points per doubling"
    assert any(line.startswith(curve) for line in lines) == (curve in page.text) == has_curve
    drawn = re.findall(r'by training images<.*?data-x="([^"]*)" data-y="([^"]*)"', page.html, re.S)
    assert drawn == [("5 12.5 50", "11 60 90")] * has_curve


@each_value("first | last\n60 | 90\n90 | 60")
def test_a_run_and_its_continuation_are_no_repetition(first, last, tmp_path, compare):
    """The last one counts, whether it is better or worse."""
    for day, (name, rate, top1) in enumerate((("a", 1, first), ("a-again", 1, last), ("other", 2, 50)), 1):
        values = {"started": f"2026-01-0{day} 00:00:00+0000", "result": {"top1": top1}}
        make_run(tmp_path / name, 2, [f"TRAIN.BASE_LR={rate}", "SEED=0"], **values)
    compare(*tmp_path.iterdir())
    assert not (tmp_path / "groups.csv").exists()
    make_run(tmp_path / "b", 2, ["TRAIN.BASE_LR=1", "SEED=1"], result={"top1": 70})
    compare(*(folder for folder in tmp_path.iterdir() if folder.is_dir()))
    (group,) = read_csv_rows(tmp_path / "groups.csv")
    assert (group["runs"], float(group["mean"])) == ("2", (last + 70) / 2)


@fixture
def folds(tmp_path) -> list[Path]:
    """Runs of three folds; each has held out 50 images of three patients, of one class each."""
    rng = default_rng(0)
    folders = []
    for fold in range(3):
        keys = ["DATA.DATASET=folder", "DATA.FOLDS=3", f"DATA.FOLD={fold}", "DATA.RENAME={old: b}"]
        keys.append("EVAL.OPERATING_POINT={class: old, specificity: 0.9}")
        folder = make_run(tmp_path / f"fold{fold}", 3, keys)
        add_evaluation(folder, list("abc"))
        paths = [f"{fold}/{number}.png" for number in range(50)]
        for number, path in enumerate(paths):
            (folder / f"evaluation/pictures/{number}.jpg").write_text(path)
        mistakes = [{"index": number, "path": path} for number, path in enumerate(paths)]
        update_json(folder / "evaluation/tables.json", mistakes=mistakes)
        labels = rng.integers(0, 3, 50)
        scores = (rng.normal(size=(50, 3)) + 0.5 * np.eye(3)[labels]).astype(np.float32)  # better than chance
        arrays = {"labels": labels, "scores": scores, "paths": paths, "classes": list("abc")}
        arrays["groups"] = np.char.add(f"{fold}/", labels.astype(str))
        np.savez(folder / "evaluation/scores.npz", **arrays)
        folders.append(folder)
    return folders


def held_out_in(folds: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) and scores (N, C) of the images of all folds."""
    arrays = [np.load(folder / "evaluation/scores.npz") for folder in folds]
    labels, scores = (np.concatenate([one[name] for one in arrays]) for name in ("labels", "scores"))
    return labels, scores


def test_folds_are_one_result_with_the_figures_of_scikit_learn(folds, tmp_path, compare):
    """With the pictures of its images, and no picture of before."""
    stale = tmp_path / "out-of-fold/pictures/999.jpg"
    stale.parent.mkdir(parents=True)
    stale.touch()
    page, *_ = compare(*folds)
    assert not stale.exists()
    for row in read_json(tmp_path / "out-of-fold/tables.json")["mistakes"]:
        assert (stale.parent / f"{row['index']}.jpg").read_text() == row["path"]
    labels, scores = held_out_in(folds)
    summary = read_json(tmp_path / "out-of-fold/summary.json")
    assert summary["top1"] == approx(100 * (scores.argmax(1) == labels).mean())
    false, true, _ = roc_curve(labels == 1, scores[:, 1], drop_intermediate=False)
    assert summary["operating_point"]["sensitivity"] == approx(100 * true[1 - false >= 0.9].max())
    ranked = summary["class_auroc"]["auroc"]
    assert ranked == approx(100 * roc_auc_score(labels == 1, scores[:, 1]))
    assert f"out of fold AUROC, b {ranked:.2f}% no interval: fewer than 10 groups of a class" in page.text
    assert read_json(tmp_path / "out-of-fold/groups/summary.json")["samples"] == 9
    (group,) = read_csv_rows(tmp_path / "groups.csv")
    assert float(group["out_of_fold"]) == summary["top1"]
    assert len(read_csv_rows(tmp_path / "out-of-fold/per_image.csv")) == 150
    suspects = read_csv_rows(tmp_path / "out-of-fold/suspects/suspects.csv")
    assert 0 < len(suspects) == summary["suspects"] < (scores.argmax(1) != labels).sum()
    assert f"{len(suspects)} images whose label" in page.text
    assert "calibrated" not in summary
    assert "ROC curve, out of fold, 3 folds" in page.html


def test_a_fold_is_calibrated_by_the_temperatures_of_the_others(folds, tmp_path, compare):
    for one, temperature in zip(folds, (2, 4, 4), strict=True):
        update_json(one / "evaluation/summary.json", calibrated={"temperature": temperature})
    compare(*folds)
    labels, scores = held_out_in(folds)
    shares = log_expit(scores) / np.repeat([4, 8**0.5, 8**0.5], 50)[:, None]
    summary = read_json(tmp_path / "out-of-fold/summary.json")
    assert summary["calibrated"]["loss"] == approx(-log_softmax(shares, 1)[range(150), labels].mean(), rel=1e-5)
    assert summary["loss"] == approx(-log_expit(scores)[range(150), labels].mean(), rel=1e-5)


def test_folds_that_are_not_one_result_say_why(folds, compare):
    for one in folds:
        config = one / "config.yaml"
        config.write_text(config.read_text().replace("class: old", "class: gone"))
    assert any("EVAL.OPERATING_POINT: no class is 'gone'" in problem for problem in compare(*folds)[2])
    scores = folds[2] / "evaluation/scores.npz"
    content = dict(np.load(scores))
    np.savez(scores, **content | {"paths": np.char.replace(content["paths"], "2/", "1/")})
    assert any("1/0.png is in 2 runs" in problem for problem in compare(*folds)[2])
    scores.write_bytes(b"PK")
    assert any("scores.npz cannot be read" in problem for problem in compare(*folds)[2])
