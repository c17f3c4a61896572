"""Adam against torch's own classes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from headstart.training.loop import Adam


def stepped(decoupled: float, plain: float, *, own: bool, restarts: bool = False) -> list[torch.Tensor]:
    """The parameters of a small network after some steps."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    unused = nn.Parameter(torch.ones(2))
    module.register_parameter("unused", unused)

    def made() -> Adam:
        return Adam(module, 0.01, weight_decay=plain, decoupled_weight_decay=decoupled)

    if decoupled:
        weights = [each for name, each in module.named_parameters() if name.endswith(".weight")]
        others = [each for name, each in module.named_parameters() if not name.endswith(".weight")]
        groups = [{"params": weights, "weight_decay": decoupled}, {"params": others, "weight_decay": 0.0}]
        theirs: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=0.01)
    else:
        theirs = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=plain)
    ours = made()
    for turn in range(6):
        ours.forget_gradients()
        (module(torch.randn(5, 3)) ** 2).sum().backward()
        if turn == 3:
            ours.learning_rate = 0.005
            for group in theirs.param_groups:
                group["lr"] = 0.005
        (ours if own else theirs).step()
        if restarts and turn == 2:
            state = {name: value.clone() for name, value in ours.state().items()}
            ours = made()
            ours.restore(state)
    return [each.detach().clone() for each in module.parameters()]


@pytest.mark.parametrize(("decoupled", "plain"), [(0.0, 0.0), (0.0, 0.1), (0.1, 0.0)])
def test_steps_are_those_of_torch(decoupled: float, plain: float) -> None:
    ours, theirs = (stepped(decoupled, plain, own=own) for own in (True, False))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)


def test_what_is_restored_goes_on_alike() -> None:
    for own, other in zip(
        stepped(0.1, 0.0, own=True), stepped(0.1, 0.0, own=True, restarts=True), strict=True
    ):
        assert torch.equal(own, other)


def test_the_compiler_is_not_imported() -> None:
    program = """
import sys, torch
from headstart.training.adam import Adam
module = torch.nn.Linear(2, 1)
module(torch.ones(1, 2)).sum().backward()
Adam(module, 0.1, decoupled_weight_decay=0.1).step()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
