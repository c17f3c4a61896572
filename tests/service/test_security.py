"""Tokens, scopes, rates, and who may ask without a token."""

from __future__ import annotations

import time

import pytest
from starlette.testclient import TestClient

from headstart.errors import InputError
from headstart.service.auth import TokenSet, create_token
from headstart.service.store import Store
from tests.service.conftest import Start

ONE = {"rows": ["u1"], "features": ["f1"]}
OBSERVED = {"observations": [{"row": "u1", "feature": "f1", "value": 3}]}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def tokens(url: str) -> dict[str, str]:
    with Store(url) as store:
        return {scope: create_token(store, f"my {scope}", [scope]) for scope in ("read", "write", "admin")}


def test_each_scope_contains_those_before_it(tokens: dict[str, str], start: Start) -> None:
    client = start()
    allowed = [
        ("GET", "/v1/features", None, ("read", "write", "admin")),
        ("POST", "/v1/predict", ONE, ("read", "write", "admin")),
        ("GET", "/metrics", None, ("read", "write", "admin")),
        ("POST", "/v1/observations", OBSERVED, ("write", "admin")),
        ("DELETE", "/v1/features/nothing", None, ("write", "admin")),
        ("POST", "/v1/model", {"path": "/nowhere"}, ("admin",)),
    ]
    for method, path, body, scopes in allowed:
        assert client.request(method, path, json=body).status_code == 401
        for scope, token in tokens.items():
            status = client.request(method, path, json=body, headers=bearer(token)).status_code
            assert (status not in (401, 403)) == (scope in scopes), (method, path, scope, status)
    assert client.get("/health").status_code == client.get("/ready").status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token[:-1] + ("a" if token[-1] != "a" else "b"),
        lambda token: token[:-1],
        lambda token: token + "a",
        lambda token: "hs_" + "0" * 12 + token[15:],
        lambda token: token.upper(),
        lambda token: "",
        lambda token: "' OR 1=1 --",
        lambda token: "hs__",
        lambda token: "é",
    ],
)
def test_wrong_tokens_are_refused(tokens: dict[str, str], start: Start, change) -> None:
    client = start()
    given = change(tokens["admin"]).encode()
    answer = client.get("/v1/model", headers={b"authorization": b"Bearer " + given})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert client.get("/v1/model", headers={"authorization": tokens["admin"]}).status_code == 401


def test_a_revoked_token_is_refused_within_a_second(url: str, tokens: dict[str, str], start: Start) -> None:
    client = start()
    assert client.get("/v1/model", headers=bearer(tokens["read"])).status_code == 200
    with Store(url) as store:
        store.revoke_token(tokens["read"].split("_")[1])
        with pytest.raises(InputError, match="no token"):
            store.revoke_token(tokens["read"].split("_")[1])
    end = time.monotonic() + 1
    while client.get("/v1/model", headers=bearer(tokens["read"])).status_code == 200:
        assert time.monotonic() < end
    assert client.get("/v1/model", headers=bearer(tokens["write"])).status_code == 200


def test_only_a_digest_of_a_token_is_kept(url: str, tokens: dict[str, str]) -> None:
    with open(url.removeprefix("sqlite:///"), "rb") as file:
        content = file.read()
    for token in tokens.values():
        assert token.split("_", 2)[2].encode() not in content
    with Store(url) as store:
        assert TokenSet(store.tokens()).find(tokens["read"]).name == "my read"


@pytest.mark.parametrize("loopback", [True, False])
def test_revoking_the_last_token_does_not_open_a_service(
    url: str, tokens: dict[str, str], start: Start, loopback: bool
) -> None:
    """Only a store that never held a token is open, also for services that start later."""
    running = start(loopback=loopback)
    with Store(url) as store:
        for token in tokens.values():
            store.revoke_token(token.split("_")[1])
    time.sleep(0.3)
    for client in (running, start(loopback=loopback)):
        for headers in ({}, {"host": "localhost"}, *map(bearer, tokens.values())):
            assert client.get("/v1/model", headers=headers).status_code == 401
            assert client.get("/metrics", headers=headers).status_code == 401
            assert client.post("/v1/observations", json=OBSERVED, headers=headers).status_code == 401
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
    with Store(url) as store:
        assert store.last_number() == 0
        token = create_token(store, "another")
    time.sleep(0.3)
    assert running.get("/v1/model", headers=bearer(token)).status_code == 200


def test_the_first_token_closes_a_running_service(client: TestClient, url: str) -> None:
    assert client.get("/v1/model").status_code == 200
    with Store(url) as store:
        token = create_token(store, "first")
    time.sleep(0.3)
    assert client.get("/v1/model").status_code == 401
    assert client.get("/v1/model", headers=bearer(token)).status_code == 200


def test_without_tokens_only_local_names_are_answered(client: TestClient) -> None:
    """A page of another site could else let its name point at this machine."""
    assert client.get("/v1/model", headers={"host": "localhost:8000"}).status_code == 200
    assert client.get("/v1/model", headers={"host": "[::1]:8000"}).status_code == 200
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example"):
        assert client.get("/v1/model", headers={"host": host}).status_code == 403


def test_too_many_requests_of_a_token_are_refused(tokens: dict[str, str], start: Start) -> None:
    client = start(rate=1.0, burst=5.0)
    statuses = [client.get("/v1/model", headers=bearer(tokens["read"])).status_code for _ in range(8)]
    assert statuses[:5] == [200] * 5
    assert 429 in statuses
    answer = client.get("/v1/model", headers=bearer(tokens["read"]))
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert client.get("/v1/model", headers=bearer(tokens["write"])).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/model", "/v1/nothing", "/docs", "/metrics"])
def test_every_answer_has_the_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    if path.startswith("/v1"):
        assert headers["cache-control"] == "no-store"


def test_bad_tokens_cannot_be_made(url: str) -> None:
    with Store(url) as store:
        for name, scopes, what in (
            ("", ["read"], "name"),
            ("me", ["rade"], "did you mean 'read'"),
            ("me", [], "scope"),
        ):
            with pytest.raises(InputError, match=what):
                create_token(store, name, scopes)
