"""What is found out once on a machine and kept there for the next runs."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_VARIABLE = "AMPVIT_CACHE"


def cache_folder() -> Path | None:
    """`$AMPVIT_CACHE`, else `$XDG_CACHE_HOME/ampvit`, else `~/.cache/ampvit`; None where nothing can be kept.

    Nothing is kept either with AMPVIT_CACHE set to nothing.
    """
    chosen = os.environ.get(_VARIABLE)
    if chosen == "":
        return None
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(chosen or os.path.join(home, "ampvit"))
    if not chosen and not folder.is_absolute():  # a user without a home
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def found_once(question: dict[str, Any], find: Callable[[], Any]) -> Any:
    """The answer (of what JSON holds) to a question that `find` was asked on this machine before, or is asked now.

    Of processes that ask at once, all take the answer of the first to have one. The question names all that the
    answer depends on.
    """
    folder = cache_folder()
    if folder is None:
        return find()
    name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
    file = folder / f"{name}.json"
    with suppress(OSError):
        try:
            return json.loads(file.read_text())["answer"]
        except (ValueError, KeyError, TypeError):
            file.unlink(missing_ok=True)
    answer = find()
    with suppress(OSError):
        return _kept(file, {"question": question, "answer": answer})["answer"]
    return answer


def _kept(file: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Puts the file there whole, unless another was quicker; returns what it holds then."""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as stream:
            json.dump(content, stream, indent=2)
        with suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        os.unlink(temporary)
    return json.loads(file.read_text())
