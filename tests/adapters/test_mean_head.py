import torch

from headstart.adapters import build_adapter
from headstart.adapters.baselines import MeanHeadConfig
from headstart.table.kinds import KindType


def test_is_the_mean_of_the_heads_of_the_kind(tiny):
    world = tiny()
    heads, known = world.adapted(build_adapter(MeanHeadConfig(), world.knowledge)), world.knowledge
    for feature, kind in enumerate(world.batch.kinds.tolist()):
        same = [j for j, other in enumerate(known.kinds.tolist()) if other == kind]
        torch.testing.assert_close(
            heads.weight[feature], sum(known.heads.weight[j] for j in same) / len(same)
        )
        torch.testing.assert_close(heads.bias[feature], sum(known.heads.bias[j] for j in same) / len(same))


def test_a_kind_never_seen_gets_the_middle(tiny):
    world = tiny(known=(KindType.BINARY,) * 3, new=(KindType.RATING,), shots=(2,))
    head = world.adapted(build_adapter(MeanHeadConfig(), world.knowledge))
    assert not head.weight.any()
    assert float(torch.sigmoid(head.bias)) == 0.5


def test_learns_nothing_and_carries_no_gradient(tiny):
    world = tiny()
    adapter = build_adapter(MeanHeadConfig(), world.knowledge)
    assert not adapter.learns
    assert not world.adapted(adapter).weight.requires_grad
