"""The long run of what ``test_durability.py`` does briefly: ``python -m tests.service.soak --kills 20``.

A service is killed (SIGKILL) at random moments while clients write, on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from tests.service.killing import killed
from tests.service.postgres import Cluster, why_not
from tests.service.running import fitted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=["sqlite", "postgresql", "both"], default="both")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "m"
        fitted().save(model)
        if options.store != "postgresql":
            count = killed(model, f"sqlite:///{folder}/store.db", options.kills, options.seed)
            print(f"SQLite: {options.kills + 1} kills, {count} acknowledged changes, none lost", flush=True)
        if options.store != "sqlite":
            reason = why_not()
            if reason:
                raise SystemExit(reason)
            with Cluster() as cluster:
                count = killed(model, cluster.database(), options.kills, options.seed)
            print(
                f"PostgreSQL: {options.kills + 1} kills, {count} acknowledged changes, none lost", flush=True
            )


if __name__ == "__main__":
    main()
