"""Clicks and the choices of rankings over HTTP: the same answers as those of the library."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from headstart import client as http_client
from headstart.datasets import synthetic_clicks
from headstart.model import Headstart, ranking
from headstart.service import schemas
from tests.service.conftest import Start


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clicks") / "clicks.headstart"
    Headstart(quiet=True).fit(synthetic_clicks(60, 24, density=0.3)).save(path)
    return path


def test_clicks_over_http_are_those_of_the_library(saved: Path, start: Start) -> None:
    client, model = start(saved), Headstart.load(saved)
    rows = list(model.rows[:4])
    assert client.post("/v1/features", json={"name": "new", "kind": "click:0.2"}).status_code == 201
    triples = [(rows[0], "new", 1), (rows[1], "new", 3), (rows[2], "new", 1)]
    lines = [dict(zip(("row", "feature", "value"), triple, strict=True)) for triple in triples]
    assert client.post("/v1/observations", json={"observations": lines}).status_code == 200
    model.add_feature("new", kind="click:0.2")
    model.observe(triples)
    answer = client.post("/v1/predict", json={"rows": rows, "features": ["new"], "form": "arrays"}).json()
    assert [line[0] for line in answer["mean"]] == pytest.approx(
        model.predict(rows, ["new"]).mean[:, 0].tolist(), abs=1e-6
    )
    assert client.get("/v1/features/new").json()["kind"] == "click:0.2"
    again = start(saved)  # replays the store
    answer = again.post("/v1/predict", json={"rows": rows, "features": ["new"], "form": "arrays"}).json()
    assert [line[0] for line in answer["mean"]] == pytest.approx(
        model.predict(rows, ["new"]).mean[:, 0].tolist(), abs=1e-6
    )


@pytest.mark.parametrize("value", [0, -1])
def test_a_click_of_zero_is_refused(saved: Path, start: Start, value: float) -> None:
    client, model = start(saved), Headstart.load(saved)
    triple = {"row": model.rows[0], "feature": model.features[0], "value": value}
    answer = client.post("/v1/observations", json={"observations": [triple]})
    assert answer.status_code == 422
    assert "cells without a click are left out" in answer.text


@pytest.mark.parametrize("by", ["lower", "sample", "lift"])
def test_rankings_have_the_choices_of_the_library(saved: Path, start: Start, by: str) -> None:
    client, model = start(saved), Headstart.load(saved)
    row, out, where = model.rows[0], model.features[0], {"genres": ["Drama", "Comedy"]}
    body = {"row": row, "n": 5, "by": by, "random_state": 3, "exclude": [out], "where": where}
    answer = client.post("/v1/recommend", json=body)
    assert answer.status_code == 200, answer.text
    expected = model.recommend(row, n=5, by=by, random_state=3, exclude=[out], where=where)
    assert [line["feature"] for line in answer.json()["ranking"]] == list(expected.names)
    body = {"feature": out, "n": 5, "by": by, "random_state": 3, "exclude": [row]}
    answer = client.post("/v1/audience", json=body)
    ranked = model.audience(out, n=5, by=by, random_state=3, exclude=[row])
    assert [line["row"] for line in answer.json()["ranking"]] == list(ranked.names)


def test_an_unknown_column_of_a_filter_is_refused(saved: Path, start: Start) -> None:
    client, model = start(saved), Headstart.load(saved)
    answer = client.post("/v1/recommend", json={"row": model.rows[0], "where": {"genre": "Drama"}})
    assert answer.status_code in (404, 422)
    assert "no metadata column" in answer.text


def test_the_service_and_its_client_rank_by_the_criteria_of_the_library() -> None:
    assert get_args(schemas.By) == get_args(http_client.By) == get_args(ranking.By)
