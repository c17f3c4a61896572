"""Cells one by one are predicted as the same cells of a grid, for every kind and adapter."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.model.conftest import ratings_table

from headstart import Headstart, Table
from headstart.model import prediction as predicting
from headstart.model.prediction import predict_pairs


def mixed_table() -> Table:
    """Binary, rating and real features, in one table."""
    base = ratings_table()
    values = base.values.copy()
    binary, real = base.feature_index % 3 == 0, base.feature_index % 3 == 1
    values[binary] = values[binary] > 3
    values[real] = 10 * values[real]
    kinds = {name: ("binary", "real", "rating:1:5")[j % 3] for j, name in enumerate(base.features)}
    rows, features = ([names[i] for i in at] for names, at in _named(base))
    return Table.read(pa.table({"row": rows, "feature": features, "value": values}), kinds=kinds)


def _named(table: Table) -> list[tuple[object, object]]:
    return [(table.rows, table.row_index), (table.features, table.feature_index)]


@pytest.mark.parametrize("adapter", ["bayes", "mean-head"])
@pytest.mark.parametrize("heads_at_once", [5, 1024])
def test_pairs_are_cells_of_the_grid(
    adapter: str, heads_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "_HEADS_AT_ONCE", heads_at_once)
    model = Headstart(adapter=adapter, quiet=True).fit(mixed_table())
    random = np.random.default_rng(0)
    names = list(reversed(model.features))
    rows, which = random.integers(0, 60, 400), random.integers(0, len(names) - 2, 400)
    grid = model.predict(features=names)
    found = predict_pairs(model.fitted_, rows, names, which, 0.8)
    for own, expected in zip(found, (grid.mean, grid.std, *grid.interval(0.8)), strict=True):
        assert np.allclose(own, expected[rows, which], rtol=1e-6, atol=0)


def test_no_pairs_give_no_predictions() -> None:
    model = Headstart(adapter="bayes", quiet=True).fit(ratings_table())
    none = np.zeros(0, dtype=np.int64)
    assert [len(each) for each in predict_pairs(model.fitted_, none, [], none, 0.9)] == [0, 0, 0, 0]
