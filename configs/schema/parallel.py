"""The section PARALLEL."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from configs.reading.yaml_io import format_value
from configs.schema.section import Section


class Parallel(Section):
    """Options of sharing the model and exchanging gradients between ranks; not used by one process.

    `aliases` are Paddle Fleet's names: FP16_ALLREDUCE is COMM_HOOK fp16 or none, FUSE_GRAD_SIZE_IN_MB is BUCKET_MB, and
    FUSE_ALL_REDUCE_OPS false is BUCKET_MB 0.
    """

    aliases: ClassVar = ("FUSE_ALL_REDUCE_OPS", "FUSE_GRAD_SIZE_IN_MB", "FP16_ALLREDUCE")

    strategy: Literal["ddp", "fsdp", "hsdp"] = Field(
        "ddp",
        description="ddp: each rank holds the whole model; fsdp: all ranks share parameters, gradients and moments; "
        "hsdp: groups of ranks share them, each group holds all",
    )
    shards_per_group: int | None = Field(
        None, ge=2, description="hsdp: ranks that share one copy of the model; null: the ranks of a host"
    )
    reshard_after_forward: bool = Field(
        True,
        description="fsdp, hsdp: free a block's gathered parameters after its forward pass: less memory, more traffic",
    )
    reduce_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="fsdp, hsdp: dtype in which gradients are summed over the ranks"
    )
    offload: bool = Field(
        False, description="fsdp, hsdp: keep parameters, gradients and moments in host memory, far slower"
    )
    comm_hook: Literal["none", "bf16", "fp16"] = Field(
        "none", description="ddp: dtype in which gradients are exchanged; none: their own"
    )
    bucket_mb: float | None = Field(
        None,
        ge=0,
        le=10**4,
        description="ddp: size of the buckets in which gradients are exchanged, MiB; 0: one per parameter; null: "
        "torch's default, a first one of 1 and others of 25",
    )

    @model_validator(mode="before")
    @classmethod
    def _replace_aliases(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for alias in ("FUSE_ALL_REDUCE_OPS", "FP16_ALLREDUCE"):
            if not isinstance(values.get(alias, True), bool):
                raise ValueError(f"{alias} must be true or false")
        size, fuses, fp16 = (
            values.get(key) for key in ("FUSE_GRAD_SIZE_IN_MB", "FUSE_ALL_REDUCE_OPS", "FP16_ALLREDUCE")
        )
        if size is not None and (type(size) not in (int, float) or size <= 0):
            raise ValueError("FUSE_GRAD_SIZE_IN_MB must be a number above 0")
        if size and fuses is False:
            raise ValueError(f"FUSE_ALL_REDUCE_OPS false contradicts FUSE_GRAD_SIZE_IN_MB {size}; remove one of them")
        meanings = (
            ("FUSE_GRAD_SIZE_IN_MB", "BUCKET_MB", size),
            ("FUSE_ALL_REDUCE_OPS", "BUCKET_MB", 0 if fuses is False else None),
            ("FP16_ALLREDUCE", "COMM_HOOK", None if fp16 is None else "fp16" if fp16 else "none"),
        )
        if fuses and values.get("BUCKET_MB") == 0:
            raise ValueError("FUSE_ALL_REDUCE_OPS true contradicts BUCKET_MB 0; remove one of them")
        present = {key: value for key, value in values.items() if key not in cls.aliases}
        for alias, key, value in meanings:
            if value is None:
                continue
            if present.get(key) not in (None, value):
                now, other = f"{alias} {format_value(values[alias])}", f"{key} {format_value(present[key])}"
                raise ValueError(f"{now} contradicts {other}; remove one of them")
            present[key] = value
        return present

    @model_validator(mode="after")
    def _check(self) -> "Parallel":
        if self.shards_per_group and self.strategy != "hsdp":
            raise ValueError(f"SHARDS_PER_GROUP belongs to hsdp, but STRATEGY is {self.strategy}; remove one of them")
        if self.comm_hook != "none" and self.strategy != "ddp":
            raise ValueError(f"COMM_HOOK belongs to ddp, but STRATEGY is {self.strategy}; use REDUCE_DTYPE instead")
        if self.bucket_mb is not None and self.strategy != "ddp":
            raise ValueError(f"BUCKET_MB belongs to ddp, but STRATEGY is {self.strategy}; remove one of them")
        return self
