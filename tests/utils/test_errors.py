"""The exit status of an error says whether a retry may cure it: real errors of each kind; how errors are printed.

Shortages of memory are recognized by the messages of torch and its libraries; other errors of a GPU are not. The
messages come from torch 2.15, CUDA 13.2, cuDNN 9.26, NCCL 2.30 and Triton, from their sources and reports.
"""

import difflib
import io
import pickle
import random
import re
import sys

import torch
import torch.distributed as dist
from conftest import config_for, samples_for, slow
from pytest import mark, raises

from configs.command_line import parse_command_line
from datasets.decoding.decode import open_image
from datasets.shards.store import ShardStore
from engine.checkpoint import run_folder
from engine.checkpoint.files import find_checkpoint
from engine.run.log import RunLogger
from utils.device import IN_EVALUATION, IN_LOADING, find_shortage, visible_gpus
from utils.errors import (
    MAY_PASS,
    REFUSED,
    Findings,
    Unavailable,
    UserError,
    combine_findings,
    did_you_mean,
    error_from,
    escape_control_characters,
)  # fmt: skip
from utils.processes.entry import run_and_report_errors
from utils.signals import Interrupted


def raising(error):
    def main(argv):
        raise error

    return main


def damaged(folder, name):
    (folder / name).write_bytes(b"hello" * 100)
    return str(folder / name)


def lock_twice(folder):
    with run_folder.lock_run_folder(folder), run_folder.lock_run_folder(folder):
        pass


REFUSED_ERRORS = {
    "an unknown key": lambda folder, cpu: parse_command_line(["-opts", "TRAIN.NOPE=1"]),
    "a damaged image, which Pillow reports as an OSError": lambda folder, cpu: open_image(b"hello", 3, lambda: "a.jpg"),
    "a damaged checkpoint": lambda folder, cpu: find_checkpoint(damaged(folder, "a.pth"), cpu),
}
MAY_PASS_ERRORS = {
    "no recipe": lambda folder, cpu: parse_command_line([f"-cfg={folder / 'a.yaml'}"]),
    "no data": lambda folder, cpu: samples_for(config_for(f"-data_path={folder}/gone"), cpu, "val"),
    "a server": lambda folder, cpu: ShardStore("http://127.0.0.1:9", 0.0).head(["a.tar"]),
    "no GPU": lambda folder, cpu: visible_gpus("cuda"),
    "a folder in use": lambda folder, cpu: lock_twice(folder),
    "no folder for output": lambda folder, cpu: run_folder.make_run_folder(type(folder)("/proc/none"), "run"),
}


@mark.parametrize("name", [*REFUSED_ERRORS, *MAY_PASS_ERRORS])
def test_status_of(name, tmp_path, cpu, monkeypatch):
    monkeypatch.setattr("engine.checkpoint.run_folder._LOCK_SECONDS", 0.0)
    with raises(UserError) as caught:
        (REFUSED_ERRORS | MAY_PASS_ERRORS)[name](tmp_path, cpu)
    assert caught.value.status == (REFUSED if name in REFUSED_ERRORS else MAY_PASS)
    assert pickle.loads(pickle.dumps(caught.value)).status == caught.value.status  # on the other ranks
    assert run_and_report_errors(raising(caught.value), []) == caught.value.status


def test_advice_that_many_findings_have_is_given_once():
    error = combine_findings("t.csv: 3 problems", ["a: no; drop it", "b: no; drop it", "c; remove it"])
    assert str(error) == "t.csv: 3 problems\n  a: no; drop it\n  b: no\n  c; remove it"


def test_an_error_about_an_error_keeps_its_status():
    for cause, expected in ((UserError("a"), REFUSED), (Unavailable("a"), MAY_PASS), (OSError(28, "full"), MAY_PASS)):
        assert error_from(cause, f"-resume: {cause}").status == expected


def test_status_of_a_signal():
    assert run_and_report_errors(raising(Interrupted(15)), []) == 143


ESCAPE = "\x1b]0;harm\x07\x1b[31m\u202e\udcff\r"


def printed_by(capsys, error: Exception) -> str:
    assert run_and_report_errors(raising(error), []) == error.status
    return capsys.readouterr().err


def test_the_command_that_resumes_follows_an_error(capsys, monkeypatch):
    monkeypatch.setattr("utils.notes.on_run_end", lambda **values: "again")
    assert printed_by(capsys, UserError("3.jpg")) == "error: 3.jpg\nresume with: again\n"
    with raises(ZeroDivisionError):
        run_and_report_errors(lambda argv: 1 // 0, [])
    assert capsys.readouterr().err == "resume with: again\n"  # before Python's traceback


def test_the_log_and_the_screen_are_printable(tmp_path, capsys, cpu):
    logger = RunLogger(cpu)
    logger.open(tmp_path)
    logger.info(ESCAPE)
    for text in (capsys.readouterr().out, (tmp_path / "log.txt").read_text()):
        assert text.endswith(f"{escape_control_characters(ESCAPE)}\n")


def test_control_sequences_are_escaped(capsys):
    assert escape_control_characters(text := "Ünï 中文 🙂 $\\frac{\n") == text
    assert escape_control_characters(ESCAPE) == r"\x1b]0;harm\x07\x1b[31m\u202e\udcff\r"
    escaped = escape_control_characters(ESCAPE[:-1])
    assert printed_by(capsys, UserError(f"{ESCAPE[:-1]}.jpg\n: bad")) == f"error: {escaped}.jpg : bad\n"


@mark.parametrize("count, more", [(20, None), (21, "  ... and 1 more")])
def test_each_finding_is_a_line(capsys, count, more):
    error = combine_findings("the data", [f"file {number}\n{ESCAPE}" for number in range(count)])
    assert isinstance(pickle.loads(pickle.dumps(error)), Findings)
    headline, *lines = printed_by(capsys, error).splitlines()
    assert headline == "error: the data"
    shown = [f"  file {number} {escape_control_characters(ESCAPE[:-1])}" for number in range(min(count, 20))]
    assert lines == shown + [more] * (more is not None)
    assert printed_by(capsys, combine_findings("the data", ["list.txt:3: bad"])) == "error: list.txt:3: bad\n"


def test_terminal_without_utf8_gets_escapes(monkeypatch):
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert run_and_report_errors(lambda argv: print("é", flush=True) or 0, []) == 0
    assert sys.stdout.buffer.getvalue() == b"\\xe9\n"


OUT_OF_MEMORY = "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' for more information."
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.30.7\nncclUnhandledCudaError: Call to CUDA function failed.\n"
)
SDPA = 'cuDNN SDPA execution failed with error code ["CUDNN_BACKEND_API_FAILED"]: err 2 != CUDA_SUCCESS'
NO_CONFIG = "No valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 294912"

# The type of the exception, and its message; the part in braces is in the reason.
GPU_SHORTAGES = [
    (torch.OutOfMemoryError, "CUDA out of memory. {Tried to allocate 2.00 GiB.}"),
    (torch.AcceleratorError, OUT_OF_MEMORY),
    (RuntimeError, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_{DEVICE_ALLOCATION_FAILED}"),
    (RuntimeError, f"{SDPA}\n{{CUDA ran out of memory outside}} PyTorch's allocator."),
    (dist.DistBackendError, f"{NCCL}{{Cuda failure 2 'out of memory'}}"),
]
HOST_SHORTAGES = [
    (MemoryError, ""),
    (RuntimeError, "err == 0. {DefaultCPUAllocator: can't allocate memory}: you tried to allocate 34359738368 bytes."),
    (RuntimeError, "{unable to mmap} 1024 bytes from file </torch_1>: Cannot allocate memory (12)"),
    (RuntimeError, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_{HOST_ALLOCATION_FAILED}"),
]
OTHER_ERRORS = [
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k )`"),
    torch.AcceleratorError("CUDA error: device-side assert triggered"),
    dist.DistBackendError(f"{NCCL}Cuda failure 1 'invalid argument'"),
    slow(NO_CONFIG),
    UserError("out of host memory; lower -num_workers"),
]


def inductor_error(cause: Exception) -> Exception:
    from torch._inductor.exc import InductorError  # imports the compiler

    return InductorError(cause, None)


def chained(error: Exception, *, hidden: bool = False, outer: Exception | None = None) -> Exception:
    """`outer`, raised while `error` is handled."""
    try:
        try:
            raise error
        except Exception as inner:
            raise (outer or RuntimeError("wrapped")) from (None if hidden else inner)
    except Exception as wrapped:
        return wrapped


def noted(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


COMPILING = slow(True, lambda text: inductor_error(torch.OutOfMemoryError(text)), "{CUDA out of memory. Tried}")


@mark.parametrize(
    "on_gpu, kind, message",
    [*((True, *one) for one in GPU_SHORTAGES), *((False, *one) for one in HOST_SHORTAGES), COMPILING],
)
def test_shortage_of_memory(on_gpu, kind, message):
    part = re.search(r"{(.*?)}", message)
    shortage = find_shortage(kind(message.replace("{", "").replace("}", "")))
    assert shortage.on_gpu == on_gpu
    assert "\n" not in shortage.reason
    assert (part[1] if part else message.partition("\n")[0]) in shortage.reason
    assert not shortage.in_loading


@mark.parametrize("error", OTHER_ERRORS, ids=str)
def test_other_errors_are_no_shortage(error):
    if error == NO_CONFIG:
        error = inductor_error(RuntimeError(error))
    assert find_shortage(error) is None
    assert find_shortage(chained(error)) is None
    assert find_shortage(noted(error, IN_LOADING)) is None


@mark.parametrize("hidden", [False, True])
def test_shortage_that_another_exception_wraps(hidden):
    inner = noted(torch.AcceleratorError(OUT_OF_MEMORY), IN_EVALUATION)
    shortage = find_shortage(chained(inner, hidden=hidden, outer=ValueError("a failed clean-up")))
    assert shortage.on_gpu
    assert shortage.in_evaluation
    assert shortage.reason == "CUDA error: out of memory"


@mark.parametrize("where", ["", "Caught AcceleratorError in pin memory thread for device 0.\nTraceback:\n"])
def test_pinned_memory_is_host_memory(where):
    """With workers, a thread of torch allocates it; without workers, the main thread."""
    message = f"{where}torch.AcceleratorError: {OUT_OF_MEMORY}"
    shortage = find_shortage(noted(torch.AcceleratorError(message), IN_LOADING))
    assert not shortage.on_gpu
    assert shortage.in_loading
    assert "CUDA error: out of memory" in shortage.reason


def test_user_errors_with_a_cause():
    """A file that declares a huge size is damaged; a checkpoint that meets a full GPU is not."""
    outer = UserError("last.pth: is damaged")
    assert find_shortage(chained(MemoryError(), outer=outer)) is None
    assert find_shortage(chained(torch.OutOfMemoryError("CUDA out of memory"), outer=outer)).on_gpu


def test_a_limit_of_the_address_space_is_named_in_one_line(monkeypatch, capsys):
    main = raising(ImportError("libtorch_cpu.so: failed to map segment from shared object"))
    with raises(ImportError):
        run_and_report_errors(main, [])
    monkeypatch.setattr("resource.getrlimit", lambda _: (500_000 * 1024, -1))
    assert run_and_report_errors(main, []) == MAY_PASS
    assert capsys.readouterr().err.startswith("error: ulimit -v is 500000: ")


@mark.parametrize("seed", range(20))
def test_the_hint_is_the_first_name_of_the_highest_ratio_of_difflib(seed):
    """Without regard to the case."""
    generator = random.Random(seed)
    name, *known = ("".join(generator.choices("abcd", k=generator.randint(2, 8))) for _ in range(30))
    ratios = {one: difflib.SequenceMatcher(None, one, name).ratio() for one in known}
    best = min(known, key=lambda one: (-ratios[one], one))
    expected = f"; did you mean {best}?" if ratios[best] >= 0.6 else ""
    assert did_you_mean(name.upper(), known) == expected
