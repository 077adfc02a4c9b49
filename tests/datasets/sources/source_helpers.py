"""Image files for the tests of data sources, and checks of their errors."""

import os
import re
import shlex
from collections import defaultdict

import numpy as np
from conftest import CPU, config_for, line_of, read_samples
from PIL import Image
from pytest import importorskip

from configs.schema import Data
from datasets import reading
from datasets.recognition import recognize_dataset
from datasets.sources.checks import check_files, check_images
from datasets.sources.split import History, RunSplit, as_read_before
from tests.datasets.shards.tar_files import jpeg, tar_of
from utils.errors import UserError


def options(given, **values) -> Data:
    """The section DATA of a run with batches of one image. given: DATA_PATH, or a section that is changed."""
    if isinstance(given, Data):
        return given.changed(**values)
    keys = {key.upper(): value for key, value in values.items()}
    return Data.model_validate({"DATA_PATH": str(given), "BATCH_SIZE": 1} | keys)


def read(given, *splits, known=None, num_classes=None, **values):
    """The samples of the data set that is recognized, of these splits or of train, val, and test if it has labels.

    given, values: as of `options`, with more of `Wanted`. The first samples have the notes of all.
    """
    how = {key: value for key, value in values.items() if key not in Data.model_fields}
    data = options(given, **{key: value for key, value in values.items() if key not in how})
    data = recognize_dataset(data, CPU)
    if not splits:
        how = {"with_test": True, "is_new": True} | how
        if not how["is_new"]:
            data = as_read_before(data, known or RunSplit(0, 0.1, ()))
    return read_samples(data, num_classes, CPU, *(splits or ("train", "val")), history=History(known), **how)


def read_checked(given, *splits, **values):
    """As `read`, with the notes on the files of images; an error, if some cannot be read."""
    found = read(given, *splits, **values)
    found[0].notes += check_images(found, options(given, **values), CPU)
    return found


def answers_to(given, value="", **values) -> list[Data]:
    """The options of each answer to the question in which `read` ends. value: what only a person knows."""
    data = options(given, **values)
    return typed(line_of(read, data).replace("VALUE", value), data)


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
    """'{a,b}/c' -> 'a/c', 'b/c' and '{08..10}' -> '08', '09', '10', as in a shell; ' & ' parts texts."""
    if " & " in text:
        return [path for part in text.split(" & ") for path in expand(part)]
    match = re.search(r"\{([^{}]*)\}", text)
    if not match:
        return [text]
    parts = match[1].split(",")
    bounds = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if bounds:
        parts = [f"{number:0{len(bounds[1])}}" for number in range(int(bounds[1]), int(bounds[2]) + 1)]
    return [one for part in parts for one in expand(text[: match.start()] + part + text[match.end() :])]


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


def rows_of(row, paths, **values):
    """A row for each path: `row` with the parts of the path, its number n, and the next one of each of `values`."""
    rows = []
    for n, path in enumerate(paths):
        windows = path.replace("/", "\\")
        first, _, inner = path.partition("/")
        stem = path.rpartition("/")[2].partition(".")[0]
        words = {"n": n, "half": n // 2, "path": path, "name": path.rpartition("/")[2], "stem": stem, "folder": first}
        words |= {"inner": inner, "last2": "/".join(path.split("/")[-2:]), "parent": path.split("/")[-2:][0]}
        words |= {"number": re.sub(r"\D", "", stem), "windows": windows, "folder_windows": windows.rpartition("\\")[0]}
        rows.append(row.format(**words | {key: of[n % len(of)] for key, of in values.items()}))
    return rows


def write_table(path, rows, header="image_path,target", encoding="utf-8"):
    """A table in text, perhaps without a header. rows: lines with the cells of each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*filter(None, [header]), *rows, ""]), encoding)


def write_rows(root, images, name, header, row, encoding="utf-8", **values):
    """Images beside a table, in which each has its row, see `rows_of`; or tables, by their names in its row."""
    paths = expand(images) if isinstance(images, str) else images
    tree(root, *paths)
    rows_in = defaultdict(list)
    for table, text in zip(rows_of(name, paths, **values), rows_of(row, paths, **values), strict=True):
        rows_in[root / table].append(text)
    for file, rows in rows_in.items():
        write_table(file, rows, header, encoding)
    return root / name


def write_set(root, images, tables, values, more="", **_):
    """The images and tables of a data set, as SETS describes them; returns the paths of the images in tables."""
    paths = expand(images)
    tree(root, *paths, *filter(None, [more]))
    for name, (header, row) in tables.items():
        write_table(root / name, rows_of(row, paths, **values), header)
    return paths


def write_tar(file, paths, **texts):
    """A shard. paths: of its images, with their contents if they are decoded. texts: by the ending of another file of
    each image, its content."""
    files = {}
    for n, path in enumerate(paths):
        files[path] = paths[path] if isinstance(paths, dict) else path.encode()
        for ending, of_images in texts.items():
            files[path.replace("jpg", ending)] = of_images[n].encode()
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(tar_of(files))


def write_data(root, kind, cell="{}", **splits):
    """A data set of this kind, whose splits have images with these labels; returns its options."""
    tree(root, "x/")
    for split, labels in splits.items():
        images = {f"{split}{number}.jpg": jpeg(number) for number in range(len(labels))}
        cells = [*map(cell.format, labels)]
        if kind == "parquet":
            table = importorskip("pyarrow").table({"image": [*images.values()], "label": labels})
            importorskip("pyarrow.parquet").write_table(table, root / f"{split}.parquet", row_group_size=3)
        elif kind == "tar":
            write_tar(root / f"{split}-0.tar", images, cls=cells)
        else:
            table = f"{split}.csv", "image_path,target", "{path},{label}"
            if kind != "csv":
                table = f"{split}_list.txt", "", "{path} {label}"
            write_rows(root, [*images], *table, label=cells)
            for image, content in images.items():
                (root / image).write_bytes(content)
    return options(root, dataset=kind, cache_dir=str(root))


def write_classes(root, **counts):
    for name, count in counts.items():
        for number in range(count):
            write_image(root / name / f"{number:03d}.jpg")


def names_of(samples):
    return [os.fsdecode(path) for path in samples.paths]


def paths_of(*splits):
    """The paths of all files."""
    return {samples.name(index) for samples in splits for index in range(len(samples))}


def labels_of(*splits):
    """The label of each image, by the name of the image."""
    labels = {}
    for one in splits:
        labels |= zip(names_of(one), one.targets.tolist(), strict=True)
    return labels


def classes_of(*splits):
    """The name of the class of each image, or the names of its classes in one text, by the name of the image."""
    names = np.array(splits[0].class_names)
    found = {}
    for image, label in labels_of(*splits).items():
        found[image] = "".join(names[np.equal(label, 1)]) if isinstance(label, list) else str(names[label])
    return found


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
    return [given.changed(**{name: getattr(one, name) for name in one.model_fields_set}) for one in lines]
