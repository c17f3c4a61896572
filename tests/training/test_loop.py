"""The training loop: the best state is kept, and a resumed run ends as an unbroken one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headstart.errors import InputError, ModelFileError
from headstart.progress import Reporter
from headstart.training.loop import Loop, LoopConfig

QUIET = Reporter(quiet=True)


class Interrupted(Exception):
    pass


def run(path: Path | None, config: LoopConfig, stop_at: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Linear(3, 1)
    loop = Loop(module, config, seed=7, title="test", reporter=QUIET, checkpoint=path)

    def losses(generator: torch.Generator) -> Iterator[Tensor]:
        if loop.epoch == stop_at:
            raise Interrupted
        for _ in range(4):
            x = torch.randn(5, 3, generator=generator)
            yield (module(x) - x.sum(1, keepdim=True)).square().mean()

    def validate() -> float:
        return abs(float(module.weight.sum()) - 1.5)  # passes through a best and gets worse again

    loop.run(losses, validate)
    return module


CONFIG = LoopConfig(epochs=60, batch_size=1, learning_rate=0.05, checkpoint_seconds=0.0, weight_decay=1e-3)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("stop_at", [1, 13, 59])
def test_resuming_gives_the_same_weights(tmp_path: Path, stop_at: int, schedule: str) -> None:
    config = CONFIG.revised(schedule=schedule)
    whole = run(None, config)
    with pytest.raises(Interrupted):
        run(tmp_path / "c.safetensors", config, stop_at)
    resumed = run(tmp_path / "c.safetensors", config)
    assert torch.equal(whole.weight, resumed.weight)
    assert torch.equal(whole.bias, resumed.bias)


def test_the_best_state_is_kept_and_patience_ends_the_run() -> None:
    torch.manual_seed(0)
    module = nn.Linear(1, 1)
    scores = iter([3.0, 2.0, 1.0, 5.0, 5.0, 5.0, 0.0])
    seen: list[Tensor] = []

    def losses(_: torch.Generator) -> Iterator[Tensor]:
        yield module(torch.ones(1, 1)).sum()

    def validate() -> float:
        seen.append(module.weight.detach().clone())
        return next(scores)

    config = CONFIG.revised(patience=3)
    Loop(module, config, seed=0, title="test", reporter=QUIET).run(losses, validate)
    assert len(seen) == 6
    assert torch.equal(module.weight, seen[2])


def test_a_diverging_loss_is_said_so() -> None:
    module = nn.Linear(1, 1)

    def losses(_: torch.Generator) -> Iterator[Tensor]:
        yield module(torch.full((1, 1), torch.inf)).sum()

    with pytest.raises(InputError, match="no longer finite at epoch 1; try a lower learning_rate"):
        Loop(module, CONFIG, seed=0, title="test", reporter=QUIET).run(losses)


def test_a_damaged_checkpoint_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"nothing of use")
    with pytest.raises(ModelFileError, match="damaged or cut short"):
        run(tmp_path / "c", CONFIG)
