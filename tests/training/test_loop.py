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


@pytest.mark.parametrize(("schedule", "decoupled"), [("constant", 0.0), ("cosine", 0.0), ("cosine", 0.1)])
@pytest.mark.parametrize("stop_at", [1, 13, 59])
def test_resuming_gives_the_same_weights(
    tmp_path: Path, stop_at: int, schedule: str, decoupled: float
) -> None:
    config = CONFIG.revised(schedule=schedule, decoupled_weight_decay=decoupled)
    whole = run(None, config)
    with pytest.raises(Interrupted):
        run(tmp_path / "c.safetensors", config, stop_at)
    resumed = run(tmp_path / "c.safetensors", config)
    assert epochs_run == list(range(stop_at, config.epochs))  # it went on, and did not begin anew
    assert torch.equal(whole.weight, resumed.weight)
    assert torch.equal(whole.bias, resumed.bias)


def test_decoupled_weight_decay_is_of_layers_only() -> None:
    module = nn.Sequential(nn.Linear(2, 1))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(1.0)

    def losses(_: torch.Generator) -> Iterator[Tensor]:
        yield 0.0 * sum(parameter.sum() for parameter in module.parameters())

    config = LoopConfig(epochs=1, batch_size=1, learning_rate=0.1, decoupled_weight_decay=0.5)
    Loop(module, config, seed=0, title="test", reporter=QUIET).run(losses)
    assert torch.allclose(module[0].weight, torch.tensor(0.95))
    assert bool((module[0].bias == 1).all())


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


class Dropping(nn.Module):
    """Draws from the global generator while it trains, as dropout does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.free = nn.Linear(3, 1), nn.Parameter(torch.ones(3))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.dropout(x * self.free))


def dropped(config: LoopConfig, path: Path | None = None, stop_at: int | None = None) -> Dropping:
    torch.manual_seed(0)
    module = Dropping()
    torch.manual_seed(torch.seed())  # whatever was drawn before must not show
    loop = Loop(module, config, seed=7, title="test", reporter=QUIET, checkpoint=path)

    def losses(generator: torch.Generator) -> Iterator[Tensor]:
        if loop.epoch == stop_at:
            raise Interrupted
        for _ in range(3):
            x = torch.randn(5, 3, generator=generator)
            yield (module(x) - x.sum(1, keepdim=True)).square().mean()

    loop.run(losses)
    return module


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_dropout_follows_the_seed_alone_and_a_resumed_run_too(tmp_path: Path, decay: float) -> None:
    config = CONFIG.revised(epochs=12, decoupled_weight_decay=decay)
    whole, again = dropped(config), dropped(config)
    with pytest.raises(Interrupted):
        dropped(config, tmp_path / "c", stop_at=5)
    resumed = dropped(config, tmp_path / "c")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        assert torch.equal(value, resumed.state_dict()[name])


def test_training_leaves_the_global_generator_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    module = Dropping()
    torch.manual_seed(5)

    def losses(_: torch.Generator) -> Iterator[Tensor]:
        yield module(torch.ones(2, 3)).sum()

    Loop(module, CONFIG.revised(epochs=2), seed=0, title="test", reporter=QUIET).run(losses)
    assert torch.equal(torch.rand(3), expected)


def test_decoupled_decay_shrinks_layers_only() -> None:
    torch.manual_seed(0)
    module = Dropping()
    before = {name: value.clone() for name, value in module.state_dict().items()}

    def losses(_: torch.Generator) -> Iterator[Tensor]:
        yield sum((each * 0).sum() for each in module.parameters())

    config = CONFIG.revised(epochs=1, decoupled_weight_decay=0.5)
    Loop(module, config, seed=0, title="test", reporter=QUIET).run(losses)
    rate = 1 - config.learning_rate * 0.5
    torch.testing.assert_close(module.layer.weight.data, before["layer.weight"] * rate)
    assert torch.equal(module.layer.bias.data, before["layer.bias"])
    assert torch.equal(module.free.data, before["free"])
