"""Measure training by several processes: time, memory and the bytes they exchange.

    python benchmarks/together.py --size 1M:20k:20k --processes 1 2 --out together

The table is that of ``scale.py``. Each number of processes is started by ``torchrun`` on this machine.
Written: ``SIZE-N-processes.json`` with, for every process, CPU seconds and the bytes that it passed to
collective operations, by part of the fit, and its peak of resident memory.
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
    """A process group that counts the bytes that this process passes to collective operations."""

    sent = 0

    def all_reduce_sum(self, part: Tensor) -> Tensor:
        self.sent += part.numel() * part.element_size()
        return super().all_reduce_sum(part)

    def all_gather(self, part: Tensor) -> Tensor:
        self.sent += part.numel() * part.element_size()
        return super().all_gather(part)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        self.sent += sum(part.numel() * part.element_size() for part in parts)
        return super().all_to_all(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="1M")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--sweeps", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        run(options.worker, options.out, options.sweeps)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    shape = Shape.of(options.size)
    folder = options.out / "tables" / shape.name
    make(shape, folder)
    for count in options.processes:
        result = options.out / f"{shape.name}-{count}-processes.json"
        start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), __file__]
        arguments = ["--worker", str(folder), "--out", str(result), "--sweeps", str(options.sweeps)]
        subprocess.run([*start, *arguments], check=True)
        print(result.read_text())


def run(folder: Path, result: Path, sweeps: int) -> None:
    """Read, fit and save as one of several processes, and write the measurements of all of them."""
    from headstart import Headstart, Table

    seconds: Counter[str] = Counter()
    sent: Counter[str] = Counter()

    def timed(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def measured(*arguments: Any, **options: Any) -> Any:
            began, before = time.process_time(), counting.sent
            result = work(*arguments, **options)
            seconds[part] += time.process_time() - began
            sent[part] += counting.sent - before
            return result

        return measured

    for part, (module, name) in PARTS.items():
        caller = import_module(module)
        setattr(caller, name, timed(part, getattr(caller, name)))
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
            facts = {
                "rows": len(table.rows),
                "observations": len(table),
                "seconds": dict(seconds),
                "bytes": dict(sent),
                "peak_bytes": _peak(),
            }
            gathered = process_group().all_gather_texts([json.dumps(facts)])
    if joined.is_main:
        summary = {"features": len(table.features), "sweeps": sweeps}
        summary["processes"] = [json.loads(texts[0]) for texts in gathered]
        result.write_text(json.dumps(summary, indent=1) + "\n")


def _peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    main()
