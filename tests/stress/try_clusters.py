"""Runs on real launchers: Slurm, Open MPI, torchrun over two network namespaces of this machine.

    python -m pytest tests/stress/try_clusters.py                # as root, about ten minutes
    python -m pytest tests/stress/try_clusters.py -k 'slurm or mpirun'

A trial is skipped if its program is missing.
"""

import pytest
from clusters import mpirun_trial, slurm_trial, two_hosts_trial
from faults.processes import reset_signals

_LAUNCHERS = {"slurm": slurm_trial, "mpirun": mpirun_trial, "two_hosts": two_hosts_trial}
_TRIALS = [(launcher, name) for launcher, module in _LAUNCHERS.items() for name in module.TRIALS]


@pytest.mark.parametrize("launcher, name", _TRIALS)
def test_runs_under_a_launcher(launcher, name, tmp_path):
    module = _LAUNCHERS[launcher]
    if reason := module.missing_program():
        pytest.skip(reason)
    reset_signals()
    module.TRIALS[name](tmp_path)
