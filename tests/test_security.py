"""Static checks of SECURITY.md: no reader runs code from a file, and safe readers are requested explicitly."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [
    path for folder in ("configs", "models", "datasets", "engine", "utils") for path in (ROOT / folder).rglob("*.py")
]
SOURCES += [*ROOT.glob("main_*.py"), *(ROOT / "scripts").rglob("*.py")]
REQUIRED_ARGUMENTS = {"torch.load": {"weights_only": True}, "np.load": {"allow_pickle": False}}
FORBIDDEN_CALLS = {"pickle.load", "pickle.loads", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "eval", "exec"}


def calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_readers_cannot_run_code(path):
    for call in calls(path):
        name = ast.unparse(call.func)
        assert name not in FORBIDDEN_CALLS, f"{path.name}:{call.lineno}"
        arguments = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
        for key, value in REQUIRED_ARGUMENTS.get(name, {}).items():
            assert arguments.get(key) is value, f"{path.name}:{call.lineno}: {name} without {key}={value}"


def test_yaml_is_read_with_safe_loaders_only():
    from yaml import SafeDumper, SafeLoader

    from configs.reading import yaml_io

    assert issubclass(yaml_io._StrictLoader, SafeLoader) and issubclass(yaml_io._StrictDumper, SafeDumper)
    loaders = [
        {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}.get("Loader")
        for path in SOURCES
        for call in calls(path)
        if ast.unparse(call.func) == "yaml.compose"
    ]
    assert loaders and set(loaders) == {"_StrictLoader"}


def test_no_tensorboard_server_is_started():
    for path in SOURCES:
        text = path.read_text()
        assert "tensorboard.program" not in text and "0.0.0.0" not in text, path.name
