"""Pickles of plain data are read; all other pickles are refused."""

import pickle
import sys
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.file_formats.plain_pickle import ArrayRecord, ForbiddenName, read_plain_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(min_size=1),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def read(data: bytes, folder) -> object:
    (folder / "pickle").write_bytes(data)
    with open(folder / "pickle", "rb") as stream:
        return read_plain_pickle(stream)


@given(value=PLAIN, protocol=st.sampled_from([3, 4, 5]))
def test_plain_data_round_trip(value, protocol, tmp_path_factory):
    assert read(pickle.dumps(value, protocol=protocol), tmp_path_factory.getbasetemp()) == value


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_become_records_of_their_bytes(protocol, order, tmp_path):
    array = np.arange(600, dtype="<f4").reshape(20, 30, order=order)
    record = read(pickle.dumps(OrderedDict(a=array, b=array), protocol=protocol), tmp_path)["b"]
    assert isinstance(record, ArrayRecord) and (record.shape, record.dtype.code) == ([20, 30], "f4")
    assert np.array_equal(record.array(), array)


def test_pickles_of_python_2(tmp_path):
    """As CIFAR's batches: strings and bytes share a Latin-1 type."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR"
    array += b"(I1\n(I2\ntcnumpy\ndtype\n(U\x02u1I0\nI1\ntR"
    state = b"(I3\nU\x01|NNNI-1\nI-1\nI0\ntbI00\nT\x02\0\0\0\xff\x01tb"
    content = read(b"\x80\x02}(U\x04data" + array + state + b"U\x05names](U\x01aeu.", tmp_path)
    assert content["data"].array().tolist() == [255, 1] and content["names"] == ["a"]


@pytest.mark.parametrize("value", [print, OSError(), {1}, 1j, bytearray(b"a")])
def test_everything_else_is_refused(value, tmp_path):
    for protocol in (0, 2, 4, 5):
        with pytest.raises((ForbiddenName, ValueError, TypeError, KeyError)):
            read(pickle.dumps(value, protocol=protocol), tmp_path)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
def test_tuples_are_lists_and_no_keys(size, tmp_path):
    """The hash of a pair of one pair, nested sixty times, takes years."""
    for protocol in (0, 2, 4):
        assert read(pickle.dumps((1,) * size, protocol=protocol), tmp_path) == [1] * size
        with pytest.raises(TypeError):
            read(pickle.dumps({(1,) * size: 1}, protocol=protocol), tmp_path)


def test_a_dict_that_is_copied_many_times_takes_its_memory_once(tmp_path):
    items = b"}q\0(" + b"".join(b"J" + number.to_bytes(4, "little") + b"N" for number in range(1000)) + b"u"
    content = read(
        b"\x80\x02]q\x02(ccollections\nOrderedDict\nq\x01" + items + b"\x85R" + b"h\x01h\0\x85R" * 99 + b"e.", tmp_path
    )
    assert sum(map(len, content)) == 1000


@pytest.mark.parametrize("protocol", [0, 2])
def test_many_keys_of_one_hash_are_refused(tmp_path, protocol):
    """All have the hash 0; 500,000 of them would take hours."""
    keys = [number * sys.hash_info.modulus for number in range(20_000)]
    with pytest.raises(ValueError, match="operations"):
        read(pickle.dumps(dict.fromkeys(keys), protocol=protocol), tmp_path)
    few = dict.fromkeys([*keys[:100], *range(20_000)])
    assert read(pickle.dumps(few, protocol=protocol), tmp_path) == few
