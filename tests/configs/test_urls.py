"""A URL with a secret is refused before anything prints or stores the options."""

import pytest

from configs.reading.command_line import parse_command_line
from utils.errors import UserError


@pytest.mark.parametrize("url", ["https://me:hunter2@host/d", "s3://b/d?X-Sig=hunter2", "ftp://me:hun/ter2@host/d"])
def test_a_secret_in_a_url_is_refused_and_not_repeated(url, tmp_path):
    (tmp_path / "recipe.yaml").write_text(f"DATA:\n  DATA_PATH: {url}\n")
    for argv in ([f"-data_path={url}"], [f"-cfg={tmp_path / 'recipe.yaml'}"], ["-opts", f"DATA.DATA_PATH={url}"]):
        with pytest.raises(UserError, match=r"DATA\.DATA_PATH: the \w+ URL contains .*; ") as error:
            parse_command_line(argv)
        assert "ter2" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["file:///d/what?.tar", "/d/a@b?c#d", "https://host:80/d{0..3}.tar"])
def test_other_paths_are_valid(path):
    assert parse_command_line([f"-data_path={path}"]).config.data.data_path == path
