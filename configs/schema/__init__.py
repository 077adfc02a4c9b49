"""Every option once: name, type, unit, default, check.

Keys are upper case in YAML (`TRAIN.BASE_LR`) and lower case in Python (`config.train.base_lr`). Keys and defaults come
from PaddleViT's `config.py`; each model family has its own in `families/`. This package does not import torch.
"""

from configs.schema.compute import Amp, Parallel
from configs.schema.config import Config
from configs.schema.data import Data
from configs.schema.model import Model
from configs.schema.train import Distillation, Loss, LRScheduler, Optimizer, Train

__all__ = ["Amp", "Config", "Data", "Distillation", "LRScheduler", "Loss", "Model", "Optimizer", "Parallel", "Train"]
