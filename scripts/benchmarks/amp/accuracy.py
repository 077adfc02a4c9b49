"""The top-1 of one recipe in each precision over several seeds, for `benchmark_amp.py -accuracy`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import ENTRY, MODES, interleaved, last_error, print_progress
from scripts.benchmarks.seeds import Runs, percent


def train_modes(rest: list[str], modes: list[str], seeds: int, output: Path | None) -> Runs:
    """Trains with main_single_gpu.py once per mode and seed, in turns; keeps the runs in `output`, if it is given."""
    runs: Runs = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory() as temporary:
        for seed, mode in interleaved(modes, seeds):
            run = train(rest, mode, seed, (output or Path(temporary)) / f"{mode}-seed{seed}")
            runs[mode].append(run)
            print_progress(f"seed {seed}, {mode}: {run.get('failed') or percent(run['top1'])}")
    return runs


def train(argv: list[str], mode: str, seed: int, output: Path) -> dict[str, Any]:
    """Top-1 of one run in percent, or the reason under 'failed'."""
    options = [*MODES[mode], f"SEED={seed}", f"SAVE={json.dumps(str(output))}"]
    command = [sys.executable, str(ENTRY), *argv, "-opts", *options]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        return {"failed": last_error(process)}
    results = sorted(output.glob("*/result.json"), key=lambda path: path.stat().st_mtime)
    top1 = json.loads(results[-1].read_text()).get("top1") if results else None
    return {"failed": "the run has no evaluation"} if top1 is None else {"top1": top1}
