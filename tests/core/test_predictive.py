"""The one predictive against a loop over cells, written from the formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import norm
from tests.limits import Limits

from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.predictive import Predictive, predict_cells, predict_grid
from headstart.core.types import Heads, RowStates
from headstart.linalg.packed import pack
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

ROWS, WIDTH = 7, 3
KINDS = torch.tensor([KindType.BINARY, KindType.RATING, KindType.REAL, KindType.BINARY, KindType.REAL])
OUTPUT_VARIANCE, LOG_VARIANCE = 0.07, -0.4

every_link = pytest.mark.parametrize("link", ["sigmoid", "identity"])
with_and_without_covariance = pytest.mark.parametrize("sure", [True, False], ids=["covariance", "plain"])
with_and_without_noise = pytest.mark.parametrize("noisy", [True, False], ids=["row noise", "no row noise"])
known_and_unknown_rows = pytest.mark.parametrize("vague", [True, False], ids=["vague rows", "known rows"])
every_mix = pytest.mark.parametrize(
    "kinds",
    [KINDS, *(torch.full((5,), kind) for kind in KindType)],
    ids=["mixed", *(kind.name.lower() for kind in KindType)],
)


@dataclass(frozen=True)
class World:
    heads: Heads
    states: RowStates
    covariances: torch.Tensor | None  # (heads, width + 1, width + 1)
    likelihood: Likelihood


def made_up(link: str, sure: bool, noisy: bool, vague: bool = False, seed: int = 0) -> World:
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    some = normal(5, WIDTH + 1, WIDTH + 1)
    covariances = some @ some.mT / 4
    own = torch.rand(5, generator=generator) + 0.05
    heads = Heads(normal(5, WIDTH), normal(5), *((pack(covariances), own) if sure else ()))
    noise = torch.rand(ROWS, generator=generator) + 0.3 if noisy else None
    likelihood = Likelihood(LikelihoodConfig(rating_link=link, output_variance=OUTPUT_VARIANCE))
    likelihood.requires_grad_(False).real_log_variance.fill_(LOG_VARIANCE)
    variance = torch.rand(ROWS, WIDTH, generator=generator) if vague else None
    states = RowStates(normal(ROWS, 2), torch.ones(ROWS, 2), normal(ROWS, WIDTH), noise, variance)
    return World(heads, states, covariances if sure else None, likelihood)


@dataclass(frozen=True)
class Cell:
    """What is to be said of one cell, in plain numbers."""

    kind: int
    logit: float
    variance: float
    noise: float
    squashed: bool

    @property
    def mean(self) -> float:
        if (
            self.kind == KindType.CLICK
        ):  # p / (p + 1) = logit, with straight lines below p = 0 and above p = 1
            inside = min(max(self.logit, 0.0), 0.5)
            return inside / (1 - inside) + self.click_slope * (self.logit - inside)
        if not self.squashed:
            return self.logit
        blurred = self.variance + (self.noise if self.kind == KindType.BINARY else 0)
        return 1 / (1 + math.exp(-self.logit / math.sqrt(1 + math.pi * blurred / 8)))

    @property
    def click_slope(self) -> float:
        return 1 / (1 - min(max(self.logit, 0.0), 0.5)) ** 2

    @property
    def std(self) -> float:
        mean = self.mean
        if self.kind == KindType.BINARY:
            return math.sqrt(mean * (1 - mean))
        if self.kind == KindType.CLICK:  # of the probability of a click
            return self.click_slope * math.sqrt(self.variance)
        slope = mean * (1 - mean) if self.squashed else 1.0
        return math.sqrt(slope**2 * self.variance + self.noise)

    def nll(self, value: float) -> float:
        if self.kind == KindType.BINARY:
            return -math.log(self.mean if value == 1 else 1 - self.mean)
        if self.kind == KindType.CLICK:
            chance = min(max(self.mean, 1e-6), 1 - 1e-6)
            return -value * math.log(chance) - (1 - value) * math.log(1 - chance)
        return -float(norm.logpdf(value, self.mean, self.std))

    @property
    def output_noise(self) -> float:
        if not self.squashed:
            return self.noise
        chance = 1 / (1 + math.exp(-self.logit))
        return 1 / max(chance * (1 - chance), 1e-4)


def one_cell(world: World, kinds: torch.Tensor, row: int, head: int, link: str) -> Cell:
    kind = int(kinds[head])
    d = [*world.states.activation[row].tolist(), 1.0]
    theta = [*world.heads.weight[head].tolist(), float(world.heads.bias[head])]
    logit = sum(a * b for a, b in zip(d, theta, strict=True))
    variance = 0.0
    if world.covariances is not None:
        for i in range(WIDTH + 1):
            for j in range(WIDTH + 1):
                variance += d[i] * float(world.covariances[head, i, j]) * d[j]
    if world.states.variance is not None:
        for k in range(WIDTH):  # an uncertain activation is multiplied by a weight that may be uncertain too
            square = theta[k] ** 2
            if world.covariances is not None:
                square += float(world.covariances[head, k, k])
            variance += square * float(world.states.variance[row, k])
    if world.heads.noise is not None:
        noise = float(world.heads.noise[head])
    else:
        noise = {
            KindType.BINARY: 0.0,
            KindType.RATING: OUTPUT_VARIANCE,
            KindType.REAL: math.exp(LOG_VARIANCE),
            KindType.CLICK: 1.0,
        }[KindType(kind)]
    if world.states.noise is not None:
        noise *= float(world.states.noise[row])
    squashed = kind == KindType.BINARY or (kind == KindType.RATING and link == "sigmoid")
    return Cell(kind, logit, variance, noise, squashed)


def some_cells(kinds: torch.Tensor) -> Cells:
    """A line a head, of very different lengths, one of them empty; values as their kinds have them."""
    counts = torch.tensor([3, 0, ROWS, 1, 4])
    lines = torch.repeat_interleave(counts)
    generator = torch.Generator().manual_seed(1)
    rows = torch.cat([torch.randperm(ROWS, generator=generator)[:n] for n in counts.tolist()])
    values = torch.rand(len(lines), generator=generator)
    values = torch.where(kinds[lines] == KindType.BINARY, values.round(), values)
    return Cells.from_pairs(lines, rows, values, len(counts), ROWS)


def agree(found: Predictive, at: tuple[int, ...], expected: Cell, value: float, nll: float) -> None:
    def number(of: torch.Tensor) -> float:
        return float(of.expand_as(found.logits)[at])

    assert number(found.logits) == pytest.approx(expected.logit, rel=1e-4, abs=1e-5)
    assert number(found.variance) == pytest.approx(expected.variance, rel=1e-4, abs=1e-5)
    assert number(found.noise) == pytest.approx(expected.noise, rel=1e-5)
    assert number(found.mean) == pytest.approx(expected.mean, rel=1e-4, abs=1e-5)
    assert number(found.std) == pytest.approx(expected.std, rel=1e-4, abs=1e-5)
    assert number(found.output_noise()) == pytest.approx(expected.output_noise, rel=1e-4)
    assert nll == pytest.approx(expected.nll(value), rel=1e-3, abs=1e-4)


@every_link
@with_and_without_covariance
@with_and_without_noise
@known_and_unknown_rows
@every_mix
def test_cells_are_predicted_as_one_at_a_time(
    link: str, sure: bool, noisy: bool, vague: bool, kinds: torch.Tensor
) -> None:
    world, cells = made_up(link, sure, noisy, vague), some_cells(kinds)
    found = predict_cells(world.heads, world.states, cells, kinds, world.likelihood)
    losses = found.nll(cells.values)
    assert found.logits.shape == losses.shape == (len(cells.index),)
    assert torch.equal(found.kinds, kinds[cells.lines])
    for n, (head, row) in enumerate(zip(cells.lines.tolist(), cells.index.tolist(), strict=True)):
        expected = one_cell(world, kinds, row, head, link)
        agree(found, (n,), expected, float(cells.values[n]), float(losses[n]))


@every_link
@with_and_without_covariance
@with_and_without_noise
@known_and_unknown_rows
@every_mix
def test_a_grid_is_predicted_as_one_cell_at_a_time(
    link: str, sure: bool, noisy: bool, vague: bool, kinds: torch.Tensor
) -> None:
    world = made_up(link, sure, noisy, vague)
    found = predict_grid(world.heads, world.states, kinds, world.likelihood)
    values = torch.rand(ROWS, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values = torch.where(kinds == KindType.BINARY, values.round(), values)
    losses = found.nll(values)
    for part in (found.mean, found.std, found.output_noise(), losses):
        assert part.shape == (ROWS, 5)
        assert part.dtype == torch.float64
    for row in range(ROWS):
        for head in range(5):
            expected = one_cell(world, kinds, row, head, link)
            agree(found, (row, head), expected, float(values[row, head]), float(losses[row, head]))


@every_link
@with_and_without_covariance
def test_the_grid_and_the_cells_say_the_same(link: str, sure: bool) -> None:
    world, cells = made_up(link, sure, noisy=True, vague=True), some_cells(KINDS)
    one = predict_cells(world.heads, world.states, cells, KINDS, world.likelihood)
    other = predict_grid(world.heads, world.states, KINDS, world.likelihood)
    at = (cells.index, cells.lines)
    for mine, yours in ((one.mean, other.mean), (one.std, other.std)):
        torch.testing.assert_close(mine.double(), yours[at], rtol=1e-4, atol=1e-5)


@with_and_without_covariance
def test_a_cell_of_a_grid_does_not_hang_on_the_others(sure: bool) -> None:
    world = made_up("identity", sure, noisy=True, vague=True)
    whole = predict_grid(world.heads, world.states, KINDS, world.likelihood)
    rows, heads = torch.tensor([5, 1]), torch.tensor([4, 0, 2])
    few = predict_grid(world.heads.take(heads), world.states.take(rows), KINDS[heads], world.likelihood)
    at = (rows[:, None], heads)
    np.testing.assert_allclose(few.mean.numpy(), whole.mean[at].numpy(), rtol=1e-12)
    np.testing.assert_allclose(few.std.numpy(), whole.std[at].numpy(), rtol=1e-12)


@with_and_without_covariance
def test_parts_that_bound_memory_change_nothing(sure: bool, limits: Limits) -> None:
    world, cells = made_up("identity", sure, noisy=True, vague=True), some_cells(KINDS)
    whole = predict_cells(world.heads, world.states, cells, KINDS, world.likelihood)
    limits(predicted_cells_per_block=2 * ROWS)
    parts = predict_cells(world.heads, world.states, cells, KINDS, world.likelihood)
    torch.testing.assert_close(parts.logits, whole.logits)
    torch.testing.assert_close(parts.std, whole.std)


@with_and_without_covariance
def test_no_cells_and_no_heads_are_predicted_too(sure: bool) -> None:
    world, cells = made_up("sigmoid", sure, noisy=True, vague=True), some_cells(KINDS)
    none = cells.keep(torch.zeros(len(cells.index), dtype=torch.bool))
    found = predict_cells(world.heads, world.states, none, KINDS, world.likelihood)
    assert found.mean.shape == found.std.shape == found.nll(none.values).shape == (0,)
    nobody = torch.zeros(0, dtype=torch.int64)
    grid = predict_grid(world.heads.take(nobody), world.states, KINDS[nobody], world.likelihood)
    assert grid.mean.shape == grid.std.shape == (ROWS, 0)


def test_of_heads_without_a_covariance_the_loss_is_the_likelihoods() -> None:
    """The paper's meta-loss: what a certain head says of its targets."""
    for link in ("sigmoid", "identity"):
        world, cells = made_up(link, sure=False, noisy=False), some_cells(KINDS)
        found = predict_cells(world.heads, world.states, cells, KINDS, world.likelihood)
        expected = world.likelihood.nll(found.logits, cells.values, KINDS[cells.lines])
        torch.testing.assert_close(found.nll(cells.values), expected)


def test_heads_without_a_covariance_have_one_of_zeros() -> None:
    heads = made_up("identity", sure=False, noisy=False).heads
    assert heads.covariances(WIDTH + 1).shape == (len(heads), WIDTH + 1, WIDTH + 1)
    assert not heads.covariances(WIDTH + 1).any()
    torch.testing.assert_close(heads.mean_squares(), heads.weight**2)
