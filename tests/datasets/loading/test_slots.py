"""The shared memory in which loading workers pass images: when a slot is used again, and what it then contains; the
copies of a batch to a GPU."""

import gc
import math
import pickle
import weakref
from itertools import count
from multiprocessing.reduction import ForkingPickler
from unittest.mock import MagicMock, call

import torch
from conftest import assert_same_state, cli, config_for, refused, samples_for, slow, train_batches_for
from pytest import mark
from test_workers import CPU, Images, short_polls  # noqa: F401
from torch import Tensor

from configs.schema import Data
from datasets.batch import PADDING, PREFETCH_FACTOR, Batch, ImageSlots, slots_shape
from datasets.decoding.images import BadImage
from datasets.loading.loader import BatchReader, Loader
from datasets.loading.sampler import EvalSampler
from datasets.transforms.host import build_eval_host_transform
from tests.datasets.shards.range_server import wait_for
from utils.distributed import ProcessContext
from utils.tables import format_bytes
from utils.torch_compat import tree_map_only

POISON = 137


class SomeBad(Images):
    def open(self, index, channels):
        if index % 7 == 3:
            raise BadImage(f"image {index}", "is damaged", "replace it")
        return super().open(index, channels)


def loader_of(workers: int) -> Loader:
    data = Data(IMAGE_SIZE=8, NUM_WORKERS=workers, ON_BAD_IMAGE="skip")
    reader = BatchReader(SomeBad(), data, build_eval_host_transform(data))
    return Loader(reader, EvalSampler(106, 4), CPU, None)


@mark.parametrize("workers", [1, slow(3)])
def test_two_batches_can_be_held_all_others_are_poisoned_and_the_memory_is_released(workers):
    """Over several iterations of the same workers; a batch is also poisoned while it is in use, as by a transform."""
    expected = list(loader_of(0))
    loader = loader_of(workers)
    mapped = set()
    assert [int((batch.targets == PADDING).sum()) for batch in expected[-2:]] == [1, 2]  # a bad image; the end
    for _ in range(3):
        previous = None
        for batch, reference in zip(loader, expected, strict=True):
            assert_same_state([*batch[:3], *map(str, batch.bad)], [*reference[:3], *map(str, reference.bad)])
            assert not batch.images[batch.targets == PADDING].any()
            assert previous is None or (previous == POISON).all()
            previous = batch.images.fill_(POISON)
            mapped.add(batch.images.untyped_storage().data_ptr())
    images = loader._reader.slots.images
    released = weakref.ref(loader._reader.slots)
    assert mapped == {images.untyped_storage().data_ptr()}
    assert images.shape == (workers, PREFETCH_FACTOR + (2 if workers == 1 else 1), 4, 3, 8, 8)
    del loader
    wait_for(lambda: gc.collect() >= 0 and released() is None)  # the thread of the watchdog ends


def test_full_shared_memory_is_found_for_training_and_evaluation_before_a_worker_starts(monkeypatch):
    """The second loader finds no room; the line has the bytes of both, for all ranks of the host."""
    new = torch.UntypedStorage._new_shared
    loaders = count()
    line = "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"

    def full(size):
        if next(loaders):
            raise RuntimeError(line)
        return new(size)

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", full)
    training = loader_of(2)
    evaluation = loader_of(3)
    training._local_ranks = 4 * 10**5
    needed = 4e5 * (2 + 3) * 3 * training.sampler.batch_size * 3 * 8 * 8
    fix = rf"--shm-size={math.ceil(1 + 1.1 * needed / 2**30)}g"
    with refused(rf"shared memory is full: batches need {format_bytes(needed)} .*\(unable .*{fix}"):
        training.reserve(evaluation)
    assert training._batches._iterator is None


@mark.parametrize("dtype", [torch.int64, torch.bfloat16])
def test_drawn_parameters_of_any_type_arrive(dtype):
    """numpy, in whose arrays most of them travel, has no bfloat16."""
    slots = ImageSlots(slots_shape(1, (2, 3, 4, 4)))
    slots._place = 0, 1
    drawn = {"shift": (torch.arange(2).to(dtype),)}
    batch = Batch(slots.images[0, 1], torch.tensor([3, PADDING]), [], drawn=drawn)
    received = pickle.loads(ForkingPickler.dumps(slots.message(batch)))
    assert received.drawn["shift"][0].dtype == dtype
    assert_same_state([received.drawn, received.targets], [batch.drawn, batch.targets])
    assert received.images.data_ptr() == slots.images[0, 1].data_ptr()


OPTIONS = "DATA.AFFINE_DEGREES=10 TRAIN.RANDOM_ERASE_PROB=0.9 DATA.IMAGE_SIZE=16 DATA.BATCH_SIZE=4 TRAIN.NUM_EPOCHS=1"
TENSORS = 5  # of a batch: images, targets, affine maps; positions and boxes of random erasing


def batches_on(context: ProcessContext, workers: int):
    config = config_for(*cli(f"-dataset=fake -num_workers={workers} -opts {OPTIONS}"))
    return train_batches_for(config, *samples_for(config, CPU, "train"), context)


def test_a_batch_is_used_after_its_copies(monkeypatch):
    """Stands for a GPU: streams and copies are recorded. The next batch is copied while this one is in use."""
    cuda = MagicMock()

    def copy(tensor, device, non_blocking):
        cuda.copy(non_blocking)
        return tensor.clone()

    for name in ("Event", "Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(Tensor, "to", copy)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: cuda.record_stream())
    batches = batches_on(ProcessContext(0, 0, 1, 1, torch.device("cuda:0")), 0)
    cuda.reset_mock()
    batch = next(batches)
    assert batch.copied is cuda.Event(enable_timing=True)
    assert batch.images.shape == (4, 3, 16, 16)
    assert set(batch.drawn) == {"affine", "erase"}
    events = [name for name, *_ in cuda.mock_calls]
    in_stream = ["stream", "stream().__enter__", *["copy"] * TENSORS, "Event().record", "stream().__exit__"]
    waits = ["current_stream().wait_stream", *["record_stream"] * TENSORS]
    assert events == ["current_stream", "Event", *in_stream, *waits, "Event"]
    assert cuda.copy.call_args == call(True)


def test_training_batches_do_not_depend_on_the_number_of_workers():
    for _, alone, shared in zip(range(9), batches_on(CPU, 0), batches_on(CPU, 2), strict=False):
        assert_same_state([*alone[:2], alone.drawn], [*shared[:2], shared.drawn])


@mark.gpu
@mark.parametrize("workers", [0, 2])
def test_batches_on_a_gpu_equal_those_on_the_cpu(cpu, gpu, workers):
    for _, on_cpu, on_gpu in zip(range(20), batches_on(cpu, workers), batches_on(gpu, workers), strict=False):
        tensors = (on_gpu.images, on_gpu.targets, *on_gpu.drawn["affine"], *on_gpu.drawn["erase"])
        assert {tensor.device for tensor in tensors} == {gpu.device}
        copied = tree_map_only(Tensor, Tensor.cpu, on_gpu)
        assert_same_state([copied.images, copied.targets, copied.drawn], [on_cpu.images, on_cpu.targets, on_cpu.drawn])
        assert on_gpu.copied.query()
        assert on_cpu.copied is None
