"""Explanations add up, and each part is what leaving it out or changing it shows."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np
import pytest
import torch
from tests.model.conftest import CLOSED, fitted, ratings_table
from tests.model.test_ranking import mixed_table
from tests.states import state_of

from headstart.backbones.factorisation import Factorisation
from headstart.core.predictive import grid_logits
from headstart.core.types import RowParts
from headstart.errors import InputError, UnknownNameError
from headstart.model import Headstart
from headstart.table import Cells

Fresh = Callable[..., Headstart]


def added_up(model: Headstart, row: object, feature: str) -> None:
    """Baseline and contributions end at the output, and this is what the model predicts."""
    told = model.explain(row, feature)
    assert told.baseline + sum(each.value for each in told) == pytest.approx(told.output, abs=1e-9)
    rows = row if isinstance(row, str) else {"guest": row}
    prediction = model.predict([rows] if isinstance(rows, str) else rows, [feature])
    assert told.mean == pytest.approx(float(prediction.mean[0, 0]), abs=1e-9)
    if told.unit == "the data's units":
        span = model.feature(feature).kind.span
        assert told.output == pytest.approx(told.mean, abs=2e-5 * span)
        return
    state = state_of(model).states.take(torch.tensor([model.rows.position(row)]))
    _, heads = state_of(model).feature_store.take([feature])
    link = sum(part.value for part in told.of("link"))
    assert told.output - link == pytest.approx(float(grid_logits(heads, state)), abs=1e-4)
    assert 1 / (1 + np.exp(-told.output)) == pytest.approx(told.mean, abs=2e-5)


@pytest.mark.parametrize("adapter", ["bayes", "chn-bayes", "chn-bayes-blend"])
def test_contributions_add_up_to_the_prediction(adapter: str) -> None:
    model = copy(fitted("factorisation", adapter, None))
    model.add_feature("bare")
    model.add_feature("new", {"year": 1993, "genre": "drama"}, {"u1": 5, "u7": 4, "u9": 1})
    for row in ("u0", "u1", "u13"):
        for feature in ("f0", "f5", "bare", "new"):
            added_up(model, row, feature)
    added_up(model, {"f1": 5, "f3": 2, "f9": 4}, "new")
    added_up(model, {}, "new")


@pytest.mark.parametrize("kind", ["real", "binary", "mixed"])
def test_every_kind_adds_up(kind: str) -> None:
    model = Headstart(**CLOSED).fit(mixed_table(kind))
    model.add_feature("new", observations={"u1": 1, "u7": 0}, kind="binary" if kind != "real" else None)
    for feature in ("f0", "f1", "new"):
        added_up(model, "u3", feature)
    units = {model.explain("u3", feature).unit for feature in model.features}
    assert (
        units
        == {"real": {"the data's units"}, "binary": {"log-odds"}, "mixed": {"the data's units", "log-odds"}}[
            kind
        ]
    )


def row_parts(backbone: Factorisation, cells: Cells) -> RowParts:
    return backbone.row_parts(cells, backbone.heads, backbone.kinds, torch.arange(backbone.features))


@pytest.mark.parametrize("kind", ["real", "binary", "mixed"])
def test_a_rows_factors_are_the_sum_of_its_observations(kind: str) -> None:
    model = Headstart(**CLOSED).fit(mixed_table(kind))
    backbone, cells = state_of(model).backbone, state_of(model).knowledge.cells
    for row in range(0, 50, 7):
        own = cells.take(torch.tensor([row]))
        parts = row_parts(backbone, own)
        np.testing.assert_allclose(parts.total, backbone.posterior_of_rows(own).mean[0], atol=2e-5)
        assert len(parts.observations) == len(own.index)
        none = row_parts(backbone, own.keep(torch.zeros(len(own.index), dtype=torch.bool)))
        np.testing.assert_allclose(none.total, parts.baseline)
        assert not none.choice.any()


def test_an_observation_contributes_in_proportion_to_its_surprise() -> None:
    """With the weights of observations as they are, the factors are linear in the values."""
    model = Headstart(**CLOSED).fit(mixed_table("real"))
    backbone = state_of(model).backbone
    own = state_of(model).knowledge.cells.take(torch.tensor([4]))
    before = row_parts(backbone, own)
    heads = backbone.heads.stacked[own.index].double()
    expected = heads[:, :-1] @ before.baseline + heads[:, -1]
    as_expected = Cells(own.indptr, own.index, expected.float(), own.width)
    calm = row_parts(backbone, as_expected)
    # A row that shows what a row without observations would is hardly moved: by the heads' own spread only.
    assert float(calm.observations.norm()) < 0.2 * float(before.observations.norm())


def test_metadata_contributes_by_column() -> None:
    """Without observations of the feature: another year changes only the part of the year."""
    model = Headstart(**CLOSED).fit(ratings_table(rows=100, features=40))
    for name, metadata in {"a": ("drama", 1990), "b": ("drama", 2015), "c": ("comedy", 1990)}.items():
        model.add_feature(name, dict(zip(("genre", "year"), metadata, strict=True)))
    told = {name: model.explain({}, name) for name in "abc"}  # at the usual row only the feature counts
    parts = {
        name: {each.name: each.value for each in one.of("metadata")} | {"output": one.output}
        for name, one in told.items()
    }
    assert all(one.of("observation") == () and one.of("context") == () for one in told.values())
    zero = {"genre": 0.0, "year": 0.0}
    a, b, c = ({**zero, **parts[name]} for name in "abc")
    assert a["genre"] == pytest.approx(b["genre"], abs=1e-5)
    assert a["year"] == pytest.approx(c["year"], abs=1e-5)
    assert b["output"] - a["output"] == pytest.approx(b["year"] - a["year"], abs=1e-4)
    assert c["output"] - a["output"] == pytest.approx(c["genre"] - a["genre"], abs=1e-4)
    assert {name for one in told.values() for name in (each.name for each in one.of("metadata"))} <= {
        "genre", "year",
    }  # fmt: skip


def test_what_is_cut_off_at_an_end_is_said(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    beyond = model.recommend("u9", 1, exclude_observed=False)
    row = next(
        row for row in model.rows if model.audience("f1", 1, [row], exclude_observed=False).score[0] > 5.2
    )
    told = model.explain(row, "f1")
    assert beyond.mean[0] <= 5
    assert told.output == told.mean == 5
    assert [each.value < 0 for each in told.of("link")] == [True]


def test_an_explanation_can_be_read(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    told = model.explain("u1", "f3")
    lines = str(told).splitlines()
    assert lines[0].startswith("row 'u1', feature 'f3': ")
    assert lines[1].split()[0] == "baseline"
    assert lines[-1].split()[0] == "prediction"
    assert repr(told) == str(told)
    observed = {each.name: each.given for each in told.of("observation")}
    table = ratings_table(rows=200, features=60)
    assert observed == {
        name: values["u1"] for name in table.features if "u1" in (values := table.observations_of(name))
    }
    few = told.largest(3)
    assert len(few) == 4
    assert sum(each.value for each in few) == pytest.approx(sum(each.value for each in told))
    assert told.to_arrow().num_rows == len(told)
    assert told.to_pandas().columns.tolist() == ["source", "name", "given", "value"]
    axes = told.plot(5)
    assert len(axes.patches) == 6
    assert axes.get_yticklabels()[0].get_text().startswith("baseline")


def test_what_cannot_be_explained_is_said(fresh: Fresh) -> None:
    with pytest.raises(
        InputError, match="such as 'factorisation', not 'pvae'; fit with backbone='factorisation'"
    ):
        fresh("pvae", "chn").explain("u1", "f1")
    model = fresh(adapter="able")
    with pytest.raises(UnknownNameError, match="unknown row"):
        model.explain("nobody", "f1")
    with pytest.raises(UnknownNameError, match="unknown feature"):
        model.explain("u1", "f999")
    with pytest.raises(InputError, match="is not from 1 to 5"):
        model.explain({"f1": 9}, "f2")
    model.remove_feature("f1")
    assert any(each.name == "f1" and each.given is None for each in model.explain("u0", "f2")) == (
        "u0" in ratings_table(rows=200, features=60).observations_of("f1")
    )
