import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart.adapters.baselines import kind_means, pooled_heads, split_by_work
from headstart.core.types import Heads

WORK = st.lists(st.integers(0, 50), max_size=30)


@given(work=WORK, budget=st.integers(1, 100))
def test_parts_cover_everything_in_order_within_the_budget(work, budget):
    split = split_by_work(torch.tensor(work, dtype=torch.int64), budget)
    assert torch.cat(split).tolist() == list(range(len(work)))
    for part in split:
        assert sum(work[i] for i in part.tolist()[:-1]) <= budget


@given(labels=st.lists(st.integers(0, 2), max_size=20))
def test_parts_do_not_span_two_labels(labels):
    label = torch.tensor(labels, dtype=torch.int64)
    for part in split_by_work(torch.ones_like(label), 5, label):
        assert len(set(label[part].tolist())) <= 1


def test_kind_means_are_those_of_all_values_of_the_kind(tiny):
    world = tiny()
    means = kind_means(world.knowledge).tolist()
    for kind, mean in enumerate(means):
        same = [j for j, other in enumerate(world.knowledge.kinds.tolist()) if other == kind]
        values = [value for j in same for _, value in world.column(j)]
        assert mean == pytest.approx(sum(values) / len(values))


def test_a_line_that_marks_no_head_takes_the_other(tiny):
    knowledge = tiny().knowledge
    chosen = torch.zeros(2, len(knowledge.kinds), dtype=torch.bool)
    chosen[0, [1, 4]] = True
    otherwise = Heads(torch.full((2, knowledge.heads.weight.shape[1]), 7.0), torch.full((2,), 8.0))
    pooled = pooled_heads(chosen, otherwise, knowledge)
    torch.testing.assert_close(pooled.weight[0], knowledge.heads.weight[[1, 4]].mean(0))
    assert pooled.weight[1].tolist() == otherwise.weight[1].tolist()
    assert float(pooled.bias[1]) == 8.0
