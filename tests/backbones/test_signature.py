"""The signature against numpy's singular vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.backbones.conftest import random_cells

from headstart.backbones.signature import Signature
from headstart.table.cells import Cells


def clustered(rows: int = 60, features: int = 40) -> Cells:
    """Three groups of rows that mostly observe a group of features each."""
    generator = torch.Generator().manual_seed(0)
    alike = torch.arange(rows)[:, None] % 3 == torch.arange(features) % 3
    seen = torch.rand(rows, features, generator=generator) < torch.where(alike, 0.8, 0.1)
    lines, index = torch.nonzero(seen, as_tuple=True)
    return Cells.from_pairs(lines, index, torch.rand(len(lines), generator=generator), rows, features)


def fitted(cells: Cells, length: int, seed: int = 0) -> Signature:
    signature = Signature(cells.width, length)
    signature.fit(cells, torch.Generator().manual_seed(seed))
    return signature


def pattern(cells: Cells) -> np.ndarray:
    seen = np.zeros((len(cells), cells.width))
    seen[cells.lines.numpy(), cells.index.numpy()] = 1
    return seen


@pytest.mark.parametrize("length", [3, 33])  # narrower than the search, and as wide as it
def test_it_spans_the_leading_singular_vectors(length: int) -> None:
    cells = clustered()
    seen = pattern(cells)
    far = 1 / np.sqrt(np.maximum(seen.sum(0), 1))
    scaled = seen / np.sqrt(np.maximum(seen.sum(1), 1))[:, None] * far
    leading = np.linalg.svd(scaled)[2][:length].T
    found = fitted(cells, length).table.numpy() / far[:, None]
    np.testing.assert_allclose(found.T @ found, np.eye(length), atol=1e-4)
    if length == 3:  # there the singular values have a gap after them
        np.testing.assert_allclose(found @ found.T, leading @ leading.T, atol=2e-3)
    np.testing.assert_allclose(
        np.linalg.norm(scaled @ found, axis=0), np.linalg.svd(scaled)[1][:length], rtol=0.02
    )


def test_a_rows_signature_is_a_loop_over_its_features() -> None:
    cells = clustered()
    signature = fitted(cells, 5)
    found = signature(cells)
    assert found.shape == (60, signature.size)
    for row, seen in enumerate(pattern(cells)):
        total = sum(signature.table[j] for j in np.flatnonzero(seen))
        expected = total / np.sqrt(seen.sum()) / signature.scale
        torch.testing.assert_close(found[row, 2:], expected, rtol=1e-4, atol=1e-5)
    assert bool((found[:, 0] == 1).all())
    by_count, by_sign = torch.argsort(cells.counts, stable=True), torch.argsort(found[:, 1], stable=True)
    assert torch.equal(cells.counts[by_count], cells.counts[by_sign])  # the second rises with the count
    torch.testing.assert_close(found[:, 2:].std(0), torch.ones(5))


def test_neither_order_nor_values_matter() -> None:
    cells = clustered()
    signature = fitted(cells, 5)
    turned = torch.argsort(cells.lines * 1000 - torch.arange(len(cells.index)))
    other = Cells(cells.indptr, cells.index[turned], -cells.values[turned], cells.width)
    torch.testing.assert_close(signature(other), signature(cells))


@pytest.mark.parametrize(
    ("rows", "features", "density"), [(1, 4, 1.0), (5, 40, 0.3), (30, 6, 1.0), (6, 6, 0.0)]
)
def test_small_full_and_empty_tables_give_finite_numbers(rows: int, features: int, density: float) -> None:
    cells = random_cells(rows, features, density, seed=0)
    found = fitted(cells, 4)(cells)
    assert found.shape == (rows, 6)
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) < 100
    assert torch.equal(fitted(cells, 0)(cells), found[:, :2])
