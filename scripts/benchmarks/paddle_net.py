"""The network of Paddle's AMP tutorial: three linear layers, SGD, mean squared error."""

import torch
import torch.nn.functional as F
from torch import nn

from configs.schema import Config
from engine.precision.policy import Precision
from utils.device import timed


def train(config: Config, device: torch.device, batches: int, epochs: int, width: int) -> dict[str, float]:
    """The loss of the last batch, and the seconds of all epochs. Equal weights and batches in each precision.

    Args:
        config: AMP, BATCH_SIZE and ACCUM_ITER, over which losses are summed, not averaged.
        batches: different ones. width: features of each layer.
    """
    precision, generator = Precision(config.amp, device), torch.Generator().manual_seed(0)
    linears = [nn.Linear(width, width) for _ in range(3)]
    for linear in linears:  # Paddle's initial values
        nn.init.xavier_uniform_(linear.weight, generator=generator)
        nn.init.zeros_(linear.bias)
    net = nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU(), linears[2]).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    data = torch.randn(batches, 2, config.data.batch_size, width, generator=generator).to(device)
    loss = torch.zeros((), device=device)

    def run() -> None:
        for step in range(epochs * batches):
            inputs, targets = data[step % batches]
            with precision.autocast():
                output = F.mse_loss(net(inputs), targets)
            loss.copy_(output.detach())
            precision.scaler.backward(output, samples=1)
            if (step + 1) % config.train.accum_iter == 0:
                precision.scaler.step(optimizer)
                precision.scaler.update()
                optimizer.zero_grad(set_to_none=True)

    seconds = timed(run, device)
    return {"loss": loss.item(), "seconds": seconds}
