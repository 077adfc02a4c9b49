"""Each row of the table of properties, with files and the pixels that readers of its field have from them: rasterio
1.4.4, tifffile 2026.3.3 with imagecodecs 2026.3.6, OpenCV 5.0.0 and pydicom 3.0.2, once, in fixtures/images.json.
"""

import base64
import json
from unittest.mock import Mock

import numpy as np
from conftest import ROOT, cells_of
from pytest import mark, raises, skip

from datasets.decoding import decode, images
from datasets.decoding.images import BadImage, has_frames, missing_decoder
from datasets.decoding.properties import FLOAT, NO_RANGE, OUTSIDE, REFUSED
from datasets.decoding.tiff import TiffHeader
from tests.datasets.decoding.test_decode import KINDS
from tests.datasets.photo import decode_image, png16, tiff16

CASES = json.loads((ROOT / "tests/fixtures/images.json").read_text())
REFUSED_BY_NAME = {row.name: row for row in REFUSED}


def expected_pixels(values, highest, grey_range=None, is_inverted=False, **_):
    """0..255, (H, W, 3), by the definition of the range. values: (H, W) or (H, W, C)."""
    low, high = grey_range if grey_range and highest > 255 else (0, highest)
    levels = np.rint((np.array(values, float) - low) * 255 / (high - low)).clip(0, 255)
    levels = 255 - levels if is_inverted else levels
    return levels[..., :3] if levels.ndim == 3 else levels[..., None].repeat(3, axis=2)


@mark.parametrize("case", CASES, ids=lambda case: case["row"][:30])
def test_a_file_has_the_pixels_of_its_fields_reader_or_a_true_line(case, tmp_path):
    data = base64.b64decode(case["data"])
    if data[128:132] == b"DICM" and missing_decoder("DICOM"):
        skip("pydicom is not installed")
    row = REFUSED_BY_NAME.get(case["row"])
    if case["values"] is None:
        with raises(BadImage, match=r"^a\.tif: ") as caught:
            decode_image(data, 3, "a.tif", grey_range=case.get("grey_range"))
        line = str(caught.value)
        assert any(text in line for text in ([f"{row.reason} ("] if row else [OUTSIDE, FLOAT, NO_RANGE]))
        assert row is None or row.fix in line
    else:
        step = case.get("step", 1)
        pixels = decode_image(data, 3, grey_range=case.get("grey_range")).permute(1, 2, 0)[::step, ::step].int().numpy()
        assert np.abs(pixels - expected_pixels(**case)).max() <= case.get("tolerance", 0)
    if "frames" in case:
        (tmp_path / "file").write_bytes(data)
        assert has_frames(str(tmp_path / "file")) == case["frames"]


def test_colors_of_16_bits_are_turned():
    values = 900 * np.arange(72).reshape(4, 6, 3)
    plain, turned = (decode_image(png16(values, one), 3) for one in (1, 6))
    assert turned.equal(plain.rot90(-1, (1, 2)))


def test_each_row_of_the_page_has_a_file():
    _, _, table = (ROOT / "docs/data.md").read_text().partition("| format | property | reading |\n|---|---|---|\n")
    page = {name: reading for _, _, name, reading, _ in cells_of(table.partition("\n\n")[0])}
    assert {case["row"] for case in CASES} == page.keys()
    refused = {row.name: f'refused: "{row.reason}": {row.fix}' for row in REFUSED}
    assert refused == {name: page[name] for name in refused}
    for text in (OUTSIDE, FLOAT, NO_RANGE):
        assert any(text in reading for reading in page.values())


def test_the_header_of_a_tiff_alone_is_read_once_more(monkeypatch, tmp_path):
    monkeypatch.setattr(decode, "TiffHeader", opened := Mock(wraps=TiffHeader))
    monkeypatch.setattr(images, "TiffHeader", None)  # a call would fail: no pages are reported
    for number, data in enumerate(KINDS.values()):
        decode_image(data, 3)
        (tmp_path / str(number)).write_bytes(data)
        has_frames(str(tmp_path / str(number)))
    assert not opened.called
    decode_image(tiff16(np.ones((4, 5, 1)), photometric=1), 3)
    assert opened.call_count == 1
