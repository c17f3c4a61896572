"""The parent of several worker processes: ``python -m headstart.service.supervisor``.

It imports neither torch nor the model, so that it needs little memory. ``headstart serve`` checks its
arguments, puts them into the environment, and replaces its process by this one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import uvicorn

ENVIRONMENT = "HEADSTART_SERVE"  # the variable with the arguments of ``create_app`` for worker processes

_OPTIONS = "HEADSTART_SERVE_OPTIONS"  # the variable with the options of uvicorn

_WORKER = "headstart.service.app:from_environment"


def start(arguments: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Replace this process by a parent of worker processes.

    Parameters
    ----------
    arguments : mapping
        The arguments of ``create_app``.
    options : mapping
        The options of uvicorn, with the number of ``workers``.
    """
    threads = max(1, (os.cpu_count() or 1) // options["workers"])
    os.environ |= {
        ENVIRONMENT: json.dumps(arguments),
        _OPTIONS: json.dumps(options),
        "OMP_NUM_THREADS": str(threads),
    }
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, [sys.executable, "-m", __name__])


def supervise() -> None:
    """Run the workers until SIGTERM or Ctrl-C."""
    options = json.loads(os.environ.pop(_OPTIONS))
    with tempfile.TemporaryDirectory(prefix="headstart-metrics-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        uvicorn.run(_WORKER, factory=True, **options)


if __name__ == "__main__":
    supervise()
