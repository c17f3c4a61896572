"""Measure the CPU time of the server for one request of each kind, sent one after the other."""

from __future__ import annotations

import numpy as np

from headstart import Headstart
from service.server import Connection, Server, bodies, observations

BATCH = 100


def cost(model: Headstart, server: Server, repeats: int = 5) -> dict[str, dict[str, float]]:
    """Return milliseconds of the event loop and of the writer for a request; the median of turns counts."""
    connection, random = Connection(server.port), np.random.default_rng(0)
    found: dict[str, list[list[float]]] = {}
    for _ in range(repeats + 1):
        asked = {
            "nothing": ("/v1/empty", [b"{}"] * 300),
            "a prediction": ("/v1/predict", bodies(model, 300)),
            "an observation": ("/v1/observations", [observations(model, random, 1) for _ in range(60)]),
            f"{BATCH} observations": ("/v1/observations", [observations(model, random, BATCH)] * 2),
        }
        for name, (path, sent) in asked.items():
            before = server.cpu()
            for body in sent:
                connection.post(path, body)
            found.setdefault(name, []).append([*np.subtract(server.cpu(), before) * 1000 / len(sent)])
    medians = {name: np.median(turns[1:], axis=0) for name, turns in found.items()}  # the first warms up
    return {
        name: {"event loop": float(loop), "writer": float(rest)} for name, (loop, rest) in medians.items()
    }
