"""The closed form of a single head, against the batched one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.adapters.bayes import OneSums, _conditioned, classify_one, mixed_one
from headstart.linalg.gaussian import ContextSums, mixed, posterior_of, regress
from headstart.linalg.laplace import classify
from headstart.linalg.packed import (
    LinAlgError,
    cholesky_one,
    invert_one,
    pack,
    pack_one,
    robust_cholesky_one,
    solve_lower_one,
    solve_upper_one,
    unpack,
    unpack_one,
)
from headstart.table.cells import Cells
from headstart.table.outliers import winsorise, winsorise_one

SIZE = 6


def made(shots: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    rows = np.concatenate([random.normal(size=(shots, SIZE - 1)), np.ones((shots, 1))], axis=1)
    root = np.tril(random.normal(size=(SIZE, SIZE)) * 0.3) + 0.5 * np.eye(SIZE)
    return rows, random.normal(size=shots), random.uniform(0.5, 4, size=shots), random.normal(size=SIZE), root


def sums_of(rows: np.ndarray, values: np.ndarray, weights: np.ndarray) -> OneSums:
    total = (rows * weights[:, None]).T @ rows
    return OneSums(len(values), total, (weights * values) @ rows, float(weights @ values**2))


def as_batch(sums: OneSums) -> ContextSums:
    parts = (np.array([sums.shots]), sums.total[None], sums.linear[None], np.array([sums.squares]))
    return ContextSums(*(torch.from_numpy(np.asarray(part, dtype=np.float64)) for part in parts))


@pytest.mark.parametrize("shots", [0, 1, 4, 60])
def test_sums_and_shots_and_the_single_form_agree(shots: int) -> None:
    rows, values, weights, prior, root = made(shots)
    sums = sums_of(rows, values, weights)
    mean, covariance, _ = _conditioned(sums, prior, root)
    tensors = [torch.from_numpy(each) for each in (rows[None], values[None], weights[None], prior[None])]
    for other in (
        regress(*tensors, torch.from_numpy(root)),
        posterior_of(
            torch.from_numpy(root.T @ sums.total @ root)[None],
            torch.from_numpy((sums.linear - sums.total @ prior) @ root)[None],
            tensors[3],
            torch.from_numpy(root),
        ),
    ):
        np.testing.assert_allclose(mean, other[0][0].numpy(), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(covariance, other[1][0].numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shots", [0, 1, 4, 60])
def test_a_prior_of_two_parts_is_the_same(shots: int) -> None:
    rows, values, weights, prior, root = made(shots, seed=1)
    sums, roots = sums_of(rows, values, weights), np.stack([root, np.eye(SIZE)])
    means, shares = np.stack([prior, np.zeros(SIZE)]), np.array([0.7, 0.3])
    mean, covariance = mixed_one(sums, means, roots, shares)
    both = mixed(as_batch(sums), *(torch.from_numpy(each) for each in (means[None], roots, shares)))
    np.testing.assert_allclose(mean, both[0][0].numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(covariance, both[1][0].numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shots", [0, 1, 4, 200])
@pytest.mark.parametrize("start", ["none", "near", "far", "absurd"])
def test_a_logistic_head_is_the_same_from_anywhere(shots: int, start: str) -> None:
    rows, values, _, prior, root = made(shots, seed=2)
    seen = (values > 0).astype(np.float64)
    ones = torch.ones(1, shots, dtype=torch.float64)
    tensors = [torch.from_numpy(each)[None] for each in (rows, seen)]
    mean, covariance = classify(*tensors, ones, ones, torch.from_numpy(prior)[None], torch.from_numpy(root))
    from_where = {
        "none": None,
        "near": mean[0].numpy() + 1e-3,
        "far": prior + 3.0,
        "absurd": prior + 1e4,
    }[start]
    found, spread = classify_one(rows, seen, prior, root, from_where)
    np.testing.assert_allclose(found, mean[0].numpy(), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(spread, covariance[0].numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("seed", range(8))
def test_outliers_of_one_line_are_tamed_alike(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=int(random.integers(1, 40))).astype(np.float32).astype(np.float64)
    if seed % 2:
        values[:: max(1, len(values) // 3)] = 1e4
    if seed == 6:
        values[:] = 0.5
    count = len(values)
    cells = Cells(
        torch.tensor([0, count]), torch.arange(count), torch.from_numpy(values).float(), max(1, count)
    )
    expected = winsorise(cells, torch.tensor([True])).values.double().numpy()
    np.testing.assert_allclose(winsorise_one(values), expected, rtol=1e-12)


def test_small_algebra() -> None:
    random = np.random.default_rng(0)
    square = random.normal(size=(SIZE, SIZE))
    matrix = square @ square.T + np.eye(SIZE)
    np.testing.assert_array_equal(pack_one(matrix), pack(torch.from_numpy(matrix)).numpy())
    np.testing.assert_array_equal(
        unpack_one(pack_one(matrix)), unpack(pack(torch.from_numpy(matrix)), SIZE).numpy()
    )
    lower, vector = cholesky_one(matrix), random.normal(size=SIZE)
    np.testing.assert_allclose(np.tril(lower) @ np.tril(lower).T, matrix, rtol=1e-12)
    np.testing.assert_allclose(invert_one(lower), np.linalg.inv(matrix), rtol=1e-9)
    np.testing.assert_allclose(np.tril(lower) @ solve_lower_one(lower, vector), vector, rtol=1e-10)
    np.testing.assert_allclose(np.tril(lower).T @ solve_upper_one(lower, vector), vector, rtol=1e-10)
    for wrong in (-matrix, np.full((SIZE, SIZE), np.nan)):
        with pytest.raises(LinAlgError):
            cholesky_one(wrong)
    near = np.ones((SIZE, SIZE)) * 4
    assert np.isfinite(robust_cholesky_one(near)).all()
