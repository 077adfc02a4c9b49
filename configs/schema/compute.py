"""The sections AMP and PARALLEL: the precision of a step, and how the ranks share it."""

from collections.abc import Iterator
from typing import Literal

from configs.schema.section import Count, Names, Section, option, optional, switch
from configs.yaml_io import Values

Preset = Literal["fp32", "torch", "naive", "apex_o1", "apex_o2", "fleet", "paddle", "bf16_stream"]


def _scaled(level: str, scale: float, incr_every_n_steps: int, decr_every_n_nan_or_inf: int) -> Values:
    """Mixed precision whose loss scale doubles and halves."""
    return {
        "ENABLED": True, "LEVEL": level, "INIT_LOSS_SCALING": scale, "INCR_EVERY_N_STEPS": incr_every_n_steps,
        "DECR_EVERY_N_NAN_OR_INF": decr_every_n_nan_or_inf, "INCR_RATIO": 2.0, "DECR_RATIO": 0.5,
    }  # fmt: skip


PRESETS: dict[str, Values] = {
    "fp32": {"ENABLED": False},
    "torch": _scaled("O1", 65536.0, 2000, 1),  # torch.amp.GradScaler; Colossal-AI's AMP_TYPE.TORCH
    "naive": _scaled("O2", 65536.0, 1000, 2),  # Colossal-AI's AMP_TYPE.NAIVE: DynamicGradScaler, fp32 master weights
    "apex_o1": _scaled("O1", 65536.0, 2000, 1),  # apex.amp.initialize, LossScaler
    "apex_o2": _scaled("O2", 65536.0, 2000, 1),
    "fleet": _scaled("O1", 32768.0, 1000, 2),  # amp_configs of Fleet's DistributedStrategy
    "paddle": _scaled("O1", 1024.0, 2000, 1),  # the scale of Paddle's tutorial on AMP, other values of its GradScaler
    "bf16_stream": {
        "ENABLED": True, "LEVEL": "O1", "DTYPE": "bfloat16", "CUSTOM_WHITE_LIST": ["layer_norm", "add"],
    },
}  # fmt: skip


class Amp(Section):
    """Mixed precision. In YAML, `AMP: true` means `AMP: {ENABLED: true}`. The loss scaling keys are Paddle Fleet's."""

    enabled: bool = switch("mixed precision in training and evaluation")
    preset: Preset | None = optional(
        "ENABLED, LEVEL, loss scaling of another system, or op lists of bf16_stream (docs/amp.md); other keys win"
    )
    dtype: Literal["float16", "bfloat16"] | None = optional("half precision; null: float16 on a GPU, else bfloat16")
    level: Literal["O1", "O2", "O3"] = option("O1", "O1: autocast; O2: half and master weights; O3: half weights")
    tf32: bool | None = optional("TensorFloat-32 for fp32 operations on a GPU; null: as ENABLED")
    init_loss_scaling: float = option(65536.0, "float16: initial loss scale", ge=1e-6, le=1e38)
    use_dynamic_loss_scaling: bool = option(True, "float16: change the loss scale after overflows")
    incr_ratio: float = option(2.0, "growth factor of the loss scale", gt=1)
    incr_every_n_steps: int = option(2000, "consecutive steps without overflow until the scale grows", ge=1, lt=2**31)
    decr_ratio: float = option(0.5, "backoff factor of the loss scale", gt=0, lt=1)
    decr_every_n_nan_or_inf: Count = option(1, "consecutive overflows before the loss scale shrinks")
    min_loss_scaling: float = option(1.0, "minimum loss scale", ge=1e-6, le=1e38)
    max_skipped_steps: int | None = optional(
        "abort after this many consecutive steps with non-finite gradients, in any precision; 0: never; null: the "
        "number of steps from the initial to the minimum loss scale, plus 2 (18 by default)",
        ge=0,
    )
    custom_white_list: Names = option((), "ops and modules (blocks.11.*) that compute in the half dtype")
    custom_black_list: Names = option((), "ops and modules that compute in fp32; has priority over the white list")

    def _problems(self) -> Iterator[str]:
        smallest = self.min_loss_scaling
        if self.preset == "bf16_stream" and self.dtype != "bfloat16":
            yield "PRESET bf16_stream: the range of float16 is too small; remove DTYPE (-amp_dtype)"
        if smallest > self.init_loss_scaling:
            yield f"MIN_LOSS_SCALING {smallest:g} exceeds INIT_LOSS_SCALING; lower it"
        for name in sorted(set(self.custom_white_list) & set(self.custom_black_list)):
            yield f"CUSTOM_WHITE_LIST and CUSTOM_BLACK_LIST both contain {name[:80]}; remove one of them"


class Parallel(Section):
    """Options of sharing the model and exchanging gradients between ranks; not used by one process."""

    needs = (
        ("SHARDS_PER_GROUP", "STRATEGY", "hsdp"),
        ("COMM_HOOK", "STRATEGY", "ddp"),
        ("BUCKET_MB", "STRATEGY", "ddp"),
    )
    strategy: Literal["ddp", "fsdp", "hsdp"] = option(
        "ddp",
        "ddp: each rank holds the whole model; fsdp: all ranks share parameters, gradients and moments; hsdp: groups "
        "of ranks share them, each group holds all",
    )
    shards_per_group: int | None = optional("hsdp: ranks that share a copy of the model; null: a host's", ge=2)
    reshard_after_forward: bool = option(
        True, "fsdp, hsdp: free a block's gathered parameters after its forward pass: less memory, more traffic"
    )
    comm_hook: Literal["none", "bf16", "fp16"] = option("none", "ddp: dtype of exchanged gradients; none: their own")
    sync_bn: bool = switch("ddp on GPUs: batch norms use all ranks' statistics (docs/clusters.md)")
    bucket_mb: float | None = optional(
        "ddp: size of the buckets in which gradients are exchanged, MiB; 0: one per parameter; null: torch's default, "
        "a first one of 1 and others of 25",
        ge=0,
        le=10**4,
    )
