"""Image files for the tests of data sources, and checks of their errors."""

import os
import re
import shlex

import numpy as np
from conftest import CPU, config_for, read_samples
from PIL import Image

from configs.schema import Data
from datasets import reading
from datasets.recognition import recognize_dataset
from datasets.sources.checks import check_files
from utils.errors import UserError


def options(path, **values) -> Data:
    """The section DATA of a run with batches of one image."""
    given = {key.upper(): value for key, value in values.items()}
    return Data.model_validate({"DATA_PATH": str(path), "BATCH_SIZE": 1} | given)


def read_splits(data: Data):
    """The samples of train, val, and test if it has labels, of the data set that is recognized."""
    data = recognize_dataset(data, CPU)
    return read_samples(data, None, CPU, "train", "val", with_test=True, is_new=True)


def write_image(path, pixels=None, colour=(200, 30, 40), size=(12, 9)):
    """pixels: an array or an image, in place of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, colour) if pixels is None else Image.fromarray(np.asarray(pixels))
    image.save(path, "PNG" if path.suffix.lower() == ".png" else "JPEG", quality=90)


def write_patients(root, names):
    """Images of 8 x 8 pixels, of which four in a row are of one patient; those of `ill` are lighter."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(names):
        pixels = rng.normal(110 + 20 * (name == "ill"), 60, (8, 8, 3)).clip(0, 255)
        write_image(root / name / f"P{number // 4:02d}_{number}.png", pixels.astype(np.uint8))


def without_other_ranks(monkeypatch):
    """Data are read as on a rank whose other ranks have found no error."""
    monkeypatch.setattr(reading, "work_while_others_wait", lambda work, context: work())
    monkeypatch.setattr(reading, "call_on_main", lambda call, context: None)
    monkeypatch.setattr(reading, "broadcast_object", lambda value, context, source: value)


IMAGE = b"\xff\xd8\xff" + bytes(20) + b"\xff\xd9"  # is listed, and never decoded


def expand(text: str) -> list[str]:
    """'{a,b}/c' -> 'a/c', 'b/c', as in a shell."""
    match = re.search(r"\{([^{}]*)\}", text)
    if not match:
        return [text]
    return [one for part in match[1].split(",") for one in expand(text[: match.start()] + part + text[match.end() :])]


def tree(root, *parts):
    """Images x/0.jpg, folders x of four images, empty folders x/, lists x!, texts x!!, links x>y, see `expand`."""
    for path in (one for part in parts for one in expand(part)):
        name, is_link, target = path.partition(">")
        is_file = path.endswith((".jpg", ".png", "!", "/"))
        for file in [path] if is_file or is_link else [f"{path}/{number}.jpg" for number in range(4)]:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            if is_link:
                (root / name).symlink_to(root / target)
            elif file.endswith("/"):
                (root / file).mkdir(exist_ok=True)
            else:
                content = b"pytest>=8" if file.endswith("!!") else b"a/0.jpg 0" if file.endswith("!") else IMAGE
                (root / file.rstrip("!")).write_bytes(content)
    return root


def write_table(path, rows, header="image_path,target"):
    """A table in text. rows: lines with the cells of each."""
    path.write_text("\n".join([header, *rows, ""]))


def write_classes(root, **counts):
    for name, count in counts.items():
        for number in range(count):
            write_image(root / name / f"{number:03d}.jpg")


def names_of(samples):
    return [os.fsdecode(path) for path in samples.paths]


def labels_of(*splits):
    """The label of each image, by the name of the image."""
    labels = {}
    for one in splits:
        labels |= zip(names_of(one), one.targets.tolist(), strict=True)
    return labels


def classes_of(*splits):
    """The name of the class of each image, by the name of the image."""
    class_names = splits[0].class_names
    return {name: class_names[label] for name, label in labels_of(*splits).items()}


def groups_apart(train, val):
    """The numbers of groups of both splits, which have none in common."""
    of_train = {*train.groups}
    of_val = {*val.groups}
    assert not of_train & of_val
    return len(of_train), len(of_val)


def assert_refused(call, *parts):
    """One line contains all parts: the error that `call` raises, or a finding about its samples or their images."""
    try:
        samples = call()
        messages = list(map(str, (*samples.findings, *check_files([samples], 3)[0])))
    except UserError as error:
        messages = [str(error)]
    assert any(all(str(part) in message for part in parts) for message in messages), messages
    assert not any("\n" in message or len(message) > 600 for message in messages)


COMMAND = r"(?:-(?:dataset|data_path|opts) ?(?:'[^']*'|[^\s';:]+)(?: ?'[^']*'| DATA[^\s';]+)*[ ]?)+"


def typed(message: str, given: Data) -> list[Data]:
    """The options of a run with each command line that an error advises, typed after the given ones."""
    advised = re.findall(COMMAND, message)
    path = [] if "-data_path" in "".join(advised) else [f"-data_path={given.data_path}"]
    lines = [config_for(*path, *shlex.split(words)).data for words in advised]
    return [given.model_copy(update={name: getattr(one, name) for name in one.model_fields_set}) for one in lines]
