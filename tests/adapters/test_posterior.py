"""The closed forms against the textbook's, one feature at a time in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import multivariate_normal
from torch import Tensor

from headstart.linalg.gaussian import ContextSums, mixed, regress
from headstart.linalg.laplace import classify, probit_scale

SIZE = 4
Array = NDArray[np.float64]


def world(shots: list[int], seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    """Padded contexts of so many shots each, with a prior; all in double."""
    random = np.random.default_rng(seed)
    most = max(shots)
    there = np.arange(most) < np.array(shots)[:, None]
    rows = np.concatenate(
        [random.normal(size=(len(shots), most, SIZE - 1)), np.ones((len(shots), most, 1))], 2
    )
    lower = np.tril(random.normal(size=(SIZE, SIZE)), -1) + np.diag(random.uniform(0.3, 1.5, SIZE))
    return {
        "rows": torch.from_numpy(rows * there[:, :, None]),
        "values": torch.from_numpy(random.normal(size=(len(shots), most)) * there),
        "weights": torch.from_numpy(random.uniform(0.2, 5, (len(shots), most)) * there),
        "prior": torch.from_numpy(random.normal(size=(len(shots), SIZE))),
        "root": torch.from_numpy(scale * lower),
    }


def textbook(rows: Array, values: Array, weights: Array, prior: Array, root: Array) -> tuple[Array, Array]:
    """The precision form: Λ = C⁻¹ + Σ w·a·aᵀ, mean = Λ⁻¹(C⁻¹m + Σ w·x·a)."""
    precision = np.linalg.inv(root @ root.T)
    pull = precision @ prior
    for a, x, w in zip(rows, values, weights, strict=True):
        precision = precision + w * np.outer(a, a)
        pull = pull + w * x * a
    return np.linalg.solve(precision, pull), np.linalg.inv(precision)


@given(
    shots=st.lists(st.integers(0, SIZE + 3), min_size=1, max_size=4),
    seed=st.integers(0, 999),
    scale=st.sampled_from([0.01, 1.0, 20.0]),
)
@settings(max_examples=60, deadline=None)
def test_regression_is_the_textbooks(shots: list[int], seed: int, scale: float) -> None:
    given = world(shots, seed, scale)
    mean, covariance = regress(**given)
    for n, k in enumerate(shots):
        expected = textbook(
            *(given[part][n, :k].numpy() for part in ("rows", "values", "weights")),
            given["prior"][n].numpy(),
            given["root"].numpy(),
        )
        np.testing.assert_allclose(mean[n].numpy(), expected[0], rtol=1e-6, atol=1e-6 * scale)
        np.testing.assert_allclose(covariance[n].numpy(), expected[1], rtol=1e-6, atol=1e-7 * scale**2)


def longer(given: dict[str, Tensor], by: int) -> dict[str, Tensor]:
    """The same contexts, padded further."""
    padded = {}
    for part in ("rows", "values", "weights"):
        numbers = given[part]
        padded[part] = torch.cat([numbers, numbers.new_zeros(len(numbers), by, *numbers.shape[2:])], dim=1)
    return {**given, **padded}


@pytest.mark.parametrize("shots", [SIZE - 1, SIZE, SIZE + 5])
def test_both_forms_agree_where_they_meet(shots: int) -> None:
    """Padding past the head's size changes which system is solved, and nothing else."""
    given = world([min(shots, SIZE - 1)] * 3, seed=1)
    short, long = regress(**given), regress(**longer(given, shots))
    torch.testing.assert_close(short, long)


def test_without_shots_the_prior_stays() -> None:
    given = world([0, 0], seed=2)
    covariance = given["root"] @ given["root"].T
    for found in (regress(**given), classify(**given, squeeze=given["weights"])):
        torch.testing.assert_close(found[0], given["prior"])
        torch.testing.assert_close(found[1], covariance.expand(2, -1, -1))


def binary(shots: list[int], seed: int, scale: float) -> dict[str, Tensor]:
    given = world(shots, seed, scale)
    random = np.random.default_rng(seed + 1)
    there = (given["weights"] > 0).double()
    given["values"] = torch.from_numpy(random.integers(0, 2, there.shape).astype(float)) * there
    given["squeeze"] = torch.from_numpy(random.uniform(0.5, 1, there.shape)) * there
    return given


@given(
    shots=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    seed=st.integers(0, 999),
    scale=st.sampled_from([0.1, 0.5, 1.0, 2.0]),
)
@settings(max_examples=60, deadline=None)
def test_classification_stands_at_the_mode_with_the_inverse_hessian(
    shots: list[int], seed: int, scale: float
) -> None:
    given = binary(shots, seed, scale)
    mean, covariance = classify(**given)
    root = given["root"].numpy()
    inverse = np.linalg.inv(root @ root.T)
    for n, k in enumerate(shots):
        theta = mean[n].numpy()
        gradient = -inverse @ (theta - given["prior"][n].numpy())
        hessian = inverse.copy()
        for i in range(k):
            a = given["rows"][n, i].numpy() * float(given["squeeze"][n, i])
            chance, weight = 1 / (1 + np.exp(-a @ theta)), float(given["weights"][n, i])
            gradient += weight * (float(given["values"][n, i]) - chance) * a
            hessian += weight * chance * (1 - chance) * np.outer(a, a)
        expected = np.linalg.inv(hessian)
        step = expected @ gradient  # what is left to go, against how sure the head is
        assert float(np.sqrt(step @ hessian @ step)) < 1e-3
        np.testing.assert_allclose(covariance[n].numpy(), expected, rtol=0.02, atol=0.02 * scale**2)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_both_forms_of_a_classification_agree(scale: float) -> None:
    """Padding past the head's size changes which systems are solved, and nothing else."""
    given = binary([0, 1, SIZE - 2, SIZE - 1], seed=8, scale=scale)
    longer_ones = longer(given, 3)
    squeeze = given.pop("squeeze")
    more = torch.cat([squeeze, squeeze.new_zeros(len(squeeze), 3)], dim=1)
    short, long = classify(**given, squeeze=squeeze), classify(**{**longer_ones, "squeeze": more})
    torch.testing.assert_close(short, long, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("form", [regress, classify])
def test_thousands_of_shots_stay_finite_and_sharpen(form: object) -> None:
    every = world([5000], seed=3)
    theta = every["prior"][0] + every["root"] @ torch.ones(SIZE).double()
    logits = every["rows"] @ theta
    every["weights"] = torch.ones_like(logits)
    if form is classify:
        tossed = np.random.default_rng(4).random(logits.shape)
        every["values"] = torch.from_numpy(tossed < logits.sigmoid().numpy()).double()
        every["squeeze"] = torch.ones_like(logits)
    else:
        every["values"] = every["values"] + logits
    spreads = []
    for shots in (500, 5000):
        given = {part: every[part] if part in ("prior", "root") else every[part][:, :shots] for part in every}
        mean, covariance = classify(**given) if form is classify else regress(**given)
        deviation = covariance[0].diagonal().sqrt()
        assert float(((mean[0] - theta) / deviation).abs().max()) < 4
        spreads.append(float(covariance[0].trace()))
    assert spreads[0] / spreads[1] == pytest.approx(10, rel=0.2)


def test_surprises_by_the_hundred_do_not_throw_the_mode_off() -> None:
    """Far from the mode a step of Newton's own method goes too far, and the next still farther."""
    for seed in range(5):
        given = binary([400], seed, scale=2.0)
        given["prior"] = given["prior"] + 5
        given["values"] = torch.zeros_like(given["values"])
        mean, covariance = classify(**given)
        assert bool(covariance.isfinite().all())
        assert float((given["rows"] @ mean[0]).mean()) < -2


def test_gradients_flow_through_both_forms() -> None:
    for shots in (2, SIZE + 2):
        given = world([shots, shots], seed=5)
        leaves = [given[part].requires_grad_() for part in ("rows", "weights", "prior", "root")]
        assert torch.autograd.gradcheck(
            lambda rows, weights, prior, root: regress(rows, given["values"], weights, prior, root),  # noqa: B023
            leaves,
        )


def test_the_gradient_of_a_classification_is_that_of_its_mode() -> None:
    """Whichever of its steps carry it, against finite differences."""
    given = binary([6, 6], seed=7, scale=0.7)
    leaves = [given[part].requires_grad_() for part in ("rows", "weights", "squeeze", "prior", "root")]
    assert torch.autograd.gradcheck(
        lambda rows, weights, squeeze, prior, root: classify(
            rows, given["values"], weights, squeeze, prior, root
        ),
        leaves,
        rtol=1e-3,
        atol=1e-4,
    )


def test_noise_flattens_a_link_as_mackay_has_it() -> None:
    noise = torch.tensor([0.0, 1.0, 8 / np.pi])
    torch.testing.assert_close(probit_scale(noise), 1 / torch.sqrt(1 + torch.pi * noise / 8))
    assert float(probit_scale(noise)[2]) == pytest.approx(0.5**0.5)


@given(
    shots=st.lists(st.integers(0, 7), min_size=1, max_size=3),
    parts=st.integers(1, 3),
    seed=st.integers(0, 999),
)
@settings(max_examples=40, deadline=None)
def test_a_mixture_is_weighed_by_the_tempered_evidence_of_each_part(
    shots: list[int], parts: int, seed: int
) -> None:
    """By brute force: the density of all values of a context under each part, as one dense normal."""
    contexts, random = world(shots, seed), np.random.default_rng(seed + 1)
    means = random.normal(size=(len(shots), parts, SIZE))
    roots = [random.uniform(0.3, 2) * np.roll(contexts["root"].numpy(), p, 0) for p in range(parts)]
    roots = [np.linalg.cholesky(root @ root.T) for root in roots]
    shares = random.dirichlet(np.ones(parts))
    rows, values, weights = (contexts[name].numpy() for name in ("rows", "values", "weights"))
    sums = ContextSums(
        torch.tensor(shots).double(),
        torch.from_numpy(np.einsum("fk,fki,fkj->fij", weights, rows, rows)),
        torch.from_numpy(np.einsum("fk,fki->fi", weights * values, rows)),
        torch.from_numpy((weights * values**2).sum(1)),
    )
    mean, covariance = mixed(
        sums, torch.from_numpy(means), torch.from_numpy(np.stack(roots)), torch.from_numpy(shares)
    )
    for n, k in enumerate(shots):
        a, x, w = rows[n, :k], values[n, :k], weights[n, :k]
        found, logs = [], []
        for part in range(parts):
            prior = roots[part] @ roots[part].T
            found.append(textbook(a, x, w, means[n, part], roots[part]))
            spread = a @ prior @ a.T + np.diag(1 / w)
            density = multivariate_normal(a @ means[n, part], spread).logpdf(x) if k else 0.0
            logs.append(np.log(shares[part]) + k / (k + 2) * density)
        belief = np.exp(np.array(logs) - max(logs))
        belief /= belief.sum()
        middle = sum(p * m for p, (m, _) in zip(belief, found, strict=True))
        spread = sum(
            p * (c + np.outer(m - middle, m - middle)) for p, (m, c) in zip(belief, found, strict=True)
        )
        np.testing.assert_allclose(mean[n].numpy(), middle, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(covariance[n].numpy(), spread, rtol=1e-6, atol=1e-6)
