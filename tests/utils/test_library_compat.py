"""The private names of libraries behave as utils/library_compat.py expects. A failure means that one has changed.

tests/datasets/sources/test_torchvision_sets.py has the lists of images,
tests/datasets/decoding/test_properties.py a preview in a BigTIFF; test_workers.py has the server of workers.
"""

import multiprocessing
from multiprocessing import forkserver, resource_tracker, util

import timm
import torch
from pytest import importorskip, mark
from timm import create_model
from timm.optim.muon import Muon
from torch import nn

from utils import library_compat


def test_an_optimizer_is_in_timms_table():
    class Own(torch.optim.SGD):
        """A name that no other test uses."""

    library_compat.register_timm_optimizer("librarycompat", Own, has_eps=False)
    assert timm.optim.get_optimizer_class("librarycompat", bind_defaults=False) is Own


def test_coefficients_of_muon():
    assert library_compat.newton_schulz_coefficients("original") == [(3.4445, -4.7750, 2.0315)]
    assert library_compat.newton_schulz_coefficients((1.0, 2.0, 3.0)) == [(1.0, 2.0, 3.0)]


def test_muon_updates_matrices():
    parameters = [nn.Parameter(torch.ones(shape)) for shape in ((8, 8), (8,))]
    optimizer = Muon(parameters, lr=0.1)
    for one in parameters:
        one.grad = torch.ones_like(one)
    optimizer.step()
    assert [library_compat.is_updated_by_muon(optimizer.state[one]) for one in parameters] == [True, False]
    assert not library_compat.is_updated_by_muon({})


def test_coat_initializes_linear_layers():
    linear = nn.Linear(64, 64)
    nn.init.ones_(linear.bias)
    linear.apply(library_compat.init_weights_of(create_model("coat_lite_tiny")))
    assert not linear.bias.any()
    assert linear.weight.std() < 0.03


@mark.parametrize("name", ["eager", "sdpa"])
def test_attention_of_transformers(name):
    transformers = importorskip("transformers")
    config = transformers.ViTConfig(attn_implementation=name)
    assert library_compat.has_eager_attention(config) == (name == "eager")


def test_folder_of_sockets(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {})
    library_compat.set_socket_folder(str(tmp_path))
    assert util.get_temp_dir() == str(tmp_path)


def test_the_server_is_started_by_the_replaced_function():
    calls = []
    own = util.spawnv_passfds

    def replace(spawn):
        assert spawn is own
        return lambda path, arguments, descriptors: calls.append(len(descriptors)) or 1

    resource_tracker.ensure_running()  # by the same function
    with library_compat.replaced_spawn(replace):
        server = forkserver.ForkServer()
        server.ensure_running()
    assert calls
    assert util.spawnv_passfds is own
    assert isinstance(server._forkserver_alive_fd, int)  # of a child process, whose pipe `close_server_pipe` closes
