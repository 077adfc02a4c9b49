"""Nothing reads the text of a note to decide: a note is written once, for people."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_NOTE = re.compile(r"(.*_)?(notes?|remarks?|warnings?)")
_READS = re.compile("(starts|ends)with|find|index|count|r?partition|split|match|search|sub")


def reads(source: str) -> list[str]:
    """The expressions that search in a note: in a name like `note`, or in one to which a note is assigned."""
    tree, known = ast.parse(source), set[str]()

    def is_note(node: ast.AST | None) -> bool:
        match node:
            case ast.Name(name) | ast.Attribute(_, name) if _NOTE.fullmatch(name) or name in known:
                return True
            case (
                ast.Attribute(value) | ast.Subscript(value) | ast.Call(ast.Attribute(value)) | ast.FormattedValue(value)
            ):
                return is_note(value)
            case ast.Call(ast.Name("str"), values) | ast.BoolOp(_, values) | ast.JoinedStr(values):
                return any(map(is_note, values))
        return False

    for node in ast.walk(tree):
        match node:
            case ast.Assign([target], value) | ast.NamedExpr(target, value) | ast.For(target, value):
                pass
            case ast.comprehension(target, value):
                pass
            case _:
                continue
        if is_note(value):
            known |= {
                one.id for one in ast.walk(target) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            }
    found = list[ast.AST]()
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left, [ast.In() | ast.NotIn()], [right]) if is_note(right) and not is_note(left):
                found.append(node)
            case ast.Call(ast.Attribute(value, method), arguments) if _READS.fullmatch(method):
                found += [node] if is_note(value) or any(map(is_note, arguments)) else []
    return [ast.unparse(node) for node in found]


@pytest.mark.parametrize(
    "source",
    [  # as they were once
        "self.warn(note) if 'Warning: ' in note else self.info(note)",
        "[note for note in class_notes if not note.startswith(_UNCLEAR)]",
        "source, *others = notes or ['weights']\nsource = _OF_STUDENT.sub('', source)",
        "[note for note in samples.notes if note.text.startswith('Warning')]",
    ],
)
def test_a_search_in_a_note_is_found(source):
    assert reads(source)


def test_no_product_code_searches_in_a_note():
    files = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    product = [file for file in files.split() if not file.startswith("tests/")]
    assert len(product) > 100
    assert {file: found for file in product if (found := reads((ROOT / file).read_text(encoding="utf-8")))} == {}
