"""One bad request fails neither others of its batch nor its connection."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sqlalchemy.exc import DataError
from starlette.testclient import TestClient

from headstart import Headstart, Table
from headstart.errors import InputError
from headstart.service.app import create_app
from headstart.service.changes import AddFeature, Observe
from headstart.service.database import available
from headstart.service.worker import ServiceSettings
from tests.service.running import Server

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64, 10**30, -(10**30), 10**400])
@pytest.mark.parametrize("column", ["genre", "tags", "year"])
def test_whole_numbers_beyond_64_bits_are_refused(client: TestClient, number: int, column: str) -> None:
    for value in (number, [number], ["a", number]):
        body = json.dumps({"name": "new", "metadata": {column: value}})
        answer = client.post("/v1/features", content=body, headers=JSON)
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["field"].startswith(f"/metadata/{column}")
    assert client.get("/v1/features/new").status_code == 404
    assert client.post("/v1/features", json={"name": "new", "metadata": {"genre": 2**63 - 1}}).is_success


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 10**30])
def test_whole_numbers_keep_all_digits_or_are_refused(tmp_path: Path, number: int) -> None:
    random = np.random.default_rng(0)
    cells = [(f"u{i}", f"f{j}") for i in range(20) for j in range(5)]
    data = pd.DataFrame(cells, columns=["row", "feature"]).assign(value=1e18 * random.normal(size=100))
    films = pd.DataFrame({"feature": [f"f{j}" for j in range(5)], "isbn": [2**53 + j for j in range(5)]})
    table = Table.read(data, kinds="real", metadata=films, metadata_types={"isbn": "category"}, quiet=True)
    Headstart(adapter="bayes", quiet=True).fit(table).save(tmp_path / "m")
    app = create_app(tmp_path / "m", f"sqlite:///{tmp_path}/store.db", ServiceSettings())
    with TestClient(app, raise_server_exceptions=False) as client:
        app.service.wait()
        bodies = {
            "/v1/observations": {"observations": [{"row": "u1", "feature": "f1", "value": number}]},
            "/v1/features": {"name": "new", "observations": {"u1": number}},
            "/v1/rows": {"name": "new", "observations": {"f1": number}},
            "/v1/predict": {"rows": {"guest": {"f1": number}}, "features": ["f2"]},
            "/v1/recommend": {"row": {"f1": number}},
        }
        for path, body in bodies.items():
            answer = client.post(path, json=body)
            assert answer.status_code == 422, path
            assert f"the whole number {number} has more digits" in answer.json()["detail"]
        named = {"observations": [{"row": number, "feature": "f1", "value": 1}]}
        answer = client.post("/v1/observations", json=named)
        assert answer.status_code == 422
        answer = client.post("/v1/features", json={"name": "book", "metadata": {"isbn": number}})
        if abs(number) < 2**63:
            assert answer.status_code == 201
            assert client.get("/v1/features/book").json()["metadata"] == {"isbn": number}
        else:
            assert "64 bits" in answer.json()["detail"]


@pytest.mark.parametrize("error", [OverflowError("too large"), RuntimeError("a bug"), InputError("wrong")])
def test_a_change_that_fails_in_any_way_fails_alone(client: TestClient, monkeypatch, error) -> None:
    """Changes that wait at the same time share a transaction."""
    service = client.service  # type: ignore[attr-defined]
    plan = AddFeature.plan

    def failing(self, model):
        if self.name.startswith("bad"):
            raise error
        return plan(self, model)

    monkeypatch.setattr(AddFeature, "plan", failing)
    with service._live.lock:  # so that all of them wait
        first = service.change(Observe([("u1", "f1", 3.0)]))
        changes = [
            service.change(AddFeature(f"{'bad' if i % 3 == 0 else 'good'} {i}", {}, {})) for i in range(30)
        ]
        last = service.change(Observe([("u2", "f1", 4.0)]))
    for i, change in enumerate(changes):
        if i % 3 == 0:
            with pytest.raises(type(error)):
                change.result(30)
        else:
            assert change.result(30).answer["name"] == f"good {i}"
    assert first.result(30).answer["observations"] == last.result(30).answer["observations"] == 1
    shown = client.get("/v1/features?search=bad").json()
    assert shown["total"] == 0
    assert client.get("/v1/features?search=good").json()["total"] == 20


def test_a_value_that_the_database_cannot_hold_is_an_error_of_the_input() -> None:
    with pytest.raises(InputError, match="cannot hold"), available():
        raise DataError("INSERT", {}, Exception("integer out of range"))


@pytest.mark.parametrize("path", ["\0", "a\0b", "/tmp/\0", "a\nb", "\x7f"])
def test_a_path_with_control_characters_is_refused(client: TestClient, path: str) -> None:
    answer = client.post("/v1/model", json={"path": path})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "/path"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/features", "GET, POST"),
        ("HEAD", "/v1/features", "GET, POST"),
        ("PATCH", "/v1/features/f1", "DELETE, GET"),
        ("POST", "/v1/features/a%2Fb", "DELETE, GET"),
        ("DELETE", "/v1/features/f1/history", "GET"),
        ("GET", "/v1/predict", "POST"),
        ("DELETE", "/v1/model", "GET, POST"),
        ("OPTIONS", "/v1/rows", "GET, POST"),
        ("POST", "/health", "GET"),
        ("DELETE", "/metrics", "GET"),
        ("PUT", "/", "GET, HEAD"),
        ("PUT", "/docs", "GET, HEAD"),
    ],
)
def test_a_method_that_is_not_allowed(client: TestClient, method: str, path: str, allowed: str) -> None:
    answer = client.request(method, path, headers=JSON)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/features/a/b", "/v1/features/f1/histories", "/v1/"])
def test_an_unknown_address_is_404_whatever_the_method(client: TestClient, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        answer = client.request(method, path, headers=JSON)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


def test_bodies_over_the_limit_are_413_and_the_answer_arrives(model_path: Path, url: str) -> None:
    """Also in chunks without a length, at every endpoint that takes a body."""
    with Server(model_path, url) as server:
        for path in ("predict", "observations", "features", "model", "explain"):
            for chunked in (True, False):
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
                blocks = [b" " * 1_000_000] * 18
                body = iter(blocks) if chunked else b"".join(blocks)
                connection.request("POST", f"/v1/{path}", body, JSON, encode_chunked=chunked)
                answer = connection.getresponse()
                assert answer.status == 413, (path, chunked)
                assert json.loads(answer.read())["status"] == 413
                connection.close()
        results = []

        def stall() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            connection.putrequest("POST", "/v1/predict")
            connection.putheader("content-type", "application/json")
            connection.putheader("content-length", "999999999")
            connection.endheaders(b" ")
            results.append(connection.getresponse().status)

        thread = threading.Thread(target=stall)
        thread.start()
        thread.join(20)
        assert results == [413]
