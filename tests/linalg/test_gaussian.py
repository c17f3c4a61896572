"""Gaussian posteriors of heads by every form and backend, against the textbook's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import multivariate_normal
from torch import Tensor

from headstart.linalg.gaussian import ContextSums, condition_on_rows, condition_on_sums, mix, unpack_sums

SIZE = 4
Array = NDArray[np.float64]
Priors = tuple[Array, Array, Array | None]
Moments = tuple[Array, Array]


def world(shots: list[int], seed: int, scale: float = 1.0) -> tuple[Array, Array, Array]:
    """Rows, values and weights of contexts of these shots, padded with zeros."""
    random = np.random.default_rng(seed)
    most = max(shots)
    observed = np.arange(most) < np.array(shots)[:, None]
    rows = np.concatenate(
        [random.normal(size=(len(shots), most, SIZE - 1)), np.ones((len(shots), most, 1))], 2
    )
    values = scale * random.normal(size=(len(shots), most)) * observed
    weights = random.uniform(0.2, 5, (len(shots), most)) * observed / scale**2
    return rows * observed[:, :, None], values, weights


def priors(features: int, parts: int, seed: int, scale: float = 1.0) -> Priors:
    """Means, lower triangular roots and shares of priors; no shares if there is only one."""
    random = np.random.default_rng(seed + 1000)
    lower = np.tril(random.normal(size=(parts, SIZE, SIZE)), -1)
    diagonal = random.uniform(0.3, 1.5, (parts, SIZE, 1)) * np.eye(SIZE)
    shares = random.dirichlet(np.ones(parts)) if parts > 1 else None
    return random.normal(size=(features, parts, SIZE)), scale * (lower + diagonal), shares


def sums_of(rows: Array, values: Array, weights: Array) -> ContextSums:
    """Sums over padded contexts, of a batch or of one feature."""
    return ContextSums(
        (weights > 0).sum(-1).astype(float),
        np.einsum("...k,...ki,...kj->...ij", weights, rows, rows),
        np.einsum("...k,...ki->...i", weights * values, rows),
        (weights * values**2).sum(-1),
    )


def tensors(*arrays: Array | None) -> list[Tensor | None]:
    return [None if array is None else torch.from_numpy(np.asarray(array)) for array in arrays]


def batch_by_sums(rows: Array, values: Array, weights: Array, given: Priors) -> list[Moments]:
    sums, (means, roots, shares) = ContextSums(*tensors(*sums_of(rows, values, weights))), tensors(*given)
    mean, covariance = mix(condition_on_sums(sums, means, roots), shares, sums.counts)
    return list(zip(mean.numpy(), covariance.numpy(), strict=True))


def batch_by_rows(rows: Array, values: Array, weights: Array, given: Priors) -> list[Moments]:
    (means, roots, shares), counts = tensors(*given), torch.from_numpy((weights > 0).sum(1)).double()
    posterior = condition_on_rows(*tensors(rows, values, weights), means, roots)
    mean, covariance = mix(posterior, shares, counts)
    return list(zip(mean.numpy(), covariance.numpy(), strict=True))


def one_by_sums(rows: Array, values: Array, weights: Array, given: Priors) -> list[Moments]:
    means, roots, shares = given
    found = []
    for n in range(len(rows)):
        sums = sums_of(rows[n], values[n], weights[n])
        found.append(mix(condition_on_sums(sums, means[n], roots), shares, sums.counts))
    return found


def one_by_rows(rows: Array, values: Array, weights: Array, given: Priors) -> list[Moments]:
    means, roots, shares = given
    found = []
    for n in range(len(rows)):
        seen = weights[n] > 0
        posterior = condition_on_rows(rows[n, seen], values[n, seen], weights[n, seen], means[n], roots)
        found.append(mix(posterior, shares, seen.sum()))
    return found


FORMS: list[Callable[[Array, Array, Array, Priors], list[Moments]]] = [
    batch_by_sums,
    batch_by_rows,
    one_by_sums,
    one_by_rows,
]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def textbook(rows: Array, values: Array, weights: Array, prior: Array, root: Array) -> Moments:
    """The precision form: Λ = C⁻¹ + Σ w·a·aᵀ, mean = Λ⁻¹(C⁻¹m + Σ w·x·a)."""
    precision = np.linalg.inv(root @ root.T)
    pull = precision @ prior
    for a, x, w in zip(rows, values, weights, strict=True):
        precision = precision + w * np.outer(a, a)
        pull = pull + w * x * a
    return np.linalg.solve(precision, pull), np.linalg.inv(precision)


@forms
@given(
    shots=st.lists(st.integers(0, SIZE + 3), min_size=1, max_size=4),
    parts=st.integers(1, 3),
    seed=st.integers(0, 999),
    scale=st.sampled_from([0.01, 1.0, 20.0]),
)
@settings(max_examples=30, deadline=None)
def test_heads_are_the_textbooks(
    form: Callable[..., list[Moments]], shots: list[int], parts: int, seed: int, scale: float
) -> None:
    """The evidence by brute force: the density of all values of a context as one dense normal."""
    rows, values, weights = world(shots, seed, scale)
    given = means, roots, shares = priors(len(shots), parts, seed, scale)
    for n, (mean, covariance) in enumerate(form(rows, values, weights, given)):
        k = shots[n]
        a, x, w = rows[n, :k], values[n, :k], weights[n, :k]
        found, logs = [], []
        for part in range(parts):
            found.append(textbook(a, x, w, means[n, part], roots[part]))
            spread = a @ roots[part] @ roots[part].T @ a.T + np.diag(1 / w)
            density = multivariate_normal(a @ means[n, part], spread).logpdf(x) if k else 0.0
            logs.append((0.0 if shares is None else np.log(shares[part])) + k / (k + 2) * density)
        belief = np.exp(np.array(logs) - max(logs))
        belief /= belief.sum()
        middle = sum(p * m for p, (m, _) in zip(belief, found, strict=True))
        spread = sum(
            p * (c + np.outer(m - middle, m - middle)) for p, (m, c) in zip(belief, found, strict=True)
        )
        np.testing.assert_allclose(mean, middle, rtol=1e-6, atol=1e-6 * scale)
        np.testing.assert_allclose(covariance, spread, rtol=1e-6, atol=1e-6 * scale**2)


@forms
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("shots", [[0], [1, 3], [3, 0, 4], [60, 5]])
def test_all_forms_agree(form: Callable[..., list[Moments]], parts: int, shots: list[int]) -> None:
    contexts, given = world(shots, 1), priors(len(shots), parts, 1)
    for found, expected in zip(form(*contexts, given), batch_by_sums(*contexts, given), strict=True):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-10, atol=1e-12)


@forms
def test_without_shots_the_prior_stays(form: Callable[..., list[Moments]]) -> None:
    given = means, roots, _ = priors(2, 1, 2)
    for n, (mean, covariance) in enumerate(form(*world([0, 0], 2), given)):
        np.testing.assert_allclose(mean, means[n, 0])
        np.testing.assert_allclose(covariance, roots[0] @ roots[0].T)


@pytest.mark.parametrize("shots", [SIZE - 1, SIZE, SIZE + 5])
def test_padding_changes_the_system_and_nothing_else(shots: int) -> None:
    contexts, given = world([SIZE - 1] * 3, 1), priors(3, 2, 1)
    longer = tuple(np.pad(part, [(0, 0), (0, shots)] + [(0, 0)] * (part.ndim - 2)) for part in contexts)
    for found, expected in zip(batch_by_rows(*longer, given), batch_by_rows(*contexts, given), strict=True):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-10, atol=1e-12)


@forms
def test_thousands_of_shots_stay_finite_and_sharpen(form: Callable[..., list[Moments]]) -> None:
    rows, values, weights = world([5000], seed=3)
    given = means, roots, _ = priors(1, 1, 3)
    theta = means[0, 0] + roots[0] @ np.ones(SIZE)
    values, weights = values + rows @ theta, np.ones_like(weights)
    spreads = []
    for shots in (500, 5000):
        ((mean, covariance),) = form(rows[:, :shots], values[:, :shots], weights[:, :shots], given)
        assert np.abs((mean - theta) / np.sqrt(covariance.diagonal())).max() < 4
        spreads.append(np.trace(covariance))
    assert spreads[0] / spreads[1] == pytest.approx(10, rel=0.2)


@pytest.mark.parametrize("shots", [2, SIZE + 2])
def test_gradients_flow_through_both_systems(shots: int) -> None:
    rows, values, weights = tensors(*world([shots, shots], seed=5))
    means, roots, _ = tensors(*priors(2, 1, 5))
    leaves = [part.requires_grad_() for part in (rows, weights, means, roots)]

    def moments(rows: Tensor, weights: Tensor, means: Tensor, roots: Tensor) -> tuple[Tensor, Tensor]:
        return mix(condition_on_rows(rows, values, weights, means, roots), None, torch.ones(2))

    assert torch.autograd.gradcheck(moments, leaves)


def test_sums_are_packed_alike() -> None:
    contexts = world([3, 5], 4)
    sums = ContextSums(*tensors(*sums_of(*contexts)))
    packed = sums.pack()
    assert packed.shape == (2, 1 + SIZE * (SIZE + 1) // 2 + SIZE + 1)
    for one, other in zip(unpack_sums(packed, SIZE), sums, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=0)
