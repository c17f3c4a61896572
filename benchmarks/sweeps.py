"""Measure a sweep of the factorisation, compared with the bare sparse and dense products that it needs.

    python benchmarks/sweeps.py
    python benchmarks/sweeps.py --sizes 1M:20k:2k --latent 32 --sweeps 10

A size is OBSERVATIONS:ROWS:FEATURES. The ratings are synthetic, at random cells, with long-tailed
popularity. Sweeps and products take turns, so that other load on the machine affects both, and are measured
in CPU seconds; use OMP_NUM_THREADS=1 for one thread. The products are: sparse products that sum packed
second moments, and values × factors, over the observations of each row and of each feature; and the
Cholesky factor and inverse of one matrix for each row and for each feature, in double precision. Printed
for each size and number of factors: seconds of both per sweep, and their ratio. Every fifth sweep selects
the columns of the regressions again; the mean includes these sweeps.
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


def random_ratings(observations: int, rows: int, features: int) -> Cells:
    """Draw ratings of low rank with noise at random cells; at most ``observations``, each cell once."""
    random = np.random.default_rng(0)
    popularity = random.pareto(1.2, features) + 1
    index = random.choice(features, observations, p=popularity / popularity.sum())
    cells_drawn = np.unique(random.integers(rows, size=observations) * features + index)
    lines, index = np.divmod(cells_drawn, features)
    factors, loadings = random.normal(size=(rows, 4)), random.normal(size=(features, 4))
    output = (factors[lines] * loadings[index]).sum(1) + random.normal(size=len(lines))
    values = np.clip(np.round(2 + output / 2), 0, 4) / 4
    arrays = (lines, index, values.astype(np.float32))
    lines, index, values = (torch.from_numpy(array) for array in arrays)
    return Cells.from_pairs(lines, index, values, rows, features)


def build_sweep(cells: Cells, latent: int, sweeps: int) -> Callable[[], object]:
    """Return a function that runs one sweep at each call."""
    kinds = torch.full((cells.width,), KindType.RATING, dtype=torch.int64)
    config = FactorisationConfig(latent=latent, signature=latent, sweeps=sweeps + 2).resolved(kinds)
    backbone = Factorisation(config, kinds, torch.linspace(0, 1, 5))
    nothing = Description.of(torch.zeros(cells.width, 0), ())
    training = FactorisationTraining(backbone, cells, nothing, torch.Generator().manual_seed(0)).sweeps()
    return lambda: next(training)


def products(cells: Cells, latent: int) -> Callable[[], object]:
    """Return a function that computes every product of a sweep and nothing else."""
    packed = (latent + 1) * (latent + 2) // 2
    by_row, by_feature = (_sparse(each) for each in (cells, cells.transpose()))
    of_rows, of_features = ((torch.rand(n, packed), torch.rand(n, latent + 1)) for n in by_row.shape)
    row_matrices, feature_matrices = _matrices(len(cells), latent), _matrices(cells.width, latent + 1)

    def run() -> None:
        for sparse, dense in ((by_row, of_features), (by_feature, of_rows)):
            for matrix in dense:
                sparse @ matrix
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
    options = parser.parse_args()
    print("| observations × rows × features | factors | a sweep | its products | ratio |", flush=True)
    print("|---|---|---|---|---|", flush=True)
    for size in options.sizes:
        shape = Shape.of(size)
        cells = random_ratings(shape.observations, shape.rows, shape.features)
        for latent in options.latent:
            sweep, bare = build_sweep(cells, latent, options.sweeps), products(cells, latent)
            sweep()  # computes signatures and initial factors
            bare()
            both = np.array([[timed(sweep), timed(bare)] for _ in range(options.sweeps)]).mean(0)
            print(
                f"| {len(cells.index):,} × {len(cells):,} × {cells.width:,} | {latent} "
                f"| {both[0]:.2f} s | {both[1]:.2f} s | {both[0] / both[1]:.2f} |",
                flush=True,
            )


def timed(run: Callable[[], object]) -> float:
    """Return the CPU seconds of ``run``, which other processes affect less."""
    began = time.process_time()
    run()
    return time.process_time() - began


if __name__ == "__main__":
    main()
