"""Joint draws and multiple imputation."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.model.conftest import CLOSED, ratings_table

from headstart.datasets import synthetic_clicks
from headstart.errors import InputError, UnknownNameError
from headstart.model import Headstart
from headstart.table import Table


@cache
def fitted(kind: str = "rating") -> Headstart:
    table = ratings_table()
    if kind == "rating":
        return Headstart(**CLOSED).fit(table)
    frame = pd.DataFrame({
        "row": [table.rows[i] for i in table.row_index],
        "feature": [table.features[j] for j in table.feature_index],
        "value": (table.values > 3).astype(float) if kind == "binary" else table.values,
    })  # fmt: skip
    return Headstart(**CLOSED).fit(frame, kinds=kind)


@pytest.mark.parametrize("kind", ["rating", "real", "binary", "count"])
def test_a_cell_has_the_distribution_of_its_prediction(kind: str) -> None:
    model = fitted(kind)
    rows, features = ["u0", "u1"], ["f0", "f1", "f2"]
    drawn = model.sample(rows, features, n=4000)
    prediction = model.predict(rows, features)
    assert drawn.shape == (4000, 2, 3)
    independent = prediction.sample(4000)
    np.testing.assert_allclose(drawn.mean(0), independent.mean(0), atol=4 * independent.std(0).max() / 60)
    if kind in ("rating", "binary"):  # few values: quantiles would jump from one to the next
        values = np.unique(independent)
        possible = {0.0, 1.0} if kind == "binary" else {1.0, 2.0, 3.0, 4.0, 5.0}
        assert set(np.unique(drawn)) <= possible
        for value in values:
            frequencies = [(draws == value).mean(0) for draws in (drawn, independent)]
            np.testing.assert_allclose(*frequencies, atol=4 * np.sqrt(2 * 0.25 / 4000))
        return
    for q in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(
            np.quantile(drawn, q, axis=0),
            np.quantile(independent, q, axis=0),
            atol=0.12 * independent.std() + 1e-9,
        )


def test_draws_are_correlated_within_a_feature_and_reproducible() -> None:
    model = Headstart.from_state(fitted().state)
    model.add_feature("new", metadata={"genre": "drama"})  # the head is uncertain, and all rows share it
    drawn = model.sample(features=["new", "f1"], n=3000)
    of_new = np.corrcoef(drawn[:, :20, 0].T)[np.triu_indices(20, 1)].mean()
    of_known = np.corrcoef(drawn[:, :20, 1].T)[np.triu_indices(20, 1)].mean()
    assert of_new > 0.1 > of_known > -0.05
    # The variance of a mean over rows is far more than that of independent cells.
    assert drawn[:, :, 0].mean(1).var() > 5 * model.predict(features=["new"]).sample(3000).mean(1).var()
    np.testing.assert_array_equal(model.sample(["u1"], n=3), model.sample(["u1"], n=3))
    assert not np.array_equal(model.sample(["u1"], n=3), model.sample(["u1"], n=3, random_state=1))


def test_new_rows_are_drawn_by_dict_frame_and_table() -> None:
    model = fitted()
    given = {"stranger": {"f0": 5, "f3": 1}}
    table = Table.read(pd.DataFrame({"row": ["stranger"], "f0": [5], "f3": [1]}), kinds="rating:1:5")
    np.testing.assert_allclose(model.sample(given, n=2), model.sample(table, n=2), rtol=1e-6)
    np.testing.assert_array_equal(model.predict(given).mean, model.predict(table).mean)
    wrong = Table.read(pd.DataFrame({"row": ["a"], "f0": [9]}), kinds="rating:1:9")
    with pytest.raises(InputError, match="row 'a', feature 'f0': the value 9 is not"):
        model.predict(wrong)
    with pytest.raises(UnknownNameError, match="f99"):
        model.predict(Table.read(pd.DataFrame({"row": ["a"], "f99": [3]}), kinds="rating:1:5"))


def test_bad_arguments() -> None:
    model = fitted()
    for wrong in (0, -1, 1.5, True, "many"):
        with pytest.raises(InputError, match="whole number"):
            model.sample(n=wrong)
        with pytest.raises(InputError, match="whole number"):
            model.impute(m=wrong)
    with pytest.raises(InputError, match="too many"):
        model.sample(n=10**6)
    with pytest.raises(UnknownNameError):
        model.impute(rows=["nobody"])


def test_answers_are_drawn_as_levels() -> None:
    random = np.random.default_rng(0)
    outputs = random.normal(size=(120, 2)) @ random.normal(size=(2, 7)) + 0.5 * random.normal(size=(120, 7))
    levels = np.digitize(outputs, [-0.7, 0.7])
    frame = pd.DataFrame({"row": [f"r{i}" for i in range(120)]})
    for j in range(6):
        codes = np.where(random.random(120) < 0.2, -1, levels[:, j])
        frame[f"q{j}"] = pd.Categorical.from_codes(codes, ["lo", "mid", "hi"], ordered=True)
    codes = np.where(random.random(120) < 0.2, -1, levels[:, 6])
    frame["region"] = pd.Categorical.from_codes(codes, ["N", "S", "W"])
    model = Headstart(**CLOSED).fit(frame)
    drawn = model.sample(features=["region"], n=2000)
    assert drawn.shape == (2000, 120, 1)
    shares = (drawn == np.arange(3)).mean(0)  # draws are positions of levels
    predicted = model.predict(features=["region"]).probabilities("region")
    np.testing.assert_allclose(shares, predicted, atol=0.12)
    np.testing.assert_allclose(shares.mean(0), predicted.mean(0), atol=0.03)
    filled = model.impute(m=2)
    assert set(np.unique(filled[0]["q0"])) <= {1.0, 2.0, 3.0}
    assert set(filled[1]["region"]) == {"N", "S", "W"}


def test_clicks_are_not_imputed() -> None:
    model = Headstart(**CLOSED).fit(synthetic_clicks(rows=60, features=12))
    with pytest.raises(InputError, match="a cell without a click is not missing"):
        model.impute(m=2)
    assert np.isfinite(model.sample(n=2)).all()


def test_imputations_keep_what_was_observed() -> None:
    model, table = fitted(), ratings_table()
    imputations = model.impute(m=4)
    assert len(imputations) == 4
    assert "cells filled" in repr(imputations)
    frames = list(imputations)
    for frame in frames:
        assert frame.shape == table.shape
        assert not frame.isna().any().any()
        for feature in ("f0", "f7"):
            for row, value in table.observations_of(feature).items():
                assert frame.loc[row, feature] == value
    filled = ~imputations.observed
    # Two draws on a scale of five differ as often as their probabilities say.
    prediction = model.predict()
    equal = np.stack([(prediction.probabilities(name) ** 2).sum(1) for name in model.features], axis=1)
    differ = (imputations.values[0][filled] != imputations.values[1][filled]).mean()
    assert differ == pytest.approx(1 - equal[filled].mean(), abs=0.05)
    part = model.impute(m=2, rows=["u3", "u1"], features=["f2"])
    assert part[0].index.tolist() == ["u3", "u1"]
    assert part.to_arrow(1).column_names == ["row", "f2"]
    assert len(imputations[1:3]) == 2


def mar_table(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Complete data of three factors, and the same with cells missing at random given two full columns."""
    random = np.random.default_rng(seed)
    loadings = np.random.default_rng(99).normal(size=(3, 12))
    values = random.normal(size=(200, 3)) @ loadings + np.arange(12) + 0.7 * random.normal(size=(200, 12))
    chance = 1 / (1 + np.exp(-(values[:, :1] + values[:, 1:2] - 1)))  # of a missing value
    missing = random.random((200, 12)) < 0.7 * chance
    missing[:, :2] = False
    return values, np.where(missing, np.nan, values)


def test_pooled_intervals_cover_means_of_data_missing_at_random() -> None:
    """Draws differ from each other as much as from the complete data; observed cells alone mislead."""
    truth, covered, complete_covered, found, naive = np.arange(12), [], [], [], []
    for seed in range(8):
        complete, seen = mar_table(seed)
        imputations = Headstart(**CLOSED).fit(seen, kinds="real").impute(m=20)
        for j in range(2, 12):
            name = str(j)
            pooled = imputations.pool(
                lambda frame, name=name: (frame[name].mean(), frame[name].var() / len(frame)), degrees=199
            )
            low, high = pooled.interval(0.95)
            covered.append(low <= truth[j] <= high)
            mean, error = complete[:, j].mean(), complete[:, j].std(ddof=1) / np.sqrt(200)
            complete_covered.append(abs(mean - truth[j]) <= 1.97 * error)
            # Of the mean of the complete data, the missing cells are the only uncertainty.
            low, high = imputations.pool(lambda frame, name=name: (frame[name].mean(), 0.0)).interval(0.95)
            found.append(low <= mean <= high)
            column = seen[~np.isnan(seen[:, j]), j]
            naive.append(abs(column.mean() - truth[j]) <= 1.97 * column.std(ddof=1) / np.sqrt(len(column)))
    assert 0.88 <= np.mean(found) <= 1.0, np.mean(found)
    assert np.mean(covered) >= np.mean(complete_covered) - 0.05, (np.mean(covered), np.mean(complete_covered))
    assert np.mean(naive) < np.mean(covered) - 0.1, np.mean(naive)


def every_kind() -> pd.DataFrame:
    """One line per row, with columns of every kind, which share two factors."""
    random = np.random.default_rng(3)
    outputs = random.normal(size=(80, 2)) @ random.normal(size=(2, 18)) + 0.4 * random.normal(size=(80, 18))
    values = {
        "rating:1:5": np.clip(np.round(outputs + 3), 1, 5),
        "rating:0.5:5": np.clip(np.round(2 * outputs + 6) / 2, 0.5, 5),
        "rating:0:1": 1 / (1 + np.exp(-outputs)),
        "ordinal": np.clip(np.round(outputs), -1, 1),
        "binary": (outputs > 0).astype(float),
        "count": np.floor(np.exp(outputs + 1)),
        "amount": np.exp(outputs),
        "real": outputs,
        "category": np.where(outputs > 0.5, 2.0, np.where(outputs > 0, 1.0, 0.0)),
    }
    columns: dict[str, Any] = {"row": [f"r{row}" for row in range(80)]}
    for number, (kind, numbers) in enumerate(values.items()):
        for feature in range(2 * number, 2 * number + 2):
            column = np.where(random.random(80) < 0.8, numbers[:, feature], np.nan)
            if kind == "category":
                column = np.array(["red", "blue", "green", None], object)[
                    np.nan_to_num(column, nan=3).astype(int)
                ]
            columns[f"{kind}-{feature}"] = column
    return pd.DataFrame(columns)


def test_draws_of_every_kind_are_possible_values() -> None:
    frame = every_kind()
    kinds = {name: name.rpartition("-")[0] for name in frame.columns[1:]}
    model = Headstart(**CLOSED).fit(frame, kinds=kinds)
    halves = (np.arange(10) + 1) / 2
    possible = {
        "rating:1:5": lambda drawn: np.isin(drawn, np.arange(1, 6)),
        "rating:0.5:5": lambda drawn: np.isin(drawn, halves),
        "rating:0:1": lambda drawn: (drawn >= 0) & (drawn <= 1),  # measured on a continuum
        "ordinal": lambda drawn: np.isin(drawn, [-1, 0, 1]),
        "binary": lambda drawn: np.isin(drawn, [0, 1]),
        "count": lambda drawn: (drawn >= 0) & (drawn == np.round(drawn)),
        "amount": lambda drawn: drawn >= 0,
        "real": np.isfinite,
        "category": lambda drawn: np.isin(drawn, [0, 1, 2]),
    }
    names = list(model.features)
    prediction = model.predict(features=names)
    for drawn in (model.sample(features=names, n=20), prediction.sample(20), model.impute(m=2).values):
        for position, name in enumerate(names):
            assert possible[kinds[name]](drawn[..., position]).all(), name
    continuum = names.index("rating:0:1-4")
    assert len(np.unique(prediction.sample(20)[..., continuum])) > 1000
    # A feature without observations has the grid of the others, and so has a part of the prediction.
    model.add_feature("new", kind="rating:0.5:5")
    drawn = model.sample(features=["new"], n=200)
    assert set(np.unique(drawn)) == set(halves)
    assert model.predict(features=["new"]).levels("new") == halves.tolist()
    shares = (prediction.sample(4000)[:, :, [0]] == np.arange(1, 6)).mean(0)
    np.testing.assert_allclose(shares, prediction.probabilities(names[0]), atol=0.04)


def test_draws_of_clicks_are_events() -> None:
    model = Headstart(**CLOSED).fit(synthetic_clicks(rows=60, features=12))
    drawn = model.sample(n=400)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    np.testing.assert_allclose(drawn.mean(0), model.predict().mean, atol=0.12)
