"""Bad input: the expected status as problem+json with the field, and nothing changed in the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from headstart.service.app import create_app
from headstart.service.worker import ServiceSettings
from tests.service.bad_requests import BAD, RAW, Bad


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad") / "store.db"


@pytest.fixture(scope="module")
def asked(model_path: Path, place: Path) -> Iterator[TestClient]:
    """One service for all: nothing may change it."""
    settings = ServiceSettings(max_body=300_000, max_batch=50, max_cells=200)
    app = create_app(model_path, f"sqlite:///{place}", settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        app.service.wait()
        yield client


def content(place: Path) -> list[str]:
    """Everything that the store holds."""
    with sqlite3.connect(place) as connection:
        return list(connection.iterdump())


def require_problem(answer, status: int, field: str | None) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert "Traceback" not in answer.text
    if field is not None:
        assert field in {each["field"] for each in problem["errors"]}, problem


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.method} {bad.path}: {bad.what}"[:80])
def test_bad_requests_are_refused(asked: TestClient, place: Path, bad: Bad) -> None:
    before = content(place)
    body = {} if bad.body is None else {"json": bad.body}
    answer = asked.request(bad.method, bad.path, headers=bad.headers, **body)
    require_problem(answer, bad.status, bad.field)
    assert content(place) == before


@pytest.mark.parametrize(
    ("what", "path", "body", "status"), RAW, ids=[f"{each[1]} {each[0]}" for each in RAW]
)
def test_bad_bodies_are_refused(
    asked: TestClient, place: Path, what: str, path: str, body: bytes, status: int
) -> None:
    before = content(place)
    answer = asked.post(path, content=body, headers={"content-type": "application/json"})
    require_problem(answer, status, None)
    assert content(place) == before


def test_large_bodies_are_refused_before_they_are_read(asked: TestClient, place: Path) -> None:
    before = content(place)
    headers = {"content-type": "application/json"}
    large = b'{"observations": [' + b" " * 400_000 + b"]}"
    require_problem(asked.post("/v1/observations", content=large, headers=headers), 413, None)
    parts = (b" " * 50_000 for _ in range(10))  # no length is said
    require_problem(asked.post("/v1/observations", content=parts, headers=headers), 413, None)
    many = [{"row": f"u{i % 40}", "feature": f"f{i // 40}", "value": 3} for i in range(51)]
    require_problem(asked.post("/v1/observations", json={"observations": many}), 413, "/observations")
    rows, features = [f"u{i}" for i in range(30)], [f"f{j}" for j in range(10)]
    require_problem(asked.post("/v1/predict", json={"rows": rows, "features": features}), 413, "/rows")
    assert content(place) == before


def test_names_of_all_sorts_are_shown_as_they_are(asked: TestClient) -> None:
    """Texts in answers are data, and no browser takes them for a page."""
    answer = asked.get("/v1/features/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe-inline" not in answer.headers["content-security-policy"]


def test_there_are_enough_of_them() -> None:
    assert len(BAD) + len(RAW) >= 60
