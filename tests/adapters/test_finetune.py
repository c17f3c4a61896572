import pytest
import torch
from tests.oracles.finetuning import tune_each
from torch import nn

from headstart.adapters import ADAPTERS, adapter_config, build_adapter
from headstart.adapters.baselines import MeanHeadConfig
from headstart.adapters.finetuning import FineTunedConfig, MAMLConfig, adam_step, fine_tune
from headstart.core.types import Heads

RATE = 0.05


def start_of(world) -> Heads:
    return world.adapted(build_adapter(MeanHeadConfig(), world.knowledge))


def tune(world, start: Heads, epochs: int) -> Heads:
    known = world.knowledge
    return fine_tune(start, world.batch, known.states, known.likelihood, epochs, RATE)


@pytest.mark.parametrize("epochs", [0, 1, 7])
@pytest.mark.parametrize("through", [False, True])
def test_equals_each_feature_alone_with_torchs_adam(tiny, epochs, through):
    world = tiny(dtype=torch.float64)
    start = start_of(world)
    heads = tune(world, Heads(start.weight.requires_grad_(through), start.bias), epochs)
    assert heads.weight.requires_grad == through
    expected = tune_each(world, start, epochs, RATE)
    torch.testing.assert_close(heads.weight, expected.weight, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(heads.bias, expected.bias, rtol=1e-6, atol=1e-8)


def test_without_a_gradient_around_it(tiny):
    world = tiny()
    expected = tune(world, start_of(world), 4)
    with torch.no_grad():
        heads = tune(world, start_of(world), 4)
    assert torch.equal(heads.weight, expected.weight)


def test_adam_step_is_torchs_and_stays_differentiable_at_zero():
    torch.manual_seed(0)
    theta = nn.Parameter(torch.randn(4, dtype=torch.float64))
    mine, first, second = theta.detach().clone(), torch.zeros_like(theta), torch.zeros_like(theta)
    optimizer = torch.optim.Adam([theta], lr=RATE)
    for step in range(1, 30):
        gradient = torch.randn(4, dtype=torch.float64) * torch.tensor([1, 1e-3, 0, 1e3])
        theta.grad = gradient
        optimizer.step()
        mine, first, second = adam_step(mine, gradient, first, second, step, RATE)
        torch.testing.assert_close(mine, theta.detach(), rtol=1e-9, atol=1e-12)

    gradient = torch.zeros(3, requires_grad=True)
    nothing = torch.zeros(3)
    adam_step(nothing, 0 * gradient, nothing, nothing, 1, RATE)[0].sum().backward()
    assert torch.equal(gradient.grad, nothing)


def test_parts_of_very_different_shots_do_not_change_the_result(tiny, limits):
    world = tiny(new=(0, 1, 2) * 4, shots=(0, 1, 10, 3, 0, 2, 9, 5, 1, 8, 0, 4))
    whole = tune(world, start_of(world), 5)
    limits(baseline_numbers_per_part=1)
    each = tune(world, start_of(world), 5)
    torch.testing.assert_close(each.weight, whole.weight)
    torch.testing.assert_close(each.bias, whole.bias)


def test_no_shots_anywhere(tiny):
    world = tiny(shots=(0,) * 6)
    start = start_of(world)
    assert torch.equal(tune(world, start, 5).weight, start.weight)


def test_tunes_what_its_base_gives(tiny):
    world = tiny(dtype=torch.float64)
    config = FineTunedConfig(base="mean-head", epochs=3, learning_rate=RATE)
    heads = world.adapted(build_adapter(config, world.knowledge))
    expected = tune_each(world, start_of(world), 3, RATE)
    torch.testing.assert_close(heads.weight, expected.weight, rtol=1e-6, atol=1e-8)


def test_a_base_in_training_is_left_alone(tiny):
    world = tiny()
    maml = MAMLConfig(inner_steps=0, epochs=0)
    tuned = build_adapter(FineTunedConfig(base=maml, epochs=3), world.knowledge)
    base = build_adapter(maml, world.knowledge)
    assert tuned.learns
    assert not any(parameter is other for parameter in tuned.parameters() for other in base.parameters())
    untouched = world.adapted(tuned.train())
    assert untouched.weight.requires_grad
    assert torch.equal(untouched.weight, world.adapted(base).weight)
    heads = world.adapted(tuned.eval())
    assert not heads.weight.requires_grad
    shots = world.batch.shots
    assert bool((heads.bias != untouched.bias)[shots > 0].all())
    assert torch.equal(heads.weight[shots == 0], untouched.weight[shots == 0])


@pytest.mark.parametrize("base", ["mean-head", "chn", "bayes", "chn-bayes", "maml-3", "train-5-train-2"])
def test_it_is_as_its_base_is_but_for_the_heads(tiny, base):
    """It refines as its base does, is trained as its base is, and takes over what its base learned."""
    world = tiny()
    torch.manual_seed(0)
    tuned = build_adapter(adapter_config(f"{base}-train-2"), world.knowledge)
    alone = build_adapter(adapter_config(base), world.knowledge)
    assert tuned.refines == alone.refines
    assert not tuned.gives_uncertainty  # a tuned head does not know how sure it is
    shared = ADAPTERS.part_of(tuned.config).training_config(tuned.config)
    assert shared == ADAPTERS.part_of(alone.config).training_config(alone.config)
    trained = build_adapter(shared, world.knowledge)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1)
    tuned.copy_training(trained)
    innermost = tuned.base
    while hasattr(innermost, "base"):
        innermost = innermost.base
    assert all(
        torch.equal(innermost.state_dict()[name], value) for name, value in trained.state_dict().items()
    )
    states = tuned.eval().refine(world.knowledge.states)
    expected = trained.eval().refine(world.knowledge.states)
    assert torch.equal(states.activation, expected.activation)
