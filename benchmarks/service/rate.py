"""Measure requests per second for one cell, compared with an empty endpoint of the same server."""

from __future__ import annotations

import time
from typing import Any

from headstart import Headstart
from service.server import Connection, Server, bodies


def rate(model: Headstart, server: Server, repeats: int = 7) -> dict[str, Any]:
    """Call both endpoints in turn; the best turn of each counts."""
    asked = bodies(model, 300)
    _per_second(server.port, "/v1/predict", asked)
    turns = [
        (_per_second(server.port, "/v1/empty", asked), _per_second(server.port, "/v1/predict", asked))
        for _ in range(repeats)
    ]
    empty, predict = (max(each) for each in zip(*turns, strict=True))
    ratios = sorted(predict / empty for empty, predict in turns)
    return {
        "empty": empty,
        "predict": predict,
        "ratio": predict / empty,
        "median ratio": ratios[len(ratios) // 2],
    }


def _per_second(port: int, path: str, asked: list[bytes]) -> float:
    connection = Connection(port)
    start = time.perf_counter()
    for body in asked:
        connection.post(path, body)
    return len(asked) / (time.perf_counter() - start)
