"""Paddle Fleet's names of the options that exchange gradients."""

import pytest

from configs.reading.command_line import parse_command_line, to_yaml
from utils.errors import UserError


def parallel(*options: str):
    return parse_command_line(["-opts", "SEED=0", *(f"PARALLEL.{option}" for option in options)]).config.parallel


@pytest.mark.parametrize(
    ("options", "comm_hook", "bucket_mb"),
    [
        ((), "none", None),
        (("FP16_ALLREDUCE=true",), "fp16", None),
        (("FP16_ALLREDUCE=false", "COMM_HOOK=none"), "none", None),
        (("FUSE_GRAD_SIZE_IN_MB=32", "FUSE_ALL_REDUCE_OPS=true"), "none", 32),
        (("FUSE_GRAD_SIZE_IN_MB=32", "BUCKET_MB=32", "FP16_ALLREDUCE=true", "COMM_HOOK=fp16"), "fp16", 32),
        (("FUSE_ALL_REDUCE_OPS=false",), "none", 0),
        (("FUSE_ALL_REDUCE_OPS=false", "BUCKET_MB=0"), "none", 0),
    ],
)
def test_fleets_names_set_the_same_options(options, comm_hook, bucket_mb):
    found = parallel(*options)
    assert (found.comm_hook, found.bucket_mb) == (comm_hook, bucket_mb)


def test_the_file_of_a_run_has_the_names_of_this_program(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text("PARALLEL: {FUSE_GRAD_SIZE_IN_MB: 64, FP16_ALLREDUCE: true}\n")
    written = to_yaml(parse_command_line([f"-cfg={file}"]).config)
    assert "COMM_HOOK: fp16" in written and "BUCKET_MB: 64.0" in written
    assert "FUSE" not in written and "FP16_ALLREDUCE" not in written


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("COMM_HOOK=bf16", "FP16_ALLREDUCE=true"),
            "FP16_ALLREDUCE true contradicts COMM_HOOK bf16; remove one of",
        ),
        (("COMM_HOOK=fp16", "FP16_ALLREDUCE=false"), "FP16_ALLREDUCE false contradicts COMM_HOOK fp16; remove one of"),
        (("BUCKET_MB=5", "FUSE_GRAD_SIZE_IN_MB=32"), "FUSE_GRAD_SIZE_IN_MB 32 contradicts BUCKET_MB 5; remove one of"),
        (("BUCKET_MB=5", "FUSE_ALL_REDUCE_OPS=false"), "FUSE_ALL_REDUCE_OPS false contradicts BUCKET_MB 5; remove one"),
        (
            ("FUSE_GRAD_SIZE_IN_MB=5", "FUSE_ALL_REDUCE_OPS=false"),
            "FUSE_ALL_REDUCE_OPS false contradicts FUSE_GRAD_SIZE",
        ),
        (("BUCKET_MB=0", "FUSE_ALL_REDUCE_OPS=true"), "FUSE_ALL_REDUCE_OPS true contradicts BUCKET_MB 0; remove one"),
        (("FP16_ALLREDUCE=1",), "FP16_ALLREDUCE must be true or false"),
        (("FUSE_GRAD_SIZE_IN_MB=big",), "FUSE_GRAD_SIZE_IN_MB must be a number above 0"),
        (("FUSE_GRAD_SIZE_IN_MB=0",), "FUSE_GRAD_SIZE_IN_MB must be a number above 0"),
        (("STRATEGY=fsdp", "FUSE_GRAD_SIZE_IN_MB=32"), "BUCKET_MB belongs to ddp, but STRATEGY is fsdp; remove one of"),
    ],
)
def test_contradictions_are_one_line(options, expected):
    with pytest.raises(UserError) as caught:
        parallel(*options)
    assert f"PARALLEL.{expected}" in str(caught.value) and "\n" not in str(caught.value)


def test_fleets_own_spelling_names_the_key(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text("PARALLEL:\n    fuse_grad_size_in_MB: 32\n")
    with pytest.raises(UserError, match=r"fleet.yaml:2: unknown key .*did you mean PARALLEL.FUSE_GRAD_SIZE_IN_MB\?"):
        parse_command_line([f"-cfg={file}"])
