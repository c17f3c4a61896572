"""A long run of what the fault tests do briefly: ``python -m tests.faults.soak --minutes 10``.

Processes and threads change one saved model while they are killed at random moments, and a log on the disk
holds what was acknowledged. After each round the model must have all of it.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from headstart.model import Headstart
from tests.faults.models import ROWS, fresh

WRITERS = 3


def write(place: Path, log: Path, seed: int) -> None:
    """Change the model for ever; each change that was acknowledged is one line of the log."""
    chance, own = random.Random(seed), f"writer {seed}"
    with log.open("a") as acknowledged:
        for number in range(10**9):
            row, value = f"u{chance.randrange(ROWS)}", chance.randint(1, 5)
            with Headstart.updating(place) as model:
                if own not in model.features:
                    model.add_feature(own)
                if number % 7 == 0:
                    model.add_rows({f"{own} {number}": {"f1": value}})
                model.observe_feature(own, {row: value})
            acknowledged.write(f"{row} {value}\n")
            acknowledged.flush()
            os.fsync(acknowledged.fileno())


def round_of(place: Path, logs: Path, seed: int) -> int:
    """Start writers, kill them one after the other, and check; return how many changes there were."""
    chance = random.Random(seed)
    names = [seed * WRITERS + number for number in range(WRITERS)]
    command = [sys.executable, "-m", "tests.faults.soak", "--write", str(place)]
    writers = [
        subprocess.Popen([*command, "--log", str(logs / str(name)), "--seed", str(name)]) for name in names
    ]
    end = time.monotonic() + 60
    while not all((logs / str(name)).exists() for name in names) and time.monotonic() < end:
        time.sleep(0.1)
    for writer in writers:
        time.sleep(chance.uniform(0.1, 3.0))
        Headstart.load(place).predict()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    model, count = Headstart.load(place), 0
    for name in names:
        lines = [line.split() for line in (logs / str(name)).read_text().splitlines()]
        count += len(lines)
        last = {row: float(value) for row, value in lines}
        if not last:
            continue
        feature = model.feature(f"writer {name}")
        held = feature.observations
        # One change may have been made and not been acknowledged before the kill.
        different = {row for row in held.keys() | last.keys() if held.get(row) != last.get(row)}
        if len(different) > 1:
            raise SystemExit(f"writer {name}: lost or changed: {sorted(different)}")
    with Headstart.updating(place) as model:  # nothing is in the way, and what was left over goes
        for name in names:
            if f"writer {name}" in model.features:
                model.remove_feature(f"writer {name}")
    kinds = sorted(path.name.partition("-")[0] for path in place.iterdir())
    if kinds not in (["model.json", "weights"], ["acknowledged", "journal", "model.json", "weights"]):
        raise SystemExit(f"left over: {sorted(path.name for path in place.iterdir())}")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.write is not None:
        write(options.write, options.log, options.seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        place, logs = Path(folder) / "m", Path(folder) / "logs"
        logs.mkdir()
        fresh().save(place)
        end, rounds, changes = time.monotonic() + 60 * options.minutes, 0, 0
        while time.monotonic() < end:
            changes += round_of(place, logs, options.seed + rounds)
            rounds += 1
            print(
                f"{rounds} rounds, {rounds * WRITERS} kills, {changes} acknowledged changes, none lost",
                flush=True,
            )


if __name__ == "__main__":
    main()
