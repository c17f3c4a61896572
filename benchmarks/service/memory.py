"""Measure the memory of a service of several workers, and of their parent."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headstart import Headstart
from service.server import Connection, bodies, free_port, observations, wait_for

_POLL = 1.0  # seconds in which every worker has applied the changes of the others


def memory(
    model: Headstart, folder: Path, workers: int = 2, counts: Sequence[int] = (0, 2000)
) -> dict[str, dict[str, list[float]]]:
    """Return MB of the parent and of each worker after each of ``counts``, as Linux counts them."""
    port = free_port()
    place = ["--store", f"sqlite:///{folder}/memory.db", "--port", str(port), "--workers", str(workers)]
    parent = subprocess.Popen([sys.executable, "-m", "headstart", "serve", str(folder / "m"), *place])
    try:
        wait_for(port)
        found: dict[str, dict[str, list[float]]] = {}
        random, done = np.random.default_rng(0), 0
        for count in counts:
            _use(model, port, random, count - done)
            done = count
            processes = [parent.pid, *_children(parent.pid)]
            parts = {"resident": "Rss", "not shared": "Pss_Anon"}
            found[f"after {count} observations"] = {
                name: [_megabytes(process, field) for process in processes] for name, field in parts.items()
            }
        return found
    finally:
        parent.send_signal(signal.SIGTERM)
        parent.wait(60)


def _use(model: Headstart, port: int, random: np.random.Generator, count: int) -> None:
    """Send ``count`` observations, a hundred in a request, each before a prediction."""
    for body in bodies(model, count // 100):
        connection = Connection(port)  # another worker may accept it
        connection.post("/v1/observations", observations(model, random, 100))
        connection.post("/v1/predict", body)
    time.sleep(_POLL)


def _children(process: int) -> list[int]:
    """Return the processes that a process has started, but helpers of Python's multiprocessing."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [
        int(child)
        for child in found
        if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def _megabytes(process: int, field: str) -> float:
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) / 1024 if found else float("nan")
