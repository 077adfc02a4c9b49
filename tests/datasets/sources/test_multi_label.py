"""Tables of images with several labels: reading, findings, splits, class numbers, batches."""

import numpy as np
import pytest
import torch
from conftest import eval_loader_for, samples_for, train_batches_for
from source_helpers import assert_refused, options, write_classes, write_image

from configs.command_line import parse_command_line
from datasets.batch import PADDING
from datasets.registry import recognize_dataset
from datasets.sources.checks import notes_on
from datasets.sources.lists import Tables, split_labels
from datasets.sources.names import number_by
from utils.errors import UserError


@pytest.fixture
def tables(tmp_path):
    """Writes train.csv and other tables, with the images that their lines name; returns the options."""

    def write(train, **others):
        for split, targets in {"train": train, **others}.items():
            names = [f"{split}{number}.png" for number in range(len(targets))]
            for name in names:
                write_image(tmp_path / name)
            rows = "".join(f'{name},"{target}"\n' for name, target in zip(names, targets, strict=True))
            (tmp_path / f"{split}.csv").write_text(f"image_path,target\n{rows}")
        return options(tmp_path, dataset="csv", multi_label=True)

    return write


def test_labels_of_a_target():
    assert split_labels("cat|dog", "|") == split_labels("['cat', 'dog']", ",") == ["cat", "dog"]
    assert split_labels("0, 3", ",") == split_labels("0 3  0", None) == ["0", "3"]
    assert split_labels("", "|") == split_labels("[]", ",") == []


def test_names_are_sorted_and_targets_are_multi_hot(tables):
    given = tables(["dog|polar bear", "", "cat", "polar bear|cat|dog"], val=["dog", "cat|dog"])
    train, val = Tables(given).read("train"), Tables(given).read("val")
    assert train.class_names == val.class_names == ["cat", "dog", "polar bear"] and train.has_class_names
    assert train.findings == val.findings == [] and train.targets.dtype == np.int8
    assert train.targets.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0], [1, 1, 1]]
    assert val.targets.tolist() == [[0, 1, 0], [1, 1, 0]]
    assert train.class_counts(4).tolist() == [2, 2, 2, 0]
    assert any("1 of 4 training" in note.text for note in notes_on(train, val))


def test_numbers_are_the_labels_and_the_model_has_the_higher_number_of_classes(tables, cpu):
    given = tables(["0 2", "1", "", "2 0"], val=["4", "0 1"])
    train, val = Tables(given).read("train"), Tables(given).read("val")
    assert not train.has_class_names and (train.targets.shape, val.targets.shape) == ((4, 3), (2, 5))
    config = parse_command_line(
        [f"-data_path={given.data_path}", "-dataset=csv", "-batch_size=2", "-opts", "DATA.MULTI_LABEL=true"]
    ).config
    train, val = samples_for(config, cpu, "train", "val")
    assert train.targets.tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 1, 0, 0]]
    assert val.targets.tolist() == [[0, 0, 0, 0, 1], [1, 1, 0, 0, 0]]
    with pytest.raises(UserError, match=r"val.csv:2: label 4, but MODEL.NUM_CLASSES is 4"):
        samples_for(config.with_model(num_classes=4), cpu, "train", "val")


@pytest.mark.parametrize(
    ("train", "val", "parts"),
    [
        (["cat|dog"], ["cat|emu"], ("val.csv:2: ", "'emu'")),
        (["0|1"], ["0|x"], ("val.csv:2: ", "'x'")),
        (["0", "999999"] * 6000, ["0"], ("images of 1000000 classes need 12 GB", "check the highest label")),
    ],
)
def test_bad_tables_are_refused(tmp_path, train, val, parts):
    for split, targets in (("train", train), ("val", val)):
        rows = "".join(f"{split}{number}.png,{target}\n" for number, target in enumerate(targets))
        (tmp_path / f"{split}.csv").write_text(f"image_path,target\n{rows}")
    given = options(tmp_path, dataset="csv", multi_label=True)
    assert_refused(lambda: Tables(given).read("train" if "GB" in parts[0] else "val"), *parts)


def test_labels_follow_the_names_of_a_checkpoint(tables):
    given = tables(["dog|cat", "emu"], val=["dog", "dog|cat"])
    val = Tables(given).read("val")
    assert number_by(["dog", "yak", "cat"], val, "DIR", needs_all=False) == []
    assert val.targets.tolist() == [[1, 0, 0], [1, 0, 1]] and val.class_names == ["dog", "yak", "cat"]
    assert "'emu'" in number_by(["dog", "yak", "cat"], Tables(given).read("train"), "DIR", needs_all=False)[0]


def test_batches_have_multi_hot_targets_and_rows_of_padding(tables, tmp_path, cpu):
    given = tables(["cat|dog", "", "dog"], val=["cat", "dog", "cat|dog"])
    (tmp_path / "val1.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    sizes = ["DATA.MULTI_LABEL=true", "DATA.ON_BAD_IMAGE=skip", "DATA.IMAGE_SIZE=8", "MODEL.PATCH_SIZE=4"]
    flags = [f"-data_path={given.data_path}", "-dataset=csv", "-batch_size=2", "-num_workers=0"]
    config = parse_command_line([*flags, "-epochs=1", "-opts", *sizes, "TRAIN.MIXUP_ALPHA=0.8"]).config
    assert config.loss.name == "bce"
    train, val = samples_for(config, cpu, "train", "val")
    (batch,) = train_batches_for(config, train, cpu)
    assert batch.targets.dtype == torch.int8 and batch.targets.shape == (2, 2) and batch.samples == 2
    first, second = eval_loader_for(config, val, cpu)
    assert first.targets.tolist() == [[1, 0], [PADDING, PADDING]] and (first.samples, len(first.bad)) == (1, 1)
    assert second.targets.tolist() == [[1, 1], [PADDING, PADDING]] and second.samples == 1


def test_a_table_is_recognized_and_class_folders_are_refused(tables, tmp_path, cpu):
    given = tables(["cat|dog", "dog"], val=["cat"]).model_copy(update={"dataset": "imagenet2012"})
    for path in (tmp_path, tmp_path / "train.csv"):
        assert recognize_dataset(given.model_copy(update={"data_path": str(path)}), cpu).dataset == "csv"
    flags = [f"-data_path={tmp_path / 'train.csv'}", "-opts", "DATA.MULTI_LABEL=true"]
    assert parse_command_line(flags).config.data.multi_label
    write_classes(tmp_path / "photos", cat=2, dog=2)
    with pytest.raises(UserError, match="photos is read as folder"):
        recognize_dataset(given.model_copy(update={"data_path": str(tmp_path / "photos")}), cpu)
