"""DICOM images, written by pydicom."""

import io

import numpy as np
from conftest import each_value, line_of, refused, values_of
from pytest import importorskip, mark

from datasets.decoding.images import kind_of, missing_decoder
from tests.datasets.photo import decode_image

pydicom = importorskip("pydicom")
VALUES = np.random.default_rng(0).integers(0, 4096, (7, 9), dtype=np.uint16)


def dicom(values: np.ndarray, kind: str = "MONOCHROME2", bits: int = 12, **elements) -> bytes:
    """A file of `bits` per value; values: (H, W) or (H, W, 3)."""
    file = dataset_of(SOPClassUID=pydicom.uid.SecondaryCaptureImageStorage)
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.set_pixel_data(values, kind, bits)
    file.file_meta.TransferSyntaxUID = elements.pop("syntax", pydicom.uid.ExplicitVRLittleEndian)
    file.update(dataset_of(**elements))
    file.save_as(written := io.BytesIO(), enforce_file_format=True)
    return written.getvalue()


def dataset_of(**elements):
    dataset = pydicom.Dataset()
    for name, value in elements.items():
        setattr(dataset, name, [dataset_of(**value)] if isinstance(value, dict) else value)
    return dataset


# The type of the values, the elements, and the stored values that are shown as black and as white. Of a window
# (PS3.3 C.11.2.1.2.1, LINEAR) these are center - 0.5 -+ (width - 1) / 2, after the slope and the intercept.
CASES = values_of("""
uint16 | {} | 0 | 4095
uint16 | {kind: MONOCHROME1} | 4095 | 0
uint16 | {PresentationLUTShape: INVERSE} | 4095 | 0
uint16 | {kind: MONOCHROME1, PresentationLUTShape: INVERSE} | 4095 | 0                            # one inversion
uint16 | {WindowCenter: 900, WindowWidth: 700} | 550 | 1249
int16  | {bits: 16, WindowCenter: [40, 9], WindowWidth: [400, 9], RescaleSlope: 2, RescaleIntercept: -24} | -68 | 131.5
int16  | {bits: 16, SharedFunctionalGroupsSequence: {PixelValueTransformationSequence: {RescaleSlope: 2,\
 RescaleIntercept: -24}}, PerFrameFunctionalGroupsSequence: {FrameVOILUTSequence: {WindowCenter: 40,\
 WindowWidth: 400}}} | -68 | 131.5                                                                 # Enhanced CT
uint16 | {RescaleSlope: -1, RescaleIntercept: 4095} | 4095 | 0
uint16 | {RescaleSlope: -1, RescaleIntercept: 4095, WindowCenter: 900, WindowWidth: 700} | 3545 | 2846
uint8  | {bits: 8} | 0 | 255
""")


def grey_of(dtype: str, elements: dict) -> tuple[np.ndarray, bytes]:
    """Values, and a file of them."""
    values = {"uint16": VALUES, "uint8": VALUES % 256, "int16": VALUES.astype("i2") - 1000}[dtype].astype(dtype)
    return values, dicom(values, **elements)


@mark.parametrize("dtype, elements, black, white", CASES)
def test_gray_is_shown_as_the_file_says(dtype, elements, black, white):
    values, file = grey_of(dtype, elements)
    pixels = decode_image(file, 1)[0].numpy()
    assert np.abs(pixels - 255 * ((values.astype(float) - black) / (white - black)).clip(0, 1)).max() <= 0.51


def test_colors_are_those_of_the_file():
    color = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    assert np.array_equal(decode_image(dicom(color, "RGB", 8), 3).permute(1, 2, 0), color)


@each_value(r"""
elements | old | new | text
{} | "\xe0\x7f\x10\0" | "\xe1\x7f\x10\0" | without pixels
{} | "\xe0\x7f\x10\0OW" | "\xe0\x7f\x08\0OF" | 'with FloatPixelData: floating-point'
{} | "\xe0\x7f\x10\0OW" | "\xe0\x7f\x09\0OF" | with DoubleFloatPixelData
{HighBit: 15} | "" | "" | HighBit
{Rows: 9300, Columns: 9300} | "" | "" | 9300 x 9300 pixels, more than DATA
""")
def test_files_that_are_refused_have_their_reason(elements, old, new, text):
    data = dicom(VALUES, **elements).replace(old.encode("latin-1"), new.encode("latin-1"))
    assert text in line_of(decode_image, data, 1)


def test_a_decoder_that_is_not_installed_is_named(monkeypatch):
    frame = pydicom.encaps.encapsulate([b"\xff\xd8\xff\xf7no decoder"])
    lossless = dicom(VALUES, syntax=pydicom.uid.JPEGLSLossless, PixelData=frame)
    with refused(r"JPEG-LS .*pip install 'pylibjpeg"):
        decode_image(lossless, 1)
    monkeypatch.setattr("datasets.decoding.images.is_installed", lambda name: name != "pydicom")
    missing_decoder.cache_clear()
    assert kind_of(lossless) == "DICOM"
    assert "pip install pydicom" in missing_decoder("DICOM")
    missing_decoder.cache_clear()
