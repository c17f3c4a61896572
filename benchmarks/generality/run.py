"""Compare the default with five references on tables of every shape, on the same contexts and targets.

    python benchmarks/generality/run.py --out DIR --data DIR

Finished runs in ``--out`` are not repeated.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generality.choosing import choose
from generality.methods import LIBRARIES, METHODS, Method, Reference
from generality.report import publish
from generality.scoring import scored
from generality.tables import TABLES, Entry
from generality.trial import Trial
from generality.variants import VARIANTS, varied
from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.files import write_bytes

DEFAULT_METHODS = tuple(name for name in METHODS if name != "headstart-told-scales")


class OutOfTime(Exception):
    """A fit exceeded its time limit."""


class Battery:
    """The folder of runs: one file per (table, variant, method, split), and one per tuned reference."""

    def __init__(
        self, out: Path, data: Path | None = None, limit: int = 0, tables: dict[str, Entry] = TABLES
    ) -> None:
        self.out, self.limit = out, limit
        self.table = lru_cache(maxsize=2)(lambda name: tables[name].load(data))
        self._trial = lru_cache(maxsize=1)(self._new_trial)

    def run(self, table: str, variant: str, method: str, split: int, label: str | None = None) -> None:
        """Run one method on one split of one table, unless it is finished."""
        label = label or method
        path = self.out / table / variant / label / f"split-{split}.json"
        if path.exists():
            return
        record: dict[str, Any] = {
            "format": 1, "table": table, "variant": variant, "method": label, "split": split,
        }  # fmt: skip
        try:
            with limited(self.limit):
                trial = self._trial(table, variant, split)
                ready = self._chosen(table, variant, method, trial)
                start = time.perf_counter()
                ready.fit(trial)
                record |= {"settings": ready.settings, "fit_seconds": round(time.perf_counter() - start, 2)}
                record["tests"] = list(scored(ready, trial))
                record["shape"] = [*trial.known.shape, len(trial.new.features), len(trial.held_rows)]
                record["unit"] = "sd" if trial.own_scales else "data"
        except KeyboardInterrupt:
            raise
        except Exception as error:  # one table's failure is a result, and no reason to lose the others
            record["error"] = f"{type(error).__name__}: {error}"
        write(path, record)
        say(told(record))

    def _new_trial(self, table: str, variant: str, split: int) -> Trial:
        return Trial.of(varied(self.table(table), variant), split)

    def _chosen(self, table: str, variant: str, method: str, trial: Trial) -> Method:
        """Return the method; a reference has settings chosen on the first split of the table and variant."""
        found = METHODS[method]()
        if not isinstance(found, Reference):
            return found
        path = self.out / table / variant / method / "settings.json"
        if not path.exists():
            write(path, choose(method, found, trial, say))
        for name, value in json.loads(path.read_text(encoding="utf-8")).items():
            setattr(found.peer, name, value)
        return found


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise OutOfTime in a block that takes more than this CPU time; 0 is no limit."""

    def stop(*_: object) -> None:
        raise OutOfTime(f"more than {seconds} s")

    if not seconds:
        yield
        return
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def told(record: dict[str, Any]) -> str:
    """Return a record as one line of text."""
    start = f"{record['table']} {record['variant']} {record['method']} {record['split']}:"
    if "error" in record:
        return f"{start} FAILED, {record['error'][:200]}"
    parts = [f"{start} fit {record['fit_seconds']:.0f} s"]
    for test in ("features", "rows", "both"):
        for metric in ("rmse", "auroc"):
            values = [
                f"{found['scores'][metric]:.3f}"
                for found in record["tests"]
                if found["test"] == test and metric in found["scores"]
            ]
            if values:
                parts.append(f"{test} {metric} {' '.join(values)}")
    return "; ".join(parts)


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (json.dumps(record, default=_plain) + "\n").encode())


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else str(value)


def _listed(names: str, known: Any, what: str) -> list[str]:
    for name in names.split(","):
        if name not in known:
            raise UnknownNameError(f"unknown {what} {name!r}{did_you_mean(name, known)}")
    return names.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="the data folder (else HEADSTART_DATA)")
    parser.add_argument("--tables", default=",".join(TABLES), help=f"of {', '.join(TABLES)}")
    parser.add_argument(
        "--methods", help=f"of {', '.join(METHODS)}; variants but plain: headstart if not said"
    )
    parser.add_argument("--splits", default="0", help="seeds; 0 to 4 are reported, develop on 100 and up")
    parser.add_argument("--variants", default=",".join(VARIANTS), help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--label", help="what to call headstart in the results, as headstart-before")
    parser.add_argument("--limit", type=int, default=0, help="most processor seconds of a run; 0: no limit")
    options = parser.parse_args()
    tables = _listed(options.tables, TABLES, "table")
    methods = _listed(options.methods or ",".join(DEFAULT_METHODS), METHODS, "method")
    variants = _listed(options.variants, VARIANTS, "variant")
    for method in methods:
        if method in LIBRARIES and importlib.util.find_spec(LIBRARIES[method]) is None:
            if options.methods:
                raise InputError(f"method {method!r} needs a library: pip install {LIBRARIES[method]}")
            say(f"{method} is left out: its library is not installed")
    methods = [m for m in methods if m not in LIBRARIES or importlib.util.find_spec(LIBRARIES[m])]
    battery = Battery(options.out, options.data, options.limit)
    for split in (int(seed) for seed in options.splits.split(",")):
        for table in tables:
            if reason := TABLES[table].missing(options.data):
                say(f"{table} is left out: {reason}")
                continue
            for variant in variants:
                if variant == "shuffled" and battery.table(table).metadata is None:
                    say(f"{table} shuffled is left out: it has no metadata")
                    continue
                for method in methods if variant == "plain" or options.methods else ["headstart"]:
                    label = options.label if method == "headstart" else None
                    battery.run(table, variant, method, split, label)
        publish(options.out)


if __name__ == "__main__":
    main()
