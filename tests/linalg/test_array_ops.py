"""The primitives of both backends: torch batches and numpy single items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from headstart.linalg.array_ops import (
    LinAlgError,
    add_identity,
    append_column,
    cholesky,
    cholesky_inverse,
    cholesky_solve,
    half_log_determinant,
    jaakkola_slope,
    logistic,
    multiply_each,
    multiply_vectors,
    softmax,
    solve_lower,
    weighted_gram,
)
from headstart.linalg.packed import pack, unpack

SIZE = 6

RANDOM = np.random.default_rng(0)
SQUARE = RANDOM.normal(size=(SIZE, SIZE))
MATRIX = SQUARE @ SQUARE.T + np.eye(SIZE)
LOWER = np.linalg.cholesky(MATRIX)
STACK = np.stack([MATRIX, 2 * MATRIX])
VECTOR, ROWS, WEIGHTS = RANDOM.normal(size=SIZE), RANDOM.normal(size=(9, SIZE)), RANDOM.uniform(size=9)

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "cholesky": (cholesky, (MATRIX,), LOWER),
    "solve_lower": (solve_lower, (LOWER, ROWS.T), np.linalg.solve(LOWER, ROWS.T)),
    "cholesky_solve": (cholesky_solve, (LOWER, VECTOR), np.linalg.solve(MATRIX, VECTOR)),
    "cholesky_inverse": (cholesky_inverse, (LOWER,), np.linalg.inv(MATRIX)),
    "add_identity": (add_identity, (MATRIX,), MATRIX + np.eye(SIZE)),
    "half_log_determinant": (half_log_determinant, (LOWER,), 0.5 * np.linalg.slogdet(MATRIX)[1]),
    "weighted_gram": (weighted_gram, (ROWS, WEIGHTS), np.einsum("n,ni,nj->ij", WEIGHTS, ROWS, ROWS)),
    "multiply_vectors": (multiply_vectors, (VECTOR, MATRIX), VECTOR @ MATRIX),
    "append_column": (append_column, (MATRIX, VECTOR), np.c_[MATRIX, VECTOR]),
    "softmax": (softmax, (VECTOR,), np.exp(VECTOR) / np.exp(VECTOR).sum()),
    "logistic": (logistic, (VECTOR,), 1 / (1 + np.exp(-VECTOR))),
    "jaakkola_slope": (jaakkola_slope, (VECTOR,), np.tanh(VECTOR / 2) / (2 * VECTOR)),
    "pack": (pack, (MATRIX,), MATRIX[np.tril_indices(SIZE)]),
    "unpack": (unpack, (MATRIX[np.tril_indices(SIZE)],), MATRIX),
}


@pytest.mark.parametrize("name", CASES)
def test_both_backends_compute_the_same(name: str) -> None:
    function, arguments, expected = CASES[name]
    one = function(*(np.array(argument) for argument in arguments))
    np.testing.assert_allclose(one, expected, rtol=1e-10, atol=1e-12)
    batch = function(*(torch.from_numpy(np.stack([argument] * 3)) for argument in arguments))
    assert len(batch) == 3
    for item in batch:
        np.testing.assert_allclose(item.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_each_item_is_multiplied_by_each_matrix() -> None:
    expected = np.stack([ROWS @ matrix for matrix in STACK])
    np.testing.assert_allclose(multiply_each(ROWS, STACK), expected)
    batch = multiply_each(torch.from_numpy(np.stack([ROWS] * 3)), torch.from_numpy(STACK))
    np.testing.assert_allclose(batch.numpy(), np.stack([expected] * 3))
    assert multiply_each(torch.zeros(3, 0, SIZE), torch.zeros(2, SIZE, SIZE)).shape == (3, 2, 0, SIZE)


@pytest.mark.parametrize("convert", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_matrices_that_cannot_be_factorised(convert: Callable[[Any], Any]) -> None:
    for wrong in (-MATRIX, np.full((SIZE, SIZE), np.nan)):
        with pytest.raises(LinAlgError):
            cholesky(convert(wrong))
    rounded = np.ones((SIZE, SIZE)) * 4  # of rank one: rounding makes it indefinite
    assert bool(np.isfinite(np.asarray(cholesky(convert(rounded)))).all())
    both = cholesky(convert(np.stack([rounded, MATRIX])))
    np.testing.assert_allclose(np.asarray(both[1]), LOWER, rtol=1e-12)


@pytest.mark.parametrize("convert", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("error", [3e-7, 3e-6])
def test_sums_in_single_precision_are_factorised(convert: Callable[[Any], Any], error: float) -> None:
    """Their rounding errors can exceed the smallest eigenvalue and the first number that is added."""
    values, vectors = np.linalg.eigh(MATRIX)
    values[0] = -error * MATRIX.diagonal().max()
    rounded = (vectors * values) @ vectors.T
    lower = np.asarray(cholesky(convert(np.stack([rounded, MATRIX]))))
    np.testing.assert_allclose(lower[0] @ lower[0].T, rounded, atol=2e-5 * MATRIX.max())
    np.testing.assert_allclose(lower[1], LOWER, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(cholesky(convert(rounded))), lower[0], rtol=1e-9)
