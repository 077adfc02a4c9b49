"""The pages: files of their commands exist, and the programs accept their flags and options; links have a target."""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from configs.command_line import parse_command_line
from configs.flags import entry_parser
from configs.help import all_keys

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = re.compile(r"\b((?:main_\w+|scripts/[\w/]+|tests/[\w/]+)\.py)\b((?: [-$\w][^`\n]*)?)")
STANDS_FOR = (  # files that do not exist here
    (r"-cfg[= ](\.\.\.|CONFIG\.yaml|a1\.yaml|(P|RUN)/\S+)", "-cfg=configs/vit_digits.yaml"),
    (r'-resume[= ]("[^"]*"|\S+)', "-resume=auto"),
    (r"-model=(local-dir|hf):\S+ -pretrained=timm|-pretrained=FOLDER", "-model=resnet18 -pretrained=timm"),
    (r"-pretrained=RUN/best-hf|-model=NAME -pretrained=FILE", "-pretrained=best.pth"),
    (r"-model vit_registers| \.\.\.", ""),
)


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each program of this project on the page, with the words behind it as a shell reads them."""
    for program, rest in PROGRAM.findall(page.read_text().replace("\\\n", " ")):
        if not program.startswith("main_") or rest.startswith(" -"):  # else a sentence
            for pattern, replacement in STANDS_FOR:
                rest = re.sub(pattern, replacement, rest)
            words = shlex.shlex(rest, posix=True, punctuation_chars=True)
            words.whitespace_split = True
            argv = list[str]()
            while (word := words.get_token()) and word.strip(";&|()<>"):  # else the end of the command
                argv.append(word)
            yield program, argv


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_flags_and_options_are_known(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(ROOT)
    for name, content in re.findall(r"`(my_parts\.py)`:[^`]*```python\n(.*?)```", page.read_text(), re.S):
        (tmp_path / name).write_text(content)
    for program, argv in commands(page):
        assert (ROOT / program).exists(), program
        assert all((ROOT / word).exists() for word in argv if re.match(r"(configs|tests|docs)/\S+$", word)), argv
        if program.startswith("main_") and "-h" not in argv:
            words = [word.replace("my_parts.py", f"{tmp_path}/my_parts.py") for word in argv]
            parse_command_line(words, program)
        elif re.match(r"scripts/(?!kubernetes|make_imagenet)", program) and argv:
            with pytest.raises(SystemExit):
                importlib.import_module(program.removesuffix(".py").replace("/", ".")).main(["-h"])
            known = {*re.findall(r"-\w+", capsys.readouterr().out), "-opts"}
            known |= {f"-{name}" for name in vars(entry_parser("").parse_args([]))}
            given = {word.partition("=")[0] for word in argv if re.match(r"-[a-z]|[A-Z]+(\.[A-Z_]+)*=", word)}
            assert given <= known | {key.name for key in all_keys()}, argv


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name)
def test_each_link_has_a_target(page):
    """With the anchors that GitHub makes of headings."""
    for file, anchor in LINK.findall(prose(page)):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}"
