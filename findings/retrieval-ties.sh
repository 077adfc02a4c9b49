#!/usr/bin/env bash
# pytrec-eval-terrier 0.5.11, ranx 0.3.21, scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: images with equal scores are ranked by pytrec_eval by their names, the last in the alphabet first, and by
#   ranx by the order in which the scores were given. average_precision_score() of scikit-learn takes them as one
#   group. There is no message.
# Expected: a figure that does not depend on names or on the order of a dictionary: the mean over the orders of a tie.
# Why it matters: scores of hashes, of 8 bits and of collapsed embeddings have many ties, and images are named by their
#   class: zebra/1.jpg comes before ant/1.jpg. A network that gives all images one score finds every zebra first, by
#   pytrec_eval, and a class gains or loses by its place in the list of images, by ranx.
# Instead: `average_precision_score()` of scikit-learn, or a stated rule for ties
# Last lines of a run on 2026-11-30 (three classes of ten images, all scores equal; average precision of each class):
#   pytrec_eval 0.5.11: ant 0.21, dog 0.33, zebra 1.00
#   ranx 0.3.21: ant 0.21, dog 0.35, zebra 0.93; with the images in reverse order 0.93, 0.35, 0.21
#   scikit-learn 1.9.1: ant 0.33, dog 0.33, zebra 0.33
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq pytrec-eval-terrier==0.5.11 ranx==0.3.21 scikit-learn==1.9.1
OMP_NUM_THREADS=1 venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import importlib.metadata

import pytrec_eval
import sklearn
from ranx import Qrels, Run, evaluate
from sklearn.metrics import average_precision_score

classes = ("ant", "dog", "zebra")
images = [f"{name}/{number}.jpg" for name in classes for number in range(10)]


def in_pytrec(name, images):
    relevant = {image: int(image.startswith(name)) for image in images}
    evaluator = pytrec_eval.RelevanceEvaluator({"query": relevant}, {"map"})
    return evaluator.evaluate({"query": dict.fromkeys(images, 0.5)})["query"]["map"]


def in_ranx(name, images):
    relevant = {image: 1 for image in images if image.startswith(name)}
    return float(evaluate(Qrels({"query": relevant}), Run({"query": dict.fromkeys(images, 0.5)}), "map"))


def in_sklearn(name, images):
    return float(average_precision_score([image.startswith(name) for image in images], [0.5] * len(images)))


def figures(measure, images=images):
    return [f"{measure(name, images):.2f}" for name in classes]


def line(values):
    return ", ".join(map(" ".join, zip(classes, values, strict=True)))


by_name, by_order, turned = figures(in_pytrec), figures(in_ranx), figures(in_ranx, images[::-1])
grouped = figures(in_sklearn)
print(f"pytrec_eval {importlib.metadata.version('pytrec-eval-terrier')}: {line(by_name)}")
print(
    f"ranx {importlib.metadata.version('ranx')}: {line(by_order)}; "
    f"with the images in reverse order {', '.join(turned)}"
)
print(f"scikit-learn {sklearn.__version__}: {line(grouped)}")
assert by_name[2] == "1.00" and float(by_name[0]) < 0.25 and figures(in_pytrec, images[::-1]) == by_name
assert abs(float(by_order[0]) - float(turned[0])) > 0.5 and grouped == ["0.33"] * 3
PYTHON
