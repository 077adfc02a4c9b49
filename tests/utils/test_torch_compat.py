"""The private names that `utils/torch_compat.py` uses still exist and still do what it says."""

import inspect
import os
from multiprocessing import forkserver

import pytest
import torch
from torch.utils.data import DataLoader

from utils import torch_compat

CHANGED = "has changed in this version of torch or Python: adapt utils/torch_compat.py"


def test_shared_zeros():
    assert hasattr(torch.UntypedStorage, "_new_shared"), f"torch.UntypedStorage._new_shared {CHANGED}"
    tensor = torch_compat.shared_zeros((2, 3, 4))
    assert tensor.is_shared() and tensor.shape == (2, 3, 4) and tensor.dtype == torch.uint8, CHANGED
    assert not tensor.any(), f"new shared memory is not zero: it {CHANGED}"


def test_loader_workers():
    iterator = iter(DataLoader([1, 2], num_workers=1))
    assert hasattr(iterator, "_workers"), f"_MultiProcessingDataLoaderIter._workers {CHANGED}"
    (worker,) = torch_compat.loader_workers(iterator)
    assert worker.is_alive() and worker.pid != os.getpid(), CHANGED


def test_close_fork_server_pipe(monkeypatch):
    server = forkserver._forkserver
    assert hasattr(server, "_forkserver_alive_fd"), f"multiprocessing's ForkServer._forkserver_alive_fd {CHANGED}"
    assert "_forkserver_alive_fd" in inspect.getsource(forkserver.ForkServer.ensure_running), CHANGED
    reader, writer = os.pipe()
    monkeypatch.setattr(server, "_forkserver_alive_fd", writer)
    torch_compat.close_fork_server_pipe()
    assert os.read(reader, 1) == b""  # the writing end is closed
    os.close(reader)
    with pytest.raises(OSError):
        os.close(writer)
