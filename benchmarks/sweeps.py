"""What a sweep of the factorisation costs: beside the bare sparse and dense products that it needs.

    python benchmarks/sweeps.py
    python benchmarks/sweeps.py --sizes 1M:20k:2k --latent 32 --sweeps 10

A size is OBSERVATIONS:ROWS:FEATURES. Ratings are made up at random places, popular features more often.
Sweeps and products take turns, so that the machine's noise falls on both alike, and are measured in seconds
of the processor; OMP_NUM_THREADS=1 gives those of one thread. The products are: second moments, packed, and
values × factors, both summed over each row's and over each feature's observations, as sparse products; and
the Cholesky factor and the inverse of one matrix for each row and for each feature, in double precision.
Printed for each size and number of factors: seconds of both for one sweep, and how many times as long the
sweep takes. Every fifth sweep chooses anew what is worth regressing on, and is a part of the mean.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headstart.backbones.factorisation import Factorisation, FactorisationConfig
from headstart.backbones.factorisation_fit import FactorisationTraining
from headstart.core.types import Description
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from scale_tables import Shape

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


def made_up(observations: int, rows: int, features: int) -> Cells:
    """Ratings of low rank with noise, at random places; about so many, as no place is taken twice."""
    random = np.random.default_rng(0)
    popularity = random.pareto(1.2, features) + 1
    index = random.choice(features, observations, p=popularity / popularity.sum())
    places = np.unique(random.integers(rows, size=observations) * features + index)
    lines, index = np.divmod(places, features)
    near, far = random.normal(size=(rows, 4)), random.normal(size=(features, 4))
    output = (near[lines] * far[index]).sum(1) + random.normal(size=len(lines))
    values = np.clip(np.round(2 + output / 2), 0, 4) / 4
    given = (torch.from_numpy(each) for each in (lines, index, values.astype(np.float32)))
    return Cells.from_pairs(*given, rows, features)


def sweeping(cells: Cells, latent: int, sweeps: int) -> Callable[[], object]:
    """Does one sweep at each call."""
    kinds = torch.full((cells.width,), KindType.RATING, dtype=torch.int64)
    config = FactorisationConfig(latent=latent, signature=latent, sweeps=sweeps + 2).resolved(kinds)
    backbone = Factorisation(config, kinds, torch.linspace(0, 1, 5))
    nothing = Description.of(torch.zeros(cells.width, 0), ())
    training = FactorisationTraining(backbone, cells, nothing, torch.Generator().manual_seed(0)).sweeps()
    return lambda: next(training)


def products(cells: Cells, latent: int) -> Callable[[], object]:
    """Every product of a sweep, and nothing else."""
    packed = (latent + 1) * (latent + 2) // 2
    by_row, by_feature = (_sparse(each) for each in (cells, cells.transpose()))
    of_rows, of_features = ((torch.rand(n, packed), torch.rand(n, latent + 1)) for n in by_row.shape)
    row_matrices, feature_matrices = _matrices(len(cells), latent), _matrices(cells.width, latent + 1)

    def run() -> None:
        for sparse, dense in ((by_row, of_features), (by_feature, of_rows)):
            for each in dense:
                sparse @ each
        for matrices in (row_matrices, feature_matrices):
            torch.cholesky_inverse(torch.linalg.cholesky_ex(matrices).L)

    return run


def _sparse(cells: Cells) -> Tensor:
    shape = len(cells), cells.width
    return torch.sparse_csr_tensor(
        cells.indptr.int(), cells.index.int(), cells.values, shape, check_invariants=False
    )


def _matrices(count: int, size: int) -> Tensor:
    root = torch.randn(count, size, size, dtype=torch.float64)
    return root @ root.mT + torch.eye(size, dtype=torch.float64)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["1M:20k:2k", "1M:20k:20k"])
    parser.add_argument("--latent", nargs="+", type=int, default=[16, 32], help="numbers of factors")
    parser.add_argument("--sweeps", type=int, default=10, help="sweeps that are measured")
    given = parser.parse_args()
    print("| observations × rows × features | factors | a sweep | its products | ratio |", flush=True)
    print("|---|---|---|---|---|", flush=True)
    for size in given.sizes:
        shape = Shape.of(size)
        cells = made_up(shape.observations, shape.rows, shape.features)
        for latent in given.latent:
            sweep, bare = sweeping(cells, latent, given.sweeps), products(cells, latent)
            sweep()  # finds signatures, and where to start
            bare()
            both = np.array([[timed(sweep), timed(bare)] for _ in range(given.sweeps)]).mean(0)
            print(
                f"| {len(cells.index):,} × {len(cells):,} × {cells.width:,} | {latent} "
                f"| {both[0]:.2f} s | {both[1]:.2f} s | {both[0] / both[1]:.2f} |",
                flush=True,
            )


def timed(run: Callable[[], object]) -> float:
    """Seconds of the processor, which other processes disturb less."""
    began = time.process_time()
    run()
    return time.process_time() - began


if __name__ == "__main__":
    main()
