#!/usr/bin/env bash
# transformers 5.24.0 (its Pillow backend, without torch), Pillow 13.0.0
# Subject: images and pixels
# Behaviour: image processors that convert to RGB (CLIP, BiT, which DINOv2 has, SigLIP, TextNet) lay an image with
#   transparency over white: as Pillow image, as array, and as palette image with a transparent color.
# Expected: Image.convert("RGB"), as timm, torchvision and datasets do: the alpha channel is dropped, and the colors
#   behind it count.
# Why it matters: cut-out photographs (products, leaves, logos) often have black behind alpha 0. A classifier that was
#   trained with convert("RGB") sees a white background instead of a black one in transformers.
# Instead: `convert("RGB")` before the processor
# Last lines of a run on 2026-11-28:
#   transformers 5.24.0: alpha 0 over (200, 0, 0): convert [200, 0, 0], CLIP [255, 255, 255], array [255, 255, 255]
#   alpha 128: convert [200, 0, 0], CLIP [227, 127, 127]; palette: convert [200, 0, 0], CLIP [255, 255, 255]
#   white background: BitImageProcessorPil CLIPImageProcessorPil SiglipImageProcessorPil TextNetImageProcessorPil
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq transformers==5.24.0 pillow==13.0.0 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import transformers
from PIL import Image


def first_pixel(image, name="CLIPImageProcessorPil"):
    processor = getattr(transformers, name)(
        do_resize=False, do_center_crop=False, do_rescale=False, do_normalize=False
    )
    return processor(images=image, return_tensors="np")["pixel_values"][0][:, 0, 0].astype(int).tolist()


def convert(image):
    return list(image.convert("RGB").getpixel((0, 0)))


clear = Image.new("RGBA", (8, 8), (200, 0, 0, 0))
half = Image.new("RGBA", (8, 8), (200, 0, 0, 128))
palette = Image.new("P", (8, 8), 0)
palette.putpalette([200, 0, 0, 0, 200, 0])
palette.info["transparency"] = 0
array = first_pixel(np.array(clear))
print(
    f"transformers {transformers.__version__}: alpha 0 over (200, 0, 0): convert {convert(clear)}, "
    f"CLIP {first_pixel(clear)}, array {array}"
)
print(
    f"alpha 128: convert {convert(half)}, CLIP {first_pixel(half)}; "
    f"palette: convert {convert(palette)}, CLIP {first_pixel(palette)}"
)
names = ("Bit", "CLIP", "Siglip", "TextNet")
white = [
    name for name in (f"{name}ImageProcessorPil" for name in names) if first_pixel(clear, name) == [255, 255, 255]
]
print("white background:", *white)
assert convert(clear) == convert(half) == convert(palette) == [200, 0, 0]
assert first_pixel(clear) == array == first_pixel(palette) == [255, 255, 255]
assert first_pixel(half) == [227, 127, 127] and len(white) == len(names)
PYTHON
