import pytest
import torch

from headstart.adapters.mean import MeanConfig, MeanOfContext
from headstart.table.kinds import KindType


def test_predicts_the_mean_of_the_context_or_of_the_kind(tiny):
    world = tiny()
    heads = world.adapted(MeanOfContext(MeanConfig(), world.knowledge))
    assert not heads.weight.any()
    predicted = world.knowledge.likelihood.mean(heads.bias, world.batch.kinds)
    for feature, code in enumerate(world.batch.kinds.tolist()):
        values = [value for _, value in world.context(feature)]
        if not values:
            same_kind = [j for j, other in enumerate(world.knowledge.kinds.tolist()) if other == code]
            values = [value for j in same_kind for _, value in world.column(j)]
        expected = sum(values) / len(values)
        assert float(predicted[feature]) == pytest.approx(expected, abs=1.1e-3)


def test_a_context_of_ones_stays_finite(tiny):
    world = tiny(new=(KindType.BINARY,), shots=(1,))
    world.batch.cells.values.fill_(1.0)
    head = world.adapted(MeanOfContext(MeanConfig(), world.knowledge))
    assert float(torch.sigmoid(head.bias)) == pytest.approx(0.999)


@pytest.mark.parametrize(
    ("code", "middle"), [(KindType.BINARY, 0.5), (KindType.RATING, 0.5), (KindType.REAL, 0.0)]
)
def test_a_kind_never_seen_starts_in_the_middle(tiny, code, middle):
    world = tiny(known=((code + 1) % 3,) * 3, new=(code,), shots=(0,))
    head = world.adapted(MeanOfContext(MeanConfig(), world.knowledge))
    assert float(world.knowledge.likelihood.mean(head.bias, world.batch.kinds)) == pytest.approx(middle)


def test_contract(tiny, keeps_the_contract):
    world = tiny()
    keeps_the_contract(world, MeanOfContext(MeanConfig(), world.knowledge))
