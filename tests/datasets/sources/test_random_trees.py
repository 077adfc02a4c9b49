"""Random folders and tables: which images a new training may train on, and whether printed options work.

The truth is in the names: a folder with the word of val or test holds images out, unless an option or a column says
otherwise. `CASES=1000 python -m pytest -m slow tests/datasets/sources/test_random_trees.py` has more of each kind.
"""

import os
import random
import re
from itertools import product

from pytest import mark
from source_helpers import COMMAND, options, tree, typed

from datasets.reading import read_alone
from datasets.sources.listing import forget_listings
from datasets.sources.path_words import any_word_in
from utils.errors import UserError

CASES = int(os.environ.get("CASES", "40"))
SPLITS = "train test val valid training Train Test seg_train seg_test train_images test_images holdout dev tst extra"
OUTER = "images data grey siteA siteB fold1 fold2 p1 p2 masks archive 40X"
CLASSES = ("cat dog", "0 1", "normal tumor", "class1 class2", "n01 n02 n03")
LEVELS = ("sc", "sc", "c", "cs", "osc", "oc", "soc", "co", "sco", "oos", "os", "s", "ocs", "cc", "ossc")


def names_of_level(draw, kind):
    if kind == "c":
        return draw.choice(CLASSES).split()
    names = (SPLITS if kind == "s" else OUTER).split()
    return draw.sample(names, draw.choice((1, 2, 2, 3)))


def random_folders(draw):
    """Folders of a few levels, of which some lack, perhaps beside others."""
    levels = [names_of_level(draw, kind) for kind in draw.choice(LEVELS)]
    folders = ["/".join(names) for names in product(*levels) if draw.random() > 0.05]
    beside = draw.sample([*SPLITS.split(), *OUTER.split()], draw.choice((0, 0, 0, 1, 2)))
    return [*dict.fromkeys([*folders, *beside, "x/y"])][: len(folders) + len(beside) or 1]


def write_files(root, folders, draw):
    files = [f"{folder}/{number}.jpg" for folder in folders for number in range(draw.choice((2, 3, 4)))]
    tree(root, *files)
    return files


def write_random_table(root, files, draw):
    """A table of the images, with paths as other programs write them; returns DATA_PATH."""
    path = draw.choice(("{0}", "R/{0}", "/mnt/data/{0}", "./{0}", "{1}"))
    rows = [f"{path.format(file, file.replace('/', chr(92)))},{'xy'[number % 2]}" for number, file in enumerate(files)]
    table = root / draw.choice(("labels.csv", "train.csv"))
    table.write_text("\n".join(["path,label", *rows, ""]))
    return draw.choice((table, root))


def read(data):
    """The rows; None after a question, whose options are read without another one."""
    forget_listings()
    try:
        return read_alone(data)
    except UserError as error:
        message = str(error)
    known = [words for words in re.findall(COMMAND, message) if not re.search("VALUE|NAME", words)]
    for answer in typed("; ".join(known), data):
        forget_listings()
        try:
            rows = read_alone(answer)
        except UserError as error:
            assert "too few" in str(error), f"{message}\n{error}"
            continue
        if "train" in rows.splits and not (answer.class_folders or "also of test" in message):
            assert not held_out_in(rows.splits["train"], answer.data_path), message
    return None


def held_out_in(samples, root):
    """The folders of images whose last word of a split is val or test."""
    found = set()
    for index in range(len(samples)):
        folder = os.path.relpath(os.path.dirname(samples.name(index)), root)
        words = map(any_word_in, folder.split("/"))
        if [word for word in words if word][-1:] in (["val"], ["test"]):
            found.add(folder)
    return found


@mark.slow
@mark.parametrize("is_table", [False, True])
def test_no_training_has_images_of_folders_of_test_and_printed_options_work(is_table, tmp_path):
    for seed in range(CASES):
        draw = random.Random(f"{seed} {is_table}")
        root = tmp_path / str(seed) / "R"
        files = write_files(root, random_folders(draw), draw)
        rows = read(options(write_random_table(root, files, draw) if is_table else root))
        if rows and not rows.findings:
            assert not held_out_in(rows.splits["train"], root), (seed, files)
