"""The results of a prediction that is killed."""

import errno

import numpy as np
import pytest

from engine.evaluation import predictions as part_file
from engine.evaluation.predictions import PartFile
from engine.evaluation.results import SampleResults


def results(start: int, count: int) -> SampleResults:
    rng = np.random.default_rng(start)
    values = [rng.random((count, 3), dtype=np.float32) for _ in range(2)]
    labels = rng.integers(9, size=(count, 3))
    errors = {start: "caf\udcff \n"}
    return SampleResults(labels[:, 0], labels, values[0], values[1][:, 0], errors, scores=values[1])


def assert_same(part: PartFile, *expected: SampleResults) -> None:
    for one, other in zip(part, expected, strict=True):
        assert one.errors == other.errors
        for name in ("targets", "labels", "probabilities", "losses", "scores"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)


@pytest.mark.parametrize("cut", [1, 60, 500])
def test_an_incomplete_line_is_computed_again(tmp_path, cut):
    part = PartFile(tmp_path / "part", "inputs")
    for start in (0, 4):
        part.append(results(start, 4))
    (tmp_path / "part").write_bytes((tmp_path / "part").read_bytes()[:-cut])
    part = PartFile(tmp_path / "part", "inputs")
    assert part.num_samples == 4
    part.append(results(4, 2))
    assert_same(PartFile(tmp_path / "part", "inputs"), results(0, 4), results(4, 2))


def test_results_of_other_inputs_are_removed(tmp_path):
    PartFile(tmp_path / "part", "inputs").append(results(0, 4))
    other = PartFile(tmp_path / "part", "other")
    assert other.num_samples == 0 and not (tmp_path / "part").read_bytes()
    other.append(results(0, 3))
    assert_same(other, results(0, 3))


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    part = PartFile(tmp_path / "part", "inputs")
    monkeypatch.setattr(part_file, "open", full, raising=False)
    with pytest.raises(OSError, match="free space") as error:
        part.append(results(0, 4))
    assert error.value.filename == tmp_path / "part" and part.num_samples == 0
