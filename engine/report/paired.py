"""Two models on the same images: the images that A, B or both get wrong, and McNemar's test, overall and by class."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest

from configs.reading.yaml_io import shorten
from engine.evaluation.file_names import EVALUATION, PER_IMAGE
from engine.report.contents import RunContents
from engine.report.tables import evaluated_images
from engine.run.facts import FACTS
from utils.errors import UserError, error_from
from utils.tables import safe_cell

CLASS_COLUMNS = ("class", "images", "both right", "only {a} wrong", "only {b} wrong", "both wrong", "p", "p (Holm)")
IMAGE_COLUMNS = ("index", "path", "true", "predicted by {a}", "predicted by {b}", "wrong")
Rows = list[list[str]]
_Class = tuple[str, str]  # label and name: two classes may have one name
_NONE = "-1", ""  # of an image that could not be read
_NEW_EVALUATION = "compare the folder of a new evaluation: -eval -resume=RUN"


def compare_mistakes(a: RunContents, b: RunContents) -> tuple[Rows, Rows]:
    """Rows of `CLASS_COLUMNS` and of `IMAGE_COLUMNS`, without images that one of the evaluations could not read.

    Raises UserError: other images or classes, several labels per image, a missing or damaged file.
    """
    if a.is_multi_label or b.is_multi_label:
        raise UserError(f"-mistakes needs one label per image: DATA.MULTI_LABEL is on in {a.folder} or {b.folder}")
    if a.folder.resolve() == b.folder.resolve():
        raise UserError(f"-mistakes: {a.folder} and {b.folder} are one folder; give the folders of two runs")
    for run in (a, b):
        if not evaluated_images(run):
            raise UserError(f"{run.folder / FACTS}: lacks the number of the evaluated images; {_NEW_EVALUATION}")
    if evaluated_images(a) != evaluated_images(b):
        raise UserError(f"{b.folder}: other images or classes than in {a.folder}; compare runs on one data set's split")
    counts, images = defaultdict[_Class, list[int]](lambda: [0, 0, 0, 0]), Rows()
    pairs = zip_longest(_read_images(a), _read_images(b), fillvalue=("", "", _NONE, _NONE))
    for index, ((crc, path, true, by_a), (crc_of_b, _, true_of_b, by_b)) in enumerate(pairs):
        if crc != crc_of_b:
            raise UserError(f"{b.folder}: image {index} is another one than in {a.folder}; evaluate both on one list")
        if _NONE not in (true, true_of_b):
            wrong = (by_a != true) + 2 * (by_b != true_of_b)  # of ReaL, the true class depends on the model
            counts[true][wrong] += 1
            if wrong:
                names = (safe_cell(name) for _, name in (true, by_a, by_b))
                images.append([str(index), safe_cell(path), *names, ("A", "B", "both")[wrong - 1]])
    return _class_rows(counts), images


def _class_rows(counts: dict[_Class, list[int]]) -> Rows:
    """All classes together, then each: the smallest p first, among equal ones the largest difference."""
    total = [sum(numbers[wrong] for numbers in counts.values()) for wrong in range(4)]
    rows = [["all", *map(str, (sum(total), *total)), f"{mcnemar(*total[1:3]):.3g}", ""]]
    tests = [(mcnemar(n[1], n[2]), -abs(n[1] - n[2]), *key, n) for key, n in counts.items()]
    corrected = 0.0
    for rank, (p, _, _, name, n) in enumerate(sorted(tests)):
        corrected = max(corrected, min(1.0, (len(tests) - rank) * p))  # Holm, 1979
        rows.append([safe_cell(name), *map(str, (sum(n), *n)), f"{p:.3g}", f"{corrected:.3g}"])
    return rows


def mcnemar(only_a: int, only_b: int) -> float:
    """The exact two-sided p-value: twice the smaller tail of Binomial(only_a + only_b, 1/2), at most 1."""
    n = only_a + only_b
    log_all = math.lgamma(n + 1) - n * math.log(2)
    terms = (log_all - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(min(only_a, only_b) + 1))
    return min(1.0, 2 * math.fsum(map(math.exp, terms)))


def _read_images(run: RunContents) -> Iterator[tuple[str, str, _Class, _Class]]:
    """Checksum, path, true and predicted class of each image."""
    path = run.folder / EVALUATION / PER_IMAGE
    number, (images, _) = 0, evaluated_images(run) or (0, "")
    rows = run.evaluation.classes if run.evaluation else []
    classes = {label: (label, row["class"]) for row in rows if (label := row.get("label"))} | {_NONE[0]: _NONE}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(line for line in file if line.endswith("\n"))
            for row in reader:
                number += 1
                yield row["checksum"], row["path"], classes[row["label"]], classes[row["predicted"]]
        if number != images:
            raise ValueError(f"it has {number} of {images} images")
    except (OSError, ValueError, KeyError, csv.Error) as error:
        cause = f"no column or class {error}" if isinstance(error, KeyError) else str(error)
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({shorten(cause)})"
        raise error_from(error, f"{path}: {problem}; {_NEW_EVALUATION}") from None
