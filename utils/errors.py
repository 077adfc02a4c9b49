"""Errors that a user can solve, and texts for one line of a terminal."""

import difflib
import errno
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

MAX_SHOWN = 20
_MAX_LINE_CHARS = 1000  # an error may quote text of any length from a file


# exit statuses
REFUSED = 2
MAY_PASS = 1


class UserError(Exception):
    """An error that the user can fix. The message is one line: file or key, problem, remedy.

    status: the exit status. REFUSED: a retry fails again (wrong options, labels, images, weights).
    is_printed: another process prints the error.
    is_shared: every process of the run raises it at the same place.
    """

    status = REFUSED
    is_printed = False
    is_shared = False


class Unavailable(UserError):
    """A resource (path, device, memory, server, worker, host) is missing, busy, or does not answer.

    status: MAY_PASS: a retry may succeed.
    """

    status = MAY_PASS


def error_from(cause: BaseException, message: str) -> UserError:
    """Returns `message` as an Unavailable if the system or an Unavailable led to `cause`, else as a UserError."""
    return Unavailable(message) if any(map(_may_pass, exception_chain(cause))) else UserError(message)


def _may_pass(cause: BaseException) -> bool:
    """Readers of damaged files raise an OSError, too: Pillow and NumPy without a number, a wrong position EINVAL."""
    if isinstance(cause, OSError):
        return cause.errno not in (None, errno.EINVAL) or isinstance(cause, TimeoutError | ConnectionError)
    return isinstance(cause, UserError) and cause.status == MAY_PASS


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, then the one from which or during which it was raised, and so on.

    A hidden context ("from None") counts: torch.compile hides the exception that it wraps.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


class Findings(UserError):
    """Several errors: a headline and one line for each."""


Finding = str | UserError  # a text is a mistake in the data


def combine_findings(headline: str, findings: Sequence[Finding]) -> UserError:
    """An error with the only message, or with a headline and the first 20 messages, without the advice of the last."""
    if len(findings) == 1:
        error = UserError(str(findings[0]))
        error.__cause__ = findings[0] if isinstance(findings[0], UserError) else None
    else:
        lines = [headline]
        advice = ""
        for finding in findings[:MAX_SHOWN]:
            problem, _, fix = str(finding).rpartition("; ")
            lines.append(problem if problem and fix == advice else str(finding))
            advice = fix
        lines = list(map(to_single_line, lines))
        if len(findings) > MAX_SHOWN:
            lines.append(f"... and {len(findings) - MAX_SHOWN} more")
        error = Findings("\n  ".join(lines))
    error.status = max(one.status if isinstance(one, UserError) else REFUSED for one in findings)
    return error


def raise_problems(place: object, findings: Sequence[Finding]) -> None:
    """Raises one error of the findings about a place, if there are any."""
    if findings:
        raise combine_findings(f"{place}: {len(findings)} problems", findings)


def to_single_line(text: str) -> str:
    """Replaces each run of white space by one space, and the middle of a long text by '...'."""
    return shortened(" ".join(text.split()), _MAX_LINE_CHARS)


def first_line(error: BaseException) -> str:
    """The first line of the text of an error, without a colon at its end, or its type without a text."""
    return next(iter(str(error).splitlines()), type(error).__name__).removesuffix(":")


def shortened(text: str, max_chars: int) -> str:
    """The beginning and the end of a longer text: the names of the files of a folder differ at the end."""
    half = (max_chars - 3) // 2
    return text if len(text) <= max_chars else f"{text[:half]}...{text[-half:]}"


def on_one_line(text: object) -> str:
    """The text with escapes for line breaks, control characters, invisible ones and invalid UTF-8."""
    return escape_control_characters(str(text)).replace("\n", r"\n")


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


def print_resume(command: str | None) -> None:
    """Prints the command that resumes a run which has failed, if there is one."""
    if command:
        print_escaped(f"resume with: {from_here(command)}", sys.stderr)


def from_here(command: str) -> str:
    """The command with the paths below the current folder relative to it, as it is printed: it works where it was."""
    below = rf"^(-[^=]*=)?{re.escape(os.path.join(os.getcwd(), ''))}(?=.)"
    program, *words = shlex.split(command)
    return shlex.join([re.sub(f"{below}(?=.*/)", "", program), *(re.sub(below, r"\1", word) for word in words)])


def print_escaped(text: str, file: TextIO | None = None) -> None:
    print(escape_control_characters(text), file=file, flush=True)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """'; did you mean X?' for the known name most similar to `name`, or '' if no name is similar."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    best = ""
    matcher = difflib.SequenceMatcher(b=name.lower())
    for candidate in sorted(by_lower, reverse=True):  # of equal ratios the last: species_00 for species_0
        matcher.set_seq1(candidate)
        # The cheapest bound first; difflib.get_close_matches computes the ratio of each candidate above the cutoff.
        bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
        if all(bound() >= cutoff for bound in bounds):
            best = by_lower[candidate]
            cutoff = matcher.ratio()
    return f"; did you mean {best}?" if best else ""
