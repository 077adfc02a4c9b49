"""The names of an evaluation's files, for readers without torch."""

EVALUATION, TEST_EVALUATION = "evaluation", "evaluation-test"  # in the folder of a run
SUMMARY, PER_CLASS, CONFUSION, PAIRS, CALIBRATION, COVERAGE, MISTAKES = (
    "summary.json", "per_class.csv", "confusion.csv", "confused_pairs.csv", "calibration.csv", "coverage.csv",
    "mistakes.csv",
)  # fmt: skip
PICTURES = "pictures"  # a folder in the evaluation's
