import pytest
import torch

from headstart.adapters import build_adapter
from headstart.adapters.baselines import MeanConfig
from headstart.table.kinds import KindType


def test_predicts_the_mean_of_the_context_or_of_the_kind(tiny):
    world = tiny()
    heads = world.adapted(build_adapter(MeanConfig(), world.knowledge))
    assert not heads.weight.any()
    predicted = world.knowledge.likelihood.mean(heads.bias, world.batch.kinds)
    for feature, kind in enumerate(world.batch.kinds.tolist()):
        values = [value for _, value in world.context(feature)]
        if not values:
            same_kind = [j for j, other in enumerate(world.knowledge.kinds.tolist()) if other == kind]
            values = [value for j in same_kind for _, value in world.column(j)]
        expected = sum(values) / len(values)
        assert float(predicted[feature]) == pytest.approx(expected, abs=1.1e-3)


def test_a_context_of_ones_stays_finite(tiny):
    world = tiny(new=(KindType.BINARY,), shots=(1,))
    world.batch.cells.values.fill_(1.0)
    head = world.adapted(build_adapter(MeanConfig(), world.knowledge))
    assert float(torch.sigmoid(head.bias)) == pytest.approx(0.999)


@pytest.mark.parametrize(
    ("kind", "middle"), [(KindType.BINARY, 0.5), (KindType.RATING, 0.5), (KindType.REAL, 0.0)]
)
def test_a_kind_never_seen_starts_in_the_middle(tiny, kind, middle):
    world = tiny(known=((kind + 1) % 3,) * 3, new=(kind,), shots=(0,))
    head = world.adapted(build_adapter(MeanConfig(), world.knowledge))
    assert float(world.knowledge.likelihood.mean(head.bias, world.batch.kinds)) == pytest.approx(middle)
