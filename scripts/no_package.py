"""The build backend of pyproject.toml: refuses `pip install .`, with one line.

Packages with names as general as `datasets` do not belong into site-packages.
"""

import sys
from typing import Any, NoReturn


def refuse(*_: Any, **__: Any) -> NoReturn:
    command = "pip install -r requirements.txt && python main_single_gpu.py -h"
    sys.exit(f"error: AmpViT is no package and runs from its clone: {command}, or bash scripts/quickstart.sh")


get_requires_for_build_wheel = get_requires_for_build_editable = get_requires_for_build_sdist = refuse
build_wheel = build_editable = build_sdist = refuse
