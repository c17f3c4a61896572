"""Real features with centres and scales of their own, values far off, and rows nobody knows."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.model.conftest import CLOSED, able, ratings_table
from tests.states import state_of

from headstart.model import Headstart
from headstart.table import Table

ROWS, FEATURES = 80, 24
NAMES = [f"u{i:02}" for i in range(ROWS)]


def numbers(seed: int = 0) -> np.ndarray:
    """Patterns of two hidden traits with some noise: (rows, 30 columns), each of unit scale."""
    random = np.random.default_rng(seed)
    columns = random.normal(size=(ROWS, 2)) @ random.normal(size=(2, 30))
    return columns + 0.4 * random.normal(size=columns.shape)


def scales() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    scale = 10 ** random.uniform(-2, 3, 30)
    return scale * random.normal(size=30), scale


def columns() -> np.ndarray:
    centre, scale = scales()
    return centre + scale * numbers()


def table_of(values: np.ndarray) -> Table:
    frame = {"row": NAMES} | {f"lab{j:02}": values[:, j] for j in range(values.shape[1])}
    return Table.read(pa.table(frame), kinds="real")


@cache
def fitted() -> Headstart:
    return Headstart(**CLOSED).fit(table_of(columns()[:, :FEATURES]))


def observed(values: np.ndarray, rows: list[int]) -> dict[str, float]:
    return {NAMES[i]: float(values[i]) for i in rows}


@pytest.mark.parametrize("shots", [0, 1, 2])
def test_a_new_one_needs_no_scale_and_hardly_any_observations(shots: int) -> None:
    model = fitted()
    for j in range(FEATURES, 30):
        own = columns()[:, j]
        model.add_feature("new", observations=observed(own, list(range(shots))))
        found = model.predict(features=["new"])
        model.remove_feature("new")
        assert np.isfinite(found.mean).all()
        assert (found.std > 0).all()
        low, high = found.interval(0.9)
        assert (low < high).all()
        if shots:  # of one value it is known at least about where it lies
            assert abs(found.mean.mean() - own[:shots].mean()) < 5 * found.std.mean()
    assert state_of(model).feature_store["lab03"].finds_scale is False


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_order_and_streaming_do_not_matter_whatever_the_size(unit: float) -> None:
    """Sixty observations: all at once, backwards, and two and then one by one."""
    model, own = fitted(), unit * columns()[:, FEATURES]
    rows = list(range(60))
    model.add_feature("at once", observations=observed(own, rows))
    model.add_feature("backwards", observations=observed(own, rows[::-1]))
    model.add_feature("slow", observations=observed(own, rows[:2]))
    for i in rows[2:]:
        model.observe_feature("slow", observed(own, [i]))
    names = ["at once", "backwards", "slow"]
    found = model.predict(features=names)
    low, high = found.interval(0.9)
    for name in names:
        model.remove_feature(name)
    for numbers in (found.mean, found.std):
        np.testing.assert_allclose(numbers[:, 1], numbers[:, 0], rtol=1e-5)
        np.testing.assert_allclose(numbers[:, 2], numbers[:, 0], rtol=1e-4, atol=1e-5 * own.std())
    covered = (low[60:, 0] <= own[60:]) & (own[60:] <= high[60:, 0])
    assert covered.mean() >= 0.7
    errors = found.mean[60:, 0] - own[60:]
    assert np.sqrt(np.mean(errors**2)) < 0.8 * own.std()


def test_intervals_of_new_ones_hold_and_narrow() -> None:
    model, widths = fitted(), []
    for shots in (1, 4, 16, 40):
        covered, relative = [], []
        for j in range(FEATURES, 30):
            own = columns()[:, j]
            model.add_feature("new", observations=observed(own, list(range(shots))))
            found = model.predict(NAMES[40:], ["new"])
            model.remove_feature("new")
            low, high = (end[:, 0] for end in found.interval(0.9))
            covered += ((low <= own[40:]) & (own[40:] <= high)).tolist()
            relative.append(np.median(high - low) / own.std())
        assert np.mean(covered) > 0.75
        widths.append(np.median(relative))
    assert widths == sorted(widths, reverse=True)


def test_many_observations_give_a_features_own_scale() -> None:
    """Predictions are as close as the hidden traits themselves are."""
    model, random = fitted(), np.random.default_rng(0)
    truth = random.normal(size=(ROWS, 2)) @ random.normal(size=(2, 30))
    for j in range(FEATURES, 30):
        own = columns()[:, j]
        model.add_feature("new", observations=observed(own, list(range(ROWS))))
        found = model.predict(features=["new"]).mean[:, 0]
        model.remove_feature("new")
        assert np.corrcoef(found, own)[0, 1] > np.corrcoef(truth[:, j], own)[0, 1] - 0.03
        assert found.mean() == pytest.approx(own.mean(), abs=0.1 * own.std())
        centre, scale = (part[j] for part in scales())
        assert np.sqrt(np.mean((found - centre - scale * truth[:, j]) ** 2)) < 0.3 * scale


def test_saved_ones_go_on_finding_their_scale(tmp_path: Path) -> None:
    model, own = fitted(), columns()[:, FEATURES + 1]
    model.add_feature("new", observations=observed(own, [0, 1, 2]))
    model.add_feature("said", kind="real:5:2", observations={"u01": 7.0})
    model.save(tmp_path / "m")
    copy = Headstart.load(tmp_path / "m")
    for each in (model, copy):
        each.observe_feature("new", observed(own, [3, 4]))
        each.add_feature("newer", observations=observed(own, [5]))
    one, other = model.predict(), copy.predict()
    assert np.array_equal(one.mean, other.mean)
    assert np.array_equal(one.std, other.std)
    assert str(copy.feature("said").kind) == "real:5:2"
    for name in ("new", "said", "newer"):
        model.remove_feature(name)


def test_reals_that_share_a_scale_are_not_searched_for_one() -> None:
    model = Headstart(**CLOSED).fit(table_of(50 + 5 * numbers()[:, :8]))
    model.add_feature("new", observations={"u01": 47.0})
    assert model.feature("new").kind == model.feature("lab00").kind
    assert not state_of(model).feature_store["new"].finds_scale


def spoilt() -> tuple[Headstart, Headstart]:
    """Models of the table, and of the same with one value a hundred standard deviations off."""
    values = columns()[:, :FEATURES].copy()
    values[7, 3] += 100 * values[:, 3].std()
    return fitted(), Headstart(**CLOSED).fit(table_of(values))


def test_one_value_far_off_hardly_moves_any_other_feature() -> None:
    one, other = spoilt()
    before, after = one.predict(), other.predict()
    assert list(before.features) == list(after.features)
    scale = columns()[:, :FEATURES].std(axis=0)
    moved = np.delete(np.abs(before.mean - after.mean) / scale, 3, axis=1)
    assert moved.max() < 0.4
    assert np.median(moved) < 0.05


def test_one_value_far_off_hardly_moves_the_rest_of_its_own_feature() -> None:
    own = columns()[:, 3]
    errors = [np.delete(model.predict(features=["lab03"]).mean[:, 0] - own, 7) for model in spoilt()]
    assert np.sqrt(np.mean(errors[1] ** 2)) < 1.3 * np.sqrt(np.mean(errors[0] ** 2))


@pytest.mark.parametrize(("adapter", "update"), [("mean", "rows"), ("bayes", "both")])
def test_one_value_far_off_is_returned_as_it_was_given(adapter: str, update: str, tmp_path: Path) -> None:
    values = numbers()[:, :12]
    values[3, 4] = 4000.0
    model = Headstart(**CLOSED | {"adapter": adapter}).fit(table_of(values))
    model.save(tmp_path / "m")
    row, feature = NAMES[3], "lab04"
    for each in (model, Headstart.load(tmp_path / "m")):
        assert each.row(row).observations[feature] == 4000.0
        assert max(each.table().values) == 4000.0
        each.observe([(row, "lab07", 1.5)], update=update)  # type: ignore[arg-type]
        given = each.row(row).observations
        assert (given[feature], given["lab07"]) == (4000.0, 1.5)
        table = each.table()
        assert max(table.values) == 4000.0
        expected = values.copy()
        expected[3, 7] = 1.5
        np.testing.assert_allclose(np.sort(table.values), np.sort(expected.ravel()), rtol=1e-6)


def test_one_value_far_off_hardly_moves_a_new_feature() -> None:
    model, own = fitted(), columns()[:, FEATURES]
    for number, far in enumerate((0.0, 100.0)):
        given = observed(own, list(range(20)))
        given["u05"] += far * own.std()
        model.add_feature(f"new {number}", observations=given)
    found = model.predict(features=["new 0", "new 1"])
    for number in range(2):
        model.remove_feature(f"new {number}")
    assert np.abs(found.mean[:, 0] - found.mean[:, 1]).max() < own.std()
    assert found.std[:, 1].mean() < 3 * found.std[:, 0].mean()


@pytest.mark.parametrize("make", [able, fitted])
def test_a_row_nobody_knows_is_an_average_one_and_less_sure(make) -> None:  # type: ignore[no-untyped-def]
    model = make()
    features = [name for name in model.features if model.feature(name).in_backbone]
    blank = model.predict({"blank": {}}, features)
    every = model.predict(features=features)
    scale = every.mean.std(axis=0)
    assert (np.abs(blank.mean[0] - every.mean.mean(axis=0)) < 0.35 * scale + 0.05).mean() > 0.9
    assert (blank.std[0] > np.median(every.std, axis=0)).all()
    assert blank.std.mean() > 1.1 * np.median(every.std, axis=0).mean()
    total = np.sqrt(scale**2 + np.median(every.std, axis=0) ** 2)  # as rows differ, and their noise
    np.testing.assert_allclose(np.median(blank.std[0] / total), 1, atol=0.25)
    some = {name: every.mean[3, column] for column, name in enumerate(features[:6])}
    assert model.predict({"some": some}, features).std.mean() < blank.std.mean()


def test_rows_of_few_observations_are_drawn_to_the_average() -> None:
    """By how much a model gains over an average row, with more and more observations of a row."""
    table = ratings_table(200, 60)
    model, errors = able(), []
    for shots in (0, 1, 4, 16):
        squared = []
        for row in range(0, 200, 5):
            mine = np.flatnonzero(table.row_index == row)
            random = np.random.default_rng(row).permutation(mine)
            seen, asked = random[:shots], random[20:]
            given = {table.features[table.feature_index[n]]: table.values[n] for n in seen}
            names = [table.features[table.feature_index[n]] for n in asked]
            mean = model.predict({"x": given}, names).mean[0]
            squared += list((mean - table.values[asked]) ** 2)
        errors.append(np.mean(squared))
    assert errors == sorted(errors, reverse=True)
    usual = [np.mean(table.values[table.feature_index == j]) for j in range(60)]
    constant = np.mean((np.array(usual)[table.feature_index] - table.values) ** 2)
    assert errors[0] < 1.1 * constant


def test_values_without_noise_are_found_almost_exactly() -> None:
    """Spectra and sums are like this: two traits explain all, so few observations say everything."""
    random = np.random.default_rng(3)
    exact = random.normal(size=(ROWS, 2)) @ random.normal(size=(2, 30)) * 7 + 100 * random.normal(size=30)
    model = Headstart(**CLOSED).fit(table_of(exact[:, :FEATURES]))
    for j in range(FEATURES, 30):
        model.add_feature("new", observations=observed(exact[:, j], list(range(8))))
        found = model.predict(features=["new"]).mean[8:, 0]
        model.remove_feature("new")
        assert np.abs(found - exact[8:, j]).max() < 0.01 * exact[:, j].std()


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e10])
@pytest.mark.parametrize("shots", [1, 2, 8])
def test_scales_of_thirty_orders_of_magnitude_are_fine(size: float, shots: int) -> None:
    """Measures of speech are like this."""
    own = numbers()
    model = _of_many_orders()
    model.add_feature("new", observations=observed(size * own[:, 29], list(range(shots))), kind="real")
    found = model.predict(features=["new"])
    model.remove_feature("new")
    assert np.isfinite(found.mean).all()
    assert np.isfinite(found.std).all()
    assert (found.std > 0).all()
    if shots == 8:
        assert np.sqrt(np.mean((found.mean[8:, 0] - size * own[8:, 29]) ** 2)) < size * own[:, 29].std()


@cache
def _of_many_orders() -> Headstart:
    scale = 10 ** np.linspace(-20, 10, FEATURES)
    return Headstart(**CLOSED).fit(table_of(scale * numbers()[:, :FEATURES]))


def test_exact_features_have_smaller_deviations_than_noisy_ones(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    noise = np.where(np.arange(12) < 4, 0.1, 1.0)
    values = random.normal(size=(150, 2)) @ random.normal(size=(2, 12))
    values += noise * random.normal(size=(150, 12))
    frame = pd.DataFrame(np.where(random.random(values.shape) < 0.8, values, np.nan), dtype=float)
    frame.columns = [f"f{j:02}" for j in range(12)]
    frame.insert(0, "row", [f"r{i:03}" for i in range(150)])
    backbone = {"name": "factorisation", "noise_by_feature": True}
    model = Headstart(adapter="bayes", backbone=backbone, quiet=True).fit(frame, kinds="real:0:1")
    hidden = np.isnan(frame.iloc[:, 1:].to_numpy())
    prediction = model.predict(list(frame["row"]), list(frame.columns[1:]))
    errors, std = np.where(hidden, values - prediction.mean, np.nan), prediction.std
    for of in (noise < 0.5, noise > 0.5):
        assert np.nanstd(errors[:, of]) == pytest.approx(std[:, of][hidden[:, of]].mean(), rel=0.35)
    assert std[:, noise < 0.5].mean() < 0.5 * std[:, noise > 0.5].mean()
    # A new feature has the usual noise; an observation or a saved folder does not change that of a known one.
    model.observe([("r000", "f00", 0.3)])
    again = model.predict(list(frame["row"]), ["f00"]).std
    np.testing.assert_allclose(again[1:, 0], std[1:, 0], rtol=0.1)
    model.save(tmp_path / "model")
    loaded = Headstart.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(list(frame["row"]), ["f00"]).std, again)
