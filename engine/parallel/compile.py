"""`torch.compile` of the training passes.

Only training is compiled. Evaluation, the search for non-finite modules and DDP's warm-up run the same modules eagerly:
they use other batch sizes and modes, and each would need a compilation of its own.
"""

import os
from contextlib import AbstractContextManager

import torch
from torch import nn

from configs.schema import Train
from models.blocks import blocks_of, share_drop_path
from utils.distributed import ProcessContext
from utils.errors import UserError, error_from
from utils.processes.launch import inherited_import_path
from utils.torch_compat import (
    allow_recompilations,
    compile_cache_folders,
    select_compiled_kernels_by_time,
    split_graphs_at_ddp_buckets,
)


def compile_model(model: nn.Module, options: Train, context: ProcessContext, is_sharded: bool = False) -> str | None:
    """Marks `model` for compilation in its first pass; returns a description of the compiled part, or None.

    `default` compiles block by block: blocks of the same structure share one compilation of a few seconds. Blocks that
    drop samples without computing them have one for each number. A model without `blocks` is compiled as a whole, and
    any model with `model` and `max`; compile time grows with depth. On a GPU `max` also times several kernels per
    matrix product, and replays CUDA graphs where that is safe. Kernels round differently: a run that is resumed without
    torch's cache, or on another machine, may differ in the last bits. Parameters and state dict keep their names.

    A sharded model is always compiled block by block, between the gathering and the freeing of a block's parameters.
    Marking a module compiles nothing yet, so the model may be sharded before.
    Raises UserError: no working compiler.
    """
    if not options.compiles:
        return None
    check_compiler(context.device)
    select_compiled_kernels_by_time(not torch.are_deterministic_algorithms_enabled())
    mode = None
    if options.compile == "max" and context.device.type != "cpu":  # whose default is faster than torch's other kernels
        # A replay of CUDA graphs overwrites the outputs of the previous one, so it would overwrite accumulated
        # gradients; graphs are not tried with DDP. Otherwise a step reads no logits and no gradients of earlier steps,
        # and needs no `cudagraph_mark_step_begin`: for torch a forward pass that follows a backward pass begins a step.
        graphs_are_safe = options.accum_iter == 1 and context.world_size == 1
        mode = "max-autotune" if graphs_are_safe else "max-autotune-no-cudagraphs"
    blocks = (blocks_of(model) or [model]) if is_sharded else list(getattr(model, "blocks", ()))
    by_block = is_sharded or (options.compile == "default" and bool(blocks))
    split_graphs_at_ddp_buckets(not by_block)  # a block ends before its gradients fill a bucket
    parts = blocks if by_block else [model]
    if by_block:
        share_drop_path(model)
        allow_recompilations(len(parts))
    for part in parts:
        part.compile(dynamic=False, mode=mode)
    about = f"{len(parts)} blocks" if by_block else "the whole model"
    return f"{about}, {mode}" if mode else about


def run_eagerly() -> AbstractContextManager[None]:
    """The context in which compiled modules run eagerly."""
    return torch.compiler.set_stance("force_eager")


def check_compiler(device: torch.device) -> None:
    """Compiles a small function, so that a missing compiler or a damaged cache is found before training starts.

    Raises UserError: it cannot be compiled, or the cache belongs to another user.
    """
    try:
        folders = compile_cache_folders()
        for variable, folder in folders.items():  # torch.compile unpickles and loads their files
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if {os.stat(folder, follow_symlinks=follows).st_uid for follows in (True, False)} != {os.geteuid()}:
                problem = f"{variable}: {folder} belongs to another user, and torch.compile runs code from it"
                raise UserError(f"{problem}; set {variable} to a folder of your own, or remove -compile")
    except OSError as error:
        problem = f"TRAIN.COMPILE: the cache {error.filename}: {error.strerror}"
        raise error_from(error, f"{problem}; remove -compile") from error
    try:
        with inherited_import_path():  # torch asks Python processes which vector instructions work
            torch.compile(lambda tensor: tensor.sin() + 1)(torch.zeros(8, device=device))
    except Exception as error:  # of many types: a missing C++ compiler, no Triton, a read-only folder
        cause = getattr(error, "inner_exception", error)
        reason = next(iter(str(cause).splitlines()), type(cause).__name__)
        cache = folders.get("TORCHINDUCTOR_CACHE_DIR", folders["TMPDIR"])
        fix = f"install g++, delete the cache {cache} if it is damaged, or remove -compile"
        raise error_from(error, f"TRAIN.COMPILE: torch cannot compile: {reason}; {fix}") from error
