"""The endpoints: what arrives counts in the next answer."""

from __future__ import annotations

import io
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from headstart.model import Headstart
from tests.service.conftest import Start

NAMES = [
    "a/b",
    "..%2F..%2Fetc",
    "Robert'); DROP TABLE features;--",
    "<script>alert(1)</script>",
    "😀🎬",
    "שלום \u202e עולם",
    "a?b#c&d=e",
    "100 %",
    "history",
    "x/history",
    "\\..\\x",
    "null",
]


def observe(client: TestClient, *triples: tuple[str, str, float], key: str | None = None) -> dict:
    lines = [{"row": row, "feature": feature, "value": value} for row, feature, value in triples]
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = client.post("/v1/observations", json={"observations": lines}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def mean(client: TestClient, row: str, feature: str) -> float:
    answer = client.post("/v1/predict", json={"rows": [row], "features": [feature]})
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"][0]["mean"]


def test_a_feature_is_added_observed_shown_and_removed(client: TestClient) -> None:
    given = {"name": "new", "metadata": {"year": 1999, "genre": "crime"}, "observations": {"u1": 5, "u2": 1}}
    added = client.post("/v1/features", json=given)
    assert added.status_code == 201
    assert added.json() | {"model": ""} == {"model": "", "number": 1, "name": "new", "observations": 2}
    before = mean(client, "u3", "new")
    assert observe(client, ("u3", "new", 1))["number"] == 2
    assert mean(client, "u3", "new") < before
    shown = client.get("/v1/features/new").json()
    assert shown["metadata"] == {"year": 1999, "genre": "crime"}
    assert shown["observations"] == {"u1": 5, "u2": 1, "u3": 1}
    assert shown["shots"] == 3
    assert not shown["fitted"]
    assert shown["added"].endswith("+00:00")
    assert client.delete("/v1/features/new").status_code == 200
    assert client.get("/v1/features/new").status_code == 404
    assert client.post("/v1/features", json={"name": "new"}).status_code == 201
    assert client.get("/v1/features/new").json()["shots"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_in_an_address(client: TestClient, name: str) -> None:
    place = "/v1/features/" + quote(name, safe="")
    assert client.post("/v1/features", json={"name": name, "observations": {"u1": 5}}).status_code == 201
    assert client.get(place).json()["name"] == name
    assert client.get(place + "/history").json()["feature"] == name
    assert client.post("/v1/rows", json={"name": name, "observations": {name: 4}}).status_code == 201
    assert client.get("/v1/rows/" + quote(name, safe="")).json()["observations"] == {name: 4}
    assert client.delete("/v1/rows/" + quote(name, safe="")).status_code == 200
    assert client.delete(place).status_code == 200


def test_a_row_is_added_shown_and_removed(client: TestClient) -> None:
    assert client.post("/v1/rows", json={"name": "secret-row", "observations": {"f1": 5}}).status_code == 201
    observe(client, ("secret-row", "f2", 4), ("u1", "f2", 3))
    shown = client.get("/v1/rows/secret-row").json()
    assert shown["observations"] == {"f1": 5, "f2": 4}
    assert not shown["fitted"]
    assert client.delete("/v1/rows/secret-row").status_code == 200
    assert client.get("/v1/rows/secret-row").status_code == 404


def test_what_a_row_observes_changes_its_predictions(client: TestClient) -> None:
    before = client.post("/v1/predict", json={"rows": ["u1"], "features": ["f3"], "form": "arrays"}).json()
    observe(client, *(("u1", f"f{j}", 5 if j % 2 else 1) for j in range(6, 14)))
    after = client.post("/v1/predict", json={"rows": ["u1"], "features": ["f3"], "form": "arrays"}).json()
    assert before["mean"] != after["mean"]


def test_an_idempotency_key_counts_once(client: TestClient) -> None:
    first = observe(client, ("u1", "f1", 4), key="a")
    again = observe(client, ("u1", "f1", 4), key="a")
    assert first == again
    lines = {"observations": [{"row": "u1", "feature": "f1", "value": 5}]}
    other = client.post("/v1/observations", json=lines, headers={"Idempotency-Key": "a"})
    assert other.status_code == 409
    body = {"name": "once"}
    for _ in range(2):
        answer = client.post("/v1/features", json=body, headers={"Idempotency-Key": "a"})
        assert answer.status_code == 201
        assert answer.json()["name"] == "once"
    assert answer.headers["idempotency-replayed"] == "true"


def test_lists_are_paged_searched_and_sorted(client: TestClient) -> None:
    client.post("/v1/features", json={"name": "Äpfel"})
    found = client.get("/v1/features", params={"search": "äPF"}).json()
    assert [each["name"] for each in found["features"]] == ["Äpfel"]
    assert found["features"][0]["added"] is not None
    pages = [client.get("/v1/features", params={"offset": at, "limit": 5}).json() for at in (0, 5, 10, 15)]
    names = [each["name"] for page in pages for each in page["features"]]
    assert len(names) == len({*names}) == pages[0]["total"] == 17
    for sort in ("shots", "uncertainty", "name"):
        for order in ("asc", "desc"):
            lines = client.get("/v1/features", params={"sort": sort, "order": order, "limit": 100}).json()
            keys = [each[sort].casefold() if sort == "name" else each[sort] for each in lines["features"]]
            assert keys == sorted(keys, reverse=order == "desc")
    client.post("/v1/features", json={"name": "last"})
    latest = client.get("/v1/features", params={"sort": "added", "order": "desc", "limit": 100}).json()
    # Features of the fit were added together: they are not listed from Z to A.
    assert [each["name"] for each in latest["features"]] == ["last", "Äpfel", *names[:-1]]
    assert all(1 <= each["low"] <= each["mean"] <= each["high"] <= 5 for each in latest["features"])
    client.delete("/v1/features/last")
    most = client.get("/v1/features", params={"sort": "uncertainty", "order": "desc"}).json()["features"]
    assert most[0]["name"] == "Äpfel"
    rows = client.get("/v1/rows", params={"search": "U1", "limit": 3}).json()
    assert rows["total"] == 11
    assert rows["rows"] == ["u1", "u10", "u11"]


def test_uncertainty_is_the_mean_variance_of_outputs_over_rows(client: TestClient) -> None:
    fitted = client.service.snapshot.model_state  # type: ignore[attr-defined]
    shown = client.get("/v1/features/f3").json()["uncertainty"]
    _, heads = fitted.feature_store.take(["f3"])
    size = heads.weight.shape[1] + 1
    covariance = heads.covariances(size)[0].double().numpy()
    rows = np.column_stack([fitted.states.activation.double().numpy(), np.ones(len(fitted.rows))])
    variance = np.einsum("ri,ij,rj->r", rows, covariance, rows).mean()
    assert shown == pytest.approx(4 * np.sqrt(variance), rel=1e-4)


def test_predictions_are_those_of_the_model(client: TestClient, model_path) -> None:
    model = Headstart.load(model_path)
    rows, features = ["u1", "u7"], ["f3", "f0", "f5"]
    expected = model.predict(rows, features)
    low, high = expected.interval(0.8)
    body = {"rows": rows, "features": features, "level": 0.8, "form": "arrays"}
    arrays = client.post("/v1/predict", json=body).json()
    for name, part in (("mean", expected.mean), ("std", expected.std), ("low", low), ("high", high)):
        np.testing.assert_allclose(arrays[name], part, rtol=1e-12)
    cells = client.post("/v1/predict", json={**body, "form": "cells"}).json()["predictions"]
    assert [(each["row"], each["feature"]) for each in cells] == [(r, f) for r in rows for f in features]
    np.testing.assert_allclose([each["mean"] for each in cells], expected.mean.ravel())
    headers = {"accept": "application/vnd.apache.arrow.stream"}
    stream = client.post("/v1/predict", json=body, headers=headers)
    assert stream.headers["content-type"] == headers["accept"]
    arrow = pa.ipc.open_stream(io.BytesIO(stream.content)).read_all()
    np.testing.assert_allclose(arrow["mean"].to_numpy(), expected.mean.ravel())
    guests = {"x": {"f1": 5, "f2": 1}, "y": {}}
    arrays = client.post("/v1/predict", json={**body, "rows": guests}).json()
    np.testing.assert_allclose(arrays["mean"], model.predict(guests, features).mean, rtol=1e-12)


def test_questions_are_those_of_the_model(client: TestClient, model_path) -> None:
    model = Headstart.load(model_path)
    ranking = client.post("/v1/recommend", json={"row": "u1", "n": 3}).json()["ranking"]
    assert [each["feature"] for each in ranking] == list(model.recommend("u1", 3).names)
    guest = client.post("/v1/recommend", json={"row": {"f1": 5}, "n": 3, "by": "information"}).json()
    assert [each["feature"] for each in guest["ranking"]] == list(
        model.recommend({"f1": 5}, 3, by="information").names
    )
    ranking = client.post("/v1/audience", json={"feature": "f1", "n": 3}).json()["ranking"]
    assert [each["row"] for each in ranking] == list(model.audience("f1", 3).names)
    assert client.post("/v1/suggest", json={"feature": "f1", "n": 3}).json()["rows"] == model.suggest(
        "f1", n=3
    )
    similar = client.post("/v1/similar", json={"feature": "f1", "n": 3}).json()["similar"]
    assert [each["feature"] for each in similar] == list(model.similar("f1", 3).names)
    why = client.post("/v1/explain", json={"row": "u1", "feature": "f1"}).json()
    total = why["baseline"] + sum(each["value"] for each in why["contributions"])
    assert total == pytest.approx(why["output"], abs=1e-4)


def test_the_history_of_a_feature_ends_at_the_present(client: TestClient) -> None:
    client.post("/v1/features", json={"name": "new", "metadata": {"year": 1980}})
    for place, row in enumerate(["u5", "u1", "u9", "u2"]):
        observe(client, (row, "new", 1 + place))
    points = client.get("/v1/features/new/history").json()["history"]
    assert [point["shots"] for point in points] == [0, 1, 2, 3, 4]
    rows = client.get("/v1/rows", params={"limit": 1000}).json()["rows"]
    arrays = client.post("/v1/predict", json={"rows": rows, "features": ["new"], "form": "arrays"}).json()
    assert points[-1]["mean"] == pytest.approx(np.mean(arrays["mean"]), abs=1e-4)
    assert points[-1]["std"] == pytest.approx(np.mean(arrays["std"]), abs=1e-4)
    assert points[-1]["std"] < points[0]["std"]


def test_the_page_is_told_the_schema_and_the_quality(client: TestClient) -> None:
    schema = client.get("/v1/schema").json()
    columns = {each["name"]: each for each in schema["features"]}
    assert columns["genre"]["values"] == ["comedy", "crime"]
    assert columns["year"]["type"] == "number"
    assert (columns["tags"]["type"], columns["tags"]["values"]) == ("labels", ["good", "new", "old"])
    assert schema["kinds"] == ["rating:1:5"]
    for value in (1, 5, 3):
        observe(client, ("u2", "f5", value))
    quality = client.get("/v1/quality").json()
    assert sum(each["observations"] for each in quality["surprise"]) == 3
    assert quality["staleness"]["observations"] == 3
    assert quality["calibration"]["shots"][0] == 0
    model = client.get("/v1/model").json()
    assert (model["adapter"], model["rows"], model["added_features"]) == ("bayes", 40, 0)


def test_answers_say_which_model_made_them(client: TestClient) -> None:
    answer = client.get("/v1/model")
    assert answer.headers["x-headstart-model"] == answer.json()["model"]
    assert answer.headers["x-headstart-number"] == "0"


def test_health_metrics_and_documentation(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "alive"}
    assert client.get("/ready").json()["status"] == "ready"
    client.post("/v1/features", json={"name": "new", "observations": {"u1": 5}})
    observe(client, ("u1", "f1", 1))
    text = client.get("/metrics").text
    for line in (
        'headstart_requests_total{route="/v1/features",status="201"} 1.0',
        "headstart_observations_total 2.0",
        "headstart_shots_count 1.0",
        "headstart_surprise_nats_count 1.0",
        "headstart_change_number 2.0",
    ):
        assert line in text
    document = client.get("/openapi.json").json()
    page = client.get("/docs")
    assert all(path in page.text for path in document["paths"])
    assert "<script" not in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_a_restart_gives_the_same_answers(start: Start) -> None:
    first = start()
    first.post("/v1/features", json={"name": "new", "metadata": {"year": 2000}, "observations": {"u1": 5}})
    first.post("/v1/rows", json={"name": "row", "observations": {"f1": 5, "new": 2}})
    for place in range(9):
        observe(first, (f"u{place}", "new", 1 + place % 5), ("row", f"f{place}", 1 + place % 5))
    first.delete("/v1/rows/u3")
    first.delete("/v1/features/f4")
    again = start()
    rows = first.get("/v1/rows", params={"limit": 1000}).json()["rows"]
    features = [each["name"] for each in first.get("/v1/features").json()["features"]]
    body = {"rows": rows, "features": features, "form": "arrays"}
    one, other = (each.post("/v1/predict", json=body).json() for each in (first, again))
    assert one["number"] == other["number"] == 13
    np.testing.assert_allclose(one["mean"], other["mean"], atol=1e-5)
    np.testing.assert_allclose(one["std"], other["std"], atol=1e-5)


def test_weights_count_as_in_the_library(start: Start, model_path: Path) -> None:
    client = start()
    lines = [
        {"row": "u1", "feature": "f1", "value": 5, "weight": 4.0},
        {"row": "u2", "feature": "f1", "value": 1},
    ]
    assert client.post("/v1/observations", json={"observations": lines}).status_code == 200
    model = Headstart.load(model_path)
    model.observe([("u1", "f1", 5), ("u2", "f1", 1)], weight=[4.0, 1.0])
    expected = model.predict(["u3"], ["f1"]).mean[0, 0]
    assert mean(client, "u3", "f1") == pytest.approx(expected, abs=1e-6)
    unweighted = Headstart.load(model_path)
    unweighted.observe([("u1", "f1", 5), ("u2", "f1", 1)])
    assert abs(unweighted.predict(["u3"], ["f1"]).mean[0, 0] - expected) > 1e-4
    assert mean(start(), "u3", "f1") == pytest.approx(expected, abs=1e-6)  # after a restart


@pytest.mark.parametrize("weight", [0, -1, 1e12, "much", True])
def test_impossible_weights_are_refused(client: TestClient, weight: object) -> None:
    before = mean(client, "u3", "f1")
    line = {"row": "u1", "feature": "f1", "value": 5, "weight": weight}
    answer = client.post("/v1/observations", json={"observations": [line]})
    assert answer.status_code == 422
    assert "/observations/0/weight" in answer.text
    assert mean(client, "u3", "f1") == before


@pytest.mark.parametrize("name", [".", ".."])
def test_names_of_dots_are_shown_and_removed(client: TestClient, name: str) -> None:
    """Browsers resolve dots in paths, so the page writes a space before them, which does not count."""
    assert client.post("/v1/features", json={"name": name}).status_code == 201
    assert client.get(f"/v1/features/%20{name}").json()["name"] == name
    assert client.delete(f"/v1/features/%20{name}").status_code == 200
    assert client.post("/v1/rows", json={"name": name}).status_code == 201
    assert client.delete(f"/v1/rows/%20{name}").status_code == 200
