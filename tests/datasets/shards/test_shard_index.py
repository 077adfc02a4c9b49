"""The index in its file: equal after reading, every change of its content and every contradiction refused."""

import io
import json
import random

import numpy as np
from conftest import each_row, line_of, refused
from hypothesis import given
from hypothesis import strategies as st

from datasets.shards.index import Index, Shard, encode_index, join_indexes, read_index, to_index
from datasets.shards.records import Record
from datasets.sources.shared_arrays import strings_in, to_nfc
from utils.errors import UserError

NUMBERS = st.integers(0, 999_999)
NAMES = st.text(min_size=1, max_size=5).map(to_nfc)
LABELS = st.one_of(st.none(), NUMBERS), st.one_of(st.none(), NAMES)


def index_of(labels_of_shards, label_key: str = "") -> Index:
    """An index of shards whose images have these labels."""
    indexes = []
    for number, labels in enumerate(labels_of_shards):
        records = [
            Record(512 + 1024 * position, position, 2**32 - 1 - position, label, f"{number}/é{position}.jpg")
            for position, label in enumerate(labels)
        ]
        shard = Shard(f"{number}.tar", 1024 * len(labels) + 1024, "etag" if number % 2 else None)
        indexes.append(to_index(shard, records, f"{number}.tar"))
    return join_indexes(indexes, label_key)


def content_of(index: Index) -> list:
    """The images of each shard, with their labels as in the shard."""
    content = []
    for position, shard in enumerate(index.shards):
        one = index.of_shard(position)
        assert one.shards == [shard]
        assert one.arrays["ends"].tolist() == [len(one)]
        targets = one.arrays["targets"].tolist()
        labels = [one.class_names[label] if one.class_names and label >= 0 else label for label in targets]
        columns = [one.arrays[name].tolist() for name in ("offsets", "lengths", "crcs")]
        content.append([shard, *columns, labels, list(strings_in(one.arrays, "names"))])
    return content


def error_of(data: bytes):
    assert line_of(read_index, data, "i").startswith("i: ")


@given(st.one_of(*(st.lists(st.lists(labels, max_size=5), max_size=5) for labels in LABELS)))
def test_an_index_is_equal_after_reading(labels_of_shards):
    index = index_of(labels_of_shards)
    read = read_index(encode_index(index), "i")
    expected = [[-1 if label is None else label for label in labels] for labels in labels_of_shards]
    assert content_of(read) == content_of(index)
    assert [labels for *_, labels, _ in content_of(read)] == expected
    assert len(read) == sum(map(len, labels_of_shards))
    assert all(read.arrays[name].dtype == array.dtype for name, array in index.arrays.items())


def test_rows_of_several_indexes_are_joined_with_one_order_of_classes_in_one_unicode_form():
    one = index_of([["A\u0308hre", "cat"], [None], []], "k")
    two = index_of([["ant", "Ähre"], ["never used"]])
    joined = join_indexes([one, two.of_shard(0)])
    assert joined.class_names == ["ant", "cat", "Ähre"]
    assert joined.arrays["targets"].tolist() == [2, 1, -1, 0, 2]
    assert content_of(join_indexes([one.of_shard(0)])) == content_of(one)[:1]
    first, second, _, last = content_of(joined)
    assert last == content_of(two)[0]
    without_first = [[shard, *(column[1:] for column in columns)] for shard, *columns in (first, last)]
    assert content_of(joined.select(np.array([1, 2, 4]))) == [without_first[0], second, without_first[1]]


def test_numbers_and_names_are_not_mixed():
    with refused(r"0\.tar: "):
        index_of([[None, "cat", 3]])
    assert index_of([["cat"], [None]]).class_names == ["cat"]
    assert index_of([[None], [3]]).class_names == []


def test_a_flipped_bit_changes_nothing_or_is_found_and_every_cut_is_found():
    """Some bits of a zip archive, such as the time of a file, have no meaning here."""
    data = encode_index(index := index_of([["cat", "dog"], ["cat"]]))
    rng = random.Random(0)
    found = 0
    for position in rng.sample(range(len(data)), 300):
        error_of(data[:position])
        try:
            flipped = bytearray(data)
            flipped[position] ^= 1 << rng.randrange(8)
            assert content_of(read_index(bytes(flipped), "i")) == content_of(index)
        except UserError:
            found += 1
    assert found > 100
    np.savez_compressed(packed := io.BytesIO(), **np.load(io.BytesIO(data)))
    for other in (b"", b"\0" * 8, b"x" * 100, npz(a=np.zeros(3)), packed.getvalue()):
        error_of(other)


def npz(**arrays: np.ndarray) -> bytes:
    np.savez(file := io.BytesIO(), **arrays)
    return file.getvalue()


# Statements that change an array, or `about` (the format, shards, class names, keys of the labels and groups)
FORGED = r"""
change
offsets[0] = -1
offsets[1] = 9223372036854775807
offsets[1] = 4096
lengths[2] = -1
lengths[2] = 400000001
ends[0] = 4
ends[1] = 2
names_ends[0] = 99
targets[0] = -2
targets[0] = 1000000
about[1][0][1] = -1
about[1][0][1] = True
about[1][0][0] = 3
about[1][0][2] = 3
about[2] = ["b", "a"]
about[2] = ["a"] * 9
about[2] = ["a"]
about[2] = ["\ud800"]
about[2] = [3]
about[2] = "ab"
about[0] = "AmpViT shards 1"
about[3] = 3
about[4] = None
about[1].pop()
about[1].append(about[1][0])
about.pop()
crcs = crcs[1:]
crcs = crcs.astype("<i8")
names = names[:, None]
"""


def rewritten(index: Index, change: str) -> bytes:
    """The file of an index after such a statement."""
    with np.load(io.BytesIO(encode_index(index))) as file:
        parts = dict(file)
    parts["about"] = json.loads(parts["about"].tobytes())
    exec(change, {}, parts)
    about = json.dumps(parts.pop("about")).encode()
    return npz(**parts, about=np.frombuffer(about, "u1"))


@each_row(FORGED)
def test_a_forged_value_length_or_type_is_refused(change):
    """Also with valid checksums."""
    error_of(rewritten(index_of([[1, 2], [3]]), change))


def test_an_index_with_the_fifth_column_of_an_earlier_version_is_read():
    index = index_of([["cat"], ["dog"]])
    data = rewritten(index, "for shard in about[1]: shard.append(None)")
    assert content_of(read_index(data, "i")) == content_of(index)
