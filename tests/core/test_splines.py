"""Smooth effects of numbers: a ridge regression on spline terms is a Gaussian process."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from headstart.core.types import SPLINE_TERMS, Description, spline_terms
from headstart.linalg.ridge import LooRidge, make_groups


def spline_kernel(left: Tensor, right: Tensor) -> Tensor:
    """Σ cos(π·j·s)·cos(π·j·t) / j⁴ over all j ≥ 1, by a polynomial (Fourier series of Bernoulli's)."""

    def series(x: Tensor) -> Tensor:  # Σ cos(j·x) / j⁴ for 0 ≤ x ≤ 2π
        pi = math.pi
        return pi**4 / 90 - pi**2 * x**2 / 12 + pi * x**3 / 12 - x**4 / 48

    s, t = math.pi * left[:, None], math.pi * right[None]
    return (series((s - t).abs()) + series(s + t)) / 2


def smooth(numbers: Tensor) -> Tensor:
    """A function with several waves, which no cubic follows, and one with a slope."""
    return torch.stack([torch.sin(9 * numbers), torch.cos(14 * numbers) + numbers], dim=1)


def described(numbers: Tensor) -> Description:
    plain = Description.of(numbers[:, None], (1,))
    return plain.with_nonlinear_terms(plain.nonlinear_columns())


def test_products_of_terms_are_a_kernel() -> None:
    numbers = torch.rand(40, dtype=torch.float64)
    terms = spline_terms(numbers)
    rest = 1 / (3 * SPLINE_TERMS**3)  # of the series beyond the last term
    torch.testing.assert_close(terms @ terms.T, spline_kernel(numbers, numbers), rtol=0, atol=rest)


def test_arrays_have_the_terms_of_tensors() -> None:
    numbers = torch.tensor([-0.5, 0.0, 0.3, 1.0, 1.7])
    np.testing.assert_allclose(spline_terms(numbers.numpy()), spline_terms(numbers).numpy(), atol=1e-6)
    assert torch.equal(spline_terms(numbers)[0], spline_terms(numbers)[1])  # constant outside of 0 to 1


def test_leaving_one_out_is_kernel_regression_without_that_line() -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(25, generator=generator, dtype=torch.float64)
    targets = smooth(numbers) + 0.1 * torch.randn(25, 2, generator=generator, dtype=torch.float64)
    description, strength = described(numbers), 2.0
    regression = LooRidge(make_groups(description.numbers, description.groups))
    regression.strengths[2] = strength  # the spline; not the linear and the cubic terms
    found = regression.fit(description.numbers, targets, torch.ones(25, dtype=torch.float64))
    terms = spline_terms(numbers)
    length = ((terms - terms.mean(0)) ** 2).sum(1).mean()  # groups have mean squared length 1
    kernel = spline_kernel(numbers, numbers) * strength / length + 1e6  # and a constant
    for line in range(25):
        rest = torch.arange(25) != line
        noisy = kernel[rest][:, rest] + torch.eye(24, dtype=torch.float64)
        expected = kernel[line, rest] @ torch.linalg.solve(noisy, targets[rest])
        torch.testing.assert_close(found[line], expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("informative", [True, False])
def test_a_smooth_effect_is_found_and_noise_is_not(informative: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    numbers = torch.rand(60, generator=generator, dtype=torch.float64)
    targets = 0.1 * torch.randn(60, 2, generator=generator, dtype=torch.float64)
    targets = targets + smooth(numbers) if informative else targets
    description, weights = described(numbers), torch.ones(60, dtype=torch.float64)
    regression = LooRidge(make_groups(description.numbers, description.groups))
    regression.choose(description.numbers, targets, weights, torch.eye(2, dtype=torch.float64))
    assert bool(regression.strengths.any()) == informative
    if informative:
        error = (regression.fit(description.numbers, targets, weights) - targets).square().mean()
        assert float(error) < 0.02  # the noise is 0.01, the variance of the targets 0.6
