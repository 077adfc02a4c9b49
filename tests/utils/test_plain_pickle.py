"""Pickles of plain data are read; pickles that name other functions or classes are refused."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.file_formats.pickles import ArrayRecord, ForbiddenName, read_plain_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(min_size=1),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
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
    assert isinstance(record, ArrayRecord) and (record.shape, record.dtype.code) == ((20, 30), "f4")
    assert np.array_equal(record.array(), array)


def test_pickles_of_python_2(tmp_path):
    """As CIFAR's batches: strings and bytes share a Latin-1 type."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR"
    array += b"(I1\n(I2\ntcnumpy\ndtype\n(U\x02u1I0\nI1\ntR"
    state = b"(I3\nU\x01|NNNI-1\nI-1\nI0\ntbI00\nT\x02\0\0\0\xff\x01tb"
    content = read(b"\x80\x02}(U\x04data" + array + state + b"U\x05names](U\x01aeu.", tmp_path)
    assert content["data"].array().tolist() == [255, 1] and content["names"] == ["a"]


@pytest.mark.parametrize("value", [print, OSError(), 1j, bytearray(b"a")])
def test_every_other_name_is_refused(value, tmp_path):
    for protocol in (0, 2, 4, 5):
        with pytest.raises(ForbiddenName):
            read(pickle.dumps(value, protocol=protocol), tmp_path)


@pytest.mark.parametrize("state", [b"}", b"N}S'__defaults__'\n(S'x'\nts\x86"])
def test_the_functions_of_the_reader_cannot_be_changed(state, tmp_path):
    with pytest.raises(AttributeError, match="__setstate__"):
        read(b"\x80\x02c_codecs\nencode\n" + state + b"b.", tmp_path)
