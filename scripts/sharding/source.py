"""The images of a data set for a script that writes them as shards; reads them in parallel."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tqdm import tqdm

from configs.reading.command_line import parse_command_line
from configs.schema import Data
from datasets.decoding.bad_images import BadImage, BadImageList
from datasets.loading.workers import default_num_workers
from datasets.registry import has_test_split, read_samples, recognize_dataset
from datasets.sources.files.rows import LABEL_DIGITS
from datasets.sources.samples import EncodedImages
from utils.cpu_cores import own_share
from utils.distributed import single_process
from utils.errors import UserError

_ANY_NUM_CLASSES = 10**LABEL_DIGITS  # shards do not depend on a model
_Read = TypeVar("_Read")


def parse_data(argv: list[str]) -> Data:
    """The DATA options of flags of main_single_gpu.py.

    Raises:
        UserError: a flag or an option is wrong, or images have several labels.
    """
    data = parse_command_line([*argv, "-opts", "DATA.BATCH_SIZE=1"]).config.data
    if data.multi_label:
        raise UserError("DATA.MULTI_LABEL: shards have one label per image; train from the CSV files")
    return data


def read_image_splits(data: Data) -> tuple[Data, dict[str, EncodedImages]]:
    """The completed options, and the splits 'train', 'val' and, if the data set has one, 'test'.

    Raises:
        UserError: as `read_samples`; or the images are not encoded.
    """
    without_gpu = single_process("cpu")
    data = recognize_dataset(data, without_gpu)
    names = ["train", "val"]
    if has_test_split(data, without_gpu)[0]:
        names.append("test")
    splits = read_samples(data, _ANY_NUM_CLASSES, without_gpu, *names)
    if not isinstance(splits[0], EncodedImages):
        raise UserError(f"-dataset {data.dataset}: has no image files; use it without shards")
    return data, dict(zip(names, splits, strict=True))


def read_usable(
    read: Callable[[int], _Read], indices: range, data: Data, title: str, bad_images: BadImageList
) -> Iterator[_Read]:
    """`read(index)` of each index, in order, computed by threads that are a few images ahead, with a progress bar.

    With DATA.ON_BAD_IMAGE: skip, a BadImage that `read` raises is listed in `bad_images`; else it is raised.
    """
    images = _read_in_order(read, indices, data)
    for image in tqdm(images, title, indices.stop, initial=indices.start, unit="image", leave=False, disable=None):
        if isinstance(image, BadImage):
            bad_images.add([image])
        else:
            yield image


def _read_in_order(read: Callable[[int], _Read], indices: range, data: Data) -> Iterator[_Read | BadImage]:

    def read_or_skip(index: int) -> _Read | BadImage:
        try:
            return read(index)
        except BadImage as error:
            if data.on_bad_image == "error":
                raise
            return error

    threads = default_num_workers(own_share(), on_gpu=False) if data.num_workers is None else max(1, data.num_workers)
    pending: deque[Future[_Read | BadImage]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for index in indices:
            pending.append(pool.submit(read_or_skip, index))
            if len(pending) > 4 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
