"""What training by several processes costs: time, memory and what they send each other.

    python benchmarks/together.py --size 1M:20k:20k --processes 1 2 --out together

The table is that of ``scale.py``. Each number of processes is started by ``torchrun`` on this machine.
Written: ``SIZE-N-processes.json`` with, for every process, seconds of the processor and bytes that it gave to
be added up, gathered or exchanged, by part of the fit, and its peak of resident memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from headstart.distributed import ProcessGroup, join_processes, process_group, use_group
from scale import PARTS
from scale_tables import Shape, make


class Counting(ProcessGroup):
    """Counts the bytes that this process gives to the others."""

    given = 0

    def total(self, numbers: Tensor) -> Tensor:
        self.given += numbers.numel() * numbers.element_size()
        return super().total(numbers)

    def gathered(self, part: Tensor) -> Tensor:
        self.given += part.numel() * part.element_size()
        return super().gathered(part)

    def exchanged(self, parts: Sequence[Tensor]) -> list[Tensor]:
        self.given += sum(part.numel() * part.element_size() for part in parts)
        return super().exchanged(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="1M")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--sweeps", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        run(given.worker, given.out, given.sweeps)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    shape = Shape.of(given.size)
    folder = given.out / "tables" / shape.name
    make(shape, folder)
    for count in given.processes:
        result = given.out / f"{shape.name}-{count}-processes.json"
        start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), __file__]
        own = ["--worker", str(folder), "--out", str(result), "--sweeps", str(given.sweeps)]
        subprocess.run([*start, *own], check=True)
        print(result.read_text())


def run(folder: Path, result: Path, sweeps: int) -> None:
    """Read, fit and save as one of several processes, and write what each of them took."""
    from headstart import Headstart, Table

    seconds: Counter[str] = Counter()
    sent: Counter[str] = Counter()

    def timed(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def measured(*given: Any, **more: Any) -> Any:
            began, before = time.process_time(), counting.given
            found = work(*given, **more)
            seconds[part] += time.process_time() - began
            sent[part] += counting.given - before
            return found

        return measured

    for part, (module, name) in PARTS.items():
        place = import_module(module)
        setattr(place, name, timed(part, getattr(place, name)))
    with join_processes() as joined:
        counting = Counting(joined.rank, joined.size, launched=True)
        with use_group(counting):
            read, save = timed("read", Table.read), timed("save", Headstart.save)
            table = read(
                folder / "observations", metadata=folder / "metadata.parquet", kinds="rating:1:5", quiet=True
            )
            backbone = {"name": "factorisation", "sweeps": sweeps}
            model = Headstart(adapter="bayes", backbone=backbone, quiet=True).fit(table)
            save(model, folder / "model")
            own = {
                "rows": len(table.rows),
                "observations": len(table),
                "seconds": dict(seconds),
                "bytes": dict(sent),
                "peak_bytes": _peak(),
            }
            every = process_group().all_gather_texts([json.dumps(own)])
    if joined.is_main:
        found = {"features": len(table.features), "sweeps": sweeps}
        found["processes"] = [json.loads(each[0]) for each in every]
        result.write_text(json.dumps(found, indent=1) + "\n")


def _peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    main()
