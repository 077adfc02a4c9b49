"""Files of the Hub: from the cache, or downloaded; a Hub that does not answer is one line."""

import threading
from unittest.mock import Mock

from conftest import refused
from pytest import fixture, mark, raises

from utils.errors import Unavailable
from utils.file_formats import hf_folder
from utils.file_formats.hf_folder import weight_file

CONFIG = '{"architecture": "test_vit"}'


@fixture
def hub(tmp_path, monkeypatch):
    """A repository with config.json and pytorch_model.bin, at the commit `c0ffee`; returns the requests."""
    requests = []
    snapshot = tmp_path / "c0ffee"
    snapshot.mkdir()
    (snapshot / "config.json").write_text(CONFIG)
    (snapshot / "pytorch_model.bin").touch()

    def download(repository, file, revision):
        requests.append((repository, file, revision))
        return str(snapshot / file)

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.file_exists", lambda _, file, revision: (snapshot / file).exists())
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    hf_folder.download.cache_clear()
    yield requests
    hf_folder.download.cache_clear()


def test_both_files_are_of_one_commit_and_are_requested_once(hub, tmp_path):
    for _ in range(2):
        assert weight_file("hf-hub:org/name@v1") == str(tmp_path / "c0ffee" / "pytorch_model.bin")
    assert hub == [("org/name", "config.json", "v1"), ("org/name", "pytorch_model.bin", "c0ffee")]


def test_a_cached_file_needs_no_request(hub, tmp_path, monkeypatch):
    cached = tmp_path / "c0ffee"
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda _, file, revision: str(cached / file) if (cached / file).exists() else None,
    )
    assert weight_file("hf-hub:org/name") == str(cached / "pytorch_model.bin")
    assert not hub


def silence(*_, **__):
    threading.Event().wait(60)


NOT_FOUND = OSError("404 Client Error.\n\nRepository Not Found")


@mark.parametrize("answer, reason", [(silence, "no answer"), (Mock(side_effect=NOT_FOUND), "404 Client Error.")])
def test_a_failed_download_names_the_file_and_the_flag(hub, monkeypatch, answer, reason):
    monkeypatch.setattr("huggingface_hub.file_exists", answer)
    monkeypatch.setattr("utils.file_formats.hf_folder.ANSWER_SECONDS", 0.05)
    with raises(Unavailable, match=rf"^https://.*/org/name/resolve/main/config.json: [^\n]*\({reason}.*-pretr"):
        weight_file("hf-hub:org/name")


def test_folders(tmp_path):
    assert weight_file(str(tmp_path)) == str(tmp_path)
    assert weight_file("some/vit.pth") == "some/vit.pth"
    (tmp_path / "config.json").write_text(CONFIG)
    with refused(r"no model.safetensors or pytorch_model.bin"):
        weight_file(str(tmp_path))
    for name in ("pytorch_model.bin", "model.safetensors"):  # the second one has priority
        (tmp_path / name).touch()
        assert weight_file(f"local-dir:{tmp_path}") == str(tmp_path / name)
    (tmp_path / "config.json").write_text("{")
    with refused(r"config.json: is damaged"):
        weight_file(str(tmp_path))
