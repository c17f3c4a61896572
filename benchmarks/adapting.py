"""Measure the time of a new feature: closed-form heads compared with the bare matrix products they need.

    python benchmarks/adapting.py

The table is synthetic, with the shape and density of MovieLens-1M. Nothing is trained: training does not
change the cost. Printed by number of shots, in batches of 128 features: milliseconds of CPU time per feature,
and the ratio to the matrix products alone. The methods take turns, so that other load on the machine affects
all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from headstart.adapters import adapter_config, build_adapter
from headstart.adapters.bayes import ClosedFormAdapter
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.table.cells import Cells, offsets
from headstart.table.kinds import KindType

ROWS, FEATURES, METADATA, LATENT, CODE = 20_000, 3_000, 19, 32, 67
BATCH, SHOTS, ROUNDS = 128, (0, 1, 4, 16, 64, 128, 1024), 7


def random_knowledge() -> Knowledge:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    lines = torch.randint(ROWS, (300_000,), generator=generator)
    index = torch.randint(FEATURES, (300_000,), generator=generator)
    cells = Cells.from_pairs(lines, index, torch.rand(300_000, generator=generator), ROWS, FEATURES)
    return Knowledge(
        states=RowStates(normal(ROWS, CODE), normal(ROWS, CODE).abs(), normal(ROWS, LATENT)),
        cells=cells,
        heads=Heads(0.1 * normal(FEATURES, LATENT), 0.5 + 0.1 * normal(FEATURES)),
        metadata=(normal(FEATURES, METADATA) > 1).float(),
        kinds=torch.full((FEATURES,), KindType.RATING),
        likelihood=Likelihood(LikelihoodConfig(rating_link="identity")),
    )


def new_features(count: int, shots: int) -> FeatureBatch:
    generator = torch.Generator().manual_seed(shots)
    rows = torch.cat([torch.randperm(ROWS, generator=generator)[:shots] for _ in range(count)])
    cells = Cells(
        offsets(torch.full((count,), shots)), rows, torch.rand(len(rows), generator=generator), ROWS
    )
    metadata = (torch.randn(count, METADATA, generator=generator) > 1).float()
    return FeatureBatch(cells, metadata, torch.full((count,), KindType.RATING))


def products(shots: int, adapter: ClosedFormAdapter) -> Callable[[], None]:
    """Return a function that computes every matrix product of ``adapt`` and nothing else."""
    size = adapter.prior.size
    rows, root = torch.randn(BATCH, shots, size).double(), torch.randn(size, size).double()
    covariance = torch.randn(BATCH, size, size).double()
    network = getattr(adapter, "f", ())  # the hypernetwork's layers for each observation
    layers = [layer.weight.T for layer in network if isinstance(layer, nn.Linear)]
    read = torch.randn(BATCH * shots, len(layers[0])) if layers else torch.zeros(0)

    def run() -> None:
        white = rows @ root
        if shots < size:
            white @ white.mT
            seen = white @ root.T
            seen.mT @ seen
        else:
            white.mT @ white
            root @ covariance @ root.T
        hidden = read
        for layer in layers:
            hidden = hidden @ layer

    return run


def main() -> None:
    knowledge = random_knowledge()
    adapters = {
        name: build_adapter(adapter_config(name), knowledge).eval() for name in ("bayes", "chn-bayes")
    }
    with torch.no_grad():
        states = {name: adapter.refine(knowledge.states) for name, adapter in adapters.items()}
        print("| shots | " + " | ".join(f"{name}, ms a feature | × products" for name in adapters) + " |")
        for shots in SHOTS:
            batch, times = new_features(BATCH, shots), {}
            for _ in range(ROUNDS):
                for name, adapter in adapters.items():
                    bare = products(shots, adapter)
                    times.setdefault((name, "bare"), []).append(timed(bare))
                    made = timed(lambda a=adapter, n=name, b=batch: a.adapt(b, states[n]))
                    times.setdefault((name, "made"), []).append(made)
            columns = []
            for name in adapters:
                made, bare = (float(np.median(times[name, key])) for key in ("made", "bare"))
                columns.append(
                    f"{made / BATCH * 1000:.3f} | {made / bare:.1f}"
                    if shots
                    else f"{made / BATCH * 1000:.3f} | –"
                )
            print(f"| {shots} | " + " | ".join(columns) + " |", flush=True)


def timed(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    main()
