"""Measure the growth of time, memory, disk and error with the size of a table.

    python benchmarks/scale.py --sizes 1M 3M 10M 100M:2M:100k --out scale

A size is a number of observations, or OBSERVATIONS:ROWS:FEATURES. Each table is made once
(``scale_tables.py``), as a folder of Parquet files. Each size then runs in a fresh process: read, fit,
save, load, add features, observe, predict; a process that takes more memory than ``--memory`` (GiB) is
killed. Written: ``SIZE-ADAPTER.json`` for each size, which a later run does not repeat, and ``growth.png``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from scale_tables import SHOTS, Shape, make

GIB = 2**30
# The parts of a fit that are timed, by the module that calls them.
PARTS = {
    "sweeps": ("headstart.training.recipe", "pretrain"),
    "row states": ("headstart.training.recipe", "build_knowledge"),
    "folds and new heads": ("headstart.training.recipe", "cross_fit_heads"),
    "adapter": ("headstart.training.recipe", "train_adapter"),
    "calibration": ("headstart.training.recipe", "predict_held_out"),
    "heads": ("headstart.model.fitting", "build_state"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=["1M", "3M", "10M", "30M"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--adapter", default="bayes")
    parser.add_argument("--memory", type=float, default=10.0, help="GiB that a process may take")
    parser.add_argument("--sweeps", type=int, help="number of sweeps, if not the default")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--keep-model", action="store_true", help="do not remove the saved models")
    options = parser.parse_args()
    if options.worker is not None:
        run(options.worker, Path(options.out), options.adapter, options.sweeps)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for size in options.sizes:
        shape = Shape.of(size)
        folder = options.out / "tables" / shape.name
        make(shape, folder)
        few = "" if options.sweeps is None else f"-{options.sweeps}-sweeps"
        result = options.out / f"{shape.name}-{options.adapter}{few}.json"
        if not result.exists() or "failed" in json.loads(result.read_text()):
            outcome = run_with_limit(folder, result, options.adapter, options.sweeps, options.memory)
            print(shape.name, outcome, flush=True)
        if not options.keep_model:
            subprocess.run(["rm", "-rf", str(folder / "model")], check=True)
    draw(options.out, options.adapter)


def run_with_limit(folder: Path, result: Path, adapter: str, sweeps: int | None, memory: float) -> str:
    """Run one size in a process of its own, and kill it if it takes too much memory."""
    command = [sys.executable, __file__, "--worker", str(folder), "--out", str(result), "--adapter", adapter]
    command += [] if sweeps is None else ["--sweeps", str(sweeps)]
    process, most, began = subprocess.Popen(command), 0.0, time.time()
    while process.poll() is None:
        time.sleep(1)
        most = max(most, _status("VmRSS", process.pid) / GIB)
        if most > memory:
            process.kill()
            process.wait()
    if process.returncode:
        reason = f"more than {memory} GiB" if most > memory else f"exit status {process.returncode}"
        facts = json.loads(result.read_text()) if result.exists() else {}
        facts |= {"failed": reason, "peak": most, "after": time.time() - began}
        result.write_text(json.dumps(facts, indent=1))
        return f"failed: {reason}"
    facts = json.loads(result.read_text())
    return f"{facts['total']:.0f} s, {facts['peak']:.2f} GiB, {facts['seconds']}, {facts['error']}"


def _status(field: str, pid: int | str = "self") -> float:
    """Return a field of a process's memory status in bytes; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith(field)), 0.0)


class Record:
    """Seconds and peak memory of stages, written to a file after each stage."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path = path
        self.facts: dict[str, Any] = {**facts, "seconds": {}, "cpu": {}, "memory": {}}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage: elapsed and CPU seconds, and the peak memory of the process during the stage."""
        Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
        began, cpu = time.perf_counter(), time.process_time()
        yield
        seconds = self.facts["seconds"]
        seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - began, 3)
        used = self.facts["cpu"]
        used[name] = round(used.get(name, 0.0) + time.process_time() - cpu, 3)
        memory = self.facts["memory"]
        memory[name] = max(memory.get(name, 0.0), round(_status("VmHWM") / GIB, 3))
        self.path.write_text(json.dumps(self.facts, indent=1))

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` measured as the stage ``name``."""

        @wraps(function)
        def inner(*args: Any, **options: Any) -> Any:
            with self.stage(name):
                return function(*args, **options)

        return inner


def run(folder: Path, result: Path, adapter: str, sweeps: int | None) -> None:
    """Read, fit, save, load, add, observe and predict one table, and write the measurements."""
    began = time.perf_counter()
    import torch

    from headstart import Headstart, Table

    shape = json.loads((folder / "shape.json").read_text())
    new = shape.pop("new")
    truth = np.load(folder / "truth.npz")
    record = Record(result, {"shape": shape, "adapter": adapter, "threads": torch.get_num_threads(),
                             "load": os.getloadavg()[0]})  # fmt: skip
    with record.stage("read"):
        table = Table.read(folder / "observations", metadata=folder / "metadata.parquet", kinds="rating:1:5")
    record.facts["shape"] |= {"rows read": len(table.rows), "observations read": len(table)}
    for name, (module, function) in PARTS.items():
        where = import_module(module)
        setattr(where, function, record.timed(f"fit: {name}", getattr(where, function)))
    start, cpu = time.perf_counter(), time.process_time()
    backbone = {"name": "factorisation"} | ({} if sweeps is None else {"sweeps": sweeps})
    model = Headstart(backbone=backbone, adapter=adapter, quiet=True).fit(table)
    record.facts["seconds"]["fit"] = round(time.perf_counter() - start, 3)
    record.facts["cpu"]["fit"] = round(time.process_time() - cpu, 3)
    del table
    with record.stage("save"):
        model.save(folder / "model")
    disk = sum(each.stat().st_size for each in (folder / "model").iterdir())
    del model
    with record.stage("load"):
        model = Headstart.load(folder / "model")
    rows, of, mean, value = (truth[f"new_{name}"] for name in ("row", "feature", "truth", "value"))
    shown = _first(of, SHOTS)
    contexts: dict[int, dict[str, float]] = {number: {} for number in range(len(new))}
    for row, feature, seen in zip(rows[shown], of[shown], value[shown], strict=True):
        contexts[int(feature)][str(row)] = float(seen)
    with record.stage("add"):
        model.add_features({
            f"new {i}": {"metadata": {"genre": each["genre"], "year": each["year"]}, "kind": "rating:1:5",
                         "observations": contexts[i]}
            for i, each in enumerate(new)
        })  # fmt: skip
    with record.stage("observe"):
        model.observe_feature("0", {str(truth["test_row"][0]): 4})
    with record.stage("predict"):
        known = _errors(model, truth["test_row"], truth["test_feature"].astype(str), truth["test_truth"])
    asked = ~shown
    names = np.char.add("new ", of[asked].astype(str))
    fresh = _errors(model, rows[asked], names, mean[asked])
    spread = float(np.std(truth["test_truth"]))
    record.facts |= {
        "disk": disk, "total": time.perf_counter() - began, "peak": max(record.facts["memory"].values()),
        "high water": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
        "error": {"known": known, "new": fresh, "spread of the truth": spread},
    }  # fmt: skip
    result.write_text(json.dumps(record.facts, indent=1))


def _first(groups: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of the first ``count`` entries of each group."""
    mask = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        mask[np.flatnonzero(groups == group)[:count]] = True
    return mask


def _errors(model: Any, rows: np.ndarray, names: np.ndarray, truth: np.ndarray) -> float:
    """Return the RMSE of predicted means against the generating truth of these cells."""
    known = np.isin(rows.astype(str), list(model.rows))
    rows, names, truth = rows[known].astype(str), names[known], truth[known]
    squared, order = [], np.random.default_rng(0).permutation(len(rows))[:4000]
    for part in np.array_split(order, max(1, len(order) // 100)):
        found = model.predict(list(rows[part]), list(names[part])).mean
        squared.append((np.asarray(found).diagonal() - truth[part]) ** 2)
    return float(np.sqrt(np.concatenate(squared).mean()))


def draw(out: Path, adapter: str) -> None:
    """Draw time, memory and disk by observations, with the exponents of power laws fitted to them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = [json.loads(each.read_text()) for each in out.glob(f"*-{adapter}.json")]
    found = sorted(
        (f for f in found if "total" in f and "failed" not in f),
        key=lambda f: f["shape"]["observations read"],
    )
    if len(found) < 2:
        return
    n = np.array([f["shape"]["observations read"] for f in found], dtype=float)
    series = {
        **{f"{stage} (s)": [f["cpu"][stage] for f in found] for stage in ("read", "fit", "save")},
        "peak memory (MiB)": [f["peak"] * 1024 for f in found],
        "disk (MiB)": [f["disk"] / 2**20 for f in found],
    }
    figure, axes = plt.subplots(figsize=(9, 4.5))
    for name, values in series.items():
        slope = np.polyfit(np.log(n), np.log(values), 1)[0]
        axes.loglog(n, values, "o-", label=f"{name}: exponent {slope:.2f}")
    axes.set(xlabel="observations", title=f"One thread, adapter {adapter}")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(out / "growth.png", dpi=130)


if __name__ == "__main__":
    main()
