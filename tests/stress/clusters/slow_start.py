"""A plugin: an augmentation that slows down the first start of a Slurm job, and changes no image."""

import os
import random
import time

from torch import Tensor

from configs.parts import Options, host_augmentation


@host_augmentation("slow_start", Options)
def slow_start(image: Tensor, rng: random.Random, options: Options) -> Tensor:
    if "SLURM_JOB_ID" in os.environ and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        time.sleep(0.02)
    return image
