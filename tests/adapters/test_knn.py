from dataclasses import replace

import pytest
import torch
from tests.oracles.knn import squared_distances

from headstart.adapters import build_adapter
from headstart.adapters.baselines import MeanHeadConfig, NearestHeadsConfig
from headstart.core.types import RowStates
from headstart.errors import InputError
from headstart.table.cells import Cells
from headstart.table.kinds import KindType


@pytest.mark.parametrize("seed", range(5))
def test_distances_equal_those_of_the_imputed_columns(tiny, seed):
    world = tiny(seed=seed)
    found = build_adapter(NearestHeadsConfig(), world.knowledge).distances(world.batch)
    torch.testing.assert_close(found.tolist(), squared_distances(world, 10), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("neighbours", [1, 2, 10])
def test_head_is_the_mean_of_the_nearest(tiny, neighbours):
    many = (KindType.BINARY, KindType.RATING, KindType.REAL) * 5
    world = tiny(known=many)
    heads = world.adapted(build_adapter(NearestHeadsConfig(neighbours=neighbours), world.knowledge))
    for feature, distances in enumerate(squared_distances(world, 10)):
        same = [j for j, kind in enumerate(many) if kind == world.batch.kinds[feature]]
        chosen = sorted(same, key=lambda j, distances=distances: round(distances[j], 9))[:neighbours]
        expected = sum(world.knowledge.heads.weight[j] for j in chosen) / len(chosen)
        torch.testing.assert_close(heads.weight[feature], expected)
        expected = sum(world.knowledge.heads.bias[j] for j in chosen) / len(chosen)
        torch.testing.assert_close(heads.bias[feature], expected)


def test_rows_outside_the_table_are_part_of_the_columns(tiny):
    world = tiny(new=(KindType.BINARY, KindType.REAL), shots=(3, 2))
    cells, states = world.batch.cells, world.knowledge.states
    outside = torch.where(cells.index == cells.index.max(), 11, cells.index)  # a row that joined later
    batch = world.batch.observing(Cells(cells.indptr, outside, cells.values, 12))
    adapter = build_adapter(NearestHeadsConfig(), world.knowledge)
    found = adapter.distances(batch)
    for feature in range(len(batch)):
        rows = 11 if bool((batch.cells.take(torch.tensor([feature])).index == 11).any()) else 10
        moved = replace(
            world, batch=batch.observing(Cells(cells.indptr, outside.clamp(max=10), cells.values, 11))
        )
        expected = squared_distances(moved, rows)[feature]
        torch.testing.assert_close(found[feature].tolist(), expected, rtol=1e-6, atol=1e-6)
    extra = torch.arange(12).clamp(max=9)
    assert len(adapter.adapt(batch, states.take(extra))) == 2


def test_with_all_as_neighbours_it_is_the_mean_head(tiny):
    world = tiny()
    heads = world.adapted(build_adapter(NearestHeadsConfig(neighbours=1000), world.knowledge))
    expected = world.adapted(build_adapter(MeanHeadConfig(), world.knowledge))
    torch.testing.assert_close(heads.weight, expected.weight)
    torch.testing.assert_close(heads.bias, expected.bias)


def test_a_kind_never_seen_gets_the_middle(tiny):
    world = tiny(known=(KindType.BINARY,) * 3, new=(KindType.RATING,), shots=(2,))
    head = world.adapted(build_adapter(NearestHeadsConfig(), world.knowledge))
    assert not head.weight.any()
    assert float(torch.sigmoid(head.bias)) == 0.5


def test_states_of_other_rows_are_refused(tiny):
    world = tiny()
    few: RowStates = world.knowledge.states.take(torch.arange(4))
    with pytest.raises(InputError, match="all 10 rows of the table, but got the states of 4"):
        build_adapter(NearestHeadsConfig(), world.knowledge).adapt(world.batch, few)


def test_parts_do_not_change_the_result(tiny, limits):
    world = tiny()
    adapter = build_adapter(NearestHeadsConfig(neighbours=2), world.knowledge)
    whole = world.adapted(adapter)
    limits(baseline_numbers_per_part=1)
    torch.testing.assert_close(world.adapted(adapter).weight, whole.weight)
