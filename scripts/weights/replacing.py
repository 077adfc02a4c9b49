"""Files and folders that are replaced as a whole: until the new one is complete and checked, the old one stays."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.atomic_file import fsync_path
from utils.errors import UserError


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A temporary path beside `target` to write a file or a folder to; it replaces `target` at the end of the block.

    After an exception `target` is unchanged, and nothing else is left.

    Raises:
        UserError: it cannot be written.
    """
    temporary, old = (target.with_name(f".{kind}-{target.name}") for kind in ("new", "old"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if old.exists() and not target.exists():  # an export was killed between the two renames of a folder
            os.replace(old, target)
        remove(temporary)
        yield temporary
        for file in [temporary, *temporary.glob("*")]:
            fsync_path(file)
        if target.is_dir():
            os.replace(target, old)
            try:
                os.replace(temporary, target)
            except BaseException:
                os.replace(old, target)
                raise
        else:
            os.replace(temporary, target)
        fsync_path(target.parent)
    except OSError as error:
        raise UserError(
            f"{target}: cannot be written ({error.strerror or error}); free space, or choose another path"
        ) from None
    finally:
        remove(temporary)
        if target.exists():
            remove(old)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
