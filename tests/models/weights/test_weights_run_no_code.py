"""No code in a weight file runs."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from weight_files import google_arrays, load_pretrained, paddle_state, pickled, random_vit, refusal, small_vit


class Bomb:
    """Writes a file when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.fixture
def bomb(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "proof")))
    assert (tmp_path / "proof").exists(), "the bomb must be live for these tests to say something"
    yield Bomb(tmp_path / "exploded")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("protocol", [0, 4])
def test_no_code_runs_from_pdparams(tmp_path, bomb, protocol):
    forbidden = f"{os.system.__module__}.system"
    for content in (bomb, {"a": bomb}, {"model": paddle_state(), "optimizer": [bomb]}, {bomb.target.name: (1, bomb)}):
        assert f"refers to {forbidden}," in refusal(pickled(tmp_path / "vit.pdparams", content, protocol))


REFERENCES = {  # a name below an allowed one; objects outside of the file
    b"cnumpy\nndarray.load\n(S'x'\ntR.": "refers to numpy.ndarray.load,",
    b"\x80\x02X\x01\x00\x00\x00aQ.": "is damaged",
    b"Pa\n.": "is damaged",
}


@pytest.mark.parametrize(("content", "words"), REFERENCES.items())
def test_pdparams_refer_to_nothing_else(tmp_path, content, words):
    (tmp_path / "vit.pdparams").write_bytes(content)
    assert words in refusal(tmp_path / "vit.pdparams")


@pytest.mark.parametrize("zipped", [True, False])
def test_no_code_runs_from_torch_files(tmp_path, bomb, zipped):
    for content in (bomb, {"model": random_vit().state_dict(), "args": bomb}):
        torch.save(content, tmp_path / "vit.pth", _use_new_zipfile_serialization=zipped)
        assert f"refers to {os.system.__module__}.system," in refusal(tmp_path / "vit.pth")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_no_code_runs_from_npz_and_from_pickles_under_another_ending(tmp_path, bomb):
    arrays = google_arrays(random_vit()) | {"cls": np.array([bomb], dtype=object)}
    np.savez(tmp_path / "vit.npz", allow_pickle=True, **arrays)
    refusal(tmp_path / "vit.npz")
    for ending in ("safetensors", "npz", "pth", "pt"):
        refusal(pickled(tmp_path / f"vit.{ending}", bomb))


def test_a_loss_beside_the_weights_is_not_built(tmp_path, bomb, monkeypatch):
    """No class of torch is instantiated; what the object contains is checked as the rest of the file is."""
    monkeypatch.setattr(torch.nn.Module, "__setstate__", lambda *_: pytest.fail("built"))
    loss = torch.nn.CrossEntropyLoss()
    torch.save({"model": random_vit().state_dict(), "loss": loss}, tmp_path / "vit.pth")
    assert load_pretrained(small_vit(), str(tmp_path / "vit.pth"))
    loss.bomb = bomb
    torch.save({"model": random_vit().state_dict(), "loss": loss}, tmp_path / "vit.pth")
    assert f"refers to {os.system.__module__}.system," in refusal(tmp_path / "vit.pth")
    (tmp_path / "vit.pth").write_bytes(b"\x80\x02ctorch.nn.modules.loss\nL1Loss\nX\x01\x00\x00\x00a\x85R.")
    assert "is damaged" in refusal(tmp_path / "vit.pth")
