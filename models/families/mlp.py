"""MLP-Mixer, ResMLP and gMLP: timm's class with three kinds of blocks and any arguments; timm's names fix them."""

from functools import partial

from timm.models.mlp_mixer import Affine, GatedMlp, MixerBlock, MlpMixer, ResBlock, SpatialGatingBlock

mixer = partial(MlpMixer, block_layer=MixerBlock, mlp_ratio=(0.5, 4.0))
resmlp = partial(MlpMixer, block_layer=ResBlock, norm_layer=Affine)
gated_mlp = partial(MlpMixer, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp)
