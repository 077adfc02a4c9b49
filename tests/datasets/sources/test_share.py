"""DATA.FRACTION and DATA.ONLY_CLASSES: nested shares by class and by group, and the images of some classes."""

import pickle
from collections import Counter

import pytest
import torch
from conftest import refused
from source_helpers import (
    classes_of,
    expand,
    labels_of,
    names_of,
    options,
    read_splits,
    rows_of,
    tree,
    write_data,
    write_table,
)

from tests.datasets.shards.tar_files import write_shards

SIZES = {"ant": 50, "bee": 20, "wasp": 4}
HELD_OUT = {"ant": 5, "bee": 2, "wasp": 1}  # a tenth, at least one


@pytest.fixture
def folder(tmp_path):
    return tree(tmp_path / "data", "ant/{1..50}.jpg", "bee/{1..20}.jpg", "wasp/{1..4}.jpg")


def read(path, dataset="imagenet2012", **values):
    return read_splits(options(path, dataset=dataset, **values))


def counts(samples):
    return dict(Counter(samples.class_names[label] for label in samples.targets.tolist()))


def test_shares_are_nested_by_class_and_keep_the_validation_images(folder):
    whole, held_out = read(folder)
    before = set()
    for fraction in (0.01, 0.1, 0.3, 0.5, 1.0):
        train, val = read(folder, fraction=fraction)
        expected = {name: SIZES[name] - HELD_OUT[name] for name in SIZES}
        assert counts(train) == {name: max(1, round(size * fraction)) for name, size in expected.items()}
        assert before <= {*names_of(train)} <= {*names_of(whole)}
        assert names_of(val) == names_of(held_out)
        before = {*names_of(train)}


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_the_same_data_in_another_folder_have_the_same_share(kind, tmp_path):
    shares = []
    for place in ("one", "two"):
        root = tmp_path / place / "data"
        if kind == "tar":
            write_shards(root, train=4, per_shard=10, val=4)
        else:
            tree(root, "{ant,bee}/{0..19}.jpg")
        train = read(root, kind, fraction=0.3)[0]
        shares.append([train.relative_name(index, str(root)) for index in range(len(train))])
    assert shares[0] == shares[1]


def test_whole_groups_are_taken(tmp_path):
    root = tree(tmp_path / "data", "{ill,well}/p{00..19}_{0..2}.jpg")
    train, _ = read(root, groups=r"/(p\d+)_", fraction=0.25)
    patients = Counter(zip(train.targets.tolist(), train.groups, strict=True))
    assert set(patients.values()) == {3}
    assert 4 <= len({*train.groups}) <= 5


def test_images_of_some_classes(folder):
    splits = read(folder, only_classes=["wasp", "bee"], fraction=0.5)
    assert [one.class_names for one in splits] == [["bee", "wasp"]] * 2
    assert [counts(one) for one in splits] == [{"bee": 9, "wasp": 2}, {"bee": 2, "wasp": 1}]
    for name, label in classes_of(*splits).items():
        assert name.split("/")[0] == label


@pytest.mark.parametrize("kind", ["csv", "parquet", "tar"])
def test_the_images_of_a_share_are_those_of_the_data(kind, tmp_path):
    """Half of 16, by name: the same label and pixels; also as a worker process reads them."""
    root = tmp_path / "data"
    if kind == "tar":
        write_shards(root, train=4, per_shard=4, val=4)
    else:
        write_data(root, kind, train=[0, 1] * 8, val=[0, 1] * 2)
    whole, part = (read(root, kind, fraction=fraction)[0] for fraction in (1.0, 0.5))
    place_of = {whole.name(place): place for place in range(len(whole))}
    places = [place_of[part.name(index)] for index in range(len(part))]
    assert len(whole) == 16
    assert counts(part) == {name: number / 2 for name, number in counts(whole).items()}
    assert part.targets.tolist() == whole.targets[places].tolist()
    of_worker = pickle.loads(pickle.dumps(part))
    for samples in (part, of_worker):
        opened = samples.open_all(range(len(part)), 3)
        for one, other in zip(opened, whole.open_all(places, 3), strict=True):
            assert torch.equal(one.pixels, other.pixels)


def test_several_labels_share_all_images(tmp_path):
    images = expand("x/{000..019}.jpg")
    rows = rows_of("{path},{labels},{split}", images, labels=["a", "a b", "a b"], split=["train"] * 16 + ["val"] * 4)
    write_table(tree(tmp_path, *images) / "all.csv", rows, "path,label,split")
    data = options(tmp_path / "all.csv", dataset="csv", multi_label=True)
    whole, _ = read_splits(data)
    part, _ = read_splits(data.changed(fraction=0.25))
    assert len(part) == 4
    assert labels_of(part).items() <= labels_of(whole).items()


def test_classes_without_images_in_a_split_and_unknown_ones_are_refused(tmp_path):
    root = tree(tmp_path / "data", "train/{ant,bee,cat}/0.jpg", "val/cat/0.jpg")
    with refused("ONLY_CLASSES: a split has no image of 'ant', 'bee'; name other classes"):
        read(root, only_classes=["ant", "bee"])
    with refused("ONLY_CLASSES: the data have no class 'bees'; did you mean bee"):
        read(root, only_classes=["bees"])


def test_noise_has_shares(tmp_path):
    whole, part = (read(tmp_path, "fake", fraction=fraction)[0] for fraction in (1.0, 0.5))
    assert set(part.targets) == set(whole.targets)
    assert len(part) < len(whole)
    assert torch.equal(part.open(0, 3).pixels, whole.open(0, 3).pixels)
