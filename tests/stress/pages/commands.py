"""The shell commands of a page in Markdown: of its code blocks, and of the code in its sentences."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = re.compile(r"\s*(\w+=\S+ )*(python3?|torchrun|bash|srun|sbatch|mpirun|pip|git|docker|kubectl) \S")
_OWN_FILE = re.compile(r"main_(single|multi)_gpu\.py|(scripts|tests)/\w|-m (configs|pytest)\b")
_SHELLS = ("shell", "bash", "sh")
_CODE = re.compile(r"`([^`]+)`")
_VARIABLES = re.compile(r"(export )?(\w+=(\$\(.*\)|\S*)\s*)+(#.*)?")


@dataclass(frozen=True)
class Command:
    page: str
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def status(self) -> int:
        """The expected exit status: as the comment says, else 0."""
        said = re.search(r"#.*\bstatus (\d+)", self.text)
        return int(said[1]) if said else 0

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that it sets for the next lines, if it does nothing else."""
        sets_only = _VARIABLES.fullmatch(self.text)
        return tuple(re.findall(r"(\w+)=", self.text.partition("#")[0])) if sets_only else ()


def read_commands(path: Path) -> list[Command]:
    return [Command(path.name, line, text) for line, text in sorted(_find(path.read_text().split("\n")))]


def _find(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The line number and the text of each command.

    A block without a language may be output. A sentence may name a program, such as pip, without a command.
    """
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    for start, end in zip(fences[::2], fences[1::2], strict=True):
        language = lines[start].strip("` ")
        if language in _SHELLS:
            yield from _statements(lines[start + 1 : end], start + 2)
        elif language in ("", "text"):
            yield from ((n + 1, lines[n].strip()) for n in range(start + 1, end) if _PROGRAM.match(lines[n]))
        lines = [*lines[:start], *[""] * (end + 1 - start), *lines[end + 1 :]]
    prose = "\n".join(lines)
    for code in _CODE.finditer(prose):
        text = " ".join(code[1].split())
        if _PROGRAM.match(text) and _OWN_FILE.search(text):
            yield prose.count("\n", 0, code.start()) + 1, text


def _statements(lines: list[str], first: int) -> Iterator[tuple[int, str]]:
    """Complete statements: a command with its continued lines, or a whole loop."""
    begin = 0
    for number, line in enumerate(lines):
        text = "\n".join(lines[begin : number + 1])
        if not line.endswith("\\") and _is_complete(text):
            if any(part.strip() and not part.lstrip().startswith("#") for part in lines[begin : number + 1]):
                yield first + begin, text
            begin = number + 1
    if begin < len(lines):
        yield first + begin, "\n".join(lines[begin:])  # bash reports its mistake


def _is_complete(text: str) -> bool:
    return not subprocess.run(["bash", "-n", "-c", text], capture_output=True).returncode
