"""The classes of transformers for the model in vit_stem.py. Exports have a copy of both files.

AutoModelForImageClassification.from_pretrained(FOLDER, trust_remote_code=True) reads such an export.
"""

from transformers import TimmWrapperConfig, TimmWrapperForImageClassification

from .vit_stem import vit_stem


class VitStemConfig(TimmWrapperConfig):
    model_type = vit_stem.__name__  # any other name is found without this code


class VitStemForImageClassification(TimmWrapperForImageClassification):
    config_class = VitStemConfig
