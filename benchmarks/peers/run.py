"""Compare Headstart with other methods and libraries on the same splits, contexts and targets.

    python benchmarks/peers/run.py --data DIR --out DIR

Finished runs in ``--out`` are not repeated.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from methods import METHODS, UNUSUAL, Peer
from problem import PARTS, Problem
from report import publish
from tuning import trial, tune

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headstart.datasets import load_dataset
from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.evaluate.results import Run
from headstart.evaluate.splits import split_features
from headstart.experiments.presets import TUNED
from headstart.files import write_bytes
from headstart.table import Table
from question_texts import question_texts, with_texts

# The suffix adds the texts of questions to their metadata.
SETS = ("movielens", "elearning", "elearning-text", "neuropathic")
_TEXT = "-text"


def load_set(name: str, data: Path | None) -> Table:
    """Return one of ``SETS``."""
    table = load_dataset(name.removesuffix(_TEXT), data)
    return with_texts(table, question_texts(table, data)) if name.endswith(_TEXT) else table


class Runs:
    """The folder of runs: one file per (data set, method, split), and one with the tuned settings."""

    def __init__(self, data: Path | None, out: Path, parts: tuple[int, ...] = PARTS) -> None:
        self.out, self.parts = out, parts
        self._table = lru_cache(maxsize=None)(lambda name: load_set(name, data))

    def problem(self, name: str, split: int) -> Problem:
        """Return the problem of one data set and split."""
        table: Table = self._table(name)
        share = TUNED[name.removesuffix(_TEXT)].test_share
        return Problem.of_split(table, split_features(table, share, seed=split), split, self.parts)

    def run(self, name: str, method: str, split: int) -> None:
        """Run one method on one split, unless it is finished."""
        path = self._folder(name, method) / f"split-{split}.json"
        if path.exists():
            return
        peer = self._tuned(name, method)
        problem = self.problem(name, split)
        start = time.process_time()
        peer.fit(problem)
        seconds = time.process_time() - start
        main = "auroc" if problem.kind == "binary" else "rmse"
        parts: dict[str, list[dict[str, Any]]] = {}
        for outcome in trial(peer, problem):
            parts.setdefault(str(outcome.part), []).extend(
                Run(
                    split=split, method=method, shots=outcome.shots, metric=metric, value=found.value,
                    features=found.features, targets=found.targets,
                    ms_per_feature=round(outcome.ms_per_feature, 6),
                ).model_dump()
                for metric, found in outcome.scores.items()
            )  # fmt: skip
        record = {
            "format": 1, "set": name, "method": method, "split": split, "settings": peer.settings,
            "fit_seconds": round(seconds, 3), "parts": parts,
        }  # fmt: skip
        _write(path, record)
        for part, runs in parts.items():
            told = " ".join(f"{run['value']:.4f}" for run in runs if run["metric"] == main)
            say(f"{name} split {split} {method} [{part}] fit {seconds:.0f} s, {main} {told}")

    def _tuned(self, name: str, method: str) -> Peer:
        """Return the method with settings tuned on the known features of the first split."""
        peer = METHODS[method]()
        if peer.tuned_as is not None:
            return type(peer)(**self._tuned(name, peer.tuned_as).settings)
        if not peer.choices:
            return peer
        path = self._folder(name, method) / "settings.json"
        if not path.exists():
            say(f"{name} {method}: tuning on known features")
            start = time.process_time()
            tuned = tune(peer, self.problem(name, 0), say)
            _write(path, {"settings": tuned.settings, "seconds": round(time.process_time() - start, 1)})
        return type(peer)(**json.loads(path.read_text(encoding="utf-8"))["settings"])

    def _folder(self, name: str, method: str) -> Path:
        return self.out / name / re.sub(r"\W+", "-", method).strip("-")


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def check_libraries(methods: list[str]) -> None:
    """Refuse methods whose library is not installed, before any work."""
    for method in methods:
        library = METHODS[method]().library
        if library is not None and importlib.util.find_spec(library) is None:
            raise InputError(
                f"method {method!r} needs the library {library!r}: pip install "
                "-r benchmarks/peers/requirements.txt, or leave the method out with --methods"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="the data folder (else HEADSTART_DATA)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(SETS), help=f"of {', '.join(SETS)}")
    usual = [name for name in METHODS if name not in UNUSUAL]
    parser.add_argument("--methods", default=",".join(usual), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--part", default=",".join(map(str, PARTS)), help="where targets begin")
    options = parser.parse_args()
    sets, methods = options.sets.split(","), options.methods.split(",")
    for chosen, known in ((sets, SETS), (methods, METHODS)):
        for name in chosen:
            if name not in known:
                raise UnknownNameError(f"unknown {name!r}{did_you_mean(name, known)}")
    check_libraries(methods)
    runs = Runs(options.data, options.out, tuple(int(part) for part in options.part.split(",")))
    for method in methods:
        for name in sets:
            for split in range(options.splits):
                runs.run(name, method, split)
        publish(options.out, tuple(METHODS))


def _write(path: Path, record: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (json.dumps(record, default=_plain) + "\n").encode())


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else str(value)


if __name__ == "__main__":
    main()
