"""Folds as one result: the evaluation of all their held-out images together, out of fold."""

import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from configs.schema.data import properties_of
from configs.schema.operating_point import Goal
from engine.evaluation.results import join_results
from engine.evaluation.suspects import margins, write_suspects
from engine.evaluation.tables import SCORES, ResultTables, read_scores
from engine.plan.decision import point_of
from engine.report.contents import EvaluationContents, RunContents, evaluation_in
from engine.run.record import EVALUATION, PICTURES, SUSPECTS
from utils.errors import UserError
from utils.files import make_own_folder

OUT_OF_FOLD = "out-of-fold"


def pool_folds(runs: Sequence[RunContents], folder: Path) -> EvaluationContents:
    """Writes the evaluation of the held-out images of all runs, each a fold, and their suspect labels to `folder`.

    Raises UserError: the scores of a run are missing, or of other classes; an image is in several runs. OSError.
    """
    options = runs[0].options
    parts = []
    pictures = dict[str, Path]()
    names = list[str]()
    classes = list[str]()
    for run in runs:
        try:
            results, paths, of_run = read_scores(run.evaluation.folder / SCORES)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise UserError(f"{run.name}: {EVALUATION}/{SCORES} cannot be read: {error}") from None
        if classes and of_run != classes:
            raise UserError(f"{run.name} has other classes than {runs[0].name}")
        # Images of a set in memory have numbers, which each fold begins with 0.
        place = f"{run.name}/" if properties_of(options["DATA.DATASET"]).in_memory else ""
        for row in run.evaluation.rows("mistakes", "path", "index"):
            pictures[f"{place}{row['path']}"] = run.evaluation.folder / PICTURES / f"{row['index']}.jpg"
        parts.append(results)
        names += (f"{place}{path}" for path in paths)
        classes = of_run
    name, number = Counter(names).most_common(1)[0]
    if number > 1:
        raise UserError(f"{name} is in {number} runs; give the folds of one seed, trained by one version")
    logs = np.log([run.evaluation.values.get("calibrated", {}).get("temperature", 1) for run in runs])
    others = np.exp((logs.sum() - logs) / max(len(logs) - 1, 1)).tolist()  # of each fold
    tempered = [replace(part, temperature=one).calibrated for part, one in zip(parts, others, strict=True)]
    goal = options["EVAL.OPERATING_POINT"]
    point = point_of(Goal.model_validate(goal), classes, options["DATA.RENAME"]) if goal else None
    of_folds = replace(join_results(tempered), point=point)
    results = replace(join_results(parts), temperature=float(np.exp(logs.mean())), of_folds=of_folds, point=point)
    about = {"split": OUT_OF_FOLD, "folds": len(runs)}
    found = margins(torch.from_numpy(results.scores).sigmoid(), torch.from_numpy(results.targets))
    images = [("val", name) for name in names]
    about["suspects"] = len({*write_suspects(folder / SUSPECTS, found, images, classes)})  # images
    tables = ResultTables(folder, classes, names.__getitem__)
    tables.write(results.metrics(runs[0].metric.name), results, about)
    pooled = evaluation_in(folder)
    shutil.rmtree(folder / PICTURES, ignore_errors=True)
    make_own_folder(folder / PICTURES)
    for row in pooled.rows("mistakes", "path", "index"):  # each is among the worst images of its fold
        with suppress(KeyError, OSError):
            shutil.copyfile(pictures[row["path"]], folder / PICTURES / f"{row['index']}.jpg")
    return pooled
