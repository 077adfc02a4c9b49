"""The facts and warnings in the log of a run."""

import re
from dataclasses import dataclass, field
from pathlib import Path

_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
_NOTE = "----- "
_FACTS = {
    "devices": re.compile(r"(?P<fact>\d+ process\(es\), \S+), .+"),
    "precision": re.compile(r"\d+ process\(es\), \S+, (?P<fact>.+)"),
    "images": re.compile(r"Data: (?P<fact>\d+ (?:training )?images of .+)"),
    "model": re.compile(r"Model: (?P<fact>.+)"),
    "attention": re.compile(r"Attention: (?P<fact>.+)"),
}
_WARNING = re.compile(r"\b(?:warning|skipped|non-finite|cannot|could not|failed|interrupted|passed over)\b", re.I)
_MAX_WARNINGS, _MAX_CHARS = 50, 1000


@dataclass
class Log:
    """What `log.txt` says.

    Attributes:
        facts: devices, precision, images, model, attention; the latest of each.
        starts: how often the run was started. warnings: how often each line occurs, in the order of the log.
        more_warnings: whether there are others, which are left out.
    """

    facts: dict[str, str] = field(default_factory=dict)
    starts: int = 0
    warnings: dict[str, int] = field(default_factory=dict)
    more_warnings: bool = False

    def add(self, line: str) -> None:
        message = _TIME.sub("", line, count=1).strip()
        if not message.startswith(_NOTE):
            return
        message = message.removeprefix(_NOTE)[:_MAX_CHARS]
        for name, pattern in _FACTS.items():
            if match := pattern.fullmatch(message):
                self.facts[name] = match["fact"]
        self.starts += message.startswith("Output: ")
        if _WARNING.search(message) and not message.startswith("Epoch["):
            if message in self.warnings or len(self.warnings) < _MAX_WARNINGS:
                self.warnings[message] = self.warnings.get(message, 0) + 1
            else:
                self.more_warnings = True


def read_log(path: Path) -> Log:
    """Raises OSError if the file cannot be read."""
    log = Log()
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if _NOTE in line[:40]:
                log.add(line)
    return log
