"""Provokes faults that happen in practice, and checks the reaction of the entry scripts.

    python -m pytest -n 2 tests/stress/fault_bench.py                           # the faults below ten seconds
    python -m pytest -n 2 tests/stress/fault_bench.py -m 'slow or not slow'     # all
    python -m pytest tests/stress/fault_bench.py -k 'SIGTERM or worker'

A fault passes if the processes end with the right exit status, with one line that names the problem and without a
traceback; and if they leave no process, no temporary file, and a good checkpoint. Faults that cannot be provoked on a
machine are skipped. tests/stress/faults/catalogue.py lists the faults.
"""

from pathlib import Path

from faults.catalogue import all_faults
from faults.kills import kill_faults
from faults.processes import SINGLE, finish
from faults.runner import run_fault
from faults.scene import Scene
from pytest import fixture, mark, param
from rank_pool import reset_signals

_SLOW = (  # ten seconds or more on two cores
    "tar cache: two ranks", "tar cache: ranks killed in a download", "rank 1 stopped",
    "output: not shared", "torchrun restarts",
    *(fault.name for fault in kill_faults()),
)  # fmt: skip
_FAULTS = [param(fault, id=fault.name, marks=[mark.slow] * (fault.name in _SLOW)) for fault in all_faults()]


@fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The folder of the run from which the faults take their checkpoints."""
    reset_signals()
    folder = tmp_path_factory.mktemp("trained")
    scene = Scene(folder, folder)
    finish(scene, SINGLE, scene.digits())
    (run,) = scene.output.iterdir()
    return run


@mark.parametrize("fault", _FAULTS)
def test_the_reaction_to_a_fault(fault, trained, tmp_path):
    run_fault(fault, Scene(tmp_path, trained))
