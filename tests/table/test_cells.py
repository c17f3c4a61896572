"""Positions and values in few bytes: exact, not copied, and without overflow."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.limits import limits

from headstart.datasets import synthetic_ratings
from headstart.errors import InputError
from headstart.table import Cells, Kind, Kinds, Names, Table
from headstart.table.cells import (
    count_positions,
    is_sorted,
    require_positions,
    smallest_exact,
    take_positions,
)
from headstart.table.reading import merge_duplicates, sort_observations

ROWS, FEATURES = 100_000, 50_000  # their product is larger than 2³²


def read(values: list[float], **options: object) -> Table:
    names = [f"r{i}" for i in range(len(values))]
    return Table.read(pa.table({"row": names, "feature": ["x"] * len(values), "value": values}), **options)


@pytest.fixture
def few_small(limits):
    """Small tables are sorted and looked at as large ones are."""
    limits(observations_sorted_by_comparison=0, observations_per_block=3)


def sparse_table() -> Table:
    """A few observations of a table with more cells than an index of 4 bytes could number."""
    rows = np.array([0, 1, 42_949, 42_950, 85_899, ROWS - 1, ROWS - 1])
    features = np.array([FEATURES - 1, 0, 33_648, 33_647, 17_297, 0, FEATURES - 1])
    names = (Names([str(i) for i in range(n)], noun) for n, noun in ((ROWS, "row"), (FEATURES, "feature")))
    return Table(*names, Kinds([Kind.rating(1, 5)] * FEATURES), rows, features, np.arange(7.0) % 5 + 1)


def test_ratings_take_four_bytes_and_keep_their_values():
    for values in ([1.0, 3.5, 5.0], [0.0, 1.0, 1.0], [-(2.0**100), 0.25, 16_777_216.0]):
        table = read(values)
        assert table.values.dtype == np.float32
        assert table.row_index.dtype == table.feature_index.dtype == np.int32
        assert table.values.tolist() == values
        assert list(table.observations_of("x").values()) == values


@pytest.mark.parametrize("value", [0.1, 16_777_217.0, 1e39, 1e-46, 1 + 2.0**-30])
def test_values_that_single_precision_cannot_hold_keep_double(value):
    values = [1.0, 2.0, value, 3.0]
    table = read(values, kinds="real")
    assert table.values.dtype == np.float64
    assert table.values.tolist() == values


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
@settings(max_examples=50, deadline=None)
def test_no_value_is_ever_changed(values):
    assert smallest_exact(np.array(values, dtype=np.float64)).tolist() == values


def test_one_batch_in_double_precision_makes_all_so(limits):
    limits(records_per_batch=2)
    assert read([1.0, 2.0, 0.1, 5.0], kinds="real").values.tolist() == [1.0, 2.0, 0.1, 5.0]


def test_a_fingerprint_does_not_depend_on_how_numbers_are_held(limits):
    """The digest of this table as it was when all numbers took 8 bytes: checkpoints rely on it."""
    table = read([1.0, 3.5, 5.0], kinds="rating:1:5")
    stored = "93b05294fbeadf722c4c4eb36244b009eae54511c1e2f6da3f28f1fc87876dd3"
    assert table.fingerprint() == stored
    limits(observations_per_block=2)
    assert table.fingerprint() == stored


def test_too_many_rows_are_refused():
    require_positions(2**31 - 1, "rows")
    with pytest.raises(InputError, match="has 2147483648 features; at most 2147483647 are possible"):
        require_positions(2**31, "features")


# -- what is not copied --------------------------------------------------------------------------------


def test_taking_all_copies_nothing():
    table = synthetic_ratings(30, 12, 0.5)
    assert table.with_features(list(table.features)) is table
    assert table.with_features(np.full(len(table.features), True)) is table
    cells = table.cells()
    assert np.shares_memory(cells.index.numpy(), table.feature_index)
    assert table.cells().index.data_ptr() == cells.index.data_ptr()
    weighted = replace(table, weights=np.ones(len(table)))
    assert np.shares_memory(weighted.cells().index.numpy(), table.feature_index)
    assert cells.take(torch.arange(len(cells))) is cells
    assert cells.take(torch.arange(len(cells)).int()) is cells
    assert cells.take(torch.arange(len(cells)).flip(0)) is not cells
    with pytest.raises(ValueError, match="read-only"):
        table.feature_index[0] = 1


def test_memory_of_others_is_copied_and_stays_read_only():
    table = synthetic_ratings(30, 12, 0.5)
    foreign = np.frombuffer(table.feature_index.tobytes(), dtype=np.int32)  # bytes are never written to
    cells = replace(table, feature_index=foreign).cells()
    assert not np.shares_memory(cells.index.numpy(), foreign)
    assert cells.index.tolist() == table.cells().index.tolist()


def test_an_index_takes_four_bytes_on_every_way():
    cells = synthetic_ratings(30, 12, 0.5).cells()
    some = torch.tensor([3, 1, 7])
    ways = [cells, cells.transpose(), cells.take(some), cells.block(2, 9), cells.keep(cells.index > 3)]
    ways += [Cells.from_pairs(cells.lines, cells.index.long(), cells.values, len(cells), cells.width)]
    assert all(each.index.dtype == torch.int32 and each.indptr.dtype == torch.int64 for each in ways)


# -- more cells than 4 bytes number --------------------------------------------------------------------


def test_a_large_product_of_rows_and_features_does_not_overflow():
    table = sparse_table()
    pairs = list(
        zip(table.row_index.tolist(), table.feature_index.tolist(), table.values.tolist(), strict=True)
    )
    cells, again = table.cells(), table.cells().transpose().transpose()
    for each in (cells, again):
        scaled = [(r, f, v * 4 + 1) for r, f, v in _triples(each)]
        assert scaled == pairs
    shuffled = torch.tensor([4, 2, 6, 0, 5, 1, 3])
    made = Cells.from_pairs(
        cells.lines[shuffled].int(), cells.index[shuffled], cells.values[shuffled], ROWS, FEATURES
    )
    assert _triples(made) == _triples(cells)
    kept = cells.keep(cells.index > 20_000)
    assert _triples(kept) == [each for each in _triples(cells) if each[1] > 20_000]


def test_features_of_a_large_table_are_taken_in_any_order():
    table = sparse_table()
    order = np.arange(FEATURES)[::-1]
    turned = table.with_features(order)
    expected = sorted(
        (row, FEATURES - 1 - feature, value)
        for row, feature, value in zip(
            table.row_index.tolist(), table.feature_index.tolist(), table.values.tolist(), strict=True
        )
    )
    found = zip(turned.row_index.tolist(), turned.feature_index.tolist(), turned.values.tolist(), strict=True)
    assert list(found) == expected


@pytest.mark.parametrize("count", [7, 70_000])
def test_observations_are_sorted_as_by_comparing(count):
    """70,000 are sorted by counting, which is stable, too: equal pairs keep their order."""
    random = np.random.default_rng(0)
    rows, features = random.integers(ROWS, size=count), random.integers(FEATURES, size=count)
    rows[count // 2 :], features[count // 2 :] = rows[: count - count // 2], features[: count - count // 2]
    values, times = np.arange(count, dtype=np.float64), random.random(count)
    order = np.argsort(rows.astype(np.int64) * FEATURES + features, kind="stable")
    found = sort_observations(rows, features, values, (ROWS, FEATURES), times, times + 1)
    assert np.array_equal(found.row_index, rows[order])
    assert np.array_equal(found.feature_index, features[order])
    assert np.array_equal(found.values, values[order])
    assert np.array_equal(found.times, times[order])
    assert np.array_equal(found.weights, times[order] + 1)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 5)), max_size=30),
    counted=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_sorting_is_a_plain_sort(pairs, counted):
    rows, features, values = (np.array([each[i] for each in pairs], dtype=np.int64) for i in range(3))
    with limits(observations_sorted_by_comparison=0) if counted else nullcontext():
        found = sort_observations(rows, features, values.astype(np.float32), (5, 4))
    expected = sorted(pairs, key=lambda each: each[:2])
    assert list(zip(*(part.tolist() for part in found[:3]), strict=True)) == expected


def test_the_mean_of_repeated_observations_is_in_double_precision():
    many = np.full(3, 2.0**24, np.float32)
    many[0] = 1.0
    zeros = np.zeros(3, np.int32)
    found = sort_observations(zeros, zeros, many, (1, 1))
    merged, _ = merge_duplicates(found, Names(["a"], "row"), Names(["x"], "feature"), "mean")
    assert merged.values.tolist() == [(2 * 2.0**24 + 1) / 3]


@pytest.mark.usefixtures("few_small")
def test_parts_together_are_the_whole():
    table = synthetic_ratings(40, 12, 0.5, seed=3)
    index = table.feature_index
    assert count_positions(index, 12).tolist() == np.bincount(index, minlength=12).tolist()
    order = np.random.default_rng(0).permutation(len(table)).astype(np.int32)
    assert np.array_equal(take_positions(table.values, order), table.values[order])
    rows = table.row_index
    assert is_sorted(rows, index)
    for place in (0, 2, 3, len(rows) - 2):  # at the ends of parts, too
        swapped = np.arange(len(rows))
        swapped[[place, place + 1]] = place + 1, place
        assert not is_sorted(rows[swapped], index[swapped])
    found = sort_observations(rows[order], index[order], table.values[order], table.shape)
    assert replace(table, **found._asdict()) == table


def _triples(cells: Cells) -> list[tuple[int, int, float]]:
    return list(zip(cells.lines.tolist(), cells.index.tolist(), cells.values.tolist(), strict=True))
