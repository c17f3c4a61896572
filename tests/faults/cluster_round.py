"""Disturb fits by several processes and scoring in partitions, and count the outcomes.

Run ``.venv/bin/python -m tests.faults.cluster_round --engine local``, or ``--engine ray``. With
``--small-disk DIR`` (a folder on a file system of some 100 kB, such as a tmpfs) the disk is full, too.

- clear: the command fails with one line that says why, and leaves no model and no incomplete file;
- same: the command, run again (a fit with ``--resume``), gives the result of an undisturbed run;
- wrong: another result, or a model that is not whole;
- raw: a traceback of Headstart without such a line; hang: no end within ``SECONDS``.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from headstart import Headstart

SECONDS = 300
SHARDS, LINES = 4, 400


def write_shards(folder: Path) -> Path:
    """Write made-up ratings in four files of Parquet."""
    random = np.random.default_rng(0)
    folder.mkdir()
    for shard in range(SHARDS):
        rows = [f"u{shard * 50 + i}" for i in random.integers(0, 50, LINES)]
        features = [f"f{j}" for j in random.integers(0, 12, LINES)]
        data = pd.DataFrame({"row": rows, "feature": features, "value": random.integers(1, 6, LINES)})
        data = data.drop_duplicates(["row", "feature"])
        pq.write_table(pa.Table.from_pandas(data, preserve_index=False), folder / f"part-{shard}.parquet")
    return folder


def replaced(part: Path, column: str, value: object) -> None:
    """Write another value, maybe of another type, into a column of a shard."""
    data = pq.read_table(part)
    place = data.column_names.index(column)
    pq.write_table(data.set_column(place, column, pa.array([value] * len(data))), part)


BAD_SHARDS: dict[str, Callable[[Path], object]] = {
    "cut": lambda part: part.write_bytes(part.read_bytes()[:-200]),
    "zeros": lambda part: part.write_bytes(bytes(part.stat().st_size)),
    "text": lambda part: part.write_text("row,feature,value\nu1,f1,3\n"),
    "labels": lambda part: replaced(part, "value", "good"),
    "no column": lambda part: pq.write_table(pq.read_table(part).drop_columns(["feature"]), part),
    "not finite": lambda part: replaced(part, "value", float("inf")),
    "rows without a name": lambda part: replaced(part, "row", ""),
}


UNREAD = ("labels", "not finite")  # damages of values, which scoring does not read


def fit_command(data: Path, out: Path, *more: str) -> list[str]:
    """Return the command of a fit by two processes."""
    often = ["--set", "pretraining.checkpoint_seconds=0", "--set", "backbone.sweeps=6"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [
        *start,
        "-m",
        "headstart",
        "fit",
        str(data),
        "--out",
        str(out),
        "--adapter",
        "bayes",
        *often,
        *more,
    ]


def score_command(model: Path, pairs: Path, out: Path, engine: str) -> list[str]:
    """Return the command that predicts many cells in partitions."""
    chosen = ["--engine", engine, "--partition-size", "40", *(["--workers", "2"] if engine == "ray" else [])]
    start = [sys.executable, "-m", "headstart", "predict", str(model), "--pairs", str(pairs)]
    return [*start, *chosen, "--out", str(out)]


def run(command: list[str], kill_after: float | None = None) -> tuple[int | None, str]:
    """Run a command in a group of its own; return its status (None: no end) and all that it printed.

    With ``kill_after``, one of its youngest children, or else the process itself, is killed after so many
    seconds.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    if kill_after is not None:
        time.sleep(kill_after)
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
        target = int((children.stdout.split() or [process.pid])[-1])
        if process.poll() is None:
            os.kill(target, signal.SIGKILL)
    try:
        said, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, said


def outcome(status: int | None, said: str, left: bool) -> str:
    """Return the outcome of a command that should fail."""
    if status is None:
        return "hang"
    if status == 0 or left:
        return "wrong"
    return "clear" if any(line.startswith("error: ") for line in said.splitlines()) else "raw"


def content(out: Path) -> object:
    """Return what a fit or a run of scoring has written."""
    if (out / "model.json").exists():
        return Headstart.load(out).predict().mean.round(5).tobytes()
    return pq.read_table(out, columns=["mean"]).to_pandas()["mean"].round(6).tolist()


def main() -> None:
    """Disturb fits and scoring, and print each outcome and the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--only", choices=["fit", "score"])
    parser.add_argument("--small-disk", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    chance, counts = random.Random(chosen.seed), Counter[str]()

    def report(what: str, found: str, said: str) -> None:
        counts[found] += 1
        print(f"{found:6} {what}", flush=True)
        if found not in ("clear", "same"):
            lines = [line for line in said.splitlines() if "rror" in line]
            print("\n".join(lines[:10]) or said[-1500:], flush=True)

    with tempfile.TemporaryDirectory() as top:
        data, model = write_shards(Path(top) / "data"), Path(top) / "model"
        commands: dict[str, Callable[[Path, Path], list[str]]] = {
            "fit": fit_command,
            "score": lambda shards, out: score_command(model, shards, out, chosen.engine),
        }
        for name, command in commands.items():
            start = time.monotonic()
            whole = model if name == "fit" else Path(top) / "scored"
            status, said = run(command(data, whole))
            if status != 0:
                raise SystemExit(said)
            seconds = time.monotonic() - start
            if chosen.only not in (None, name):
                continue
            for number in range(chosen.kills):
                out = Path(top) / f"{name} {number}"
                killed, said = run(command(data, out), chance.uniform(0.3, 0.95) * seconds)
                again = command(data, out)
                if name == "fit" and killed != 0 and out.with_name(f"{out.name}.checkpoint").exists():
                    again.append("--resume")
                status, said = run(again) if killed != 0 else (0, said)
                same = status == 0 and content(out) == content(whole)
                report(f"{name}, killed", "same" if same else "hang" if status is None else "wrong", said)
            for what, damage in BAD_SHARDS.items():
                if name == "score" and what in UNREAD:
                    continue
                shards, out = shutil.copytree(data, Path(top) / f"{name} {what}"), Path(top) / "bad"
                damage(Path(shards) / f"part-{chance.randrange(SHARDS)}.parquet")
                status, said = run(command(Path(shards), out))
                report(f"{name}, shard: {what}", outcome(status, said, (out / "model.json").exists()), said)
                shutil.rmtree(out, ignore_errors=True)
            if chosen.small_disk is not None:
                out = chosen.small_disk / name
                status, said = run(command(data, out))
                report(f"{name}, full disk", outcome(status, said, (out / "model.json").exists()), said)
    for found, count in sorted(counts.items()):
        print(f"{found:6} {count}")


if __name__ == "__main__":
    main()
