"""Runs the commands of a page in its folder, and checks the commands that cannot run."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from configs.flags import FLAGS

_LIMIT_SECONDS = 600.0
_PARSE = "import sys; from configs.command_line import parse_command_line as parse; parse(sys.argv[1:])"


class Runner:
    """environment: that of a command to whose Python programs flags are added."""

    def __init__(self, folder: Path, environment: Callable[[str], dict[str, str]]) -> None:
        self.folder, self._environment = folder, environment
        self._started: list[int] = []
        self.is_closed = False

    def run(self, text: str, added: str = "", variables: tuple[str, ...] = (), status: int = 0) -> str:
        """Runs a command and returns the problem, if any. The next commands know its `variables`."""
        script = f"touch .variables; . ./.variables\n{text}\n"
        if variables:
            script += f"declare -p {' '.join(variables)} >>.variables\n"
        with open(self.folder / ".printed", "w") as printed:
            process = subprocess.Popen(
                ["bash", "-c", script], cwd=self.folder, env=self._environment(added), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._started.append(process.pid)
        try:
            ended = process.wait(_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"does not end in {_LIMIT_SECONDS:g} s"
        lines = (self.folder / ".printed").read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("error: ")] or lines[-3:]
        return "" if ended == status else f"status {ended}: {' / '.join(errors)[:500]}"

    def check(self, text: str) -> str:
        """Returns the problem of a command that does not run: a missing file of the project, a wrong flag or option."""
        words = shlex.split(text, comments=True)
        named = [word for word in words if re.match(r"(configs|scripts|tests)/|main_\w+\.py$", word)]
        if missing := [name for name in named if not (self.folder / name).exists()]:
            return f"{missing[0]} does not exist"
        scripts = [name for name in named if name.endswith(".py")]
        if not scripts:
            return ""
        argv = words[words.index(scripts[-1]) + 1 :]
        if scripts[-1].startswith("main_"):
            return self._start("-c", _PARSE, *argv)[1]
        known = {*re.findall(r"-\w+", self._start(scripts[-1], "-h")[0]), "-opts"}
        known |= {f"-{flag.name}" for group in FLAGS.values() for flag in group}
        unknown = [word for word in argv if re.match("-[a-z]", word) and word.partition("=")[0] not in known]
        return f"{unknown[0]} is unknown" if unknown else ""

    def _start(self, *arguments: str) -> tuple[str, str]:
        """The text that Python prints with these arguments, and its error."""
        command, environment = [sys.executable, *arguments], self._environment("")
        process = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        return process.stdout, process.stderr.strip()[-300:] if process.returncode else ""

    def close(self) -> None:
        """Ends the commands that run in the background, or after Ctrl-C."""
        self.is_closed = True
        for group in self._started:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
