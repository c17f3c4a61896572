"""observe() with rows and features that are not in the model: refused, added or left out, all or nothing."""

from __future__ import annotations

import warnings
from copy import copy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headstart import Headstart, InputError, SurpriseWarning, UnknownNameError
from headstart.datasets import synthetic_ratings

TRIPLES = [("row 0", "new", 4), ("x", "film 1", 2), ("x", "new", 5), ("row 1", "film 2", 3)]


@pytest.fixture(scope="module")
def fitted() -> Headstart:
    return Headstart(adapter="bayes", quiet=True).fit(synthetic_ratings(rows=60, features=20, density=0.5))


@pytest.fixture
def model(fitted: Headstart) -> Headstart:
    return copy(fitted)


def as_frame(triples: list[tuple[str, str, int]]) -> pa.Table:
    return pa.table(dict(zip(("row", "feature", "value"), zip(*triples, strict=True), strict=True)))


@pytest.mark.parametrize("form", ["list", "frame"])
def test_adding_is_adding_and_observing(fitted: Headstart, model: Headstart, form: str) -> None:
    observed = model.observe(TRIPLES if form == "list" else as_frame(TRIPLES), unknown="add")
    assert (observed.added_features, observed.added_rows) == (("new",), ("x",))
    assert "added 1 feature and 1 row" in str(observed)
    by_hand = copy(fitted)
    by_hand.add_feature("new")
    by_hand.add_row("x")
    by_hand.observe(TRIPLES)
    np.testing.assert_allclose(model.predict().mean, by_hand.predict().mean, rtol=1e-6)


@pytest.mark.parametrize("form", ["list", "frame"])
def test_skipping_observes_the_others(fitted: Headstart, model: Headstart, form: str) -> None:
    observed = model.observe(TRIPLES if form == "list" else as_frame(TRIPLES), unknown="skip")
    assert (observed.skipped_features, observed.skipped_rows) == (("new",), ("x",))
    assert (observed.observations, observed.features) == (1, ("film 2",))
    by_hand = copy(fitted)
    by_hand.observe(TRIPLES[3:])
    np.testing.assert_array_equal(model.predict().mean, by_hand.predict().mean)


def test_weights_follow_their_observations(fitted: Headstart, model: Headstart) -> None:
    model.observe(TRIPLES, unknown="skip", weight=[1, 2, 3, 4])
    by_hand = copy(fitted)
    by_hand.observe(TRIPLES[3:], weight=4)
    np.testing.assert_array_equal(model.predict().mean, by_hand.predict().mean)


def test_refused_by_default(model: Headstart) -> None:
    with pytest.raises(UnknownNameError, match="unknown='add'"):
        model.observe(TRIPLES)
    with pytest.raises(InputError, match="must be 'error', 'add' or 'skip'; got 'ad'"):
        model.observe(TRIPLES, unknown="ad")  # type: ignore[arg-type]


def test_an_error_adds_nothing(model: Headstart) -> None:
    before = model.state
    with pytest.raises(InputError, match="not from 1 to 5"):
        model.observe([("x", "new", 4), ("y", "film 1", 77)], unknown="add")
    assert model.state is before


def test_a_warning_as_an_error_adds_nothing() -> None:
    table = synthetic_ratings(rows=60, features=20, density=0.5)
    observations = pa.table(
        {
            "row": [table.rows[i] for i in table.row_index],
            "feature": [table.features[i] for i in table.feature_index],
            "value": table.values / 7,
        }
    )
    model = Headstart(adapter="bayes", quiet=True).fit(observations, kinds="real")
    before = model.state
    far = [("x", "film 1", 0.5), ("row 1", "film 1", 1e6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SurpriseWarning)
        with pytest.raises(SurpriseWarning):
            model.observe(far, unknown="add")
    assert model.state is before
    assert "x" not in model.rows


def test_added_names_are_in_the_journal(model: Headstart, tmp_path: Path) -> None:
    model.save(tmp_path / "m")
    with Headstart.updating(tmp_path / "m") as loaded:
        loaded.observe(TRIPLES, unknown="add")
    model.observe(TRIPLES, unknown="add")
    np.testing.assert_allclose(Headstart.load(tmp_path / "m").predict().mean, model.predict().mean, rtol=1e-6)
