"""Packed symmetric matrices against full ones."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.linalg.packed import outer_products, pack, quadratic_forms, solve, unpack

shapes = given(size=st.integers(1, 6), count=st.integers(0, 5), seed=st.integers(0, 99))


def symmetric(count: int, size: int, seed: int) -> torch.Tensor:
    """Positive definite matrices: (count, size, size)."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randn(count, size, size + 2, generator=generator, dtype=torch.float64)
    return some @ some.mT + 0.1 * torch.eye(size, dtype=torch.float64)


@shapes
@settings(max_examples=30, deadline=None)
def test_packing_keeps_the_lower_triangle_and_is_taken_back(size: int, count: int, seed: int) -> None:
    matrices = symmetric(count, size, seed)
    packed = pack(matrices)
    assert packed.shape == (count, size * (size + 1) // 2)
    for matrix, line in zip(matrices.tolist(), packed.tolist(), strict=True):
        assert line == [matrix[i][j] for i in range(size) for j in range(i + 1)]
    assert torch.equal(unpack(packed, size), matrices)
    assert torch.equal(unpack(pack(matrices[None]), size), matrices[None])  # any number of dimensions


@shapes
@settings(max_examples=30, deadline=None)
def test_squares_and_forms_are_loops_over_vectors(size: int, count: int, seed: int) -> None:
    matrices, vectors = symmetric(3, size, seed), symmetric(1, size, seed + 1)[0].repeat(2, 1)[:count]
    outer = [np.outer(v, v) for v in vectors.numpy()]
    assert outer_products(vectors).shape == (len(vectors), size * (size + 1) // 2)
    for found, expected in zip(unpack(outer_products(vectors), size).numpy(), outer, strict=True):
        np.testing.assert_allclose(found, expected)
    found = quadratic_forms(vectors, pack(matrices)).numpy()
    expected = [[v @ matrix @ v for matrix in matrices.numpy()] for v in vectors.numpy()]
    np.testing.assert_allclose(found, np.array(expected).reshape(len(vectors), 3))


@shapes
@settings(max_examples=20, deadline=None)
def test_solved_is_the_inverse_precision_and_its_product(size: int, count: int, seed: int) -> None:
    precision = symmetric(count, size, seed)
    pull = torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mean, covariance = solve(precision, pull)
    assert mean.shape == (count, size)
    for n in range(count):
        np.testing.assert_allclose(covariance[n].numpy(), np.linalg.inv(precision[n].numpy()), atol=1e-8)
        np.testing.assert_allclose(
            mean[n].numpy(), np.linalg.solve(precision[n].numpy(), pull[n].numpy()), atol=1e-8
        )
