"""Rows are held out, and what describes them is nested and never their targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.datasets import synthetic_mixed, synthetic_ratings, synthetic_responses
from headstart.errors import InputError
from headstart.evaluate import KShotTest, RowTest, split_features
from headstart.evaluate.kshot import new_cell_targets
from headstart.evaluate.scoring import HeldOutRows
from headstart.evaluate.splits import (
    MAX_TEST_ROWS,
    MIN_TRAINING_ROWS,
    draw_rows,
    split_rows,
    usable_row_shots,
)
from headstart.table import Table
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training.table_inputs import feature_batch, modelled_table

SHOTS = (0, 1, 2, 4)


@pytest.fixture(scope="module")
def table() -> Table:
    return synthetic_mixed(40, 15)


def pairs(cells: Cells) -> set[tuple[int, int]]:
    return set(zip(cells.lines.tolist(), cells.index.tolist(), strict=True))


def target_pairs(test: RowTest) -> set[tuple[int, int]]:
    """Tested rows and features of the targets."""
    return {(row, int(test.features[line])) for line, row in pairs(test.targets)}


def test_parts_have_every_row_once_with_all_it_has():
    frame = {"row": [*"aabbcd"], "feature": [*"xyxyyx"], "value": [1, 2, 3, 4, 5, 1], "when": [*range(6)]}
    people = pa.table({"row": [*"abcd"], "age": [1, 2, 3, 4]})
    table = Table.read(pa.table(frame), row_metadata=people, time="when", kinds="rating:1:5")
    table = replace(table, weights=np.arange(1.0, 7.0))
    kept, away = split_rows(table, np.array([1, 3]))
    assert (list(kept.rows), list(away.rows)) == (["a", "c"], ["b", "d"])
    assert kept.features == away.features == table.features
    assert away.row_metadata is not None
    assert away.row_metadata.column("age").to_pylist() == [2, 4]
    for feature in "xy":
        both = kept.observations_of(feature) | away.observations_of(feature)
        assert both == table.observations_of(feature)
    assert away.times is not None
    assert away.weights is not None
    assert (away.times.tolist(), away.weights.tolist()) == ([2.0, 3.0, 5.0], [3.0, 4.0, 6.0])


@pytest.mark.parametrize(
    ("rows", "share", "count"), [(60, 0.1, 6), (60, 0.5, 30), (6000, 0.5, MAX_TEST_ROWS)]
)
def test_the_share_of_rows_is_drawn_but_never_too_many(rows, share, count):
    table = synthetic_ratings(rows, 5, 0.9)
    drawn = draw_rows(table, share, 0)
    assert len(drawn) == len(set(drawn.tolist())) == count
    assert (np.diff(drawn) > 0).all()
    assert np.array_equal(drawn, draw_rows(table, share, 0))
    assert not np.array_equal(drawn, draw_rows(table, share, 1))


def test_values_do_not_matter_and_empty_rows_are_never_drawn():
    table = synthetic_ratings(60, 10, 0.1)
    empty = set(range(60)) - set(table.row_index.tolist())
    assert empty  # or this shows nothing
    drawn = draw_rows(table, 0.5, 0)
    assert not empty & set(drawn.tolist())
    assert np.array_equal(drawn, draw_rows(replace(table, values=6 - table.values), 0.5, 0))
    assert len(draw_rows(table, 0.0, 0)) == 0


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (-0.1, "test_rows must be from 0 to below 1; got -0.1"),
        (1.0, "from 0 to below 1"),
        (float("nan"), "from 0 to below 1"),
        (0.001, "of 40 rows with observations none is held out; use another share, or test_rows=0"),
        (0.99, "of 40 rows with observations only 0 are left to train on"),
        (1 - MIN_TRAINING_ROWS / 40 + 0.03, "only 3 are left"),
    ],
)
def test_bad_shares_are_refused(table, share, message):
    with pytest.raises(InputError, match=message):
        draw_rows(table, share, 0)


def test_numbers_that_leave_nothing_to_test_on_are_left_out():
    lines = [(f"r{i}", f"f{j}", 1 + (i + j) % 5) for i in range(9) for j in range(i + 1)]
    names = ("row", "feature", "value")
    columns = dict(zip(names, map(list, zip(*lines, strict=True)), strict=True))
    table = Table.read(pa.table(columns), kinds="rating:1:5")  # 1 to 9 observations, 5 in the median
    assert usable_row_shots(table, (8, 4, 0, 2), 0.9) == (0, 2, 4)
    assert usable_row_shots(table, (0, 2, 4, 5), 0.7) == (0, 2)  # 3.5 of them are of known features
    with pytest.raises(InputError, match=r"row_shots 5, 8 leave nothing .* at most 5 observations"):
        usable_row_shots(table, (5, 8), 0.9)
    with pytest.raises(InputError, match="different whole numbers"):
        usable_row_shots(table, (1, 1), 0.9)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_contexts_are_nested_and_never_targets(table, seed):
    test = RowTest(table, table.kinds, SHOTS, seed)
    contexts = [pairs(test.context(r)) for r in SHOTS]
    for shots, context in zip(SHOTS, contexts, strict=True):
        assert torch.equal(test.context(shots).counts, torch.full((len(test),), shots))
        assert context <= contexts[-1]
        assert not context & target_pairs(test)
    rows = test.rows.tolist()
    seen = {(rows[row], feature) for row, feature in contexts[-1] | target_pairs(test)}
    whole = set(zip(table.row_index.tolist(), table.feature_index.tolist(), strict=True))
    assert seen == {pair for pair in whole if pair[0] in set(rows)}
    counts = np.bincount(table.row_index, minlength=len(table.rows))
    assert rows == np.flatnonzero(counts > SHOTS[-1]).tolist()
    assert test.left_out == len(table.rows) - len(rows)


def test_the_order_does_not_depend_on_values(table):
    other = replace(table, values=np.where(table.values == 0, 1.0, 0.0), kinds=table.kinds)
    one, two = (RowTest(each, table.kinds, SHOTS, 3) for each in (table, other))
    assert all(pairs(one.context(r)) == pairs(two.context(r)) for r in SHOTS)
    assert pairs(one.targets) == pairs(two.targets)
    assert pairs(RowTest(table, table.kinds, SHOTS, 4).targets) != pairs(one.targets)


def test_truth_is_what_the_row_observed(table):
    test = RowTest(table, table.kinds, SHOTS, 0)
    observed = {
        (row, feature): value
        for row, feature, value in zip(table.row_index, table.feature_index, table.values, strict=True)
    }
    for line, row, truth in zip(test.lines, test.targets.index, test.truth, strict=True):
        wanted = observed[int(test.rows[row]), int(test.features[line])]
        assert truth == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_too_many_observations_of_a_row_are_reported(table):
    with pytest.raises(InputError, match=r"40 held-out rows has \d+ observations of known features"):
        RowTest(table, table.kinds, (0, 50), 0)
    with pytest.raises(InputError, match="by 0 to 4 observations; got 5"):
        RowTest(table, table.kinds, SHOTS, 0).context(5)


def test_both_few_are_all_cells_of_tested_rows_and_tested_features(table):
    kept, away = split_rows(table, draw_rows(table, 0.3, 0))
    known, new = np.arange(12), np.arange(12, 15)
    rows = RowTest(away.with_features(known), away.kinds.take(known), SHOTS, 0)
    features = KShotTest(feature_batch(kept.with_features(new)), kept.kinds.take(new), (0, 4), 0)
    found = new_cell_targets(away.with_features(new), away.kinds.take(new), rows, features)
    assert found is not None
    cells = {
        (int(new[features.features[line]]), away.rows[int(rows.rows[row])]): truth
        for line, row, truth in zip(found.lines, found.targets.index, found.truth, strict=True)
    }
    for position in new[features.features.numpy()].tolist():
        wanted = away.observations_of(away.features[position])
        tested = {away.rows[i] for i in rows.rows.tolist()}
        here = {row: truth for (feature, row), truth in cells.items() if feature == position}
        assert here == pytest.approx({row: value for row, value in wanted.items() if row in tested}, abs=1e-5)
    few = KShotTest(feature_batch(kept.with_features(new)), kept.kinds.take(new), (0, 2), 0)
    assert new_cell_targets(away.with_features(new), away.kinds.take(new), rows, few) is None


def test_binary_features_taken_as_numbers_are_scored_as_binary():
    table = synthetic_responses(60, 20)
    split = split_features(table, 0.2, seed=0)
    kept, away = split_rows(table, draw_rows(table, 0.2, 0))
    new = kept.with_features(split.meta_test)
    for link, kind in (("identity", KindType.RATING), ("logistic", KindType.BINARY)):
        features = KShotTest(feature_batch(modelled_table(new, link)), new.kinds, (0, 4), 0)
        test = HeldOutRows.of(kept, away, split, features, link, SHOTS, 0)
        assert test is not None
        assert test.both is not None
        assert len(test.known) == len(test.rows.features)
        assert test.known.known is not None
        assert torch.equal(test.known.known, test.rows.features)
        for each in (test.rows, test.both):
            assert set(each.modelled.tolist()) == {kind}
            assert set(each.kinds.tolist()) == {KindType.BINARY}
            assert set(each.truth.tolist()) == {0.0, 1.0}
        assert set(test.known.kinds.tolist()) == {kind}
