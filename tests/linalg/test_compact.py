"""Compact covariances against the matrices that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from headstart.linalg.compact import TOLERANCE, StoredMatrices, compact
from headstart.linalg.packed import append_one, pack, packed_size, unpack

SIZE, RANKS = 40, (0, 1, 3, 1, 25, 0, 40, 2)


def posteriors(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return covariances of heads with RANKS observations, two priors, the shares of these, and rows."""
    random = torch.Generator().manual_seed(seed)
    draw = torch.randn(2, SIZE, SIZE, generator=random, dtype=torch.float64) / SIZE**0.5
    priors, rows = draw @ draw.mT + 0.1 * torch.eye(SIZE), torch.randn(200, SIZE - 1, generator=random)
    first = torch.rand(len(RANKS), 1, generator=random, dtype=torch.float64)
    shares, covariances = torch.cat([first, 1 - first], dim=1), []
    for share, rank in zip(shares, RANKS, strict=True):
        prior = (share[:, None, None] * priors).sum(0)
        observed = append_one(rows[torch.randperm(len(rows), generator=random)[:rank]].double())
        gain = prior @ observed.T
        covariances.append(prior - gain @ torch.linalg.inv(observed @ gain + torch.eye(rank)) @ gain.T)
    return (
        pack(torch.stack(covariances)).float(),
        pack(priors).float(),
        shares.float(),
        append_one(rows.double()),
    )


def stored(seed: int = 0) -> tuple[StoredMatrices, Tensor, Tensor]:
    """Return compact covariances, the same in a tensor, and rows."""
    covariances, priors, shares, rows = posteriors(seed)
    metric = rows.T @ rows / len(rows)
    return (
        StoredMatrices(compact(covariances, priors, shares, metric, torch.ones(len(RANKS)))),
        covariances,
        rows,
    )


@pytest.mark.parametrize("seed", range(3))
def test_compact_matrices_are_almost_the_given_ones(seed: int) -> None:
    matrices, given, rows = stored(seed)
    counts, few = matrices.parts.ends.diff().tolist(), [rank for rank in RANKS if rank <= 3]
    assert len(counts) == len(few)
    # A vector for each observation, and as many again for the rounding of the first ones.
    assert all(rank <= count <= 3 * rank for count, rank in zip(counts, few, strict=True))
    assert len(matrices.parts.halves) == len(RANKS) - len(few)
    expected = torch.einsum("ni,mij,nj->nm", rows, unpack(given.double(), SIZE), rows)
    assert float((matrices.forms(rows) - expected).abs().mean()) < 10 * TOLERANCE
    torch.testing.assert_close(matrices.packed(), given, atol=3e-3, rtol=0)


def test_all_ways_to_read_agree() -> None:
    matrices, _, rows = stored()
    dense, variances = matrices.to(torch.float64).packed(), torch.rand(len(rows), SIZE - 1).double()
    chosen, priors = torch.tensor([6, 2, 2, 0, 4]), torch.tensor([0, 5])  # priors: without observations
    parts = [matrices.index_select(0, positions) for positions in (chosen, priors)]
    for some, packed in (
        (matrices, dense), (parts[0], dense[chosen]), (parts[1], dense[priors]), (matrices[2:7], dense[2:7])
    ):  # fmt: skip
        full = unpack(packed, SIZE)
        plain = torch.einsum("ni,mij,nj->nm", rows, full, rows)
        spread = variances @ full.diagonal(dim1=1, dim2=2)[:, :-1].T
        torch.testing.assert_close(some.forms(rows), plain)
        torch.testing.assert_close(some.forms(rows, variances), plain + spread)
        torch.testing.assert_close(some.to(torch.float64).packed(), packed)
        torch.testing.assert_close(StoredMatrices(some.gather()).to(torch.float64).packed(), packed)
    one_by_one = matrices.numpy()
    np.testing.assert_allclose(np.stack([one_by_one[i] for i in range(len(matrices))]), dense, rtol=1e-12)


def test_matrices_are_added_after_the_others() -> None:
    before, _, rows = stored()
    after, more = before.append_zeros(3), torch.rand(3, packed_size(SIZE))
    after[len(before) : len(before) + 2] = more[:2]
    after.numpy()[len(before) + 2] = more[2].numpy()
    assert len(after) == len(before) + 3
    torch.testing.assert_close(after.packed(), torch.cat([before.packed(), more]), rtol=0, atol=0)
    torch.testing.assert_close(after.forms(rows)[:, : len(before)], before.forms(rows), rtol=0, atol=0)
    again = after[1:].append_zeros(1)  # some of them in a new place
    torch.testing.assert_close(again.packed()[:-1], after.packed()[1:], rtol=0, atol=0)


def test_no_matrices() -> None:
    empty = torch.zeros(0, packed_size(SIZE))
    matrices = StoredMatrices(
        compact(empty, empty, torch.zeros(0, 0), torch.eye(SIZE).double(), torch.zeros(0))
    )
    assert matrices.packed().shape == empty.shape
    assert matrices.forms(torch.ones(2, SIZE)).shape == (2, 0)
