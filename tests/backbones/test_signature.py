"""The signature against numpy's singular vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.backbones.conftest import random_cells

from headstart.backbones.signature import Signature
from headstart.table.cells import Cells
from headstart.training.episodes import random_ranks


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


def raw(signature: Signature, seen: np.ndarray) -> np.ndarray:
    """The count's logarithm within the ends, and the mean of the features' vectors times √n."""
    low, high = signature.ends.tolist()
    count = min(max(np.log(1 + seen.sum()), low), high)
    total = np.zeros(signature.length)
    for j in np.flatnonzero(seen):
        total += signature.table[j].double().numpy()
    return np.r_[count, total / np.sqrt(max(1, seen.sum()))]


@pytest.mark.parametrize("shrinkage_count", [1.0, 7.0])
def test_a_rows_signature_is_a_loop_over_its_features(shrinkage_count: float) -> None:
    cells = clustered()
    cells = cells.keep(
        (cells.lines != 4) & ((cells.lines != 9) | (cells.index % 9 == 0))
    )  # one empty, one small
    signature = fitted(cells, 5)
    signature.shrinkage_count.fill_(shrinkage_count)
    found = signature(cells)
    assert found.shape == (60, signature.size)
    every = np.array([raw(signature, seen) for seen in pattern(cells) if seen.any()])
    centre = every.mean(0)
    scale = np.maximum(np.maximum(every.std(0, ddof=1), 0.05 * np.abs(every).mean(0)), 1e-3)
    counts = pattern(cells).sum(1)
    logarithms = np.log(1 + counts[counts > 0])
    np.testing.assert_allclose(signature.ends, np.quantile(logarithms, [0.02, 0.98]), rtol=1e-4)
    for row, seen in enumerate(pattern(cells)):
        believed = seen.sum() / (seen.sum() + shrinkage_count)
        expected = np.r_[1, believed * (raw(signature, seen) - centre) / scale]
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=1e-3, atol=1e-4)
    assert torch.equal(found[4], torch.eye(7)[0])  # of a row nobody knows: exactly the usual row's
    assert not (found[9, 1:] == 0).any()


def test_rows_that_all_observed_alike_are_not_told_apart() -> None:
    cells = random_cells(30, 12, 1.0, seed=0)
    found = fitted(cells, 3)(cells)
    np.testing.assert_allclose(found[:, 1:].numpy(), 0, atol=1e-3)


@pytest.mark.parametrize("telling", [0.0, 0.3, 1.0, 3.0])
def test_patience_is_the_best_for_rows_of_which_most_is_hidden(telling: float) -> None:
    """Every choice tried, row by row: the few observations shown against what all of them say."""
    generator = torch.Generator().manual_seed(1)
    cells = clustered(90)
    signature = fitted(cells, 3)
    row_map = torch.randn(signature.size, 2, generator=generator)
    row_map[1] = 0.1  # the count says little
    means = row_map[0] + telling * (signature.differences(cells) @ row_map[1:])
    means = means + torch.randn(90, 2, generator=generator)
    metric = torch.tensor([[2.0, 0.3], [0.3, 1.0]])
    signature.choose_shrinkage(cells, means, row_map, metric, torch.Generator().manual_seed(5))
    rank = random_ranks(cells, torch.Generator().manual_seed(5))
    choices, errors = np.append(np.logspace(-0.5, 2.75, 14), np.inf), np.zeros(15)
    for count in (1, 2, 4, 8, 16, 32, 64):
        enough = [row for row, n in enumerate(cells.counts.tolist()) if n >= 2 * count]
        if len(enough) < 10:
            break
        shown = signature.differences(cells.keep(rank < count)).numpy()
        for number, choice in enumerate(choices):
            believed = count / (count + choice)
            missed = [
                believed * shown[i] @ row_map[1:].numpy() - (means - row_map[0])[i].numpy() for i in enough
            ]
            errors[number] += np.mean([m @ metric.numpy() @ m for m in missed])
    best = choices[errors.argmin()]
    assert float(signature.shrinkage_count) == pytest.approx(
        best if best <= 100 else float(torch.finfo(torch.float32).max), rel=1e-4
    )
    assert telling < 3 or float(signature.shrinkage_count) < 50  # what is telling is believed early
    if telling == 0:  # what never tells is never believed
        torch.testing.assert_close(signature(cells)[:, 1:], torch.zeros(90, signature.size - 1))
    before = signature.shrinkage_count.clone()
    signature.choose_shrinkage(cells, means, 0 * row_map, metric, generator)
    assert torch.equal(signature.shrinkage_count, before)  # what predicts nothing teaches nothing


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
    torch.testing.assert_close(fitted(cells, 0)(cells), found[:, :2], rtol=1e-5, atol=1e-5)
