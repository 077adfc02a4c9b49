"""The folder of the images that a table names."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

from configs.schema import Data
from configs.yaml_io import shorten
from datasets.sources.listing import paths_in
from datasets.sources.path_words import MASK, split_of, split_of_images, word_in
from datasets.sources.question import with_columns
from datasets.sources.samples import spread
from datasets.sources.tables.files import Table
from datasets.sources.tables.places import ENDINGS, Places, mend, without_ending
from utils.notes import Note

_MAX_TRIED = 200  # images that show the folder
_MAX_SEARCHED = 200_000  # files and folders among which images are found by their names
_MASKS = re.compile(rf"(.*[ ._-])?({MASK})([ ._-].*)?", re.IGNORECASE)


def find_places(table: Table, column: str, data: Data, others: Sequence[Path] = ()) -> Places:
    """The places of the paths in a column.

    The folder is the given one, else the first of these with one of the paths as a file: the table's folder; the one
    around it; the split's folder in it (train/ or train_images/ of train.csv); `others`; the only folder in it with an
    image, apart from other splits and masks; the same without the folders that all paths share, of another machine; the
    only folder at any depth; else files are found by their names, where these are unique. others: folders of images to
    predict, which may be anywhere.
    """
    file = table.file
    root = file.parent
    place_in = partial(Places, file, anywhere=bool(others) or table.root is not None)
    given = table.root or data.image_root
    if given:
        return place_in(Path(given))
    paths = table.column(column)
    listed = list[str]()
    sample = list[str]()
    around = root.parent if root.name else root / ".."
    own = f"{root.resolve().name}/"  # the paths of CheXpert begin with the name of the table's folder
    for some in (islice(paths, _MAX_TRIED), paths):  # of most tables, the others need not be read for this
        listed += some
        sample = [listed[index] for index in spread(len(listed), _MAX_TRIED)]
        for place in (place_in(root), place_in(around, own=own)):
            if place.contain(sample):
                return place
    if _MASKS.fullmatch(root.name):  # ISIC's x_GroundTruth, x_Input
        root = root.parent
    found = _in_folders(place_in, file, root, listed, sample, others)
    found = found or _at_any_depth(place_in, file, root, listed, sample)
    if found:
        return found
    none = place_in(file.parent)
    in_columns = with_folder(table, column)
    if in_columns != column:
        problem = f"{shorten(sample[0])} is no file, but paths of two columns are"
        none.problem = f"{file}: {problem}; -opts {with_columns(data, {'path': in_columns}).options}"
    text = f"no image of {file} is found in {root}, nor by a unique name in its folders; set DATA.IMAGE_ROOT"
    none.notes.append(Note("warning", text))
    return none


def _in_folders(
    place_in: Callable[..., Places],
    file: Path,
    root: Path,
    listed: Sequence[str],
    sample: Sequence[str],
    others: Sequence[Path],
) -> Places | None:
    """The paths, or their ends after the folders that all of them share, in a folder beside the table."""
    of_split, usable = _folders_beside(root, file.stem)
    for strip in _shared_folders(listed):

        def fitting(folders: Sequence[Path], most: int, strip: str = strip) -> list[Places]:
            each = (place_in(folder, strip) for folder in folders)
            return [*islice((place for place in each if place.contain(sample)), most)]

        here = [root] if strip else []
        found = fitting([*here, *of_split, *others], 1) or fitting(usable, 2)
        if len(found) == 1:
            found[0].notes.append(Note("log", f"{file}: the images are in {found[0].root}"))
            return found[0]
    return None


def _shared_folders(paths: Iterable[str]) -> Iterator[str]:
    """'', and the first folders of all paths, with a slash: '/mnt/', '/mnt/set/'."""
    mended = {*map(mend, paths)}
    first = min(mended, default="")
    last = max(mended, default="")
    yield ""
    for match in re.finditer("/", first):
        shared = first[: match.end()]
        if last.startswith(shared) and shared != "/":
            yield shared


def _at_any_depth(
    place_in: Callable[..., Places], file: Path, root: Path, listed: Sequence[str], sample: Sequence[str]
) -> Places | None:
    """The paths in the only folder that has them, or the only file of each name."""
    _, usable = _folders_beside(root, file.stem)
    most = max(_MAX_SEARCHED, 3 * len(listed))
    files = list(islice(chain(paths_in(root, "*"), *(folder.rglob("*") for folder in usable)), most))
    if len(files) == most:  # not all were seen
        return None
    folders = {*_folders_with(sample, files)}
    for folder in map(Path, folders):
        place = place_in(folder)
        if len(folders) == 1 and place.contain(sample):
            place.notes.append(Note("log", f"{file}: the images are in {folder}"))
            return place
    by_name = _paths_of_names(root, files, listed)
    if not sample or not all(os.path.basename(mend(path)) in by_name for path in sample):
        return None
    place = place_in(root, by_name=by_name)
    place.notes.append(Note("log", f"{file}: the images are in {root}, found by their names"))
    return place


def _folders_with(sample: Iterable[str], files: Iterable[Path]) -> Iterator[str]:
    """The folders in which paths of a table are files."""
    written = defaultdict(list)
    for path in map(without_ending, map(mend, sample)):
        written[os.path.basename(path)].append(f"/{path}")
    for file in files:
        for path in written.get(file.stem, ()):
            if str(file.with_suffix("")).endswith(path):
                yield str(file)[: str(file).rindex(path)]


def _folders_beside(root: Path, table: str) -> tuple[list[Path], list[Path]]:
    """The folders of images of the split in a table's name, and those that are not of masks, other splits, or without a
    split of test. Submissions (sample_submission) are of test images.
    """
    split = "test" if "submission" in table.lower() else split_of(table)
    folders = [path for path in paths_in(root, "*/") if not path.name.startswith(".")]
    of_split = [path for path in folders if split and split_of_images(path.name) == split]
    of_others = {"train", "val", "test"} - {split} if split else {"test"}
    usable = [path for path in folders if word_in(path.name) not in of_others and not _MASKS.fullmatch(path.name)]
    return of_split, usable


def _paths_of_names(root: Path, files: Iterable[Path], listed: Iterable[str]) -> dict[str, str]:
    """The path in `root` of each name, with its ending and without, that only one image has, and one path of a table:
    p2/0.jpg is no image of p1/0.jpg.
    """
    found = defaultdict(list)
    for path in files:
        if path.suffix.lower() in ENDINGS:
            for name in {path.name, path.stem, path.stem + path.suffix.swapcase()}:
                found[name].append(str(path.relative_to(root)))
    file_of = {name: paths[0] for name, paths in found.items() if len(paths) == 1}
    written = Counter(file_of.get(os.path.basename(path)) for path in {*map(without_ending, map(mend, listed))})
    return {name: file for name, file in file_of.items() if written[file] < 2}


def with_folder(table: Table, name: str) -> str:
    """The column of paths; after the column of folders in which the images are, as RelativePath/File of Timelapse.

    These folders are beside the table, or in a folder beside it.
    """
    root = table.file.parent
    places = [root, *paths_in(root, "*/")[:20]]
    for number, (_, cells) in enumerate(islice(table, 200)):
        tried = places if number < 10 else [root]  # a server's disk answers a thousand times a second
        folders = [column for column in table.header if column not in ("", name) and cells[column]]
        for folder in folders:
            path = mend(f"{cells[folder]}/{cells[name]}")
            if any(os.path.isfile(f"{place}/{path}") for place in tried):
                return f"{folder}/{name}"
    return name
