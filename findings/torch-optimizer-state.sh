#!/usr/bin/env bash
# torch 2.14.1 (5 GB are downloaded)
# Subject: training
# Behaviour: load_state_dict() of an optimizer converts the whole state of a parameter to the parameter's type:
#   float32 weights that an optimizer keeps for bfloat16 parameters are rounded to bfloat16, and so is a count in int64,
#   whatever its name is but step. NAdam of torch loses mu_product this way. There is no warning.
# Expected: the state as it was saved; state_dict() has the types.
# Why it matters: a resumed run in bfloat16 goes on from rounded weights, so that small updates before the stop are
#   lost, and a count of 257 is 256. A run that is not interrupted shows nothing.
# Instead: put the saved tensors into `optimizer.state[parameter]` after `load_state_dict()`
# Last lines of a run on 2026-11-30 (a parameter of bfloat16: in the state before saving, after loading):
#   torch 2.14.1, weights torch.float32 0.9990000128746033, torch.bfloat16 1.0
#   count torch.int64 257, torch.bfloat16 256.0
#   NAdam, mu_product torch.float32, torch.bfloat16
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq torch==2.14.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import torch


class Descent(torch.optim.Optimizer):
    """Gradient descent on float32 copies of the weights, which counts the images."""

    def __init__(self, parameters, lr=1e-3):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(weights=parameter.float(), count=torch.tensor(0))
                state["weights"] -= group["lr"] * parameter.grad.float()
                state["count"] += 257
                parameter.copy_(state["weights"])


def saved_and_loaded(kind):
    """The state of a bfloat16 parameter after a step, as it is saved and as another optimizer loads it."""
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    parameter.grad = torch.ones_like(parameter)
    optimizer, other = kind([parameter]), kind([parameter])
    optimizer.step()
    saved = optimizer.state_dict()
    other.load_state_dict(saved)
    moved = other.state[parameter]
    others = dict(moved)
    moved.update(saved["state"][0])
    assert all(moved[name] is value for name, value in saved["state"][0].items())
    return saved["state"][0], others


def text(values):
    return ", ".join(f"{value.dtype} {value.item()}" for value in values)


saved, loaded = saved_and_loaded(Descent)
print(f"torch {torch.__version__.split('+')[0]}, weights {text([saved['weights'], loaded['weights']])}")
print(f"count {text([saved['count'], loaded['count']])}")
assert saved["weights"].dtype == torch.float32 and saved["count"].dtype == torch.int64
assert loaded["weights"].dtype == loaded["count"].dtype == torch.bfloat16
assert loaded["weights"] == 1 and loaded["count"] == 256
saved, loaded = saved_and_loaded(torch.optim.NAdam)
print(f"NAdam, mu_product {saved['mu_product'].dtype}, {loaded['mu_product'].dtype}")
assert (saved["mu_product"].dtype, loaded["mu_product"].dtype) == (torch.float32, torch.bfloat16)
assert saved["step"].dtype == loaded["step"].dtype == torch.float32
PYTHON
