"""How fast the service is, by ratios within one run.

    OMP_NUM_THREADS=1 python benchmarks/service.py --out service.json

Parts, each can be chosen with ``--part``:

- ``rate``: requests per second of one row × one feature against an empty endpoint of the same server.
- ``load``: latency of predictions by their rate, while 100 observations a second arrive.
- ``grid``: 1,000 × 1,000 predictions in one call against the bare matrix products plus encoding.
- ``rebuild``: the time to start with 100,000 features of 10 observations each.

Client and server are processes of their own. The client is a plain socket, so that it costs little.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic_core import to_json

from headstart import Headstart
from headstart.core.states import RowStates
from headstart.datasets import synthetic_ratings
from headstart.service.store import Store, writing
from headstart.service.store.schema import CHANGES, FEATURES, OBSERVATIONS

PARTS = ("rate", "load", "grid", "rebuild")
HEADERS = "Host: localhost\r\nContent-Type: application/json\r\n"


def serve(model: str, url: str, port: int) -> None:
    """Serve with an endpoint that does nothing beside the others."""
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


class Connection:
    """A connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\n{HEADERS}Content-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        received = bytearray()
        while True:
            received += self._socket.recv(1 << 20)
            end = received.find(b"\r\n\r\n")
            if end >= 0:
                break
        lines = bytes(received[:end]).lower().split(b"\r\n")
        if not lines[0].startswith((b"http/1.1 200", b"http/1.1 201")):
            raise RuntimeError(bytes(received[:500]))
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        while len(received) < end + 4 + length:
            received += self._socket.recv(1 << 20)
        return bytes(received[end + 4 :])


def wait_for(port: int) -> None:
    import urllib.error
    import urllib.request

    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError("the service does not start")


def bodies(model: Headstart, count: int, seed: int = 0) -> list[bytes]:
    random, rows, features = np.random.default_rng(seed), list(model.rows), model.features
    pairs = zip(
        random.integers(len(rows), size=count), random.integers(len(features), size=count), strict=True
    )
    return [to_json({"rows": [rows[i]], "features": [features[j]]}) for i, j in pairs]


def per_second(port: int, path: str, asked: list[bytes]) -> float:
    connection = Connection(port)
    start = time.perf_counter()
    for body in asked:
        connection.post(path, body)
    return len(asked) / (time.perf_counter() - start)


def rate(model: Headstart, port: int, repeats: int = 7) -> dict[str, Any]:
    asked = bodies(model, 300)
    per_second(port, "/v1/predict", asked)
    turns = [
        (per_second(port, "/v1/empty", asked), per_second(port, "/v1/predict", asked)) for _ in range(repeats)
    ]
    empty, predict = (max(each) for each in zip(*turns, strict=True))
    ratios = sorted(own / other for other, own in turns)
    return {
        "empty": empty,
        "predict": predict,
        "ratio": predict / empty,
        "median ratio": ratios[len(ratios) // 2],
    }


def load(model: Headstart, port: int, seconds: float = 4.0) -> list[dict[str, float]]:
    """Latency at growing rates, until the 99th percentile passes 50 ms."""
    stop = threading.Event()
    taken = [0]

    def arrive() -> None:
        connection, random = Connection(port), np.random.default_rng(1)
        rows, features = list(model.rows), model.features
        due = time.perf_counter()
        while not stop.is_set():
            line = {
                "row": rows[random.integers(len(rows))],
                "feature": features[random.integers(len(features))],
            }
            batch = [{**line, "value": float(random.integers(1, 6))}]
            connection.post("/v1/observations", to_json({"observations": batch}))
            taken[0] += 1
            due += 0.01 * WRITERS
            time.sleep(max(0.0, due - time.perf_counter()))

    writers = [threading.Thread(target=arrive, daemon=True) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    found: list[dict[str, float]] = []
    for wanted in (50, 100, 200, 400, 800, 1600):
        before, start = taken[0], time.perf_counter()
        times = _at_rate(port, bodies(model, int(wanted * seconds)), wanted)
        passed = time.perf_counter() - start
        p50, p99 = np.percentile(times, [50, 99]) * 1000
        line = {"asked": wanted, "answered": len(times) / passed, "p50 ms": p50, "p99 ms": p99,
                "observations": (taken[0] - before) / passed}  # fmt: skip
        print(line, flush=True)
        found.append(line)
        if p99 > 50 or len(times) / passed < 0.8 * wanted:
            break
    stop.set()
    return found


WRITERS = 4


def _at_rate(port: int, asked: list[bytes], wanted: float, connections: int = 4) -> list[float]:
    """Latencies of requests that are due at a steady rate, waiting included."""
    times: list[float] = []
    begin = time.perf_counter() + 0.05

    def run(own: int) -> None:
        connection = Connection(port)
        for place in range(own, len(asked), connections):
            due = begin + place / wanted
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.post("/v1/predict", asked[place])
            times.append(time.perf_counter() - due)

    threads = [threading.Thread(target=run, args=(own,)) for own in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def grid(model: Headstart, port: int, repeats: int = 3) -> dict[str, Any]:
    """One call for 1,000 × 1,000 cells, beside what no implementation can avoid."""
    rows, features = list(model.rows)[:1000], model.features[:1000]
    found: dict[str, list[float]] = {}
    states = model.fitted_.roster.take(np.arange(1000))
    _, heads = model.fitted_.catalogue.take(features)
    body = to_json({"rows": rows, "features": features, "form": "arrays"})
    head = f"POST /v1/predict HTTP/1.1\r\n{HEADERS}Accept: application/vnd.apache.arrow.stream\r\n"
    for _ in range(repeats):
        connection = Connection(port)
        start = time.perf_counter()
        answer = connection.post("/v1/predict", body)
        found.setdefault("JSON, one call", []).append(time.perf_counter() - start)
        start = time.perf_counter()
        _arrow(port, head, body)
        found.setdefault("Arrow, one call", []).append(time.perf_counter() - start)
        start = time.perf_counter()
        mean, variance = products(states, heads)
        found.setdefault("bare matrix products", []).append(time.perf_counter() - start)
        start = time.perf_counter()
        to_json({name: mean.tolist() for name in ("mean", "std", "low", "high")})
        found.setdefault("encoding as JSON", []).append(time.perf_counter() - start)
        start = time.perf_counter()
        model.predict(rows, features).interval(0.9)
        found.setdefault("predict() with intervals", []).append(time.perf_counter() - start)
        assert len(answer) > 1_000_000
        assert mean.shape == variance.shape
    least = {name: min(times) for name, times in found.items()}
    floor = least["bare matrix products"] + least["encoding as JSON"]
    return {**least, "JSON / (products + encoding)": least["JSON, one call"] / floor}


def _arrow(port: int, head: str, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as own:
        own.sendall(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        while own.recv(1 << 20):
            pass


def products(states: RowStates, heads: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The means and variances of all cells, as bare products."""
    rows = torch.cat([states.activation, torch.ones(len(states), 1)], dim=1).double()
    weight = torch.cat([heads.weight, heads.bias[:, None]], dim=1).double()
    down, across = torch.tril_indices(rows.shape[1], rows.shape[1])
    squares = rows[:, down] * rows[:, across]
    return rows @ weight.T, squares @ heads.packed_covariance.double().T


def rebuild(model: Headstart, folder: Path, count: int) -> dict[str, Any]:
    """The time to start with so many features of 10 observations each."""
    from sqlalchemy import insert

    from headstart.service.live.model import LiveModel

    random, rows = np.random.default_rng(0), list(model.rows)
    with Store(f"sqlite:///{folder}/many.db") as store:
        with store.writing() as connection:
            at = writing.now()
            numbers = range(1, count + 1)
            names = [f"new {number}" for number in numbers]
            every = zip(numbers, names, strict=True)
            lines = [
                {"number": n, "at": at, "kind": "feature", "name": own, "observations": 10}
                for n, own in every
            ]
            connection.execute(insert(CHANGES), lines)
            every = zip(numbers, names, strict=True)
            new = [{"name": own, "number": n, "at": at, "metadata": '{"year": 1999}'} for n, own in every]
            connection.execute(insert(FEATURES), new)
            chosen = random.integers(len(rows), size=(count, 12))
            cells = [
                {"number": n, "row": rows[i], "feature": own, "value": float(1 + (n + i) % 5)}
                for n, own, line in zip(numbers, names, chosen.tolist(), strict=True)
                for i in list(dict.fromkeys(line))[:10]
            ]
            connection.execute(insert(OBSERVATIONS), cells)
        start, used = time.perf_counter(), time.process_time()
        live = LiveModel(store, folder / "m")
        took = {"seconds": time.perf_counter() - start, "CPU seconds": time.process_time() - used}
    return {"features": len(live.snapshot.shown.catalogue), **took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--features", type=int, default=100_000, help="of the part rebuild")
    parser.add_argument("--model", type=Path, help="a fitted model of 1,000 rows and features or more")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    wanted, found = options.part or PARTS, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.model is None:
            table = synthetic_ratings(rows=2000, features=1000, density=0.03)
            model = Headstart(adapter="bayes", quiet=True).fit(table)
        else:
            model = Headstart.load(options.model)
        model.save(folder / "m")
        if "rebuild" in wanted:
            found["rebuild"] = rebuild(model, folder, options.features)
            print(found["rebuild"], flush=True)
        with socket.socket() as own:
            own.bind(("127.0.0.1", 0))
            port = own.getsockname()[1]
        server = multiprocessing.get_context("spawn").Process(
            target=serve, args=(str(folder / "m"), f"sqlite:///{folder}/store.db", port), daemon=True
        )
        server.start()
        wait_for(port)
        for part, run in (("rate", rate), ("grid", grid), ("load", load)):
            if part in wanted:
                found[part] = run(model, port)
                print(part, found[part], flush=True)
        server.kill()
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
