"""DATA.FRACTION and DATA.ONLY_CLASSES: nested shares by class and by group; wrong names of classes."""

import pickle
from collections import Counter

import torch
from conftest import refused
from pytest import fixture, mark
from source_helpers import names_of, read, tree, write_data

from tests.datasets.shards.tar_files import write_shards

SIZES = {"ant": 50, "bee": 20, "wasp": 4}
HELD_OUT = {"ant": 5, "bee": 2, "wasp": 1}  # a tenth, at least one


@fixture
def folder(tmp_path):
    return tree(tmp_path / "data", "ant/{1..50}.jpg", "bee/{1..20}.jpg", "wasp/{1..4}.jpg")


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


def test_whole_groups_are_taken(tmp_path):
    root = tree(tmp_path / "data", "{ill,well}/p{00..19}_{0..2}.jpg")
    train, _ = read(root, groups=r"/(p\d+)_", fraction=0.25)
    patients = Counter(zip(train.targets.tolist(), train.groups, strict=True))
    assert set(patients.values()) == {3}
    assert 4 <= len({*train.groups}) <= 5


@mark.parametrize("kind", ["csv", "parquet", "tar"])
def test_the_images_of_a_share_are_those_of_the_data(kind, tmp_path):
    """Half of 16, by name: the same label and pixels; also as a worker process reads them."""
    root = tmp_path / "data"
    if kind == "tar":
        write_shards(root, train=4, per_shard=4, val=4)
    else:
        write_data(root, kind, train=[0, 1] * 8, val=[0, 1] * 2)
    whole, part = (read(root, dataset=kind, fraction=fraction)[0] for fraction in (1.0, 0.5))
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


def test_classes_without_images_in_a_split_and_unknown_ones_are_refused(tmp_path):
    root = tree(tmp_path / "data", "train/{ant,bee,cat}/0.jpg", "val/cat/0.jpg")
    with refused("ONLY_CLASSES: a split has no image of 'ant', 'bee'; name other classes"):
        read(root, only_classes=["ant", "bee"])
    with refused("ONLY_CLASSES: the data have no class 'bees'; did you mean bee"):
        read(root, only_classes=["bees"])


def test_noise_has_shares(tmp_path):
    whole, part = (read(tmp_path, dataset="fake", fraction=fraction)[0] for fraction in (1.0, 0.5))
    assert set(part.targets) == set(whole.targets)
    assert len(part) < len(whole)
    assert torch.equal(part.open(0, 3).pixels, whole.open(0, 3).pixels)
