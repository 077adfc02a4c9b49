"""Imports go down only: configs, utils < models, datasets (neither imports the other) < engine < entry scripts."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "utils": {"utils"},
    "configs": {"configs", "utils"},
    "models": {"models", "configs", "utils"},
    "datasets": {"datasets", "configs", "utils"},
    "engine": {"engine", "models", "datasets", "configs", "utils"},
}
OURS = {*MAY_IMPORT, "scripts", "tests", "main_single_gpu", "main_multi_gpu"}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_imports_go_down_only(layer):
    files = list((ROOT / layer).rglob("*.py"))
    assert files
    for path in files:
        upward = imported(path) & OURS - MAY_IMPORT[layer]
        assert not upward, f"{path.relative_to(ROOT)} imports {upward}"


def test_configs_need_no_torch():
    for path in (ROOT / "configs").glob("*.py"):
        assert not imported(path) & {"torch", "torchvision", "timm", "numpy"}
    assert not imported(ROOT / "utils" / "errors.py") & {"torch", "torchvision", "timm", "numpy"}
