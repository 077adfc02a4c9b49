"""Pickles of plain data are read; objects of all other classes are inert."""

import pickle
from collections import OrderedDict

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import mark, raises

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


@mark.parametrize("protocol", [0, 2, 4])
@mark.parametrize("order", ["C", "F"])
def test_arrays_become_records_of_their_bytes(protocol, order, tmp_path):
    array = np.arange(600, dtype="<f4").reshape(20, 30, order=order)
    record = read(pickle.dumps(OrderedDict(a=array, b=array), protocol=protocol), tmp_path)["b"]
    assert isinstance(record, ArrayRecord)
    assert record.shape == (20, 30)
    assert record.dtype.code == "f4"
    assert np.array_equal(record.array(), array)


def test_objects_are_inert_and_the_functions_of_the_reader_cannot_be_changed(tmp_path):
    for protocol in (0, 2, 4, 5):
        content = read(pickle.dumps([OSError("a"), 1j, range(3), {1: print}], protocol=protocol), tmp_path)
        assert all(isinstance(one, Inert) for one in content[:3])
        assert issubclass(content[3][1], Inert)
    read(b"\x80\x02c_codecs\nencode\nN}S'__defaults__'\n(S'x'\nts\x86b.", tmp_path)
    assert _encode.__defaults__ is None
    content = pickle.dumps(bytearray(b"abc"), protocol=5)
    assert read(content, tmp_path) == b"abc"
    with raises((EOFError, pickle.UnpicklingError)):  # more bytes are stated than there are
        read(content[: content.index(b"abc") + 1], tmp_path)


@mark.filterwarnings("ignore:torch.quantize")
@mark.parametrize("is_archive", [True, False])
@mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32])
def test_a_quantized_tensor_leaves_the_others_readable(dtype, is_archive, tmp_path):
    content = {"quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, dtype), "plain": torch.arange(3.0)}
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=is_archive)
    plain = read_pickle(tmp_path / "a.pth")["plain"]
    assert bytes(plain.storage.data) == content["plain"].numpy().tobytes()


def test_a_dtype_and_a_set_are_read_as_torch_reads_them(tmp_path):
    """timm's adafactorbv has a dtype among its settings, and a plugin's optimizer may have a set in its state."""
    settings = {"momentum_dtype": torch.bfloat16, "seen": {1, 2}}
    torch.save(settings, tmp_path / "a.pth")
    assert read_pickle(tmp_path / "a.pth") == settings
