"""One rank of test_levels.py: trains at each level on its share of each batch and prints the resulting weights.

python levels_worker.py RANKS
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from utils.processes.launch import exit_with_launcher, launch_processes
from utils.processes.launcher import detect_launcher

if detect_launcher():
    exit_with_launcher()

import timm
import torch
from torch.nn.functional import cross_entropy

from configs.schema import Amp, Parallel
from engine.parallel.build import build_strategy
from engine.precision.policy import Precision
from utils.distributed import ProcessContext, process_group


def main() -> int:
    with process_group() as context:
        for level in ("O1", "O2", "O3"):
            weights = train(level, context)
            values = torch.cat([parameter.detach().float().flatten() for parameter in weights.compute.parameters()])
            report = {"level": level, "sum": values.double().sum().item(), "first": values[::97].tolist()}
            os.write(1, (json.dumps(report) + "\n").encode())
    return 0


def train(level: str, context: ProcessContext):
    """Trains for four steps of two micro-steps each."""
    precision = Precision(Amp.model_validate({"ENABLED": True, "LEVEL": level}), context.device)
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, depth=2, embed_dim=48, num_classes=5)
    compute_model = precision.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    strategy = build_strategy(Parallel(), context)
    torch.manual_seed(1)
    images, targets = torch.randn(4, 2, 8, 3, 16, 16), torch.arange(8) % 5
    own_samples = slice(context.rank, None, context.world_size)
    with precision.autocast():
        wrapped = strategy.wrap(compute_model, images[0, 0, :2])
    for step, micro_batches in enumerate(images):
        for micro_step, batch in enumerate(micro_batches):
            with nullcontext() if micro_step == 1 else strategy.no_sync(wrapped):
                with precision.autocast():
                    logits = wrapped(batch[own_samples])
                precision.scaler.scale(cross_entropy(logits.float(), targets[own_samples]) / 2).backward()
        precision.step(optimizer, max_norm=None, seed=step)
    return precision.weights


if __name__ == "__main__":
    sys.exit(main() if detect_launcher() else launch_processes(__file__, sys.argv[1:], int(sys.argv[1])))
