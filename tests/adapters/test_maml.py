import pytest
import torch
from tests.oracles.finetuning import train_maml

from headstart.adapters import build_adapter
from headstart.adapters.finetuning import MAML, MAMLConfig
from headstart.core.predictive import grid_logits
from headstart.progress import Reporter
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training.episodes import EpisodeDrawer, disjoint_tasks
from headstart.training.meta_training import MetaTrainingConfig, meta_train

# Wider steps than the paper's, so that what flows through them weighs as much as the rest.
WIDE = MAMLConfig(inner_steps=3, inner_learning_rate=0.3)


def target_loss(world, adapter: MAML) -> torch.Tensor:
    """The loss on every row, the values there made up but fixed."""
    known = world.knowledge
    logits = grid_logits(world.adapted(adapter), known.states)
    values = torch.linspace(0, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    return known.likelihood.nll(logits, values, world.batch.kinds).mean()


def gradients(world, adapter: MAML) -> tuple[torch.Tensor, torch.Tensor]:
    adapter.zero_grad()
    target_loss(world, adapter).backward()
    return adapter.weight.grad.clone(), adapter.bias.grad.clone()


def first_order(world, adapter: MAML) -> torch.Tensor:
    """The gradient at the tuned heads, taken for that at the initialisation: what a shortcut would use."""
    known = world.knowledge
    heads = world.adapted(adapter)
    leaf = type(heads)(heads.weight.detach().requires_grad_(), heads.bias.detach())
    logits = grid_logits(leaf, known.states)
    values = torch.linspace(0, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    known.likelihood.nll(logits, values, world.batch.kinds).mean().backward()
    return torch.zeros_like(adapter.weight).index_add(0, world.batch.kinds, leaf.weight.grad)


def by_differences(world, adapter: MAML, parameter: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    result = torch.zeros_like(parameter)
    flat, out = parameter.data.view(-1), result.view(-1)
    for i in range(len(flat)):
        kept = float(flat[i])
        flat[i] = kept + step
        above = float(target_loss(world, adapter).detach())
        flat[i] = kept - step
        below = float(target_loss(world, adapter).detach())
        flat[i] = kept
        out[i] = (above - below) / (2 * step)
    return result


@pytest.mark.parametrize(
    "kinds",
    [
        (KindType.BINARY,) * 3,
        (KindType.RATING,) * 3,
        (KindType.REAL,) * 3,
        (KindType.BINARY, KindType.RATING, KindType.REAL),
    ],
)
def test_the_meta_gradient_is_second_order(tiny, kinds):
    world = tiny(new=kinds, shots=(4, 0, 6), dtype=torch.float64)
    adapter = build_adapter(WIDE, world.knowledge)
    weight, bias = gradients(world, adapter)
    torch.testing.assert_close(weight, by_differences(world, adapter, adapter.weight), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(bias, by_differences(world, adapter, adapter.bias), rtol=1e-4, atol=1e-7)
    shortcut = first_order(world, adapter)
    assert float((weight - shortcut).norm() / weight.norm()) > 0.05


def test_the_meta_gradient_at_the_papers_settings(tiny):
    world = tiny(dtype=torch.float64)
    adapter = build_adapter(MAMLConfig(), world.knowledge)
    weight, bias = gradients(world, adapter)
    torch.testing.assert_close(weight, by_differences(world, adapter, adapter.weight), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(bias, by_differences(world, adapter, adapter.bias), rtol=1e-4, atol=1e-7)


def test_with_no_shots_the_gradient_is_that_of_the_head_itself(tiny):
    world = tiny(shots=(0,) * 6, dtype=torch.float64)
    adapter = build_adapter(WIDE, world.knowledge)
    weight, _ = gradients(world, adapter)
    torch.testing.assert_close(weight, first_order(world, adapter))


def test_dead_units_and_missing_shots_leave_the_gradient_finite(tiny):
    world = tiny()  # its first unit is dead, two of its features have no shots
    weight, bias = gradients(world, build_adapter(MAMLConfig(), world.knowledge))
    assert bool(weight.isfinite().all())
    assert bool(bias.isfinite().all())


def test_meta_training_helps(tiny):
    world = tiny(new=(KindType.BINARY, KindType.RATING, KindType.REAL) * 4, shots=(5,) * 12)
    adapter = build_adapter(MAMLConfig(), world.knowledge)
    optimizer = torch.optim.Adam(adapter.parameters(), lr=adapter.config.outer_learning_rate)
    before = float(target_loss(world, adapter).detach())
    for _ in range(30):
        optimizer.zero_grad()
        target_loss(world, adapter).backward()
        optimizer.step()
    assert float(target_loss(world, adapter).detach()) < before - 0.05


def pairs(cells: Cells, line: int) -> list[tuple[int, float]]:
    """The (row, value) pairs of one line, as plain numbers."""
    cells = cells.take(torch.tensor([line]))
    return list(zip(cells.index.tolist(), cells.values.tolist(), strict=True))


@pytest.mark.parametrize("kind", [KindType.BINARY, KindType.RATING])
def test_meta_training_equals_a_slow_loop_over_features_and_observations(tiny, kind):
    world = tiny(new=(kind,) * 9, shots=(10, 7, 4, 9, 2, 1, 8, 5, 6), dtype=torch.float64)
    known, config = world.knowledge, MAMLConfig()
    adapter = build_adapter(config, known)
    start = adapter.weight.detach().clone(), adapter.bias.detach().clone()
    tasks = disjoint_tasks(world.batch, known)
    training = MetaTrainingConfig(epochs=4, max_shots=5, patience=None).complete_for(adapter)
    meta_train(adapter, known, tasks, tasks.take(torch.arange(0)), training, seed=3, reporter=Reporter(True))

    drawer, generator = EpisodeDrawer(tasks, training, seed=3), torch.Generator().manual_seed(3)
    episodes = [
        [
            (int(kind), pairs(episode.context.cells, line), pairs(episode.targets, line))
            for line in range(len(episode.context))
        ]
        for _ in range(training.epochs)
        for episode in drawer.epoch(generator)
    ]
    assert len(episodes) == 12  # of four, four and one feature
    assert {len(context) for features in episodes for _, context, _ in features} >= {0, 1, 5}
    weight, bias = train_maml(
        *start, episodes, known.states.activation, known.likelihood.nll,
        inner_steps=10, inner_rate=1e-2, outer_rate=1e-2,
    )  # fmt: skip
    torch.testing.assert_close(adapter.weight.detach(), weight, rtol=0, atol=1e-8)
    torch.testing.assert_close(adapter.bias.detach(), bias, rtol=0, atol=1e-8)
    assert float((weight - start[0]).abs().max()) > 0.05


def test_training_takes_the_inner_steps_and_evaluation_the_epochs(tiny):
    world = tiny()
    inner = build_adapter(MAMLConfig(inner_steps=4, epochs=9), world.knowledge).train()
    outer = build_adapter(MAMLConfig(inner_steps=9, epochs=4), world.knowledge).eval()
    trained, evaluated = world.adapted(inner), world.adapted(outer)
    assert trained.weight.requires_grad
    assert not evaluated.weight.requires_grad
    torch.testing.assert_close(trained.weight.detach(), evaluated.weight)
    torch.testing.assert_close(trained.bias.detach(), evaluated.bias)


def test_no_epochs_is_the_initialisation(tiny):
    world = tiny()
    adapter = build_adapter(MAMLConfig(epochs=0), world.knowledge).eval()
    assert torch.equal(world.adapted(adapter).weight, adapter.weight.detach()[world.batch.kinds])


def test_the_papers_settings_are_the_defaults():
    config = MAMLConfig()
    assert (
        config.meta_batch,
        config.inner_steps,
        config.inner_learning_rate,
        config.outer_learning_rate,
    ) == (
        4,
        10,
        1e-2,
        1e-2,
    )
