"""Censored values such as <0.1 are read as their expected values, with the weight of their information."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import norm, truncnorm

from headstart import Headstart, Table
from headstart.errors import InputError
from headstart.table.censored_values import Limit, expected_values, parse_limit

ROWS = [f"u{i:02}" for i in range(40)]


@pytest.mark.parametrize(
    ("text", "limit"),
    [("<0.1", Limit(-1, 0.1)), (" > 1e3 ", Limit(1, 1000.0)), ("≤5", Limit(-1, 5.0)),
     (">=-2", Limit(1, -2.0)), ("0.1", None), ("<", None), ("<a", None), ("a<1", None)],
)  # fmt: skip
def test_limits_are_read(text: str, limit: Limit | None) -> None:
    assert parse_limit(text) == limit


def test_expected_values_follow_from_the_most_likely_normal_distribution() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.normal(2, 1.5, 200)
    low, high = drawn < 0.5, drawn > 4
    exact = drawn[~low & ~high]
    exact = np.append(exact, -0.1)  # not all positive: no logarithm
    sides = np.array([-1] * low.sum() + [1] * high.sum())
    limits = np.where(sides < 0, 0.5, 4.0)

    def loss(parameters: np.ndarray) -> float:
        mean, scale = parameters[0], np.exp(parameters[1])
        beyond = norm.logsf(sides * (limits - mean) / scale)
        return float(-norm.logpdf(exact, mean, scale).sum() - beyond.sum())

    mean, log_scale = minimize(loss, [1.0, 0.0]).x
    scale = np.exp(log_scale)
    values, weights = expected_values(exact, sides, limits)
    for side, limit in ((-1, 0.5), (1, 4.0)):
        ends = (-np.inf, (limit - mean) / scale) if side < 0 else ((limit - mean) / scale, np.inf)
        expected, variance = truncnorm.stats(*ends, mean, scale)
        np.testing.assert_allclose(values[sides == side], expected, rtol=1e-3)
        np.testing.assert_allclose(weights[sides == side], 1 - variance / scale**2, rtol=1e-2)


def test_positive_values_are_censored_on_the_logarithm() -> None:
    values, weights = expected_values(np.array([1.0, 2.0, 4.0, 8.0]), np.array([-1]), np.array([0.1]))
    assert 0 < values[0] < 0.1
    assert 0 < weights[0] < 1


def measurements(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    numbers = np.exp(rng.normal(size=(40, 1)) + 0.5 * rng.normal(size=(40, 5)))
    frame = pd.DataFrame(numbers.round(3).astype(str), columns=[f"c{j}" for j in range(5)])
    frame.insert(0, "row", ROWS)
    return frame


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("file", [False, True])
def test_tables_with_limits_are_read_and_fitted(long: bool, file: bool, tmp_path) -> None:  # type: ignore[no-untyped-def]
    frame = measurements()
    frame.loc[3, "c1"], frame.loc[5, "c2"] = "<0.1", "> 1000"
    if long:
        frame = frame.melt("row", var_name="feature")
    source: object = frame
    if file:
        frame.to_csv(tmp_path / "m.csv", index=False)
        source = tmp_path / "m.csv"
    table = Table.read(source, row="row", kinds="amount", quiet=True)
    assert any("2 censored values" in note for note in table.notes)
    assert 0 < table.observations_of("c1")["u03"] < 0.1
    assert table.observations_of("c2")["u05"] > 1000
    assert table.weights is not None
    assert (table.weights < 1).sum() == 2
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    assert np.isfinite(model.predict().mean).all()


def test_counts_stay_whole() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.poisson(30, (40, 4)).astype(str), columns=list("abcd"))
    frame.insert(0, "row", ROWS)
    frame.loc[0, "a"] = ">50"
    table = Table.read(frame, row="row", kinds="count", quiet=True)
    assert table.observations_of("a")["u00"] > 50


@pytest.mark.parametrize(
    ("kinds", "change", "message"),
    [
        ("rating:0:9", {}, "'<0.1' is censored, which only real, count and amount can be"),
        ("real", {"c1": "<0.1"}, "fewer than 2 different values are not"),
        (None, {"c1": "refused"}, "convert the column to numbers"),
    ],
)
def test_limits_that_cannot_be_used_are_refused(
    kinds: str | None, change: dict[str, str], message: str
) -> None:
    frame = measurements()
    frame.loc[3, "c1"] = "<0.1"
    for column, value in change.items():
        frame[column] = value if value != "refused" else frame[column].where(frame.index != 5, value)
    with pytest.raises(InputError, match=message):
        Table.read(frame, row="row", kinds=kinds, quiet=True)


def test_a_fitted_model_refuses_limits_and_says_what_to_do() -> None:
    model = Headstart(adapter="bayes", quiet=True).fit(
        measurements().set_index("row").astype(float).reset_index()
    )
    before = model.state
    with pytest.raises(InputError, match="give its expected value, with a weight below 1"):
        model.observe([("u01", "c1", "<0.1")])
    with pytest.raises(InputError, match="give its expected value, with a weight below 1"):
        model.observe_feature("c1", {"u01": "<0.1"})
    assert model.state is before
