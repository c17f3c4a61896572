"""Runs the service in this process, or in several."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
import uvicorn

from headstart.service.app import ENVIRONMENT, create_app
from headstart.service.settings import ServiceSettings

_GRACE_SECONDS = 20  # for requests that are being answered when the service is asked to stop


def run(model: Path, url: str, settings: ServiceSettings, host: str, port: int, workers: int = 1) -> None:
    """Answer requests until the process is asked to stop (SIGTERM, Ctrl-C); begun requests are finished.

    Parameters
    ----------
    model : Path
        The folder of a fitted model.
    url : str
        The URL of the store.
    settings : ServiceSettings
        What is allowed.
    host, port : str, int
        Where to listen.
    workers : int, default=1
        The number of processes; each has the whole model.
    """
    options = {
        "host": host,
        "port": port,
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": _GRACE_SECONDS,
        "timeout_keep_alive": 30,
    }
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    if workers == 1:
        uvicorn.run(create_app(model, url, settings), **options)  # type: ignore[arg-type]
        return
    given = {"model": str(model.resolve()), "store": url, "settings": settings.model_dump(mode="json")}
    with tempfile.TemporaryDirectory(prefix="headstart-metrics-") as folder:
        os.environ |= {
            ENVIRONMENT: json.dumps(given),
            "PROMETHEUS_MULTIPROC_DIR": folder,
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        }
        factory = "headstart.service.app:from_environment"
        uvicorn.run(factory, factory=True, workers=workers, **options)  # type: ignore[arg-type]
