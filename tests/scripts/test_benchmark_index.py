"""The benchmark of the index, on few images."""

import json

import pytest

from scripts.benchmarks import benchmark_index


@pytest.mark.skipif(not benchmark_index.ROLLUP.exists(), reason="the memory of a process is read from Linux's /proc")
def test_the_script_measures(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AMPVIT_CACHE", "")  # to be restored
    monkeypatch.setattr(benchmark_index, "SETTLED_SECONDS", 0)
    monkeypatch.setattr("datasets.sources.stamps._SETTLED_NS", -(10**12))
    assert benchmark_index.main(["-n", "2500", "-json", str(tmp_path / "a.json")]) == 0
    assert capsys.readouterr().out.count("| folder |") == 1
    figures = json.loads((tmp_path / "a.json").read_text())
    for dataset in ("imagenet2012", "folder"):
        assert 0 < figures[dataset]["index_bytes"] < 2500 * 100
        assert figures[dataset]["sent_bytes"] < 2000
        assert figures[dataset]["own_bytes"] < 50e6
