"""Start a service in a process of its own, and call it by a plain socket with little overhead."""

from __future__ import annotations

import multiprocessing
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic_core import to_json

from headstart import Headstart

HEADERS = "Host: localhost\r\nContent-Type: application/json\r\n"


def _serve(model: str, url: str, port: int) -> None:
    """Serve, with an additional endpoint that does nothing."""
    import uvicorn
    from starlette.responses import Response

    from headstart.service.app import create_app

    torch.set_num_threads(1)
    app = create_app(model, url)

    async def empty() -> Response:
        return Response(b"{}", media_type="application/json")

    app.api.add_api_route("/v1/empty", empty, methods=["POST"])
    app.api.router.routes.insert(0, app.api.router.routes.pop())
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


@dataclass(frozen=True)
class Server:
    """A running service: its port, and the id of its process."""

    port: int
    process: int

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of the event loop, which is the main thread, and of all other threads.

        They are read from Linux's ``/proc``; elsewhere they are NaN.
        """
        try:
            threads = Path(f"/proc/{self.process}/task").iterdir()
            texts = {int(path.name): (path / "schedstat").read_text() for path in threads}
        except OSError:
            return float("nan"), float("nan")
        seconds = {id: int(text.split()[0]) / 1e9 for id, text in texts.items()}
        loop = seconds.pop(self.process)
        return loop, sum(seconds.values())


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """Serve the model of a folder with an empty store, in a process of its own."""
    port = free_port()
    server = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(str(folder / "m"), f"sqlite:///{folder}/store.db", port), daemon=True
    )
    server.start()
    try:
        wait_for(port)
        assert server.pid is not None
        yield Server(port, server.pid)
    finally:
        server.kill()
        server.join()


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until a service answers requests."""
    for _ in range(3000):  # five minutes
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError("the service does not start")


class Connection:
    """A connection that stays open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, body: bytes, accept: str = "application/json") -> bytes:
        """Send a body and return the body of the answer; raise an error unless the status is 200 or 201."""
        head = f"POST {path} HTTP/1.1\r\n{HEADERS}Accept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        received, end = bytearray(), -1
        while end < 0:
            received += self._receive()
            end = received.find(b"\r\n\r\n")
        lines = bytes(received[:end]).lower().split(b"\r\n")
        if not lines[0].startswith((b"http/1.1 200", b"http/1.1 201")):
            raise RuntimeError(bytes(received[:500]))
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        while len(received) < end + 4 + length:
            received += self._receive()
        return bytes(received[end + 4 :])

    def _receive(self) -> bytes:
        part = self._socket.recv(1 << 20)
        if not part:
            raise ConnectionError("the server has closed the connection")
        return part


def bodies(model: Headstart, count: int, seed: int = 0) -> list[bytes]:
    """Return random bodies for predictions of one row × one feature each."""
    random, rows, features = np.random.default_rng(seed), list(model.rows), model.features
    chosen = random.integers((len(rows), len(features)), size=(count, 2)).tolist()
    return [to_json({"rows": [rows[i]], "features": [features[j]]}) for i, j in chosen]


def observations(model: Headstart, random: np.random.Generator, count: int) -> bytes:
    """Return a random body of ``count`` observations, each of another cell."""
    rows, features = list(model.rows), model.features
    cells = random.choice(len(rows) * len(features), count, replace=False)
    lines = [
        {
            "row": rows[cell // len(features)],
            "feature": features[cell % len(features)],
            "value": float(random.integers(1, 6)),
        }
        for cell in cells.tolist()
    ]
    return to_json({"observations": lines})
