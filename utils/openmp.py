"""How long OpenMP's threads spin before they sleep, on a CPU. This file needs no torch, which loads OpenMP."""

import os
from pathlib import Path

DEVICE_FILES = Path("/dev")
EXCLUDES_GPUS = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES; the last one is Slurm's
_SPINS, _POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
_DEFAULT_SPINS = "1000"  # a few microseconds to 0.1 ms; libgomp's default is 300 times as long


def limit_spinning(device: str | None) -> None:
    """Lets idle threads of libgomp sleep early, unless there is a GPU or the user's variables say how threads wait.

    If other programs use the cores, a thread that spins takes time from the thread for which it waits. Call it before
    torch is imported. Other OpenMP libraries ignore the variable. Results are the same, bit for bit.

    Args:
        device: of -device.
    """
    on_cpu = device == "cpu" or os.environ.get("CUDA_VISIBLE_DEVICES") in EXCLUDES_GPUS
    if (on_cpu or not any(DEVICE_FILES.glob("nvidia[0-9]*"))) and not os.environ.keys() & {_SPINS, _POLICY}:
        os.environ[_SPINS] = _DEFAULT_SPINS


def describe_waiting() -> str:
    """The variables that say how idle threads wait: 'GOMP_SPINCOUNT 1000'."""
    found = [f"{name} {os.environ[name]}" for name in (_SPINS, _POLICY) if name in os.environ]
    return f"OpenMP: {', '.join(found) or 'its default wait policy'}"


def busy_note() -> str | None:
    """A line for the log if more threads want to run than this machine has cores; None otherwise."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    note = f"CPU: load {load:.1f} on {cores} cores, so training is slower; {describe_waiting()}"
    return note if load > cores else None
