"""The network of Paddle's AMP tutorial: three linear layers, SGD, mean squared error.

On a CPU the half dtype is bfloat16, which has no loss scale.
"""

import torch
import torch.nn.functional as F
from torch import nn

from configs.schema import Amp
from engine.precision.policy import Precision
from utils.device import timed

EPOCHS, BATCHES, BATCH_SIZE, LOSS_SCALE, ACCUMULATED = 5, 50, 512, 1024.0, 10


def train(
    device: torch.device, batches: int, mode: str, width: int = 4096, batch_size: int = BATCH_SIZE
) -> dict[str, float]:
    """The loss of the last batch, and the seconds of all epochs. All modes have the same weights and batches.

    Args:
        batches: different ones. width: features of each layer.
        mode: default, AMP, or "AMP, accumulation", which sums the losses of ten batches instead of averaging them.
    """
    precision = Precision(Amp(ENABLED=mode != "default", INIT_LOSS_SCALING=LOSS_SCALE), device)
    generator = torch.Generator().manual_seed(0)
    linears = [nn.Linear(width, width) for _ in range(3)]
    for linear in linears:  # Paddle's initial values
        nn.init.xavier_uniform_(linear.weight, generator=generator)
        nn.init.zeros_(linear.bias)
    net = nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU(), linears[2]).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    data = torch.randn(batches, 2, batch_size, width, generator=generator).to(device)
    loss = torch.zeros((), device=device)

    def run() -> None:
        for step in range(EPOCHS * batches):
            inputs, targets = data[step % batches]
            with precision.autocast():
                output = F.mse_loss(net(inputs), targets)
            loss.copy_(output.detach())
            precision.scaler.backward(output, samples=1)
            if mode != "AMP, accumulation" or (step + 1) % ACCUMULATED == 0:
                precision.scaler.step(optimizer)
                precision.scaler.update()
                optimizer.zero_grad(set_to_none=True)

    seconds = timed(run, device)
    return {"loss": loss.item(), "seconds": seconds}
