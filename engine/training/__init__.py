"""The trainer and the parts of a training step."""

from utils.library_compat import import_timm_optimizers

# Two modules here import timm's optimizers at their head. The first one would import torch's sharded tensors, too, a
# fifth of all imports of a start (test_first_steps.py lists what a start must not import).
import_timm_optimizers()
