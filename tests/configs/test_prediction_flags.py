"""The flags of -predict."""

from pathlib import Path

import pytest

from configs.reading.command_line import parse_command_line
from configs.reading.prediction import Prediction
from utils.errors import UserError

WEIGHTS = "-pretrained=vit.pth"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-predict", "photos"], Prediction("photos", 5, None, False)),
        (["-predict=photos", "-top_k=1", "-json"], Prediction("photos", 1, None, True)),
        (["-predict=-x.jpg", "-output=o"], Prediction("-x.jpg", 5, Path("o"), False)),  # a dash needs '='
        (["-predict", "-split=val", "-dataset=digits"], Prediction(None, 5, None, False)),
        (["-predict=photos", "-format=excel"], Prediction("photos", 5, None, False, excel=True)),
        (["-predict=photos", "-format=wide"], Prediction("photos", None, None, False)),
        (["-predict=photos", "-threshold=0.7"], Prediction("photos", 5, None, False, threshold=0.7)),
        (["-predict=photos", "-explain"], Prediction("photos", 5, None, False, explain=True)),
        ([], None),
    ],
)
def test_a_prediction(argv, expected):
    command = parse_command_line([WEIGHTS, *argv])
    assert command.prediction == expected
    assert command.name == ("predict" if expected else "train")
    assert command.config.eval.enabled == bool(expected)
    command.require_selection()


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["-predict", "photos"], "-predict: EVAL.ENABLED needs weights; give -pretrained or -resume"),
        (["-predict=", WEIGHTS], "-predict: the path is empty"),
        (["-predict", "photos", WEIGHTS, "-top_k=0"], "-top_k 0: must be at least 1"),
        *(
            (["-predict", "photos", WEIGHTS, f"-threshold={text}"], f"-threshold {text}: is a probability")
            for text in ("70", "nan")
        ),
        (["-predict", "photos", WEIGHTS, "-top_k=3", "-format=wide"], "remove -top_k"),
        (["-eval", WEIGHTS, "-threshold=0.7"], "-threshold is a flag of -predict"),
        (["-predict", "photos", WEIGHTS, "-eval"], "-predict and -eval are two commands; remove one of them"),
        (["-predict", "photos", WEIGHTS, "-split=val"], "remove the path, or -split"),
        (["--predict", "-x.jpg", WEIGHTS], "unknown flag -x"),
        (["-eval", WEIGHTS, "-explain"], "-explain is a flag of -predict"),
        (["-save_logits"], "EVAL.SAVE_LOGITS=true"),
        (["-predict", "photos", WEIGHTS, "-save_logits"], "-save_logits is a flag of -eval"),
        (["-split=val"], "-split is a flag of -eval and -predict"),
    ],
)
def test_contradictions_are_one_line(argv, line):
    with pytest.raises(UserError) as error:
        parse_command_line(argv)
    assert line in str(error.value)
