"""MLP-Mixer, ResMLP and gMLP: timm's class with the block of each. timm's names fix the arguments that vary here."""

from functools import partial

from timm.models.mlp_mixer import Affine, GatedMlp, MixerBlock, MlpMixer, ResBlock, SpatialGatingBlock

mixer = partial(MlpMixer, block_layer=MixerBlock, mlp_ratio=(0.5, 4.0))
resmlp = partial(MlpMixer, block_layer=ResBlock, norm_layer=Affine)
gated_mlp = partial(MlpMixer, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp)
