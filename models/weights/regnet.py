"""RegNetY-16GF (Radosavovic et al., 2020), the teacher of PaddleViT's distillations: the names of its tensors.

No value of MODEL.TYPE: timm builds it.
"""

from configs.schema.families.family import Family
from configs.schema.model import Model

REGNET = Family(
    "RegNet",
    Model,
    timm="regnety_160",
    arguments=lambda options, data: {},
    defaults={},
    renames=[
        (r"^stem\.0\.", "stem.conv."),
        (r"^stem\.1\.", "stem.bn."),
        (r"^stages\.(\d)\.blocks\.(\d+)\.", lambda match: f"s{int(match[1]) + 1}.b{int(match[2]) + 1}."),
        (r"\.conv(\d)\.", r".conv\1.conv."),
        (r"\.bn(\d)\.", r".conv\1.bn."),
        (r"\.downsample\.conv1x1\.", ".downsample.conv."),
        (r"\.se\.conv(\d)_1x1\.", r".se.fc\1."),
        (r"^head\.2\.", "head.fc."),
    ],
)
