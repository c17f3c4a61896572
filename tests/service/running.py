"""Services for tests: in this process, or in processes of their own that can be killed."""

from __future__ import annotations

import multiprocessing
import socket
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa

from headstart.model import Headstart
from headstart.service.worker import ServiceSettings
from headstart.table import Table

ROWS, FEATURES = 40, 16
# A process that is started imports this module, wherever pytest itself found it.
_ROOT = str(Path(__file__).parents[2])
if sys.path[0] != _ROOT:
    sys.path.insert(0, _ROOT)  # before any other package of the name "tests"
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["headstart.service.app"])


def table(seed: int = 0, more: int = 0) -> Table:
    """Made-up ratings of two traits, with metadata of features."""
    random = np.random.default_rng(seed)
    outputs = random.normal(size=(ROWS, 2)) @ random.normal(size=(2, FEATURES + more))
    values = np.clip(np.round(3 + 0.8 * outputs + 0.4 * random.normal(size=outputs.shape)), 1, 5)
    row, feature = np.nonzero(random.random(values.shape) < 0.6)
    names = [f"f{j}" for j in range(FEATURES + more)]
    observations = pa.table(
        {
            "row": [f"u{i}" for i in row],
            "feature": [names[j] for j in feature],
            "value": values[row, feature],
        }
    )
    metadata = pa.table(
        {
            "feature": names,
            "year": [1950 + 3 * j for j in range(len(names))],
            "genre": ["crime" if j % 2 else "comedy" for j in range(len(names))],
            "tags": [["old", "good"] if j % 3 else ["new"] for j in range(len(names))],
        }
    )
    return Table.read(observations, metadata=metadata, kinds="rating:1:5", quiet=True)


def fitted(seed: int = 0, more: int = 0) -> Headstart:
    """A small model."""
    return Headstart(adapter="bayes", quiet=True, random_state=seed).fit(table(more=more))


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def serve(model: str, url: str, port: int) -> None:
    """Serve until killed; runs in a process of its own."""
    import torch

    from headstart.service.app import run

    torch.set_num_threads(1)
    run(Path(model), url, ServiceSettings(poll_seconds=0.1), "127.0.0.1", port)


class Server:
    """A service in a process of its own."""

    target = staticmethod(serve)

    def __init__(self, model: Path, url: str, port: int | None = None) -> None:
        self.model, self.url, self.port = model, url, port or free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.process: BaseProcess | None = None

    def start(self) -> Server:
        self.process = _PROCESSES.Process(
            target=self.target, args=(str(self.model), self.url, self.port), daemon=True
        )
        self.process.start()
        return self

    def wait(self, seconds: float = 60) -> Server:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if httpx.get(f"{self.address}/ready", timeout=5).status_code == 200:
                    return self
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise TimeoutError(f"{self.address} is not ready after {seconds} s")

    def kill(self) -> None:
        if self.process is not None and self.process.is_alive():
            self.process.kill()
            self.process.join(10)

    def stop(self) -> int | None:
        if self.process is None:
            return None
        self.process.terminate()
        self.process.join(30)
        return self.process.exitcode

    def __enter__(self) -> Server:
        return self.start().wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
