"""One rank of test_scaler.py: trains with real float16 overflows and prints the states of the loss scaler.

python scaler_worker.py PATTERNS    PATTERNS: one per rank, such as 0110,0001; a step with a 1 overflows
"""

import json
import math
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from utils.processes.launch import exit_with_launcher, launch_processes
from utils.processes.launcher import detect_launcher

if detect_launcher():
    exit_with_launcher()

import torch
from torch import nn

from configs.schema import Amp, Parallel
from engine.parallel.build import build_strategy
from engine.precision.policy import Precision
from utils.distributed import process_group

OPTIONS = {"INIT_LOSS_SCALING": 1024.0, "INCR_EVERY_N_STEPS": 3, "DECR_EVERY_N_NAN_OR_INF": 2, "MIN_LOSS_SCALING": 64.0}


def main(patterns: list[str]) -> int:
    with process_group() as context:
        precision = Precision(Amp.model_validate({"ENABLED": True, "DTYPE": "float16", **OPTIONS}), context.device)
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        wrapped = build_strategy(Parallel(), context).wrap(precision.attach(model), torch.zeros(2, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        history = []
        for overflow in patterns[context.rank]:
            images = torch.full((3, 4), 60000.0 if overflow == "1" else 0.01)  # 4 x 60000 x 0.5 overflows float16
            with precision.autocast():
                logits = wrapped(images)
            precision.scaler.scale(logits.float().square().mean()).backward()
            precision.step(optimizer, max_norm=None, seed=0)
            history.append((precision.scaler.get_scale(), precision.scaler.skipped))
        finite = all(math.isfinite(value) for weight in model.parameters() for value in weight.flatten().tolist())
        os.write(1, (json.dumps({"rank": context.rank, "history": history, "finite": finite}) + "\n").encode())
    return 0


if __name__ == "__main__":
    patterns = sys.argv[1].split(",")
    sys.exit(main(patterns) if detect_launcher() else launch_processes(__file__, sys.argv[1:], len(patterns)))
