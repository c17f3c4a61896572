import math

import pytest
import torch

from headstart.adapters.baselines import RandomConfig, RandomHead
from headstart.errors import InputError
from headstart.table.cells import Cells

MASK = 2**64 - 1


def mixed(key: int) -> int:
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & MASK
    key = (key ^ key >> 27) * 0x94D049BB133111EB & MASK
    return key ^ key >> 31


def test_equals_the_hash_in_plain_integers(tiny):
    world = tiny()
    heads = world.adapted(RandomHead(RandomConfig(seed=7), world.knowledge))
    stride, width = 0x9E3779B97F4A7C15, heads.weight.shape[1]

    def bits(number: float) -> int:
        return int(torch.tensor(number, dtype=torch.float32).view(torch.int32)) & 0xFFFFFFFF

    for feature in range(len(world.batch)):
        context = sum(
            mixed((mixed(row * stride & MASK) + bits(value)) & MASK) for row, value in world.context(feature)
        )
        metadata = sum(
            mixed((mixed((column + 1) * stride & MASK) + bits(value)) & MASK)
            for column, value in enumerate(world.batch.metadata[feature].tolist())
        )
        key = mixed((mixed((context + 7) & MASK) + metadata) & MASK)
        uniform = [(mixed((key + (j + 1) * stride) & MASK) >> 11) / 2**53 for j in range(width)]
        expected = [(2 * u - 1) * math.sqrt(6 / (width + 1)) for u in uniform]
        torch.testing.assert_close(heads.weight[feature].tolist(), expected, rtol=1e-6, atol=1e-7)
    assert not heads.bias.any()


def test_weights_are_xavier_uniform(tiny):
    world = tiny(new=(0,) * 2000, shots=(3,) * 2000)
    weight = world.adapted(RandomHead(RandomConfig(), world.knowledge)).weight
    bound = math.sqrt(6 / (weight.shape[1] + 1))
    assert weight.abs().max() <= bound
    assert abs(float(weight.mean())) < 0.03
    assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
    covariance = torch.corrcoef(weight.T) - torch.eye(weight.shape[1])
    assert covariance.abs().max() < 0.1


def test_seed_context_and_metadata_each_change_the_draw(tiny):
    world = tiny()
    draw = world.adapted(RandomHead(RandomConfig(seed=1), world.knowledge)).weight
    other_seed = world.adapted(RandomHead(RandomConfig(seed=2), world.knowledge)).weight
    assert bool((draw != other_seed).any(1).all())
    assert len(torch.unique(draw, dim=0)) == len(draw)


def test_features_of_which_the_same_is_seen_share_a_draw(tiny):
    world = tiny(new=(0, 0), shots=(0, 0))
    batch = world.batch
    bare = type(batch)(batch.cells, batch.metadata[:, :0], batch.kinds)
    weight = RandomHead(RandomConfig(), world.knowledge).adapt(bare, world.knowledge.states).weight
    assert torch.equal(weight[0], weight[1])


def test_minus_zero_is_zero(tiny):
    world = tiny(new=(2,), shots=(2,))
    cells, adapter = world.batch.cells, RandomHead(RandomConfig(), world.knowledge)

    def weight(value: float):
        other = Cells(cells.indptr, cells.index, torch.full_like(cells.values, value), cells.width)
        return adapter.adapt(world.batch.observing(other), world.knowledge.states).weight

    assert torch.equal(weight(0.0), weight(-0.0))


def test_a_negative_seed_is_refused():
    with pytest.raises(InputError, match="'seed'"):
        RandomConfig(seed=-1)
