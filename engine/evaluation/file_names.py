"""The names of an evaluation's files, for readers without torch."""

EVALUATION, TEST_EVALUATION = "evaluation", "evaluation-test"  # in the folder of a run
SUMMARY, PER_CLASS, PER_IMAGE, CONFUSION, PAIRS, CALIBRATION, COVERAGE, MISTAKES, LOGITS = (
    "summary.json", "per_class.csv", "per_image.csv", "confusion.csv", "confused_pairs.csv", "calibration.csv",
    "coverage.csv", "mistakes.csv", "logits.npz",
)  # fmt: skip
PICTURES = "pictures"  # a folder in the evaluation's
