"""One rank of test_ddp.py: exchanges gradients with each hook, then runs commands; each rank prints a line of JSON.

python ddp_worker.py RANKS FLAGS    FLAGS: a JSON list of lists of flags
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from utils.processes.launch import exit_with_launcher, launch_processes
from utils.processes.launcher import detect_launcher

if detect_launcher():
    exit_with_launcher()

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from configs.reading.command_line import parse_command_line
from configs.schema import Amp, Parallel
from engine.commands.run import run
from engine.parallel.ddp import DDP
from engine.precision.policy import Precision
from utils.distributed import ProcessContext, process_group

OPTIONS = {
    "none": {},
    "25 MiB": {"BUCKET_MB": 25.0},
    "per parameter": {"BUCKET_MB": 0.0},
    "bf16": {"COMM_HOOK": "bf16"},
    "fp16": {"COMM_HOOK": "fp16"},
}


def main(runs: list[list[str]]) -> int:
    with process_group() as context:
        report = {name: exchange(Parallel.model_validate(options), context) for name, options in OPTIONS.items()}
        os.write(1, (json.dumps({"rank": context.rank} | report) + "\n").encode())
        return max([run(parse_command_line(flags), context) for flags in runs])


def exchange(options: Parallel, context: ProcessContext) -> dict:
    """Gradients after the exchange in two passes over the same data; then a step with a gradient of 1e6 on rank 1."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(400, 400) for _ in range(5)))
    precision = Precision(Amp(), context.device)
    compute_model, strategy = precision.attach(model), DDP(context.device, options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(3, 8, 400)[context.rank % 3]
    wrapped = strategy.wrap(compute_model, images)

    def gradients(factor: float = 1.0) -> torch.Tensor:
        precision.scaler.backward(wrapped(images).square().sum() * factor, samples=8)
        found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).clone()
        model.zero_grad()
        return found

    first, second = gradients(), gradients()
    own = torch.autograd.grad(model(images).square().sum() / 8, list(model.parameters()))
    mean = torch.cat([part.flatten() for part in own]) / context.world_size
    torch.distributed.all_reduce(mean)
    before = parameters_to_vector(model.parameters()).clone()
    precision.scaler.backward(wrapped(images).square().sum() * (1e6 if context.rank == 1 else 1.0), samples=8)
    infinite = any(parameter.grad.isinf().any().item() for parameter in model.parameters())
    precision.step(optimizer, max_norm=None, seed=0)
    return {
        "error": ((first - mean).norm() / mean.norm()).item(),
        "checksum": first.double().sum().item(),
        "repeats": torch.equal(first, second),
        "infinite": infinite,
        "updates": not torch.equal(parameters_to_vector(model.parameters()), before),
        "communication": asdict(strategy.communication(wrapped)),
    }


if __name__ == "__main__":
    ranks, flags = sys.argv[1:]
    sys.exit(main(json.loads(flags)) if detect_launcher() else launch_processes(__file__, sys.argv[1:], int(ranks)))
