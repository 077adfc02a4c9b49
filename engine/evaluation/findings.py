"""Lists of images that need a look, such as suspect labels: `NAME/NAME.csv` in the folder of a run, and pictures."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from configs.schema import Data
from datasets.decoding.bad_images import BadImage
from datasets.sources.samples import Samples
from datasets.transforms.host import build_eval_host_transform
from engine.evaluation.pictures import save_picture, to_picture
from engine.run.result import PICTURES
from utils.files import atomic_write
from utils.tables import table_text

SHOWN = 24  # rows with pictures


def write_findings(
    folder: Path,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    images: Sequence[Sequence[tuple[Samples, int]]],
    data: Data,
) -> Path:
    """Writes the rows to `folder`, and pictures of the images of the first ones; returns the table.

    images: of each row, samples and the index in them. Raises OSError.
    """
    (folder / PICTURES).mkdir(parents=True, exist_ok=True)
    transform = build_eval_host_transform(data)
    for row, of_row in enumerate(images[:SHOWN]):
        for number, (samples, index) in enumerate(of_row):
            try:
                crop, _ = transform(samples.open(index, data.image_channels), 0, index)
            except BadImage:
                continue
            save_picture(to_picture(crop), folder / PICTURES / f"{row}-{number}.jpg")
    table = folder / f"{folder.name}.csv"
    atomic_write(table, table_text(header, rows))
    return table
