"""Missing files of any data set."""

import pytest
from source_helpers import assert_refused, options

from datasets.registry import DATASETS


@pytest.mark.parametrize("name", sorted(DATASETS.keys() - {"digits", "fake"}))
def test_a_missing_folder_is_named(tmp_path, name):
    assert_refused(lambda: DATASETS[name](options(tmp_path / "gone"))("train"), f"{tmp_path}/gone", "; ")


def test_a_missing_list_is_named(tmp_path):
    read = DATASETS["imagenet2012"](options(tmp_path))
    assert_refused(lambda: read("val"), f"{tmp_path}/val_list.txt: ", "DATA_PATH")
