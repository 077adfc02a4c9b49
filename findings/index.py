"""Prints findings/README.md: `python findings/index.py > findings/README.md` after a head was changed."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
PART = re.compile(r"\n# (Subject|Behaviour|Expected|Why it matters|Instead|Last lines of a run)\b[^:\n]*: ?")
SUBJECTS = [
    "images and pixels",
    "DICOM, microscopes, satellites",
    "tables and lists of images",
    "shards and loaders",
    "weights, exports and runtimes",
    "metrics and statistics",
    "training",
    "trackers",
]
INTRODUCTION = """# Findings

Each `NAME.sh` shows where a library or a format behaves otherwise than a good engineer remembers. None is a fault of
this program. `bash findings/run.sh` runs all of them, `bash findings/run.sh NAME` runs one; it is no part of CI. A line
says `ok`, `CHANGED` (another behaviour than the head says), `not installed` (what pip said) or `no such finding`.

- A script makes a temporary folder and a virtual environment, installs pinned public packages with pip, and runs them
  without this program on valid input. It prints versions and behaviour, and fails if the behaviour changed.
- Its head has the packages and their versions, the subject, the behaviour, what one would expect, why it matters to
  somebody who trains image classifiers, what to do instead, and the last lines of a run with Python 3.11 on Linux. It
  names newer releases that were tried; nothing is said about others.
- No script has an input that crashes, hangs or passes a check of other software.

`python findings/index.py > findings/README.md` makes this page from the heads."""


def read_head(script: Path) -> dict[str, str]:
    """The parts of the comment at the head of a script by name, as one line each; "Packages" is the first one."""
    head = script.read_text().partition("\nset -euo")[0].replace("\n#   ", " ")
    first, *parts = PART.split(head)
    return {"Packages": first.partition("\n# ")[2], **dict(zip(parts[::2], parts[1::2], strict=True))}


def table_of(subject: str, heads: dict[str, dict[str, str]]) -> list[str]:
    """The rows of the findings about a subject: packages, the first sentence of the behaviour (if it is long, up to its
    colon), what to do instead."""
    lines = ["", f"## {subject[0].upper()}{subject[1:]}", "", "| finding | what happens | instead |", "|---|---|---|"]
    for name, head in heads.items():
        if head["Subject"] == subject:
            behaviour = head["Behaviour"].split(". ")[0].rstrip(".")
            if len(behaviour) > 140:
                behaviour = behaviour.split(": ")[0]
            lines.append(f"| [{name}]({name}.sh): {head['Packages']} | {behaviour} | {head['Instead']} |")
    return lines


def page() -> str:
    """The text of README.md."""
    scripts = sorted(path for path in FOLDER.glob("*.sh") if path.name != "run.sh")
    heads = {path.stem: read_head(path) for path in scripts}
    tables = [line for subject in SUBJECTS for line in table_of(subject, heads)]
    return "\n".join([INTRODUCTION, *tables])


if __name__ == "__main__":
    print(page())
