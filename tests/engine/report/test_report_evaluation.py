"""The page of an evaluation, of a run with test images, and of a run whose evaluated weights are an average."""

import pytest
from run_folders import add_evaluation, add_split, make_evaluation_run, make_run, write_json, write_table
from test_report_page import read_page

from utils.tables import safe_cell


@pytest.mark.parametrize(
    ("split", "word"), [("val", "validation "), ("train", "training "), ("test", "test "), (None, "")]
)
def test_the_figures_of_an_evaluation_have_the_name_of_its_split(tmp_path, split, word):
    folder = make_evaluation_run(tmp_path / "eval")
    add_split(folder, split)
    head, _, rest = read_page(folder).text.partition("Model and data")
    assert f"finished {word}top-1 87.50%" in head.replace("All images are evaluated. ", "")
    assert f"% {word}loss 0.5000" in head and f"Measured on 12 {word}images" in rest


def test_the_options_of_an_evaluation_are_folded(tmp_path):
    page = read_page(make_evaluation_run(tmp_path / "eval"))
    assert len(page.all("details")) == 1 and not read_page(make_run(tmp_path / "run")).all("details")


def test_the_test_images_have_a_table_of_classes(tmp_path):
    folder = make_run(tmp_path / "run")
    add_evaluation(folder, ["cat", "dog"])
    add_split(folder, "test")
    (folder / "evaluation").rename(folder / "evaluation-test")
    add_evaluation(folder, ["cat", "dog"])
    page = read_page(folder)
    assert [tag["id"] for tag in page.all("table") if "id" in tag] == ["classes", "test-classes"]
    assert "Test images Measured on 8 test images, with the weights of epoch 3. 2 classes" in page.text
    ids = [tag["id"] for _, tag in page.tags if "id" in tag]
    assert len(ids) == len(set(ids))


def test_class_names_are_shown_as_they_are_in_the_data(tmp_path):
    names = ["=cat", "+dog", "'fox'", "-"]
    folder = make_run(tmp_path / "run")
    add_evaluation(folder, [safe_cell(name) for name in names])
    text = read_page(folder).text
    assert "'=" not in text and "'+" not in text and "'-" not in text
    assert "'fox' 4 4 75.00%" in text and "true =cat 5.00% predicted +dog" in text


def test_the_evaluated_weights_are_named_if_they_are_an_average(tmp_path):
    average = read_page(make_run(tmp_path / "average", options=["TRAIN.MODEL_EMA=true"])).text
    assert "Evaluated weights exponential moving average (EMA)" in average and "Validation uses the exp" in average
    assert "(EMA)" not in read_page(make_run(tmp_path / "raw")).text


def test_figures_that_say_nothing_are_left_out(tmp_path):
    few = make_run(tmp_path / "few", options=["MODEL.NUM_CLASSES=3"])
    write_json(few / "result.json", {"top1": 30.0, "top5": 100.0})
    add_evaluation(few, ["cat", "dog", "fox"])
    many = make_run(tmp_path / "many", options=["MODEL.NUM_CLASSES=10", "TRAIN.LINEAR_SCALED_LR=256"])
    few, many = read_page(few).text, read_page(many).text
    assert "top-5" not in few and "validation top-5" in many
    assert "before scaling" not in few and "peak learning rate 0.003 before scaling" in many
    assert "oss scale" not in few and "kipped steps" not in few


def test_a_loss_scale_other_than_one_is_shown(tmp_path):
    folder = make_run(tmp_path / "run")
    steps = (folder / "steps.csv").read_text().replace(",1.0,0,", ",1024.0,0,")
    (folder / "steps.csv").write_text(steps)
    assert "Loss scale 1,024" in read_page(folder).text


def test_the_highest_losses_repeat_no_picture_and_mark_what_is_recognized(tmp_path):
    folder = make_evaluation_run(tmp_path / "eval")
    figures = {"true": "cat", "path": "x.png", "probability": 24, "true_probability": 24, "loss": 1.4}
    mistakes = [
        {"kind": "highest_loss", "index": 0, "predicted": "dog"},
        {"kind": "highest_loss", "index": 1, "predicted": "cat"},
        {"kind": "most_confident", "index": 0, "predicted": "dog"},
    ]
    columns = ["kind", "index", "predicted", *figures]
    write_table(folder / "evaluation" / "mistakes.csv", columns, [mistake | figures for mistake in mistakes])
    page = read_page(folder)
    assert len(page.all("img")) == 4 and page.text.count("predicted dog") == 1
    losses = page.text.partition("Highest losses")[2]
    assert "1 of the images with the highest losses is shown above. cat recognized with 24.00%" in losses
