"""Measure the speed of the service by ratios within one run.

    OMP_NUM_THREADS=1 python benchmarks/service/run.py --out service.json

Parts, each can be chosen with ``--part``:

- ``rate``: requests per second of one row × one feature against an empty endpoint of the same server.
- ``cost``: CPU time of the server for a request, by kind: of the event loop and of the writer.
- ``grid``: 1,000 × 1,000 predictions in one call against the bare matrix products plus encoding.
- ``load``: latency of predictions by their rate, while observations arrive at a steady rate.
- ``memory``: of two workers and of their parent.
- ``rebuild``: the time to start with 100,000 features of 10 observations each.

Client and server are separate processes. The client is a plain socket with little overhead.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headstart import Headstart
from headstart.datasets import synthetic_ratings
from service.cost import cost
from service.grid import grid
from service.load import ARRIVING, RATES, load
from service.memory import memory
from service.rate import rate
from service.rebuild import TABLES, rebuild
from service.server import served

ASKING = {"rate": rate, "cost": cost, "grid": grid, "load": load}
PARTS = (*ASKING, "memory", "rebuild")


def measure(
    parts: list[str],
    features: int,
    kinds: list[str],
    model: Path | None,
    folder: Path,
    loading: dict[str, Any],
) -> dict[str, Any]:
    """Run ``parts``; models and stores are written to ``folder``. ``loading`` are arguments of ``load``."""
    found: dict[str, Any] = {}
    if "rebuild" in parts:
        found["rebuild"] = {}
        for kind in kinds:
            found["rebuild"][kind] = rebuild(folder, kind, features)
            print("rebuild", kind, found["rebuild"][kind], flush=True)
    asking = [part for part in ASKING if part in parts]
    if asking or "memory" in parts:
        if model is None:
            table = synthetic_ratings(rows=2000, features=1000, density=0.03)
            fitted = Headstart(adapter="bayes", quiet=True).fit(table)
        else:
            fitted = Headstart.load(model)
        fitted.save(folder / "m")
        if "memory" in parts:
            found["memory"] = memory(fitted, folder)
            print("memory", found["memory"], flush=True)
        with served(folder) as server:
            for part in asking:
                found[part] = ASKING[part](fitted, server, **(loading if part == "load" else {}))
                print(part, found[part], flush=True)
    return found


def main() -> None:
    """Read the options, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--features", type=int, default=100_000, help="of the part rebuild")
    parser.add_argument("--kind", action="append", choices=list(TABLES), help="of the part rebuild")
    parser.add_argument("--model", type=Path, help="a fitted model of 1,000 rows and features or more")
    parser.add_argument("--rate", action="append", type=int, help="of predictions a second, of the part load")
    parser.add_argument(
        "--arriving", type=float, default=ARRIVING, help="observations a second, of the part load"
    )
    parser.add_argument("--batch", type=int, default=1, help="observations in a request, of the part load")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    loading = {"rates": options.rate or RATES, "arriving": options.arriving, "batch": options.batch}
    with tempfile.TemporaryDirectory() as name:
        found = measure(
            options.part or [*PARTS],
            options.features,
            options.kind or [*TABLES],
            options.model,
            Path(name),
            loading,
        )
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
