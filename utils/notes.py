"""Notes: lines that the parts of the program give the user."""

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["screen", "log", "warning"]


@dataclass(frozen=True)
class Note:
    """A line about the data, the model or the run. No code decides by its text.

    kind: screen: one of the few lines that a newcomer needs on the terminal; log: a fact for log.txt; warning: printed
    with the word Warning, and recorded in run.json.
    """

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"Warning: {self.text}" if self.kind == "warning" else self.text

    def on(self, subject: str) -> "Note":
        """The note with its subject, such as 'Data', before the text."""
        return replace(self, text=f"{subject}: {self.text}")
