"""Measure the commands that read a saved model beside ``import torch``, each in a process of its own.

    python benchmarks/starting.py films.headstart --row u17 --feature "Dune 3"

The commands and ``python -c "import torch"`` take turns. Printed: the median CPU time (user and system) of
each, and its ratio to the median of ``import torch``, which other work on the machine affects little. Compile
the package first (``python -m compileall src``) if Python may not write bytecode.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

RUN = "import sys; sys.argv[0] = 'headstart'; from headstart.cli import main; main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="folder of a saved model")
    parser.add_argument("--row", required=True)
    parser.add_argument("--feature", required=True)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--commands", nargs="+", help="all by default")
    options = parser.parse_args()
    commands = commands_of(str(options.model), options.row, options.feature)
    chosen = {name: words for name, words in commands.items() if name in (options.commands or commands)}
    times: dict[str, list[float]] = {name: [] for name in ("import torch", *chosen)}
    for _ in range(options.turns):
        times["import torch"].append(cpu_seconds([sys.executable, "-c", "import torch"]))
        for name, words in chosen.items():
            times[name].append(cpu_seconds([sys.executable, "-c", RUN, *words]))
    yardstick = statistics.median(times["import torch"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:14} {median:6.2f} s  ratio {median / yardstick:.2f}")
    print(f"{options.turns} turns; load at the end: {os.getloadavg()[0]:.1f}")


def commands_of(model: str, row: str, feature: str) -> dict[str, list[str]]:
    """Return the arguments of each command by its name."""
    return {
        "--help": ["--help"],
        "info": ["info", model],
        "features": ["features", model],
        "rows": ["rows", model],
        "predict": ["predict", model, "--rows", row, "--features", feature],
        "recommend": ["recommend", model, row],
        "card": ["card", model],
    }


def cpu_seconds(command: list[str]) -> float:
    """Return the CPU time of a command, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
