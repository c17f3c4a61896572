from dataclasses import replace

import pytest
import torch

from headstart.adapters import build_adapter
from headstart.adapters.baselines import MeanHeadConfig, MeanHeadMatchingConfig
from headstart.table.kinds import KindType

LABELS = 4  # of the tiny world's metadata; its last column is a number


def matching(world, feature: int) -> list[int]:
    """The features that match, step by step as documented."""
    known = world.knowledge

    def categories(row):
        return {column for column in range(LABELS) if row[column] == 1}

    wanted = categories(world.batch.metadata[feature].tolist())
    same = [j for j, kind in enumerate(known.kinds.tolist()) if kind == world.batch.kinds[feature]]
    sets = {j: categories(known.metadata[j].tolist()) for j in same}
    exact = [j for j in same if sets[j] == wanted and wanted]
    if exact:
        return exact
    most = max(len(sets[j] & wanted) for j in same)
    return [j for j in same if len(sets[j] & wanted) == most]


@pytest.mark.parametrize("seed", range(8))
def test_equals_the_steps_as_documented(tiny, seed):
    many = (KindType.BINARY, KindType.RATING) * 12
    world = tiny(known=many, new=many, shots=(2,) * len(many), seed=seed)
    heads = world.adapted(build_adapter(MeanHeadMatchingConfig(), world.knowledge))
    for feature in range(len(many)):
        chosen = matching(world, feature)
        expected = sum(world.knowledge.heads.weight[j] for j in chosen) / len(chosen)
        torch.testing.assert_close(heads.weight[feature], expected)
        expected = sum(world.knowledge.heads.bias[j] for j in chosen) / len(chosen)
        torch.testing.assert_close(heads.bias[feature], expected)


def test_exact_before_larger_overlap_before_mean_head(tiny):
    world = tiny(known=(KindType.BINARY,) * 4, new=(KindType.BINARY,) * 4, shots=(0,) * 4)
    known = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.float32)
    new = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=torch.float32)
    knowledge, batch = replace(world.knowledge, metadata=known), replace(world.batch, metadata=new)
    heads = build_adapter(MeanHeadMatchingConfig(), knowledge).adapt(batch, knowledge.states)
    weight = knowledge.heads.weight
    torch.testing.assert_close(heads.weight[0], weight[0])  # exactly {0}, though three features hold it
    torch.testing.assert_close(heads.weight[1], weight[1:3].mean(0))  # no {1}; two hold it
    torch.testing.assert_close(heads.weight[2], weight.mean(0))  # no categories: nothing to match
    torch.testing.assert_close(heads.weight[3], weight[1:3].mean(0))  # two of its three


@pytest.mark.parametrize("width", [0, 1])
def test_without_categories_it_is_the_mean_head(tiny, width):
    world = tiny()
    number = slice(LABELS, LABELS + width)  # no metadata, or a number only
    knowledge = replace(world.knowledge, metadata=world.knowledge.metadata[:, number])
    batch = replace(world.batch, metadata=world.batch.metadata[:, number])
    heads = build_adapter(MeanHeadMatchingConfig(), knowledge).adapt(batch, knowledge.states)
    expected = build_adapter(MeanHeadConfig(), knowledge).adapt(batch, knowledge.states)
    torch.testing.assert_close(heads.weight, expected.weight)
    torch.testing.assert_close(heads.bias, expected.bias)


def test_a_kind_never_seen_gets_the_middle(tiny):
    world = tiny(known=(KindType.BINARY,) * 3, new=(KindType.RATING,), shots=(2,))
    head = world.adapted(build_adapter(MeanHeadMatchingConfig(), world.knowledge))
    assert not head.weight.any()
    assert float(torch.sigmoid(head.bias)) == 0.5
