"""The size of the sources, counted on the syntax tree: tokens per room, branches per function, and three knots.

Lines are free, since a formatter or a joined line changes them. A token is one of Python's tokens besides comments,
docstrings, imports, and line ends. A branch is a place where a reader has to choose: `if`, `elif`, a conditional
expression, a filter of a comprehension, `and`, `or`, `except`, `case`. Lower a number when the code has got smaller.
"""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

# Tokens of the files in a folder, subfolders of the second level apart.
CEILINGS = {
    ".": 532,
    "configs": 17695,
    "configs/schema": 14603,
    "datasets": 3607,
    "datasets/decoding": 4417,
    "datasets/loading": 5113,
    "datasets/shards": 12919,
    "datasets/sources": 32286,
    "datasets/transforms": 5299,
    "engine": 4125,
    "engine/checkpoint": 6605,
    "engine/commands": 1975,
    "engine/evaluation": 11662,
    "engine/features": 4284,
    "engine/plan": 5886,
    "engine/precision": 6843,
    "engine/profiling": 1281,
    "engine/report": 9737,
    "engine/run": 11615,
    "engine/training": 19768,
    "models": 14959,
    "models/weights": 7873,
    "scripts": 6711,
    "scripts/benchmarks": 9882,
    "scripts/exporting": 3490,
    "scripts/kubernetes": 112,
    "scripts/weights": 747,
    "utils": 11082,
    "utils/file_formats": 2533,
    "utils/processes": 3775,
    "tests": 12899,
    "tests/configs": 8734,
    "tests/datasets": 66385,
    "tests/engine": 113966,
    "tests/fixtures": 385,
    "tests/models": 26912,
    "tests/scripts": 12718,
    "tests/stress": 16697,
    "tests/utils": 11609,
}
MAX_PRODUCT_FILES = 165
MAX_BRANCHES = 15
# Functions with more branches than MAX_BRANCHES, and their number of branches.
TANGLED = {
    "configs/flags.py:read_prediction": 19,
    "datasets/registry.py:_read": 30,
    "datasets/registry.py:_recognize_table": 20,
    "datasets/sources/class_folders.py:is_image": 17,
    "datasets/sources/lists.py:read_table": 22,
    "datasets/sources/parquet.py:find": 16,
    "datasets/sources/split_folders.py:_wrong_level": 17,
    "datasets/sources/tables.py:_find_images": 18,
    "datasets/sources/tables.py:find_layout": 46,
    "engine/plan/evaluation.py:_read": 16,
    "engine/plan/evaluation.py:match_outputs": 20,
    "engine/plan/evaluation.py:options_of_weights": 17,
    "engine/plan/evaluation.py:plan_evaluation": 29,
    "engine/plan/training.py:plan_training": 17,
    "engine/report/overview.py:_defects": 21,
    "engine/report/overview.py:_other_tuning": 18,
    "engine/training/loss.py:build_teacher": 26,
    "engine/training/minutes.py:fit_into_minutes": 17,
    "engine/training/trainer.py:end_epoch": 19,
    "models/fused_blocks.py:is_plain": 18,
    "models/transformers_model.py:build_transformers": 21,
    "scripts/benchmarks/programs.py:timm_flags": 19,
    "scripts/exporting/files.py:write_hf": 16,
}
# Knots in the sources that are left: fewer each time.
KNOTS = {
    "conditional expression in another": 16,
    "unrelated values in one assignment": 219,
    "walrus in a comprehension": 14,
}

FORMATTING = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def count_tokens(text: str, tree: ast.Module) -> int:
    left_out = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or is_docstring(node):
            left_out.update(range(node.lineno, node.end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in FORMATTING and token.start[0] not in left_out for token in tokens)


def count_branches(tree: ast.AST) -> int:
    branches = 0
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.ExceptHandler, ast.match_case)):
            branches += 1
        elif isinstance(node, ast.comprehension):
            branches += len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
    return branches


def knots_in(tree: ast.Module) -> Counter[str]:
    knots = Counter[str]()
    for node in ast.walk(tree):
        inner = list(ast.walk(node))[1:]
        if isinstance(node, ast.IfExp):
            knots["conditional expression in another"] += any(isinstance(one, ast.IfExp) for one in inner)
        elif isinstance(node, COMPREHENSIONS):
            knots["walrus in a comprehension"] += any(isinstance(one, ast.NamedExpr) for one in inner)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            # Values of one kind (two products, two calls) belong together, as do a swap and a step of a recurrence.
            kinds = {type(value) for value in node.value.elts}
            knots["unrelated values in one assignment"] += isinstance(node.targets[0], ast.Tuple) and len(kinds) > 1
    return knots


@cache
def sources() -> dict[Path, tuple[str, ast.Module]]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone")
    paths = [Path(name) for name in listed.stdout.split()]
    texts = {path: (ROOT / path).read_text() for path in paths if (ROOT / path).exists()}
    return {path: (text, ast.parse(text)) for path, text in texts.items()}


def is_product(path: Path) -> bool:
    return path.parts[0] != "tests"


def test_no_room_has_more_tokens_than_its_ceiling():
    sizes = Counter[str]()
    for path, (text, tree) in sources().items():
        sizes[str(Path(*path.parent.parts[:2]))] += count_tokens(text, tree)
    too_large = {room: size for room, size in sizes.items() if size > CEILINGS.get(room, 0)}
    assert not too_large, "remove code, or take the room from another one"
    assert sum(is_product(path) and path.name != "__init__.py" for path in sources()) <= MAX_PRODUCT_FILES


def test_no_function_of_the_product_has_more_branches_than_a_reader_follows():
    tangled = {}
    for path, (_, tree) in sources().items():
        for node in ast.walk(tree):
            if is_product(path) and isinstance(node, FUNCTIONS) and count_branches(node) > MAX_BRANCHES:
                tangled[f"{path}:{node.name}"] = count_branches(node)
    worse = {name: branches for name, branches in tangled.items() if branches > TANGLED.get(name, 0)}
    assert not worse, "split the function by subject: a name for each step"
    assert set(TANGLED) <= set(tangled), "remove the functions that are plain now"


def test_the_product_gets_no_new_knots():
    knots = Counter[str]()
    for path, (_, tree) in sources().items():
        if is_product(path):
            knots += knots_in(tree)
    assert not knots - Counter(KNOTS), "write each step on a line of its own"
