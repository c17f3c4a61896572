"""What an observation costs, and whether intervals hold what they say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from tests.model.conftest import CLOSED, able, ratings_table

from headstart.core.types import FeatureBatch, RowStates
from headstart.model import Headstart
from headstart.table import Table

Fresh = Callable[..., Headstart]
MANY = 5000


@pytest.mark.parametrize("adapter", ["chn-bayes", "bayes", "chn-bayes-blend"])
def test_an_observation_touches_no_other(fresh: Fresh, adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of observations there, another one reads only its own row, and nothing is refit."""
    model = fresh("factorisation", adapter)
    model.add_rows({f"n{i}": {"f1": 1 + i % 5} for i in range(MANY)})
    model.add_feature("new", observations={f"n{i}": 1 + i % 5 for i in range(MANY)})
    held, read = model.fitted_.adapter, []
    evidence = held.evidence

    def spy(batch: FeatureBatch, states: RowStates) -> object:
        read.append(len(batch.cells.index))
        return evidence(batch, states)

    def refit(*_: object) -> None:
        raise AssertionError("an observation must not refit a head")

    monkeypatch.setattr(held, "evidence", spy)
    monkeypatch.setattr(held, "adapt", refit)
    model.observe_feature("new", {"u1": 3})
    assert sum(read) <= MANY + 1  # the sums are taken once
    for given, most in (({"u2": 4}, 1), ({"u2": 5}, 2), ({"n7": 1, "u3": 2}, 3), ({"n7": 2}, 2)):
        read.clear()
        model.observe_feature("new", given)
        assert sum(read) <= most
    assert model.feature("new").shots == MANY + 3
    monkeypatch.undo()
    other = fresh("factorisation", adapter)
    other.add_rows({f"n{i}": {"f1": 1 + i % 5} for i in range(MANY)})
    every = {f"n{i}": 1 + i % 5 for i in range(MANY)} | {"u1": 3, "u2": 5, "u3": 2, "n7": 2}
    other.add_feature("new", observations=every)
    one, two = model.predict(features=["new"]), other.predict(features=["new"])
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-5)
    np.testing.assert_allclose(one.std, two.std, rtol=1e-5)


def test_intervals_hold_what_they_say_and_widen_where_less_is_known() -> None:
    """The default model: on cells kept back of features fitted, and of a feature seen as new."""
    table = ratings_table(rows=200, features=60)
    names = [
        (table.rows[i], table.features[j]) for i, j in zip(table.row_index, table.feature_index, strict=True)
    ]
    held = np.arange(len(table)) % 5 == 0
    new = np.isin(table.feature_index, np.arange(0, 60, 6))  # never fitted on
    kept = ~held & ~new
    model = Headstart(quiet=True).fit(
        Table.read(
            pa.table(
                {
                    "row": [names[n][0] for n in np.flatnonzero(kept)],
                    "feature": [names[n][1] for n in np.flatnonzero(kept)],
                    "value": table.values[kept],
                }
            ),
            kinds="rating:1:5",
        )
    )

    def covered(cells: np.ndarray) -> float:
        features = sorted({names[n][1] for n in cells})
        prediction = model.predict(list(table.rows), features)
        low, high = prediction.interval(0.9)
        column = [features.index(names[n][1]) for n in cells]
        places, truth = (table.row_index[cells], column), table.values[cells]
        return float(np.mean((low[places] <= truth) & (truth <= high[places])))

    assert 0.8 < covered(np.flatnonzero(held & ~new)) < 0.97
    widths = {}
    for shots in (0, 16):
        asked = []
        for j in np.unique(table.feature_index[new]):
            cells = np.flatnonzero(table.feature_index == j)
            context, targets = cells[:shots], cells[16:]
            if table.features[j] in model.features:
                model.remove_feature(table.features[j])
            model.add_feature(table.features[j], observations={names[n][0]: table.values[n] for n in context})
            asked.append(targets)
        every = np.concatenate(asked)
        assert 0.8 < covered(every) < 0.97
        named = sorted({names[n][1] for n in every})
        widths[shots] = model.predict(features=named).std.mean(axis=0)
    assert (widths[0] > widths[16]).mean() >= 0.9
    assert widths[0].mean() > 1.1 * widths[16].mean()


def test_a_model_stays_honest_past_the_shots_it_learned_from() -> None:
    model = able()
    observed = dict.fromkeys(model.rows, 3)
    spreads = []
    for shots in (0, 4, 32, 200):
        name = f"honest {shots}"
        model.add_feature(name, observations=dict(list(observed.items())[:shots]))
        spreads.append(float(model.predict(features=[name]).std.mean()))
        model.remove_feature(name)
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] > 0.1


def test_features_of_every_kind_can_be_observed_further() -> None:
    """Binary and real ones have no sums and are adapted anew; to a user there is no difference."""
    random = np.random.default_rng(0)
    taste = random.normal(size=60)
    frame = {"row": [f"u{i}" for i in range(60)]}
    frame |= {f"lab{j}": 50 + 5 * taste + random.normal(size=60) for j in range(6)}
    frame |= {f"sign{j}": (taste + random.normal(size=60) > 0).astype(float) for j in range(6)}
    table = Table.read(pa.table(frame))
    apart, at_once = (Headstart(**CLOSED).fit(table) for _ in range(2))
    before = apart.predict()
    for name, values in {"lab0": (70.0, 20.0, 65.0), "sign0": (1, 0, 1)}.items():
        given = dict(zip(["u1", "u2", "u3"], values, strict=True))
        at_once.observe_feature(name, given)
        for row, value in given.items():
            apart.observe_feature(name, {row: value})
        apart.observe_feature(name, {})
        assert apart.feature(name).shots == 60
    assert not apart.fitted_.catalogue.evidence
    one, other = apart.predict(), at_once.predict()
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5)
    np.testing.assert_allclose(one.std, other.std, rtol=1e-5)
    for name in table.features:
        place = before.features.position(name)
        same = np.array_equal(before.mean[:, place], one.mean[:, place])
        assert same == (name not in ("lab0", "sign0"))
