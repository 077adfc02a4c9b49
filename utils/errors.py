"""Errors that a user can solve, and texts for one line of a terminal."""

import difflib
import re
from collections.abc import Iterable, Sequence

_MAX_SHOWN = 20
_MAX_LINE_CHARS = 1000  # an error may quote text of any length from a file


class UserError(Exception):
    """An error that the user can fix. The message is one line: file or key, problem, remedy."""


class Findings(UserError):
    """Several errors: a headline and one line for each."""


def combine_findings(headline: str, findings: Sequence[str]) -> UserError:
    """An error with the only message, or with a headline and the first 20 messages."""
    if len(findings) == 1:
        return UserError(findings[0])
    lines = list(map(to_single_line, [headline, *findings[:_MAX_SHOWN]]))
    if len(findings) > _MAX_SHOWN:
        lines.append(f"... and {len(findings) - _MAX_SHOWN} more")
    return Findings("\n  ".join(lines))


def to_single_line(text: str) -> str:
    """Replaces each run of white space by one space, and the middle of a long text by ' ... '."""
    line = " ".join(text.split())
    half = _MAX_LINE_CHARS // 2
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:half]} ... {line[-half:]}"


def hide_passwords(text: str) -> str:
    """Replaces user names, passwords and queries, such as signatures, in URLs by '***'."""
    return re.sub(r"(://[^\s?'\"]*\?)[^\s'\"]+", r"\1***", re.sub(r"(?<=://)[^\s/]*@", "***@", text))


def escape_control_characters(text: str) -> str:
    """Escapes all characters that are not printable, except for line breaks.

    File names may contain invalid UTF-8 or control sequences for the terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else character.encode("unicode_escape").decode()
        for character in text
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the known name most similar to `name`, or '' if no name is similar."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[matches[0]]}?" if matches else ""
