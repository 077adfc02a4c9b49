"""The sources: a layer imports lower layers only; files and functions are short; no reader runs code from a file, and
safe readers are requested explicitly (SECURITY.md); nothing reads the text of a note to decide."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from conftest import OPTIONAL_MODULES, ROOT, cells_of, cli
from pytest import mark

# torch needs the last line but one, timm the last one
REQUIRED_MODULES = """
torch torchvision timm yaml tqdm numpy PIL safetensors pydantic pydantic_core
jinja2 markupsafe nvidia
huggingface_hub
"""
LAYERS = dict(
    cells_of("""
utils | utils
configs | configs utils
models | models configs utils
datasets | datasets configs utils
engine | engine models datasets configs utils
""")
)
# The packages of `engine`, top layer first; packages of the same layer do not import each other.
ENGINE_LAYERS = """
commands
profiling
training
features
report
evaluation
plan
run
checkpoint precision parallel
progress
"""
# The modules of `configs`, top layer first.
CONFIGS_LAYERS = """
command_line
help compare
resolve
load
flags weights batch_plan
programs
schema
parts
yaml_io versions
"""
# The packages and modules of `datasets/sources`, top layer first.
SOURCES_LAYERS = """
sets
folders
listed
groups numbering share
rows
source
split
tables
checks question
class_names formats
path_words listing
samples
shared_arrays
"""
PROJECT_MODULES = {*LAYERS, "scripts", "tests", "main_single_gpu", "main_multi_gpu"}
PRODUCT_FILES = [*ROOT.glob("main_*.py"), *(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))]
SOURCES = [*PRODUCT_FILES, *(ROOT / "scripts").rglob("*.py")]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 100


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def calls_in(path: Path) -> list[ast.Call]:
    return [node for node in nodes_of(path) if isinstance(node, ast.Call)]


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
    return modules


def top_level_modules(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in imported_modules(path)}


@mark.parametrize("layer", LAYERS)
def test_layers_import_only_lower_layers(layer):
    files = list((ROOT / layer).rglob("*.py"))
    assert files
    for path in files:
        upward = top_level_modules(path) & PROJECT_MODULES - {*LAYERS[layer].split()}
        assert not upward, f"{path.relative_to(ROOT)} imports {upward}"


@mark.parametrize(
    "layer, layers", [("engine", ENGINE_LAYERS), ("configs", CONFIGS_LAYERS), ("datasets/sources", SOURCES_LAYERS)]
)
def test_the_parts_of_a_layer_import_only_lower_parts(layer, layers):
    depth = {name: number for number, line in enumerate(layers.splitlines()) for name in line.split()}
    prefix = layer.replace("/", ".") + "."
    for path in (ROOT / layer).rglob("*.py"):
        package = path.relative_to(ROOT / layer).parts[0].removesuffix(".py")
        if package == "__init__":
            continue
        for module in imported_modules(path):
            other = module.removeprefix(prefix).partition(".")[0]
            if module.startswith(prefix) and other != package:
                assert depth[other] > depth[package], f"{path.relative_to(ROOT)} imports {module}"


def test_files_and_functions_are_short():
    for path in PRODUCT_FILES:
        assert len(path.read_text().splitlines()) <= MAX_FILE_LINES, path
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= MAX_FUNCTION_LINES, f"{path.relative_to(ROOT)}: {node.name} has {lines} lines"


def test_test_files_have_different_names():
    """pytest collects them by their names: two of one name end the collection."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]


def test_private_names_of_torch_are_in_one_file():
    """`torch._foreach_*` is allowed: optimizers outside of torch rely on it."""
    private = re.compile(r"\b(?:torch|dist)\.(?:\w+\.)*_(?!_|foreach_)\w+|\btorch\._C\b")
    of_files = ROOT / "utils" / "file_formats" / "pickles.py"  # names that torch writes
    for path in SOURCES:
        if path not in (ROOT / "utils" / "torch_compat.py", of_files):
            found = private.findall(path.read_text())
            assert not found, f"{path.relative_to(ROOT)} uses {found}: add a function to utils/torch_compat.py"


def test_private_names_of_other_libraries_are_in_one_file():
    private = re.compile(
        r"_optim_factory|muon\._[A-Z]|use_muon|model\._init_weights|\bdata\._[A-Za-z]|\._attn_impl|\._forkserver|spawnv|_config\["
    )
    for path in SOURCES:
        if path != ROOT / "utils" / "library_compat.py":
            found = private.findall(path.read_text())
            assert not found, f"{path.relative_to(ROOT)} uses {found}: add a function to utils/library_compat.py"


def test_only_declared_packages_are_imported():
    allowed = {*REQUIRED_MODULES.split()} | OPTIONAL_MODULES | PROJECT_MODULES | sys.stdlib_module_names
    for path in PRODUCT_FILES:
        assert not top_level_modules(path) - allowed, path


def loaded_with(*modules: str) -> set[str]:
    """All modules that a process has loaded after it imported these."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_configs_and_the_entry_scripts_import_no_torch():
    """So that -h and a wrong flag are answered at once."""
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PRODUCT_FILES]
    loaded = loaded_with(*(module for module in modules if module.startswith(("configs.", "main_"))))
    assert {"configs.schema.families.registry", "configs.flags", "configs.resolve"} < loaded
    assert not {"torch", "torchvision", "timm", "numpy"} & loaded


REQUIRED_ARGUMENTS = {"torch.load": {"weights_only": True}, "np.load": {"allow_pickle": False}}
PLUGINS = ROOT / "configs" / "parts.py"  # runs the files that -plugin names
FORBIDDEN_CALLS = {*cli("pickle.load pickle.loads yaml.load yaml.full_load yaml.unsafe_load eval exec")}


def test_readers_cannot_run_code():
    for path in SOURCES:
        for call in calls_in(path):
            name = ast.unparse(call.func)
            assert name not in FORBIDDEN_CALLS - ({"exec"} if path == PLUGINS else set()), f"{path}:{call.lineno}"
            arguments = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
            for key, value in REQUIRED_ARGUMENTS.get(name, {}).items():
                assert arguments.get(key) is value, f"{path}:{call.lineno}: {name} without {key}={value}"


def test_files_are_changed_in_place_through_the_opener_that_follows_no_link():
    for path in PRODUCT_FILES:
        for call in calls_in(path):
            if ast.unparse(call.func) == "open" and len(call.args) > 1:
                mode = ast.unparse(call.args[1])
                openers = [ast.unparse(word) for word in call.keywords]
                is_new = "x" in mode or "closefd=False" in openers
                assert is_new or not set("aw+") & set(mode) or "opener=own_file" in openers, f"{path}:{call.lineno}"


_NOTE = r"(?:\w+_)?(?:notes?|remarks?|warnings?)(?:\[\w+\])?(?:\.text)?"
_READS = r"(?:(?:starts|ends)with|r?find|r?index|count|r?partition|r?split|match|search|sub)"
_SEARCH_IN_A_NOTE = re.compile(
    rf"""["'] (?:not )?in {_NOTE}\b(?!["'])|\b{_NOTE}\.{_READS}\(|\b(?:re|_[A-Z]\w*)\.{_READS}\([^()]*\b{_NOTE}\)"""
)


def test_no_code_searches_in_a_note():
    found = {path: _SEARCH_IN_A_NOTE.findall(path.read_text()) for path in SOURCES}
    assert not any(found.values()), found


def test_only_the_precision_reads_the_keys_of_amp():
    readers = set()
    for path in (ROOT / "engine").rglob("*.py"):
        text = path.read_text()
        if re.search(r"\bamp\.\w|[\"']AMP[\"'.]", text) and "precision" not in path.parts:
            readers.add(path.name)
    assert not readers


# `Model` of facts.py is a key in run.json; check.py is copied beside an export, and imports nothing of ours.
TWICE = {"main", "Model", "open_image"}


def test_a_public_name_is_defined_once():
    names = Counter[str]()
    for path in SOURCES:
        names.update(
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        )
    assert {name for name, number in names.items() if number > 1} == TWICE
