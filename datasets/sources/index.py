"""The listing of a data set, kept from run to run until one of the files and folders that it was read from changes."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from datasets.sources.arrays import (
    SharedArrays,
    TextPacker,
    all_texts,
    check_kinds,
    check_texts,
    open_arrays,
    texts_in,
    write_arrays,
)
from datasets.sources.listing import Listing
from datasets.sources.stamps import still_hold
from utils.cache import cache_folder
from utils.files import open_regular_file

_FORMAT = 1  # to be raised with every change of what is read


def indexed(read: Callable[..., Listing], *arguments: Path | str | None) -> Listing:
    """What `read(*arguments)` gives: as it was kept, if nothing has changed since, else read now.

    Raises:
        UserError: by `read`.
    """
    # The spelling of a place stands in what is told of it.
    places = [os.path.abspath(argument) for argument in arguments if isinstance(argument, Path)]
    question = json.dumps([_FORMAT, read.__name__, [argument and str(argument) for argument in arguments], places])
    folder = cache_folder()
    file = folder / f"{hashlib.sha256(question.encode()).hexdigest()[:32]}.index" if folder else None
    if file:
        with suppress(OSError, ValueError):
            return load_index(file, question)
    listing = read(*arguments)
    listing.kept_as = file and (file, question)
    return listing


def keep(listing: Listing) -> None:
    """For the next runs, unless a change to what was read could go unnoticed, or there is no place for it.

    To be called of a listing without findings, whose images are all there.
    """
    stamps = listing.stamps.values()
    if listing.kept_as is None or stamps is None:
        return
    file, question = listing.kept_as
    about = {
        "question": question,
        "root": str(listing.root),
        "file": listing.file and str(listing.file),
        "class_names": listing.class_names,
        "notes": listing.notes,
    }
    stamped = TextPacker(listing.stamps.paths()).arrays("stamped")
    with suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                write_arrays(stream, about, {**listing.arrays, **stamped, "stamps": stamps})
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise


def load_index(file: Path, question: str) -> Listing:
    """A listing that was kept.

    Raises:
        OSError: there is none.
        ValueError: it is damaged, or another's, or what it was read from has changed.
    """
    arrays = open_arrays(open_regular_file(file))
    _check(arrays)
    if arrays.about["question"] != question:
        raise ValueError("is an index of something else")
    if not still_hold(texts_in(arrays, "stamped"), arrays["stamps"]):
        raise ValueError("is out of date")
    about = arrays.about
    return Listing(
        Path(about["root"]),
        about["class_names"],
        arrays,
        about["file"] and Path(about["file"]),
        notes=about["notes"],
        is_checked=True,
    )


def _check(arrays: SharedArrays) -> None:
    check_texts(arrays, "paths", "stamped")
    kinds = {"paths_crcs": ("<u4", 1), "targets": ("<i8", 1), "lines": ("<i4", 1), "stamps": ("<i8", 2)}
    check_kinds(arrays, kinds)
    about, targets, images = arrays.about, arrays["targets"], len(texts_in(arrays, "paths"))
    if not (
        all_texts([about.get("root"), about.get("question")])
        and isinstance(about.get("file", 0), str | None)
        and all_texts(about.get("class_names"))
        and all_texts(about.get("notes"))
        and images == len(targets) == len(arrays["paths_crcs"])
        and len(arrays["lines"]) == (images if about["file"] else 0)
        and arrays["stamps"].shape == (len(texts_in(arrays, "stamped")), 4)
        and 0 <= targets.min(initial=0) <= targets.max(initial=0) < max(len(about["class_names"]), 1)
    ):
        raise ValueError("is damaged (it does not fit together)")
