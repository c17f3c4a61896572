"""The training loop: the best state is kept, and a resumed run ends as an unbroken one."""

from __future__ import annotations

import signal
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


epochs_run: list[int] = []


def run(path: Path | None, config: LoopConfig, stop_at: int | None = None) -> nn.Module:
    epochs_run.clear()
    torch.manual_seed(0)
    module = nn.Linear(3, 1)
    loop = Loop(module, config, seed=7, title="test", reporter=QUIET, checkpoint=path)

    def losses(generator: torch.Generator) -> Iterator[Tensor]:
        if loop.epoch == stop_at:
            raise Interrupted
        epochs_run.append(loop.epoch)
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
    assert epochs_run == list(range(stop_at, config.epochs))  # it went on, and did not begin anew
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


def test_an_interrupt_keeps_the_epoch_under_way(tmp_path: Path) -> None:
    """Ctrl-C in the middle of an epoch: it is finished, kept, and only then is the run broken off."""
    path = tmp_path / "c.safetensors"
    config = CONFIG.revised(checkpoint_seconds=1e9)
    whole = run(None, config)
    torch.manual_seed(0)
    module = nn.Linear(3, 1)
    loop = Loop(module, config, seed=7, title="test", reporter=QUIET, checkpoint=path)

    def losses(generator: torch.Generator) -> Iterator[Tensor]:
        for step in range(4):
            if loop.epoch == 9 and step == 2:
                signal.raise_signal(signal.SIGINT)
            x = torch.randn(5, 3, generator=generator)
            yield (module(x) - x.sum(1, keepdim=True)).square().mean()

    with pytest.raises(KeyboardInterrupt):
        loop.run(losses, lambda: abs(float(module.weight.sum()) - 1.5))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = run(path, config)
    assert epochs_run[0] == 10
    assert torch.equal(whole.weight, resumed.weight)
