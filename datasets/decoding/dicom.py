"""DICOM images, by pydicom: the first frame; gray as its lookup table or window shows it."""

import io
from typing import Any

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile

from datasets.decoding.properties import FLOAT

_DEFLATED = b"1.2.840.10008.1.2.1.99"  # a small file may become any number of bytes


class Dicom(ImageFile):
    """A file whose header is read; `load` decodes it. `is_deep`: it is gray, or has colors of more than 8 bits."""

    format = "DICOM"
    dataset: Any = None

    def _open(self) -> None:
        import pydicom

        data = self.fp.read()  # type: ignore[union-attr]
        if _DEFLATED in data[:1024]:
            raise ValueError("a deflated DICOM file: save it without compression")
        self.dataset = pydicom.dcmread(io.BytesIO(data))
        for name in ("FloatPixelData", "DoubleFloatPixelData"):
            if name in self.dataset:
                raise ValueError(f"a DICOM file with {name}: {FLOAT}")
        if "PixelData" not in self.dataset:
            raise ValueError("a DICOM file without pixels")
        if self.dataset.HighBit != self.dataset.BitsStored - 1:  # pydicom reads the lower bits
            raise ValueError("a DICOM file whose HighBit is not BitsStored - 1: save its pixels with that")
        is_grey = self.dataset.PhotometricInterpretation.startswith("MONOCHROME")
        self._mode = "L" if is_grey else "RGB"
        self.is_deep = is_grey or self.dataset.BitsStored > 8
        self._size = self.dataset.Columns, self.dataset.Rows
        self.n_frames = int(self.dataset.get("NumberOfFrames") or 1)

    def load(self) -> Any:
        if self.dataset:
            pixels = self.scaled("u1")
            self.dataset = None
            self.load_prepare()
            self.frombytes(pixels.tobytes())
        return super().load()

    def scaled(self, dtype: str) -> np.ndarray:
        """The first frame, (H, W) or (H, W, 3). dtype: of unsigned integers, for all values that the file may have."""
        from pydicom.encaps import get_frame
        from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi_lut, pixel_array

        dataset = self.dataset
        syntax = dataset.file_meta.TransferSyntaxUID
        if syntax.name.startswith(("JPEG Baseline", "JPEG 2000")):  # Pillow decodes it: the frame has a size of its own
            frame = io.BytesIO(get_frame(dataset.PixelData, 0, number_of_frames=self.n_frames))
            if Image.open(frame, formats=("JPEG", "JPEG2000")).size != self.size:
                raise ValueError("its frame has another size than its header")
        try:
            values = pixel_array(dataset, index=0)
        except RuntimeError as error:
            raise ValueError(
                f"{syntax.name} has no decoder here: pip install 'pylibjpeg[all]', or convert it to PNG"
            ) from error
        lowest = -(1 << dataset.BitsStored - 1) if dataset.PixelRepresentation else 0
        ends = np.array([lowest, lowest + (1 << dataset.BitsStored) - 1])
        kind = dataset.PhotometricInterpretation
        if kind == "PALETTE COLOR":
            values = apply_color_lut(values, dataset)
            ends = np.array([0, np.iinfo(values.dtype).max])
        elif kind.startswith("MONOCHROME"):
            _take_values_of_first_frame(dataset)
            values = apply_voi_lut(apply_modality_lut(values, dataset), dataset)
            ends = apply_modality_lut(ends, dataset)
            if "WindowWidth" not in dataset:  # the window of a negative slope ends with the lowest value
                ends.sort()
            if tables := dataset.get("VOILUTSequence"):
                ends = np.array([0, (1 << tables[0].LUTDescriptor[2]) - 1])
        shares = (values - ends[0]) / (ends[1] - ends[0])
        if kind == "MONOCHROME1" or dataset.get("PresentationLUTShape") == "INVERSE":  # one inversion: PS3.3 C.8.11.3
            shares = 1 - shares
        return np.rint(shares.clip(0, 1) * np.iinfo(dtype).max).astype(dtype)


def _take_values_of_first_frame(dataset: Any) -> None:
    """Copies slope and window of an Enhanced CT or MR from its functional groups to where pydicom looks for them."""
    for place in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        for groups in dataset.get(place, [])[:1]:
            for name in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
                for values in groups.get(name, [])[:1]:
                    dataset.update(values)
