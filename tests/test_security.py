"""Static checks of SECURITY.md: no reader runs code from a file, and safe readers are requested explicitly."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [
    path for folder in ("configs", "models", "datasets", "engine", "utils") for path in (ROOT / folder).rglob("*.py")
]
SOURCES += [*ROOT.glob("main_*.py"), *(ROOT / "scripts").rglob("*.py")]
REQUIRED_ARGUMENTS = {"torch.load": {"weights_only": True}, "np.load": {"allow_pickle": False}}
PLUGINS = ROOT / "configs" / "parts.py"  # runs the files that -plugin names
FORBIDDEN_CALLS = {"pickle.load", "pickle.loads", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "eval", "exec"}


def test_readers_cannot_run_code():
    for path in SOURCES:
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        for call in calls:
            name = ast.unparse(call.func)
            assert name not in FORBIDDEN_CALLS - ({"exec"} if path == PLUGINS else set()), f"{path}:{call.lineno}"
            arguments = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
            for key, value in REQUIRED_ARGUMENTS.get(name, {}).items():
                assert arguments.get(key) is value, f"{path}:{call.lineno}: {name} without {key}={value}"


def test_files_are_changed_through_the_opener_that_follows_no_link():
    for path in (path for path in SOURCES if not path.is_relative_to(ROOT / "scripts")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "open" and len(call.args) > 1:
                mode, openers = ast.unparse(call.args[1]), [ast.unparse(word) for word in call.keywords]
                is_new = "x" in mode or "closefd=False" in openers
                assert is_new or not set("aw+") & set(mode) or "opener=own_file" in openers, f"{path}:{call.lineno}"
