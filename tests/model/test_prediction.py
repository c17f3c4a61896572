"""Cells one by one are predicted as the same cells of a grid, for every kind and adapter."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.stats import norm
from tests.limits import Limits
from tests.model.conftest import CLOSED, ratings_table
from tests.model.test_ranking import mixed_table
from tests.states import snapshot, state_of

from headstart import Headstart, Table
from headstart.errors import InputError, MetadataWarning
from headstart.model.cell_predictions import predict_pairs
from headstart.model.prediction import Prediction
from headstart.table import Kind, Kinds, MetadataSchema, Names


def three_kinds() -> Table:
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
def test_pairs_are_cells_of_the_grid(adapter: str, heads_at_once: int, limits: Limits) -> None:
    limits(predicted_heads_per_block=heads_at_once)
    model = Headstart(adapter=adapter, quiet=True).fit(three_kinds())
    random = np.random.default_rng(0)
    names = list(reversed(model.features))
    rows, which = random.integers(0, 60, 400), random.integers(0, len(names) - 2, 400)
    grid = model.predict(features=names)
    found = predict_pairs(state_of(model), rows, names, which, 0.8)
    for own, expected in zip(found, (grid.mean, grid.std, *grid.interval(0.8)), strict=True):
        assert np.allclose(own, expected[rows, which], rtol=1e-6, atol=0)


def test_no_pairs_give_no_predictions() -> None:
    model = Headstart(adapter="bayes", quiet=True).fit(ratings_table())
    none = np.zeros(0, dtype=np.int64)
    assert [len(each) for each in predict_pairs(state_of(model), none, [], none, 0.9)] == [0, 0, 0, 0]


# -- What can be read from predictions and features, and frames in the place of mappings


Fresh = Callable[..., Headstart]


def said(mean: float, std: float, kind: Kind, reach: list[float] | None = None) -> Prediction:
    numbers = np.array([[mean]]), np.array([[std]])
    factors = None if reach is None else np.array([reach])
    return Prediction(Names(["u"], "row"), Names(["f"], "feature"), Kinds([kind]), *numbers, factors)


def test_quantiles_are_the_ends_of_intervals(fresh: Fresh) -> None:
    found = fresh(adapter="able").predict(["u1", "u2"], ["f1", "f2", "f3"])
    low, high = found.interval(0.8)
    np.testing.assert_array_equal(found.quantile(0.9), high)
    np.testing.assert_allclose(found.quantile(0.1), low)
    np.testing.assert_array_equal(found.quantile(0.5), found.mean)
    for bad in (0, 1, -1, "x", True):
        with pytest.raises(InputError, match="between 0 and 1"):
            found.quantile(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("reach", [None, [1.2, 1.1, 1.0, 1.05, 1.3]])
def test_probabilities_and_quantiles_agree(reach: list[float] | None) -> None:
    found = said(2.0, 0.7, Kind.real(), reach)
    for quantile in (0.01, 0.1, 0.4, 0.5, 0.6, 0.75, 0.9, 0.99):
        value = float(found.quantile(quantile)[0, 0])
        assert found.probability_above(value)[0, 0] == pytest.approx(1 - quantile, abs=2e-4)
    if reach is None:
        assert found.probability_above(2.5)[0, 0] == pytest.approx(norm.sf(2.5, 2.0, 0.7), abs=1e-4)
    values = np.linspace(-3, 7, 50)
    chances = [found.probability_above(value)[0, 0] for value in values]
    assert (np.diff(chances) <= 1e-12).all()


@pytest.mark.parametrize(
    "reach", [[1.0, 1.0, 1.0, 1.0, 0.1], [5.0, 2.0, 1.0, 0.5, 0.2], [1.0, 0.5, 2.0, 0.3, 0.3]]
)
def test_intervals_of_higher_levels_are_wider(reach: list[float]) -> None:
    """Whatever factors were measured for the levels, quantiles are in order and agree with probabilities."""
    found = said(2.0, 0.7, Kind.real(), reach)
    levels = np.linspace(0.05, 0.999, 300)
    lows, highs = np.array([[part[0, 0] for part in found.interval(level)] for level in levels]).T
    slack = 0.001 * found.scale[0, 0]  # between two of the levels that are compared
    assert (np.diff(lows) <= slack).all()
    assert (np.diff(highs) >= -slack).all()
    for quantile in (0.1, 0.7, 0.97):
        above = found.probability_above(float(found.quantile(quantile)[0, 0]) + slack)[0, 0]
        assert above <= 1 - quantile + 1e-3
    uniform = np.linspace(0.01, 0.99, 99)[:, None, None]
    drawn = found.values_at(uniform)[:, 0, 0]
    expected = [found.quantile(float(quantile))[0, 0] for quantile in uniform.ravel()]
    np.testing.assert_allclose(drawn, expected, atol=slack)


def test_quantiles_far_above_all_numbers_are_finite() -> None:
    for kind in ("count:0.5:0:1", "amount:1:0:1"):
        found = said(50.0, 400.0, Kind.parse(kind), None)
        for part in (found.mean, found.std, *found.interval(0.99), found.quantile(0.999), found.sample(5)):
            assert np.isfinite(part).all()
    tiny = said(1e300, 1e-300, Kind.real(), None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tiny.probability_above(0.0)[0, 0] == pytest.approx(1)


def test_probabilities_end_at_the_ends() -> None:
    stars, answer = said(4.8, 0.5, Kind.rating(1, 5)), said(0.3, 0.4, Kind.binary())
    assert stars.probability_above(5)[0, 0] == 0
    assert stars.probability_above(0.5)[0, 0] == 1
    assert 0 < stars.probability_above(4.9)[0, 0] < 1
    assert [answer.probability_above(v)[0, 0] for v in (-0.1, 0, 0.5, 1)] == [1, 0.3, 0.3, 0]
    assert answer.quantile(0.5)[0, 0] == 0
    for bad in ("x", None, float("nan"), True):
        with pytest.raises(InputError, match="takes a number"):
            stars.probability_above(bad)  # type: ignore[arg-type]


def test_predictions_become_frames_and_pictures(fresh: Fresh) -> None:
    found = fresh(adapter="able").predict(["u1", "u2"], ["f1", "f2"])
    arrow = found.to_arrow(0.5)
    assert found.to_pandas(0.5)["mean"].tolist() == arrow["mean"].to_pylist()
    polars = found.to_polars(0.5)
    assert isinstance(polars, pl.DataFrame)
    assert polars["high"].to_list() == arrow["high"].to_pylist()
    axes = found.plot()
    assert len(axes.get_yticklabels()) == 4
    with pytest.raises(InputError, match="up to 60 cells"):
        fresh(adapter="able").predict().plot()


def test_observations_and_metadata_of_a_feature_are_as_they_were_given(fresh: Fresh) -> None:
    model, table = fresh(adapter="able"), ratings_table(rows=200, features=60)
    for name, given in zip(table.features, table.metadata.to_pylist(), strict=True):
        assert model.feature(name).observations == table.observations_of(name)
        assert model.feature(name).metadata == given
    with pytest.warns(MetadataWarning, match="'opera' is not known"):
        model.add_feature("new", {"year": 2031, "genre": "opera"}, {"u3": 2, "u1": 4})
    assert model.feature("new").observations == {"u1": 4, "u3": 2}
    assert model.feature("new").metadata == {"year": 2031, "genre": "opera"}
    shown = "'new' (rating:1:5), 2 observations; year: 2031, genre: opera"
    assert repr(model.feature("new")) == shown
    assert Headstart(**CLOSED).fit(mixed_table("real")).feature("f1").metadata == {}


def test_metadata_is_decoded_by_type() -> None:
    columns = pa.table(
        {
            "year": [1979.5, 1985.25, None],
            "day": [datetime(2020, 5, 17), None, datetime(1999, 12, 31)],
            "land": ["UK", "US", "UK"],
            "labels": [["a", "b"], [], ["b"]],
            "vector": [[0.5, 1.5], [1.0, 2.0], None],
            "title": ["one film", "another film", "a third"],
        }
    )
    types = {"land": "category", "title": "text:8"}
    schema = MetadataSchema.fit(columns, types)
    lines = [schema.decode(line) for line in schema.encode_table(columns)]
    assert lines[0] == {
        "year": 1979.5,
        "day": datetime(2020, 5, 17),
        "land": "UK",
        "labels": ["a", "b"],
        "vector": pytest.approx([0.5, 1.5], rel=1e-6),
    }
    assert set(lines[1]) == {"year", "land", "vector"}
    assert set(lines[2]) == {"day", "land", "labels"}


def test_series_and_frames_serve_as_observations(fresh: Fresh) -> None:
    given = {"u1": 5.0, "u7": 2.0, "u9": 4.0}
    names, values = list(given), list(given.values())
    frames = {
        "series": pd.Series({**given, "u11": np.nan}),  # in pandas NaN is missing
        "pandas": pd.DataFrame({"row": names, "value": values}),
        "polars": pl.DataFrame({"user": [*names, "u11"], "stars": [*values, None]}),
        "lazy": pl.LazyFrame({"user": names, "stars": values}),
        "arrow": pa.table({"value": values, "row": names}),
    }
    model = fresh(adapter="able")
    model.add_feature("dict", observations=given)
    for name, frame in frames.items():
        model.add_feature(name, observations=frame)
        model.add_feature(f"{name} later")
        model.observe_feature(f"{name} later", frame)
        assert model.feature(name).observations == model.feature(f"{name} later").observations == given
    found = model.predict(features=["dict", *frames])
    assert (found.mean == found.mean[:, :1]).all()
    rows = {"x": pd.Series({"f1": 5, "f2": 1})}
    np.testing.assert_array_equal(model.predict(rows).mean, model.predict({"x": {"f1": 5, "f2": 1}}).mean)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pd.Series([1, 2], index=["u1", "u1"]), "'u1' is given twice"),
        (pl.Series([1, 2]), "polars Series has no names"),
        (pd.DataFrame({"a": ["u1"], "b": [1], "c": [2]}), "two columns, names and values; got 'a', 'b', 'c'"),
        (pd.DataFrame({"row": ["u1"], "value": ["much"]}), "must be a number; got 'much'"),
        (pd.Series({"nobody": 3}), "unknown row 'nobody'"),
        ([1, 2], "must map names to values"),
    ],
)
def test_frames_that_cannot_be_read_are_refused(fresh: Fresh, frame: object, said: str) -> None:
    model = fresh(adapter="able")
    before = snapshot(model)
    with pytest.raises(InputError, match=said):
        model.add_feature("new", observations=frame)
    assert snapshot(model) == before


def test_rows_as_a_frame_need_three_columns(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    with pytest.raises(InputError, match="no column 'value'; its columns are 'row', 'feature', 'stars'"):
        model.predict(pd.DataFrame({"row": ["x"], "feature": ["f1"], "stars": [3]}))
    twice = pd.DataFrame({"row": ["x", "x"], "feature": ["f1", "f1"], "value": [3, 4]})
    with pytest.raises(InputError, match="row 'x' has two values of feature 'f1'"):
        model.predict(twice)


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_a_frame_is_fitted_as_a_table_read_from_it(library: str) -> None:
    table = ratings_table(rows=30, features=8)
    columns = {
        "row": [table.rows[i] for i in table.row_index],
        "feature": [table.features[j] for j in table.feature_index],
        "value": table.values,
    }
    frame = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}[library](columns)
    model = Headstart(**CLOSED).fit(frame)
    assert model.features == list(table.features)
    assert str(model.feature("f1").kind) == "rating:1:5"
    wrong = pd.DataFrame({"a": [1]})
    with pytest.raises(InputError):
        Headstart(**CLOSED).fit(wrong)
