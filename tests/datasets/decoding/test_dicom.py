"""DICOM images, written by pydicom."""

import io

import numpy as np
from conftest import refused
from pytest import importorskip, mark

from datasets.decoding.decode import Decoding, open_image
from datasets.decoding.images import kind_of, missing_decoder
from tests.datasets.photo import decode_image

pydicom = importorskip("pydicom")
VALUES = np.random.default_rng(0).integers(0, 4096, (7, 9), dtype=np.uint16)


def dicom(values: np.ndarray, kind: str = "MONOCHROME2", bits: int = 12, **elements) -> bytes:
    """A file of `bits` per value; values: (H, W) or (H, W, 3)."""
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = elements.pop("syntax", pydicom.uid.ExplicitVRLittleEndian)
    dataset.SOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    dataset.SOPInstanceUID = pydicom.uid.generate_uid()
    dataset.Rows, dataset.Columns, *channels = values.shape
    dataset.SamplesPerPixel = 3 if channels else 1
    dataset.PlanarConfiguration = 0
    dataset.PhotometricInterpretation = kind
    dataset.BitsAllocated = 8 * values.itemsize
    dataset.BitsStored = bits
    dataset.HighBit = bits - 1
    dataset.PixelRepresentation = int(values.dtype.kind == "i")
    dataset.PixelData = values.tobytes()
    for name, value in elements.items():
        setattr(dataset, name, value)
    dataset.save_as(file := io.BytesIO(), enforce_file_format=True)
    return file.getvalue()


def window(values, center, width):
    """PS3.3 C.11.2.1.2.1, LINEAR."""
    return np.clip((values - (center - 0.5)) / (width - 1) + 0.5, 0, 1)


def nested(**elements):
    dataset = pydicom.Dataset()
    for name, value in elements.items():
        setattr(dataset, name, value)
    return [dataset]


CT = (VALUES.astype(np.int16) - 1000, {"RescaleSlope": 2, "RescaleIntercept": -24})
CASES = {
    "range of 12 bits": (VALUES, {}, VALUES / 4095),
    "MONOCHROME1": (VALUES, {"kind": "MONOCHROME1"}, 1 - VALUES / 4095),
    "INVERSE": (VALUES, {"PresentationLUTShape": "INVERSE"}, 1 - VALUES / 4095),
    "MONOCHROME1 and INVERSE, which are one": (
        VALUES, {"kind": "MONOCHROME1", "PresentationLUTShape": "INVERSE"}, 1 - VALUES / 4095,
    ),
    "window": (VALUES, {"WindowCenter": 900, "WindowWidth": 700}, window(VALUES, 900, 700)),
    "Hounsfield units": (
        CT[0], {"bits": 16, "WindowCenter": [40, 9], "WindowWidth": [400, 9]} | CT[1],
        window(CT[0] * 2.0 - 24, 40, 400),
    ),
    "Enhanced CT, values of all frames and of the first frame": (
        CT[0], {
            "bits": 16,
            "SharedFunctionalGroupsSequence": nested(PixelValueTransformationSequence=nested(**CT[1])),
            "PerFrameFunctionalGroupsSequence": nested(FrameVOILUTSequence=nested(WindowCenter=40, WindowWidth=400)),
        },
        window(CT[0] * 2.0 - 24, 40, 400),
    ),
    "a negative slope": (VALUES, {"RescaleSlope": -1, "RescaleIntercept": 4095}, 1 - VALUES / 4095),
    "a window after a negative slope": (
        VALUES, {"RescaleSlope": -1, "RescaleIntercept": 4095, "WindowCenter": 900, "WindowWidth": 700},
        window(4095.0 - VALUES, 900, 700),
    ),
    "8 bits": ((VALUES % 256).astype(np.uint8), {"bits": 8}, (VALUES % 256) / 255),
}  # fmt: skip


@mark.parametrize("case", CASES)
def test_gray_is_shown_as_the_file_says(case):
    values, elements, expected = CASES[case]
    pixels = decode_image(dicom(values, **elements), 1)[0].numpy()
    assert np.abs(pixels - 255 * expected).max() <= 0.51


def test_color_and_the_grey_range():
    color = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    assert np.array_equal(decode_image(dicom(color, "RGB", 8), 3).permute(1, 2, 0), color)
    pixels = open_image(dicom(VALUES), 1, lambda: "x", Decoding((0, 32767.5))).pixels[0].numpy()
    assert np.abs(pixels - np.clip(VALUES * 2 / 4095, 0, 1) * 255).max() <= 0.51


def test_files_that_are_refused_have_their_reason(monkeypatch):
    frame = pydicom.encaps.encapsulate([b"\xff\xd8\xff\xf7no decoder"])
    lossless = dicom(VALUES, syntax=pydicom.uid.JPEGLSLossless, PixelData=frame)
    with refused(r"JPEG-LS .*pip install 'pylibjpeg"):
        decode_image(lossless, 1)
    with refused("without pixels"):
        decode_image(dicom(VALUES).replace(b"\xe0\x7f\x10\x00", b"\xe1\x7f\x10\x00"), 1)
    for element in (b"\x08\x00", b"\x09\x00"):  # FloatPixelData, DoubleFloatPixelData
        with refused("FloatPixelData: floating-point"):
            decode_image(dicom(VALUES).replace(b"\xe0\x7f\x10\x00OW", b"\xe0\x7f" + element + b"OF"), 1)
    with refused("HighBit"):
        decode_image(dicom(VALUES << 4, HighBit=15), 1)
    with refused("9300 x 9300 pixels, more than DATA"):
        decode_image(dicom(VALUES, Rows=9300, Columns=9300), 1)
    monkeypatch.setattr("datasets.decoding.images.is_installed", lambda name: name != "pydicom")
    missing_decoder.cache_clear()
    assert kind_of(lossless) == "DICOM"
    assert "pip install pydicom" in missing_decoder("DICOM")
    missing_decoder.cache_clear()
