"""Categories over HTTP: one feature with levels, as in the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from headstart.client import Client
from headstart.model import Headstart
from headstart.table import Table
from tests.model.test_categories import LEVELS, QUESTIONS, answers
from tests.service.conftest import Start


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answers") / "answers.headstart"
    frame = answers()
    frame["score"] = np.random.default_rng(0).integers(1, 6, len(frame)).astype(float)
    kinds = {**dict.fromkeys(QUESTIONS, "category:A,B,C"), None: "rating:1:5"}
    table = Table.read(frame, row="row", kinds=kinds, quiet=True)
    Headstart(adapter="bayes", quiet=True).fit(table).save(path)
    return path


def test_features_are_questions_with_levels(saved: Path, start: Start) -> None:
    client = start(saved)
    assert client.get("/v1/model").json()["features"] == 7
    page = client.get("/v1/features").json()
    assert page["total"] == 7
    assert [line["name"] for line in page["features"]] == [*QUESTIONS, "score"]
    assert page["features"][0]["kind"] == "category:A,B,C"
    assert page["features"][0]["levels"] == LEVELS
    assert page["features"][-1]["levels"] is None
    shown = client.get("/v1/features/q1").json()
    assert shown["levels"] == LEVELS
    assert set(shown["observations"].values()) <= set(LEVELS)
    shares = client.get("/v1/features/q1/distribution").json()
    assert shares["levels"] == LEVELS
    assert sum(shares["mean"]) == pytest.approx(1)
    assert client.get("/v1/features/q1=A/history").status_code == 200
    level = client.get("/v1/features/q1=A").json()
    assert level["kind"] == "category"
    assert level["uncertainty"] == shown["uncertainty"]  # that of the first level
    assert client.get("/v1/features/q1=B").json()["uncertainty"] > 0
    assert "name one of its levels, as 'q1=A'" in client.get("/v1/features/q1/history").text


def test_answers_change_the_model_as_in_the_library(saved: Path, start: Start) -> None:
    client, model = start(saved), Headstart.load(saved)
    body = {"name": "new", "kind": "category:X,Y,Z", "observations": {"u01": "X"}, "weight": {"u01": 3}}
    assert client.post("/v1/features", json=body).status_code == 201
    line = {"row": "u02", "feature": "new", "value": "Z"}
    assert client.post("/v1/observations", json={"observations": [line]}).status_code == 200
    model.add_feature("new", kind="category:X,Y,Z", observations={"u01": "X"}, weight={"u01": 3})
    model.observe([("u02", "new", "Z")])
    expected = model.predict(["u05", "u06"], ["new", "q1", "score"])
    for asked in (client, start(saved)):  # the second one replays the store
        body = {"rows": ["u05", "u06"], "features": ["new", "q1", "score"]}
        cells = asked.post("/v1/predict", json=body).json()["predictions"]
        assert [cell["mean"] is None for cell in cells] == [True, True, False] * 2
        assert cells[0]["label"] == expected.labels("new")[0]
        assert list(cells[0]["probabilities"]) == ["X", "Y", "Z"]
        assert list(cells[3]["probabilities"].values()) == pytest.approx(
            expected.probabilities("new")[1].tolist(), abs=1e-6
        )
        arrays = asked.post("/v1/predict", json={**body, "form": "arrays"}).json()
        assert arrays["features"] == body["features"]
        assert arrays["probabilities"]["q1"]["levels"] == LEVELS
        np.testing.assert_allclose(
            arrays["probabilities"]["q1"]["probabilities"], expected.probabilities("q1"), atol=1e-6
        )
        assert asked.get("/v1/features/new").json()["observations"] == {"u01": "X", "u02": "Z"}
        assert asked.get("/v1/model").json()["added_features"] == 1
    assert client.delete("/v1/features/q0").status_code == 200
    assert client.get("/v1/model").json()["added_features"] == 1
    assert client.get("/v1/features").json()["total"] == 7


def observation(feature: str, value: object) -> dict[str, object]:
    return {"observations": [{"row": "u01", "feature": feature, "value": value}]}


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/v1/observations", observation("q1", "D"), "/obs"),
        ("POST", "/v1/observations", observation("q1=A", 0), "/obs"),
        ("POST", "/v1/features", {"name": "q1"}, "/name"),
        ("POST", "/v1/features", {"name": "n", "observations": {"u01": 1}, "weight": 0}, "/weight"),
        ("POST", "/v1/features", {"name": "n", "kind": "rating", "observations": {"u01": 1},
                                  "weight": {"u02": 1}}, "/weight"),
        ("POST", "/v1/audience", {"feature": "q1"}, "/feature"),
        ("DELETE", "/v1/features/q1=A", None, ""),
    ],
)  # fmt: skip
def test_bad_answers_are_refused(
    saved: Path, start: Start, method: str, path: str, body: dict[str, object] | None, field: str
) -> None:
    client = start(saved)
    answer = client.request(method, path, json=body)
    assert answer.status_code in (404, 409, 422), answer.text
    assert field in answer.text
    assert client.get("/v1/model").json()["number"] == 0


def test_the_client_speaks_of_levels(saved: Path, start: Start) -> None:
    client: TestClient = start(saved)
    model = Headstart.load(saved)
    with Client("http://localhost", transport=client._transport, retries=1) as asking:
        (cell,) = asking.predict(["u03"], ["q1"])
        assert cell["label"] == model.predict(["u03"], ["q1"]).labels("q1")[0]
        drawn = asking.sample(["u03", "u04"], ["q1", "score"], n=20, random_state=2)
        expected = model.sample(["u03", "u04"], ["q1", "score"], n=20, random_state=2)
        assert [[line[0] for line in draw] for draw in drawn] == [
            [LEVELS[int(level)] for level in draw[:, 0]] for draw in expected
        ]
        filled = asking.impute(2, features=["q1", "score"])
        assert filled["features"] == ["q1", "score"]
        assert filled["tables"][1] == [
            [row["q1"], row["score"]] for _, row in model.impute(2, features=["q1", "score"])[1].iterrows()
        ]
        asking.add_feature("new", kind="category:X,Y", observations={"u01": "X"}, weight=2)
        assert asking.predict(["u03"], ["new"])[0]["probabilities"].keys() == {"X", "Y"}
        assert asking.explain("u03", "q1")["feature"].startswith("q1=")
        assert len(asking.suggest("q1", 3)) == 3
    answer = client.post("/v1/sample", json={"rows": ["u03"], "features": ["q1"], "n": 1000})
    assert len(answer.json()["draws"]) == 1000
