"""Words in the paths of images: names of splits and of masks, and labels by an expression."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from datasets.sources.shared_arrays import to_nfc

SPLIT_NAMES = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "validate": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
# Whole cells of a column of splits; folders with the other names are a question.
SPLIT_WORDS = {
    **SPLIT_NAMES, "tr": "train", "trn": "train", "va": "val", "dev": "val", "eval": "val", "evaluation": "val",
    "te": "test", "tst": "test", "holdout": "test", "hold-out": "test", "hold_out": "test", "held_out": "test",
}  # fmt: skip
MASK = r"(?:binary|seg\w*)?_?masks?\d*|seg|segm|segmentations?|annotations?|gt|ground_?truths?|overlays?|superpixels?"
# In names of folders: seg_train, trainset, imgTrain, val2017; not contest, valley. 'none': images without labels.
SPLIT_WORD = re.compile(
    r"((?<![a-z])(?:train|trn|val|dev|eval|test|tst|h[eo]ld[-_ ]?out|pred|unlab|no_label)|"
    r"(?-i:(?<=[a-z])(?:Train|Val|Test|Pred)))"
    r"(?:ing|id(?:ation)?|elopment|uation|ict(?:ions?|ed)?|ell?ed)?"
    r"(?:val|set|data|images?|imgs?|split|[-_ ](?:cases?|samples?))?"
    r"(?-i:(?![a-z]|(?<=[A-Z])[A-Z]))",
    re.IGNORECASE,
)
_SPLIT_OF_WORD = {
    "trn": "train", "dev": "val", "eval": "val", "tst": "test", "hold": "test", "held": "test",
    "pred": "none", "unlab": "none", "no_label": "none",
}  # fmt: skip
_NEUTRAL = re.compile(
    r"[\W\d_]|set|images?|imgs?|data|files?|photos?|pictures?|jpe?gs?|pngs?|tfrecords?|folder|"
    r"seg|hidden|private|public|final|blind|unseen|external|internal|official",
    re.IGNORECASE,
)


def split_of(name: str) -> str | None:
    """Returns the split that a name contains first: 'in1k-train-0000.tar', 'val/0.tar', 'Training_set'."""
    return next((SPLIT_NAMES[token] for token in re.split(r"[/\-_.]", name.lower()) if token in SPLIT_NAMES), None)


def split_of_images(folder: str) -> str | None:
    """The split in the name of a folder of images, 'Train' or 'train_images'; '' for 'images', None for other names."""
    return None if _NEUTRAL.sub("", SPLIT_WORD.sub("", folder)) else word_in(folder)


def word_in(name: str) -> str:
    """The split whose word a name contains first, 'none' for images without labels, or ''."""
    if name.lower() in SPLIT_NAMES:
        return SPLIT_NAMES[name.lower()]
    match = SPLIT_WORD.search(name)
    word = re.sub("[-_ ]?out$", "", match[1].lower()) if match else ""
    return _SPLIT_OF_WORD.get(word, word)


def any_word_in(name: str) -> str:
    """As `word_in`, also of a name that is one of `SPLIT_WORDS`."""
    return SPLIT_WORDS.get(name.lower()) or word_in(name)


def with_evaluation(split_of: Mapping[str, str]) -> dict[str, str]:
    """The splits of names, where evaluation beside another name of val is test: {train,dev,eval}."""
    of_val = {name for name, split in split_of.items() if split == "val"}
    of_test = {name for name in of_val if "eval" in name.lower()}
    return {**split_of, **dict.fromkeys(of_test if of_test < of_val else (), "test")}


def hidden_splits(folders: Iterable[Sequence[str]], level: int) -> set[str]:
    """The names of val or test in folders of another split, by the ones at a level: test of train/test/cat; also above
    the level in paths that are of train without its word.

    A name of images in several splits is a class, {train,val}/{control,test}, unless all beside it are splits, too.
    """
    splits_with = defaultdict[tuple[int, str, bool], set[str]](set)
    for names in folders:
        split = any_word_in("".join(names[level : level + 1]))
        start = level + 1 if split else 0
        for place, name in enumerate(names[start:], start):
            is_last = place + 1 == len(names)
            splits_with[place, name, is_last].add(split or "train")
    with_others = {place for place, name, _ in splits_with if not any_word_in(name)}
    found = set()
    for (place, name, is_last), splits in splits_with.items():
        word = any_word_in(name)
        is_class = is_last and len(splits) > 1 and place in with_others
        if word in ("val", "test") and not is_class and splits & {"train", "val"} - {word}:
            found.add(name)
    return found


def label_in(expression: str, path: str) -> str:
    """The text of the group named class, or else of all groups, without the folders in it; '' if nothing matches.

    'great_pyrenees' of (.+)_\\d+ and 'images/great_pyrenees_12.jpg'.
    """
    if not (match := re.search(expression, to_nfc(path))):
        return ""
    texts = [match["class"]] if "class" in match.re.groupindex else match.groups()
    return "/".join(text.rpartition("/")[2] for text in texts if text)


def of_level(level: int, name: str = "([^/]+)") -> str:
    """The expression that finds the name of a folder on a level of paths, from 0."""
    return f"^{'[^/]+/' * level}{name}/"
