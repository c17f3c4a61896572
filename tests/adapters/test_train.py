import torch

from headstart.adapters.baselines import RandomConfig, RandomHead
from headstart.adapters.finetuning import TrainConfig, TrainFromRandom, fine_tune
from headstart.core.predictive import grid_logits


def test_is_the_random_head_then_fine_tuned(tiny):
    world = tiny()
    known = world.knowledge
    start = world.adapted(RandomHead(RandomConfig(seed=3), known))
    heads = world.adapted(TrainFromRandom(TrainConfig(epochs=4, seed=3), known))
    expected = fine_tune(start, world.batch, known.states, known.likelihood, 4, 1e-2)
    assert torch.equal(heads.weight, expected.weight)
    shots = world.batch.shots
    assert torch.equal(heads.weight[shots == 0], start.weight[shots == 0])


def test_no_epochs_is_the_random_head(tiny):
    world = tiny()
    heads = world.adapted(TrainFromRandom(TrainConfig(epochs=0), world.knowledge))
    assert torch.equal(heads.weight, world.adapted(RandomHead(RandomConfig(), world.knowledge)).weight)


def test_more_epochs_fit_the_context_better(tiny):
    world = tiny()
    known = world.knowledge
    lines, rows = world.batch.cells.lines, world.batch.cells.index
    losses = []
    for epochs in (1, 5, 10, 25, 200):
        heads = world.adapted(TrainFromRandom(TrainConfig(epochs=epochs), known))
        logits = grid_logits(heads, known.states, torch.float32)[rows, lines]
        nll = known.likelihood.nll(logits, world.batch.cells.values, world.batch.kinds[lines])
        losses.append(float(nll.mean()))
    assert losses == sorted(losses, reverse=True)
