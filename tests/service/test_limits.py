"""Nothing waits without end: databases that are cut off, pipes, forked children; no password is shown."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from headstart.client import Client
from headstart.errors import HeadstartError
from headstart.files import lock_folder
from headstart.service.app import create_app
from headstart.service.auth import create_token
from headstart.service.database import open_engine, redact_url
from headstart.service.store import Store
from headstart.service.worker import ServiceSettings
from tests.limits import Limits, limits
from tests.service.conftest import Start
from tests.service.postgres import Cluster
from tests.service.running import Server, fitted, serve
from tests.service.test_api import mean
from tests.service.test_durability import until
from tests.service.test_security import bearer


def serve_with_short_limit(model: str, url: str, port: int) -> None:
    """Serve with a second for headers; runs in a process of its own."""
    with limits(header_seconds=1.0):
        serve(model, url, port)


class LimitedServer(Server):
    """A service in a process of its own that allows headers a second."""

    target = staticmethod(serve_with_short_limit)


class Proxy:
    """Passes bytes on between a client and a server, until it is frozen."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.open = threading.Event()
        self.open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while content := source.recv(65536):
                self.open.wait()
                target.sendall(content)
        except OSError:
            pass
        target.close()


def test_a_database_that_falls_silent_is_503(model_path: Path, cluster: Cluster, limits: Limits) -> None:
    limits(database_silence_seconds=2.0)
    proxy = Proxy(cluster.port)
    url = cluster.database().replace(str(cluster.port), str(proxy.port))
    app = create_app(model_path, url, ServiceSettings(poll_seconds=0.1))
    body = {"observations": [{"row": "u2", "feature": "f1", "value": 3}]}
    with TestClient(app, raise_server_exceptions=False) as client:
        app.service.wait()
        assert client.post("/v1/observations", json=body).status_code == 200
        proxy.open.clear()
        try:
            for call in (
                lambda: client.post("/v1/observations", json=body),
                lambda: client.get("/ready"),
                lambda: client.delete("/v1/rows/u1"),
            ):
                start = time.monotonic()
                answer = call()
                assert answer.status_code == 503, answer.text
                assert time.monotonic() - start < 20
            assert mean(client, "u1", "f1") > 0
            assert client.get("/v1/features").status_code == 200  # without the times of the store
        finally:
            proxy.open.set()
        until(lambda: client.get("/ready").status_code == 200, 20)
        until(lambda: client.post("/v1/observations", json=body).status_code == 200, 20)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@host/database",
        "postgresql://me:s3cret@host:port/database",
        "postgresql://me:s3@cret@host/database",
        "postgres//me:s3cret@host",
        "mysql://me:s3cret@host/x",
        "postgresql://host/database?user=me&password=s3cret",
        "postgresql://host/x?Password=s3cret&sslmode=require",
        "postgresql:/me:s3cret@host/database",
        "me:s3cret@host",
    ],
)
def test_no_message_shows_the_password(url: str) -> None:
    shown = redact_url(url)
    assert "cret" not in shown
    assert "host" in shown
    message = ""
    try:
        open_engine(url).dispose()
    except HeadstartError as error:  # not all of them are refused
        message = str(error)
    assert "cret" not in message


def test_a_revoked_token_is_refused_while_a_model_loads(tmp_path: Path, url: str, start: Start) -> None:
    path = tmp_path / "m"
    fitted().save(path)
    with Store(url) as store:
        token = create_token(store, "me", ["read"])
        client = start(path=path)
        loading, done = threading.Event(), threading.Event()

        def wait(*_: object) -> None:
            loading.set()
            done.wait(20)
            raise HeadstartError("not today")

        with limits(take_over_model=wait):
            fitted(seed=1).save(path)
            assert loading.wait(10)
            assert client.get("/v1/model", headers=bearer(token)).status_code == 200
            store.revoke_token(token.split("_")[1])
            until(lambda: client.get("/v1/model", headers=bearer(token)).status_code == 401, 1)
            done.set()


def test_a_pipe_in_place_of_a_model_is_refused_at_once(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "m"
    fitted().save(path)
    client = start(path=path)
    before = client.get("/v1/model").json()["model"]
    (path / "model.json").unlink()
    os.mkfifo(path / "model.json")
    began = time.monotonic()
    assert client.post("/v1/model", json={"path": str(path)}).status_code == 422
    time.sleep(0.3)
    assert client.get("/v1/model").json()["model"] == before
    assert time.monotonic() - began < 5


def test_a_forked_child_does_not_keep_a_lock(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
    try:
        with lock_folder(tmp_path, busy="it is still locked"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("name", [".", "..", "...", ".hidden", "a/../b"])
def test_names_of_dots_can_be_shown_and_removed(client: TestClient, name: str) -> None:
    films = Client("http://testserver")
    films._http = client
    films.add_feature(name)
    films.add_row(name, observations={name: 4})
    assert films.feature(name)["name"] == name
    films.remove_row(name)
    films.remove_feature(name)
    assert client.get("/v1/features", params={"search": name}).json()["total"] == 0


def exchange(port: int, parts: list[bytes], pause: float = 0.0, repeat: int = 1) -> bytes:
    """Send bytes, in parts, and return the answer up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            for part in parts * repeat:
                connection.sendall(part)
                time.sleep(pause)
        except OSError:
            pass
        content = b""
        try:
            while more := connection.recv(65536):
                content += more
        except ConnectionResetError:
            pass
        return content


def test_slow_and_endless_headers_are_refused(model_path: Path, url: str) -> None:
    first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    with LimitedServer(model_path, url) as server:
        cases = [
            [first, b"a: " + b"b" * 70_000],
            [first, *[b"x-header: value\r\n"] * 6_000],
            [b"GET /" + b"a" * 70_000],
            [first, b"a" * 70_000],
        ]
        for parts in cases:
            assert exchange(server.port, parts).startswith(b"HTTP/1.1 400")
        for parts in ([b""], [b"GET /he"], [first], [first, b"a: "]):
            start = time.monotonic()
            assert exchange(server.port, parts).startswith(b"HTTP/1.1 400")
            assert 0.5 < time.monotonic() - start < 10
        drip = exchange(server.port, [b"a"], pause=0.1, repeat=40)  # slower than the limit in all
        assert drip.startswith(b"HTTP/1.1 400")
        closing = b"connection: close\r\n\r\n"
        large = first + b"a: " + b"b" * 50_000 + b"\r\n" + closing
        assert exchange(server.port, [large]).startswith(b"HTTP/1.1 200")
        two = exchange(server.port, [first + b"\r\n", first + closing], pause=0.3)
        assert two.count(b"HTTP/1.1 200") == 2
        body = b'{"rows": ["u1"], "features": ["f1"]}'
        slow_body = [
            b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: " + str(len(body)).encode() + b"\r\n" + closing,
            *(body[i : i + 6] for i in range(0, len(body), 6)),
        ]
        assert exchange(server.port, slow_body, pause=0.3).startswith(b"HTTP/1.1 200")
