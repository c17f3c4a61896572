"""Run one benchmark of two checkouts in turns, and print the ratio of all of its times.

    git worktree add --detach ../other COMMIT
    python benchmarks/compare.py adapting.py --against ../other

Both checkouts run their own version of the script with their own ``src``, each on one thread, and all clocks
of the script count CPU time, to which other work on the machine adds little. The lines of the script that
have decimal numbers are printed with the ratio of the medians in the place of each number: below 1, this
checkout is faster. Lines after the last one that both have are left out. Further arguments go to the script.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[1]
DECIMAL = re.compile(r"\d+\.\d+")
RUN = """
import runpy, sys, time
time.perf_counter = time.process_time
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("script", help="the name of a file in benchmarks/")
    parser.add_argument("--against", type=Path, required=True, help="the root of the other checkout")
    parser.add_argument("--turns", type=int, default=3)
    options, arguments = parser.parse_known_args()
    outputs: dict[Path, list[list[str]]] = {HERE: [], options.against: []}
    for _ in range(options.turns):
        for root, lines in outputs.items():
            lines.append(run(root, options.script, arguments))
    for mine, other in zip(*(zip(*lines, strict=True) for lines in outputs.values()), strict=False):
        ratios = iter(medians(mine) / medians(other))
        print(DECIMAL.sub(lambda _, ratios=ratios: f"{next(ratios):.2f}", mine[0]))


def run(root: Path, script: str, arguments: list[str]) -> list[str]:
    """Run the script of a checkout, and return the lines of its output that have decimal numbers."""
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, str(root / "benchmarks" / script), *arguments]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return [line for line in output.splitlines() if DECIMAL.search(line)]


def medians(lines: tuple[str, ...]) -> np.ndarray:
    """Return the median of each decimal number over the same line of all turns."""
    return np.median([[float(number) for number in DECIMAL.findall(line)] for line in lines], axis=0)


if __name__ == "__main__":
    main()
