"""Pickles of plain data are read; objects of all other classes are inert."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.file_formats.pickles import ArrayRecord, Inert, _encode, read_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(min_size=1),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


def read(data: bytes, folder) -> object:
    (folder / "pickle").write_bytes(data)
    return read_pickle(folder / "pickle", is_plain=True)


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


def test_objects_are_inert_and_the_functions_of_the_reader_cannot_be_changed(tmp_path):
    for protocol in (0, 2, 4, 5):
        content = read(pickle.dumps([OSError("a"), 1j, range(3), {1: print}], protocol=protocol), tmp_path)
        assert all(isinstance(one, Inert) for one in content[:3]) and issubclass(content[3][1], Inert)
    read(b"\x80\x02c_codecs\nencode\nN}S'__defaults__'\n(S'x'\nts\x86b.", tmp_path)
    assert _encode.__defaults__ is None
    with pytest.raises(ValueError, match="bytearray"):
        read(pickle.dumps(bytearray(b"a"), protocol=5), tmp_path)
