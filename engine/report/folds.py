"""Folds as one result: the evaluation of all their held-out images together, out of fold."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile

import torch

from configs.schema.data import properties_of
from configs.schema.operating_point import OperatingPoint
from datasets.sources.corrections import decided_rows
from engine.evaluation.results import join
from engine.evaluation.suspects import margins, write_suspects
from engine.evaluation.tables import SCORES, ResultTables, read_scores
from engine.report.contents import Evaluation, RunContents
from engine.run.record import EVALUATION, SUSPECTS, read_evaluation
from utils.errors import UserError

OUT_OF_FOLD = "out-of-fold"


def pool_folds(runs: Sequence[RunContents], folder: Path) -> Evaluation:
    """Writes the evaluation of the held-out images of all runs, each a fold, and their suspect labels to `folder`.

    Raises UserError: the scores of a run are missing, or of other classes; an image is in several runs. OSError.
    """
    parts = []
    names = list[str]()
    classes = list[str]()
    for run in runs:
        try:
            results, paths, of_run = read_scores(run.folder / EVALUATION / SCORES)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise UserError(f"{run.name}: {EVALUATION}/{SCORES} cannot be read: {error}") from None
        if classes and of_run != classes:
            raise UserError(f"{run.name} has other classes than {runs[0].name}")
        parts.append(results)
        names += paths
        classes = of_run
    name, number = Counter(names).most_common(1)[0]
    if number > 1 and not properties_of(runs[0].options["DATA.DATASET"]).in_memory:  # whose images have numbers
        raise UserError(f"{name} is in {number} runs; give the folds of one seed")
    results = join(parts)
    goal = runs[0].options["EVAL.OPERATING_POINT"]
    if goal and goal["class"] in classes:
        results = replace(results, point=OperatingPoint.model_validate({**goal, "label": classes.index(goal["class"])}))
    about = {"split": OUT_OF_FOLD, "folds": len(runs)}
    if results.scores is not None and results.targets.ndim == 1:
        found = margins(torch.from_numpy(results.scores).sigmoid(), torch.from_numpy(results.targets))
        images = [("val", name, classes[label]) for name, label in zip(names, results.targets, strict=True)]
        options = runs[0].options
        decided = decided_rows(options["DATA.CORRECTIONS"], options["DATA.ENCODING"]).values()
        suspects = write_suspects(folder / SUSPECTS, found, images, classes, decided, options["DATA.DATA_PATH"])
        about["suspects"] = len(suspects)
    tables = ResultTables(folder, classes, names.__getitem__)
    tables.write(results.metrics(runs[0].metric.name), results, about)
    return Evaluation(folder, read_evaluation(folder))
