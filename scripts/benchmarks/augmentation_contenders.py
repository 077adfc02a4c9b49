"""The contenders of `benchmark_input.py -augment deit`: DeiT's augmentation in our loader and in timm's."""

import timm.data
import timm.data.auto_augment

from configs.schema import Config
from datasets.transforms.pillow_ops import posterize
from scripts.benchmarks.input_contenders import NUM_CLASSES, Contender, our_batches, timm_batches
from utils.distributed import ProcessContext

DEIT = (
    "TRAIN.AUGMENT_POLICY=rand-m9-mstd0.5-inc1", "TRAIN.COLOR_JITTER=0.4", "TRAIN.RANDOM_ERASE_PROB=0.25",
    "TRAIN.RANDOM_ERASE_MODE=pixel", "TRAIN.MIXUP_ALPHA=0.8", "TRAIN.CUTMIX_ALPHA=1.0",
)  # fmt: skip


def deit_contenders(config: Config, context: ProcessContext) -> dict[str, Contender]:
    """`config` has the options `DEIT`.

    timm's posterize is replaced: it ends the loader with Pillow 13 as soon as an image draws 0 bits.
    """
    timm.data.auto_augment.NAME_TO_OP["PosterizeIncreasing"] = posterize
    train = config.train
    paddlevit = train.model_copy(update={"augment_policy": None, "rand_augment": True})
    augmentation = {
        "auto_augment": train.augment_policy,
        "color_jitter": train.color_jitter,
        "re_prob": train.random_erase_prob,
        "re_mode": train.random_erase_mode,
    }

    def mixing_collation() -> timm.data.FastCollateMixup:  # as timm's train.py
        return timm.data.FastCollateMixup(
            mixup_alpha=train.mixup_alpha,
            cutmix_alpha=train.cutmix_alpha,
            prob=train.mixup_prob,
            switch_prob=train.mixup_switch_prob,
            mode=train.mixup_mode,
            label_smoothing=0.0,
            num_classes=NUM_CLASSES,
        )

    return {
        "timm create_loader": Contender(
            lambda: timm_batches(
                config.data, context.device, use_prefetcher=True, collate_fn=mixing_collation(), **augmentation
            ),
            "float32, mixed by the workers, normalized and erased by the main process (as in train.py)",
        ),
        "ours, PaddleViT's RandAugment": Contender(
            lambda: our_batches(config.model_copy(update={"train": paddlevit}), context),
            "float32, normalized, erased and mixed on the device",
        ),
        "ours": Contender(lambda: our_batches(config, context), "float32, normalized, erased and mixed on the device"),
    }
