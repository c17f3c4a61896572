"""Logistic heads by every form, backend and reducer: at the mode, with the inverse Hessian there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.linalg.test_gaussian import SIZE, Moments, priors, tensors, world
from torch import Tensor

from headstart.linalg.array_ops import probit_scale
from headstart.linalg.laplace import condition_logistic

Array = NDArray[np.float64]
Contexts = tuple[Array, Array, Array]  # rows, values, weights


def binary(shots: list[int], seed: int) -> Contexts:
    """Contexts of zeros and ones whose rows are flattened by noise, padded with zeros."""
    rows, _, weights = world(shots, seed)
    random = np.random.default_rng(seed + 1)
    values = random.integers(0, 2, weights.shape) * (weights > 0)
    return rows * random.uniform(0.5, 1, weights.shape)[..., None], values.astype(float), weights


def prior_of(features: int, seed: int, scale: float = 1.0) -> tuple[Array, Array]:
    means, roots, _ = priors(features, 1, seed, scale)
    return means[:, 0], roots[0]


def batch(rows: Array, values: Array, weights: Array, prior: Array, root: Array) -> list[Moments]:
    mean, covariance = condition_logistic(*tensors(rows, values, weights, prior, root))
    return list(zip(mean.numpy(), covariance.numpy(), strict=True))


def reduced(rows: Array, values: Array, weights: Array, prior: Array, root: Array) -> list[Moments]:
    """Each of two processes has half of the shots, in the other's place are zeros."""
    first = np.arange(weights.shape[1]) % 2 == 0
    halves = [weights * first, weights * ~first]
    waiting: list[Tensor] = []
    recorded: list[list[Tensor]] = [[], []]

    # The sums of both halves are those of the whole: record one half's while the whole is computed.
    def both(sums: Tensor) -> Tensor:
        waiting.append(sums)
        return sums

    whole = condition_logistic(*tensors(rows, values, weights, prior, root), reduce=both)
    for half, own in zip(halves, recorded, strict=True):
        totals = iter(waiting)

        def replay(sums: Tensor, totals=totals, own=own) -> Tensor:  # type: ignore[no-untyped-def]
            own.append(sums)
            return next(totals)

        mean, covariance = condition_logistic(*tensors(rows, values, half, prior, root), reduce=replay)
        torch.testing.assert_close((mean, covariance), whole)
    for one, other, total in zip(*recorded, waiting, strict=True):
        torch.testing.assert_close(one + other, total, rtol=1e-9, atol=1e-9)
    return list(zip(whole[0].numpy(), whole[1].numpy(), strict=True))


def one(rows: Array, values: Array, weights: Array, prior: Array, root: Array) -> list[Moments]:
    seen = weights > 0
    return [
        condition_logistic(rows[n, seen[n]], values[n, seen[n]], weights[n, seen[n]], prior[n], root)
        for n in range(len(rows))
    ]


FORMS: list[Callable[..., list[Moments]]] = [batch, reduced, one]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


@forms
@given(
    shots=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    seed=st.integers(0, 999),
    scale=st.sampled_from([0.1, 0.5, 1.0, 2.0]),
)
@settings(max_examples=40, deadline=None)
def test_heads_stand_at_the_mode_with_the_inverse_hessian(
    form: Callable[..., list[Moments]], shots: list[int], seed: int, scale: float
) -> None:
    rows, values, weights = binary(shots, seed)
    prior, root = prior_of(len(shots), seed, scale)
    inverse = np.linalg.inv(root @ root.T)
    for n, (mean, covariance) in enumerate(form(rows, values, weights, prior, root)):
        gradient, hessian = -inverse @ (mean - prior[n]), inverse.copy()
        for a, x, w in zip(rows[n], values[n], weights[n], strict=True):
            chance = 1 / (1 + np.exp(-a @ mean))
            gradient += w * (x - chance) * a
            hessian += w * chance * (1 - chance) * np.outer(a, a)
        expected = np.linalg.inv(hessian)
        step = expected @ gradient  # to the mode, in standard deviations of the head
        assert float(np.sqrt(step @ hessian @ step)) < 1e-3
        np.testing.assert_allclose(covariance, expected, rtol=0.02, atol=0.02 * scale**2)


@forms
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_all_forms_agree(form: Callable[..., list[Moments]], scale: float) -> None:
    contexts, prior = binary([0, 1, SIZE - 1, SIZE + 5], seed=8), prior_of(4, 8, scale)
    for found, expected in zip(form(*contexts, *prior), one(*contexts, *prior), strict=True):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-10)


def test_one_head_with_outputs_near_zero_has_the_curvature_of_the_link() -> None:
    # There the bound is almost tight, so that its steps converge, too.
    contexts, prior, root = binary([1, 2], seed=3), np.full((2, SIZE), 0.03), 0.1 * np.eye(SIZE)
    every = batch(*contexts, prior, root)
    for found, expected in zip(one(*contexts, prior, root), every, strict=True):
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_padding_changes_the_systems_and_nothing_else(scale: float) -> None:
    contexts, prior = binary([0, 1, SIZE - 2, SIZE - 1], seed=8), prior_of(4, 8, scale)
    longer = tuple(np.pad(part, [(0, 0), (0, 3)] + [(0, 0)] * (part.ndim - 2)) for part in contexts)
    for found, expected in zip(batch(*longer, *prior), batch(*contexts, *prior), strict=True):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("shots", [0, 1, 4, 200])
@pytest.mark.parametrize("start", ["none", "near", "far", "absurd"])
def test_one_head_is_the_same_from_anywhere(shots: int, start: str) -> None:
    contexts, (prior, root) = binary([shots], seed=2), prior_of(1, 2)
    ((mean, covariance),) = batch(*contexts, prior, root)
    begin = {"none": None, "near": mean + 1e-3, "far": prior[0] + 3.0, "absurd": prior[0] + 1e4}[start]
    rows, values, weights = (part[0] for part in contexts)
    found, spread = condition_logistic(rows, values, weights, prior[0], root, start=begin)
    np.testing.assert_allclose(found, mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(spread, covariance, rtol=1e-9, atol=1e-10)


@forms
def test_without_shots_the_prior_stays(form: Callable[..., list[Moments]]) -> None:
    prior, root = prior_of(2, 2)
    for n, (mean, covariance) in enumerate(form(*binary([0, 0], 2), prior, root)):
        np.testing.assert_allclose(mean, prior[n])
        np.testing.assert_allclose(covariance, root @ root.T)


@forms
def test_thousands_of_shots_stay_finite_and_sharpen(form: Callable[..., list[Moments]]) -> None:
    rows, _, weights = world([5000], seed=3)
    prior, root = prior_of(1, 3)
    theta = prior[0] + root @ np.ones(SIZE)
    chances = 1 / (1 + np.exp(-rows @ theta))
    values = (np.random.default_rng(4).random(chances.shape) < chances).astype(float)
    spreads = []
    for shots in (500, 5000):
        part = rows[:, :shots], values[:, :shots], np.ones_like(weights)[:, :shots]
        ((mean, covariance),) = form(*part, prior, root)
        assert np.abs((mean - theta) / np.sqrt(covariance.diagonal())).max() < 4
        spreads.append(np.trace(covariance))
    assert spreads[0] / spreads[1] == pytest.approx(10, rel=0.2)


@forms
@pytest.mark.parametrize("seed", range(5))
def test_hundreds_of_surprises_do_not_throw_the_mode_off(
    form: Callable[..., list[Moments]], seed: int
) -> None:
    """Far from the mode a step of Newton's own method goes too far, and the next still farther."""
    rows, values, weights = binary([400], seed)
    prior, root = prior_of(1, seed, 2.0)
    ((mean, covariance),) = form(rows, np.zeros_like(values), weights, prior + 5, root)
    assert np.isfinite(covariance).all()
    assert float((rows[0] @ mean).mean()) < -1.5


@forms
@pytest.mark.parametrize("leverage", [10.0, 60.0, 300.0])
def test_one_surprise_at_an_extreme_row_does_not_throw_the_mode_off(
    form: Callable[..., list[Moments]], leverage: float
) -> None:
    """After a few careful steps, those of Newton's method would jump between both sides of the mode."""
    rows, values, weights = binary([2], 0)
    rows[0, 0] *= leverage / np.linalg.norm(rows[0, 0])
    root, prior = np.eye(SIZE), -12 * rows[:, 0] / leverage**2
    ((mean, covariance),) = form(rows, np.ones_like(values), weights, prior, root)
    chances = 1 / (1 + np.exp(-rows[0] @ mean))
    gradient = (weights[0] * (1 - chances)) @ rows[0] - (mean - prior[0])
    assert np.abs(gradient).max() < 1e-6
    assert (covariance.diagonal() > 0).all()


@pytest.mark.parametrize("shots", [SIZE - 1, SIZE + 2])
def test_the_gradient_is_that_of_the_mode(shots: int) -> None:
    """Although only the last steps carry it: against finite differences."""
    rows, values, weights, *prior = tensors(*binary([shots, shots], seed=7), *prior_of(2, 7, 0.7))
    leaves = [part.requires_grad_() for part in (rows, weights, *prior)]
    assert torch.autograd.gradcheck(
        lambda rows, weights, prior, root: condition_logistic(rows, values, weights, prior, root),
        leaves,
        rtol=1e-3,
        atol=1e-4,
    )


def test_noise_flattens_a_link_as_mackay_has_it() -> None:
    noise = torch.tensor([0.0, 1.0, 8 / np.pi])
    torch.testing.assert_close(probit_scale(noise), 1 / torch.sqrt(1 + torch.pi * noise / 8))
    assert float(probit_scale(noise)[2]) == pytest.approx(0.5**0.5)
    np.testing.assert_allclose(probit_scale(noise.numpy()), probit_scale(noise).numpy(), rtol=1e-6)
