"""Measure the latency of predictions by their rate, while observations arrive at a steady rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from headstart import Headstart
from service.server import Connection, Server, bodies, observations

RATES = (50, 100, 200, 300, 400, 600, 800, 1200, 1600)
ARRIVING = 100  # observations a second, by default
_WRITERS, _READERS = 4, 8
_LONGEST = 0.05  # seconds of the 99th percentile


def load(
    model: Headstart,
    server: Server,
    rates: Sequence[int] = RATES,
    arriving: float = ARRIVING,
    batch: int = 1,
    seconds: float = 5.0,
    repeats: int = 3,
) -> list[dict[str, float]]:
    """Return the latency at growing rates, until the 99th percentile exceeds 50 ms in all repeats.

    Meanwhile ``arriving`` observations a second are sent, ``batch`` in each request.

    The repeat with the least 99th percentile counts: other processes may have slowed the others down.
    CPU times are those of the server. The writer's are of all its threads but the event loop.
    """
    with _Writers(model, server.port, arriving, batch) as writers:
        _at_rate(server.port, bodies(model, 200), 100)  # warm up
        found: list[dict[str, float]] = []
        for wanted in rates:
            lines = [_line(model, server, wanted, seconds, writers) for _ in range(repeats)]
            found.append(min(lines, key=lambda line: line["p99 ms"]))
            print(found[-1], [round(line["p99 ms"], 1) for line in lines], flush=True)
            if found[-1]["p99 ms"] > 1000 * _LONGEST:
                break
    return found


def _line(
    model: Headstart, server: Server, wanted: int, seconds: float, writers: _Writers
) -> dict[str, float]:
    asked = bodies(model, int(wanted * seconds))
    before, start, used = len(writers.times), time.perf_counter(), server.cpu()
    times = _at_rate(server.port, asked, wanted)
    passed = time.perf_counter() - start
    loop, others = np.subtract(server.cpu(), used) * 1000
    arrived = writers.times[before:] or [float("nan")]
    p50, p99 = np.percentile(times, [50, 99]) * 1000
    return {
        "asked": wanted,
        "answered": len(times) / passed,
        "p50 ms": float(p50),
        "p99 ms": float(p99),
        "observations": writers.batch * len(arrived) / passed,
        "p50 ms of an observation": float(np.percentile(arrived, 50) * 1000),
        "p99 ms of an observation": float(np.percentile(arrived, 99) * 1000),
        "CPU ms of the event loop for a request": float(loop / (len(times) + len(arrived))),
        "CPU ms of the writer for an observation": float(others / (writers.batch * len(arrived))),
    }


class _Writers:
    """Threads that send observations at a steady rate, ``batch`` in each request."""

    def __init__(self, model: Headstart, port: int, arriving: float, batch: int) -> None:
        self._port, self._stop, self._requests, self.batch = port, threading.Event(), arriving / batch, batch
        self._model = model
        self.times: list[float] = []
        self._threads = [threading.Thread(target=self._run, args=(own,)) for own in range(_WRITERS)]

    def __enter__(self) -> _Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, own: int) -> None:
        connection, random = Connection(self._port), np.random.default_rng(own)
        due = time.perf_counter() + own / self._requests
        while not self._stop.wait(max(0.0, due - time.perf_counter())):
            connection.post("/v1/observations", observations(self._model, random, self.batch))
            self.times.append(time.perf_counter() - due)
            due += _WRITERS / self._requests


def _at_rate(port: int, asked: list[bytes], wanted: float) -> list[float]:
    """Return the latencies of requests that are due at a steady rate, including waiting."""
    times: list[float] = []
    begin = time.perf_counter() + 0.05

    def run(own: int) -> None:
        connection = Connection(port)
        for place in range(own, len(asked), _READERS):
            due = begin + place / wanted
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.post("/v1/predict", asked[place])
            times.append(time.perf_counter() - due)

    threads = [threading.Thread(target=run, args=(own,)) for own in range(_READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times
