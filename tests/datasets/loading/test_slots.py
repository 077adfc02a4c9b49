"""The shared memory in which loading workers pass images: when a slot is used again, and what it then contains."""

import gc
import pickle
import time
import weakref
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from test_workers import CPU, Images

from configs.schema import Data
from datasets.batch import PADDING, PREFETCH_FACTOR, Batch, ImageSlots
from datasets.decoding.images import BadImage
from datasets.loading.loader import BatchReader, Loader
from datasets.loading.sampler import EvalSampler
from datasets.transforms.host import build_eval_host_transform
from utils.errors import UserError

POISON = 137


class SomeBad(Images):
    def open(self, index: int, channels: int):
        if index % 7 == 3:
            raise BadImage(f"image {index}", "is damaged", "replace it")
        return super().open(index, channels)


def loader_of(workers: int, num_samples: int = 106) -> Loader:
    data = Data.model_validate({"IMAGE_SIZE": 8, "NUM_WORKERS": workers, "ON_BAD_IMAGE": "skip"})
    reader = BatchReader(SomeBad(), data, build_eval_host_transform(data))
    return Loader(reader, EvalSampler(num_samples, 4), CPU, None)


@pytest.mark.parametrize("workers", [1, 3])
def test_two_batches_can_be_held_and_all_others_poisoned(workers):
    """Over several iterations of the same workers; a batch is also poisoned while it is in use, as by a transform."""
    expected, loader = list(loader_of(0)), loader_of(workers)
    assert (expected[-1].targets == PADDING).sum() >= 2 and any(batch.bad for batch in expected)
    for _ in range(3):
        previous = None
        for batch, reference in zip(loader, expected, strict=True):
            assert torch.equal(batch.images, reference.images) and torch.equal(batch.targets, reference.targets)
            assert [error.path for error in batch.bad] == [error.path for error in reference.bad]
            assert not batch.images[batch.targets == PADDING].any()
            if previous is not None:
                assert (previous == POISON).all()
            previous = batch.images.fill_(POISON)


def test_the_memory_is_mapped_once_and_released_with_the_loader():
    loader = loader_of(2)
    mapped = {batch.images.untyped_storage().data_ptr() for batch in loader}
    images, released = loader._reader.slots.images, weakref.ref(loader._reader.slots)
    assert mapped == {images.untyped_storage().data_ptr()}
    assert images.shape == (2, PREFETCH_FACTOR + 1, 4, 3, 8, 8)
    del loader
    deadline = time.monotonic() + 60
    while gc.collect() >= 0 and released() and time.monotonic() < deadline:
        time.sleep(0.05)  # the thread of the watchdog ends
    assert released() is None


class WorkerIds(Images):
    """The pixels of an image are the number of its worker."""

    def open(self, index: int, channels: int):
        image = super().open(index, channels)
        image._pixels = torch.full_like(image.pixels, torch.utils.data.get_worker_info().id)
        return image


def test_torch_asks_for_no_more_batches_than_the_slots_assume():
    """Batch n is of worker n mod W, and no batch after n + W * P is asked for when the rank receives batch n."""
    asked, workers = [], 3

    class Sampler(EvalSampler):
        def __iter__(self):
            asked.clear()
            for keys in super().__iter__():
                asked.append(keys)
                yield keys

    data = Data.model_validate({"IMAGE_SIZE": 8, "NUM_WORKERS": workers})
    loader = Loader(BatchReader(WorkerIds(), data, build_eval_host_transform(data)), Sampler(124, 4), CPU, None)
    for _ in range(2):
        for number, batch in enumerate(loader):
            assert (batch.images == number % workers).all()
            assert len(asked) <= number + 1 + workers * PREFETCH_FACTOR


def test_full_shared_memory(monkeypatch):
    def full(_):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", full)
    with pytest.raises(UserError, match=r"shared memory is full: no room for batches \(unable .*\); enlarge /dev/shm"):
        iter(loader_of(2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16])
def test_drawn_parameters_of_any_type_arrive(dtype):
    """numpy, in whose arrays most of them travel, has no bfloat16."""
    slots = ImageSlots(1, (2, 3, 4, 4))
    slots._place = 0, 1
    drawn = {"shift": (torch.arange(2).to(dtype),)}
    batch = Batch(slots.images[0, 1], torch.tensor([3, PADDING]), [], drawn=drawn)
    received = pickle.loads(ForkingPickler.dumps(slots.message(batch)))
    assert received.drawn["shift"][0].dtype == dtype and torch.equal(received.drawn["shift"][0], drawn["shift"][0])
    assert torch.equal(received.targets, batch.targets)
    assert received.images.data_ptr() == slots.images[0, 1].data_ptr()
