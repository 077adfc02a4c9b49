"""The section PARALLEL."""

from typing import Literal

from pydantic import Field, model_validator

from configs.schema.section import Section


class Parallel(Section):
    """Options of sharing the model and exchanging gradients between ranks; not used by one process."""

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
    comm_hook: Literal["none", "bf16", "fp16"] = Field(
        "none", description="ddp: dtype in which gradients are exchanged; none: their own"
    )
    sync_bn: bool = Field(
        False, description="ddp on GPUs: batch norms use the statistics of all ranks' batches; see docs/clusters.md"
    )
    bucket_mb: float | None = Field(
        None,
        ge=0,
        le=10**4,
        description="ddp: size of the buckets in which gradients are exchanged, MiB; 0: one per parameter; null: "
        "torch's default, a first one of 1 and others of 25",
    )

    @model_validator(mode="after")
    def _check(self) -> "Parallel":
        if self.shards_per_group and self.strategy != "hsdp":
            raise ValueError(f"SHARDS_PER_GROUP belongs to hsdp, but STRATEGY is {self.strategy}; remove one of them")
        if self.comm_hook != "none" and self.strategy != "ddp":
            raise ValueError(f"COMM_HOOK belongs to ddp, but STRATEGY is {self.strategy}; remove one of them")
        if self.bucket_mb is not None and self.strategy != "ddp":
            raise ValueError(f"BUCKET_MB belongs to ddp, but STRATEGY is {self.strategy}; remove one of them")
        return self
