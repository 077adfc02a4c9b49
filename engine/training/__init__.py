"""The trainer and the parts of a training step."""

from utils.library_compat import import_timm_optimizers

import_timm_optimizers()  # before the modules here import them
