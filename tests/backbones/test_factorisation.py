"""The factorisation's closed forms against loops over rows and features in numpy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from tests.limits import Limits

from headstart.backbones.factorisation import Factorisation, FactorisationConfig
from headstart.backbones.factorisation_fit import (
    FactorisationTraining,
    row_blocks,
    sum_features,
    sweep_rows,
    to_logistic,
    whiten,
)
from headstart.backbones.row_posterior import OTHER_PASSES, RATING_PASSES, RowPosterior
from headstart.backbones.row_shift import factors_of_means, shift_shares
from headstart.core.predictive import grid_logits
from headstart.core.types import Description
from headstart.linalg.packed import unpack
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

Array = NDArray[np.float64]
MIXES = {
    "rating": [KindType.RATING],
    "real": [KindType.REAL],
    "binary": [KindType.BINARY],
    "mixed": [KindType.BINARY, KindType.RATING, KindType.REAL],
}
every_mix = pytest.mark.parametrize("kinds", MIXES.values(), ids=MIXES)
ROWS, FEATURES, LATENT = 25, 9, 3


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    """So that a difference is a difference of formulas."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made_up(
    kinds: list[int], rows: int = ROWS, features: int = FEATURES, seed: int = 0
) -> tuple[Cells, torch.Tensor]:
    """Observations of two hidden factors, and the kinds of the features."""
    random = np.random.default_rng(seed)
    kinds = np.resize(kinds, features)
    output = random.normal(size=(rows, 2)) @ random.normal(size=(2, features)) + random.normal(size=features)
    tossed = random.random(output.shape) < 1 / (1 + np.exp(-2 * output))
    rating = np.clip(np.round(4 * (0.5 + 0.15 * output)) / 4, 0, 1)
    values = np.where(kinds == KindType.BINARY, tossed, np.where(kinds == KindType.RATING, rating, output))
    values[3, kinds == KindType.REAL] *= np.linspace(1, 30, int((kinds == KindType.REAL).sum()))  # far off
    line, index = np.nonzero(random.random(output.shape) < 0.6)
    line, index = line[line > 0], index[line > 0]  # nothing is known of the first row
    numbers = torch.from_numpy(values[line, index])
    cells = Cells.from_pairs(torch.from_numpy(line), torch.from_numpy(index), numbers, rows, features)
    return cells, torch.from_numpy(kinds)


def described(features: int) -> Description:
    """Metadata of a label and a number a feature."""
    number = torch.linspace(-1, 1, features)
    return Description.of(torch.stack([(torch.arange(features) % 2).to(number.dtype), number], dim=1), (1, 1))


class Watched(FactorisationTraining):
    """Keeps all there is before the first sweep and after each, and strengths that are given."""

    given: float | None = None  # the strength of every group of columns; None: as chosen

    def _initialise_factors(self) -> RowPosterior:
        self.kept: list[Slow] = []
        self.rows = super()._initialise_factors()
        self.first_signs = self.backbone.signature(self.cells).numpy().copy()
        return self.rows

    def _update_row_prior(self, rows: RowPosterior, signatures: torch.Tensor, *, choosing: bool) -> None:
        self.rows = rows
        if self.given is not None:
            self.row_regression.strengths.fill_(self.given)
        super()._update_row_prior(rows, signatures, choosing=choosing and self.given is None)

    def _head_prior(self, *parts: torch.Tensor, choosing: bool) -> tuple[torch.Tensor, torch.Tensor]:
        if self.given is not None:
            self.head_regression.strengths.fill_(self.given)
        self.head_prior = super()._head_prior(*parts, choosing=choosing and self.given is None)
        self.kept.append(Slow(self))
        return self.head_prior


def untrained(kinds: torch.Tensor, sweeps: int = 20, noise_by_feature: bool | None = None) -> Factorisation:
    torch.manual_seed(0)
    config = FactorisationConfig(latent=LATENT, signature=2, sweeps=sweeps, noise_by_feature=noise_by_feature)
    return Factorisation(config, kinds, torch.zeros(0))


def sweeping(model: Factorisation, cells: Cells) -> Iterator[float]:
    return model.train_by_sweeps(cells, described(model.features), torch.Generator().manual_seed(0))


def watched(model: Factorisation, cells: Cells, given: float | None = None) -> Watched:
    training = Watched(model, cells, described(model.features), torch.Generator().manual_seed(0))
    training.given = given
    return training


def swept(kinds: list[int], sweeps: int) -> tuple[Factorisation, Cells]:
    cells, every_kind = made_up(kinds)
    model = untrained(every_kind, sweeps)
    assert len(list(sweeping(model, cells))) == sweeps
    return model, cells


def raised(covariance: Array) -> Array:
    """With the small share of itself and of its mean that is added to every diagonal."""
    diagonal = covariance.diagonal()
    return covariance + np.diag(1e-6 * (diagonal + diagonal.mean()) + 1e-12)


def honest(
    columns: Array, groups: list[list[int]], by: Array, strengths: list[float], weights: Array, goal: Array
) -> tuple[Array, Array]:
    """Ridge regression: what all lines predict of each line, and what all others predict of it.

    ``by`` says what is centred and how long a group is.
    """
    weights = weights / weights.mean()
    parts, ridge = [np.ones((len(columns), 1))], [1e-6]
    for group, strength in zip(groups, strengths, strict=True):
        length = np.sqrt(((by[:, group] - by[:, group].mean(0)) ** 2).sum(1).mean())
        if strength > 0 and length > 1e-6:
            parts.append((columns[:, group] - by[:, group].mean(0)) / length)
            ridge += [1 / strength] * len(group)
    design = np.concatenate(parts, axis=1)

    def fitted(lines: list[int]) -> Array:
        gram = np.diag(ridge) + sum(weights[i] * np.outer(design[i], design[i]) for i in lines)
        return np.linalg.solve(gram, sum(weights[i] * np.outer(design[i], goal[i]) for i in lines))

    every = list(range(len(design)))
    others = [design[i] @ fitted([j for j in every if j != i]) for i in every]
    return design @ fitted(every), np.array(others)


class Slow:
    """What the model and its training hold, in numpy, with each update as its formula reads."""

    new = False  # whether rows are as they are before any observation is looked at

    def __init__(self, training: Watched) -> None:
        model, cells = training.backbone, training.cells
        self.read(model, cells)
        self.mean = training.rows.mean.numpy().copy()
        self.covariance = unpack(training.rows.covariance, LATENT).numpy().copy()
        self.relative_precision = training.rows.relative_precision.numpy().copy()
        self.head_means = training.head_prior[0].numpy().copy()
        self.head_covariance = training.head_prior[1].numpy().copy()
        self.first_signs = training.first_signs
        self.row_strengths = training.row_regression.strengths.tolist()
        self.head_strengths = training.head_regression.strengths.tolist()

    def read(self, model: Factorisation, cells: Cells) -> None:
        self.kinds = model.kinds.numpy()
        self.noise_by_feature = model.config.noise_by_feature
        self.heads = np.c_[model.weight.detach().numpy(), model.bias.detach().numpy()].copy()
        self.spread = unpack(model.covariance, LATENT + 1).numpy().copy()
        self.precision = model.precision.numpy().copy()
        self.head_exactness = model.relative_precision.numpy().copy()
        self.signs = model.signature(cells).numpy().copy()
        self.row_prior = self.signs @ model.row_map.numpy()
        self.row_map = model.row_map.numpy().copy()
        self.row_covariance = model.row_covariance.numpy().copy()
        given = described(FEATURES).numbers.numpy()
        number = given[:, 1:]
        bend = number * (1 - number)
        counts = np.bincount(cells.index.numpy(), minlength=FEATURES)
        # Only the number is bent.
        self.described = np.c_[given, bend, bend * (1 - 2 * number), np.log1p(counts)].astype(given.dtype)
        self.observed = list(
            zip(cells.lines.tolist(), cells.index.tolist(), cells.values.tolist(), strict=True)
        )

    @classmethod
    def of(cls, model: Factorisation, cells: Cells) -> Slow:
        """Rows as they are before any observation is looked at."""
        slow = cls.__new__(cls)
        slow.read(model, cells)
        slow.mean = slow.row_prior
        slow.covariance = np.repeat(slow.row_covariance[None], len(cells), axis=0)
        slow.relative_precision, slow.new = np.ones(len(cells)), True
        return slow

    def row_moment(self, i: int) -> Array:
        """E[(u, 1)(u, 1)ᵀ]."""
        row = np.r_[self.mean[i], 1]
        moment = np.outer(row, row)
        moment[:-1, :-1] += self.covariance[i]
        return moment

    def head_moment(self, j: int) -> Array:
        """E[(v, b)(v, b)ᵀ]."""
        return self.spread[j] + np.outer(self.heads[j], self.heads[j])

    def missed(self, i: int, j: int, x: float) -> float:
        """E[(x − u·v − b)²]."""
        output = np.r_[self.mean[i], 1] @ self.heads[j]
        return x**2 - 2 * x * output + np.trace(self.row_moment(i) @ self.head_moment(j))

    def believed(self, i: int, j: int, x: float) -> float:
        """How much a real counts: less if it is more than 5 standard deviations off."""
        usual = self.precision[KindType.REAL] * self.head_exactness[j]
        missed = usual * self.missed(i, j, x)
        if self.new:  # all that the prior leaves open is no surprise
            output = np.r_[self.mean[i], 1] @ self.heads[j]
            open_ = np.trace(self.row_moment(i) @ self.head_moment(j)) - output**2
            missed = (x - output) ** 2 / (1 / usual + open_)
        return min(1.0, 25 / missed)

    def as_gaussian(self, i: int, j: int, x: float) -> tuple[float, float]:
        if self.kinds[j] == KindType.REAL:
            weight = self.precision[KindType.REAL] * self.head_exactness[j] * self.believed(i, j, x)
            return weight, weight * x
        if self.kinds[j] == KindType.RATING:
            weight = self.precision[self.kinds[j]] * self.head_exactness[j] * self.relative_precision[i]
            return weight, weight * x
        bound = np.sqrt(np.trace(self.row_moment(i) @ self.head_moment(j)))
        return np.tanh(bound / 2) / (2 * bound), x - 0.5

    def update_exactness(self) -> None:
        seen, squared = np.full(len(self.mean), 5.0), np.full(len(self.mean), 5.0)
        for i, j, x in self.observed:
            if self.kinds[j] == KindType.RATING:
                seen[i] += 1
                usual = self.precision[self.kinds[j]] * self.head_exactness[j]
                squared[i] += usual * self.missed(i, j, x)
        self.relative_precision = seen / squared

    def update_rows(self) -> None:
        inverse = np.linalg.inv(raised(self.row_covariance))
        means, covariances = [], []
        for i in range(len(self.mean)):
            precision, pull = inverse.copy(), inverse @ self.row_prior[i]
            for line, j, x in self.observed:
                if line == i:
                    weight, pulled = self.as_gaussian(i, j, x)
                    moment = self.head_moment(j)
                    precision += weight * moment[:-1, :-1]
                    pull = pull + pulled * self.heads[j, :-1] - weight * moment[:-1, -1]
            covariances.append(np.linalg.inv(precision))
            means.append(covariances[-1] @ pull)
        self.mean, self.covariance, self.new = np.array(means), np.array(covariances), False

    def update_row_prior(self, strengths: list[float]) -> None:
        groups = [[1], list(range(2, self.signs.shape[1]))]
        usual = np.ones(len(self.signs))
        self.row_fit, others = honest(self.signs, groups, self.first_signs, strengths, usual, self.mean)
        rest = self.mean - others
        total = sum(c + np.outer(r, r) for c, r in zip(self.covariance, rest, strict=True))
        self.row_covariance = raised(total / len(rest))

    def update_precision(self) -> None:
        squared: dict[int, list[float]] = {}
        for i, j, x in self.observed:
            own = self.head_exactness[j] * self.missed(i, j, x)
            if self.kinds[j] == KindType.REAL:
                own *= self.believed(i, j, x)
            squared.setdefault(int(self.kinds[j]), []).append(own)
        for kind in set(squared) - {KindType.BINARY}:
            self.precision[kind] = 1 / max(np.mean(squared[kind]), 1e-6)

    def update_heads(self) -> None:
        inverse = np.linalg.inv(raised(self.head_covariance))
        heads, spreads = [], []
        self.belief = [
            self.believed(i, j, x) if self.kinds[j] == KindType.REAL else 1.0 for i, j, x in self.observed
        ]
        for j in range(len(self.heads)):
            precision, pull = inverse.copy(), inverse @ self.head_means[j]
            for i, index, x in self.observed:
                if index == j:
                    weight, pulled = self.as_gaussian(i, j, x)
                    precision += weight * self.row_moment(i)
                    pull = pull + pulled * np.r_[self.mean[i], 1]
            spreads.append(np.linalg.inv(precision))
            heads.append(spreads[-1] @ pull)
        self.heads, self.spread = np.array(heads), np.array(spreads)

    def update_head_exactness(self) -> None:
        seen, squared = np.full(len(self.heads), 5.0), np.full(len(self.heads), 5.0)
        for (i, j, x), belief in zip(self.observed, self.belief, strict=True):
            usual = self.precision[self.kinds[j]] * belief  # as before the update of heads
            if self.kinds[j] == KindType.RATING:
                usual *= self.relative_precision[i]
            seen[j] += 1
            squared[j] += usual * self.missed(i, j, x)
        estimated = self.kinds == KindType.RATING
        if self.noise_by_feature:
            estimated |= self.kinds == KindType.REAL
        self.head_exactness = np.where(estimated, np.minimum(seen / squared, 1e4), 1.0)

    def update_head_prior(self, strengths: list[float]) -> None:
        metric = np.mean([self.row_moment(i) for i in range(len(self.mean))], axis=0)
        usual = np.trace(self.head_covariance @ metric)
        known = np.array([1 - np.trace(each @ metric) / usual for each in self.spread]).clip(1e-3, 1)
        _, self.head_means = honest(
            self.described, [[0], [1], [2, 3], [4]], self.described, strengths, known, self.heads
        )
        share = known / known.sum()
        rest = self.heads - self.head_means
        between = sum(p * np.outer(r, r) for p, r in zip(share, rest, strict=True))
        lines = 1 / (share**2).sum()
        off = 1 - np.eye(LATENT + 1)
        between = between - off * between * (1 - lines / (lines + LATENT + 1))
        within = sum(p * each for p, each in zip(share, self.spread, strict=True))
        self.head_covariance = raised(between + within)


def same(found: torch.Tensor | Array, expected: Array) -> None:
    numbers = found.detach().numpy() if isinstance(found, torch.Tensor) else found
    np.testing.assert_allclose(numbers, expected, rtol=1e-4, atol=1e-5)


@every_mix
@pytest.mark.parametrize("sweep", [0, 3, 4])
@pytest.mark.parametrize("given", [None, 0.3], ids=["strengths as chosen", "every column used"])
@pytest.mark.parametrize("noise_by_feature", [False, True])
def test_a_sweep_updates_everything_as_the_formulas_read(
    kinds: list[int], sweep: int, given: float | None, noise_by_feature: bool, limits: Limits
) -> None:
    """The fifth sweep also chooses what is worth regressing on. Blocks are of few rows and features."""
    limits(block_bytes=20_000, sweeps_before_a_new_start=99)
    cells, every_kind = made_up(kinds)
    training = watched(untrained(every_kind, noise_by_feature=noise_by_feature), cells, given)
    told = list(islice(training.sweeps(), sweep + 1))
    slow, after = training.kept[sweep], training.kept[sweep + 1]
    slow.update_exactness()
    slow.update_rows()
    same(after.relative_precision, slow.relative_precision)
    same(after.mean, slow.mean)
    same(after.covariance, slow.covariance)
    slow.update_row_prior(after.row_strengths)
    same(slow.signs @ after.row_map, slow.row_fit)
    same(after.row_covariance, slow.row_covariance)
    slow.update_precision()
    same(after.precision, slow.precision)
    slow.update_heads()
    same(after.heads, slow.heads)
    same(after.spread, slow.spread)
    slow.update_head_exactness()
    same(after.head_exactness, slow.head_exactness)
    slow.update_head_prior(after.head_strengths)
    same(after.head_means, slow.head_means)
    same(after.head_covariance, slow.head_covariance)
    assert len(told) == sweep + 1
    assert np.isfinite(told).all()


@every_mix
@pytest.mark.parametrize("budget", [1, 7 * 64 * 20, 2**40], ids=["one row", "few rows", "all rows"])
def test_the_size_of_blocks_does_not_matter(kinds: list[int], budget: int, limits: Limits) -> None:
    cells, every_kind = made_up(kinds)
    usual = untrained(every_kind, sweeps=6)
    errors = list(sweeping(usual, cells))
    limits(block_bytes=budget)
    model = untrained(every_kind, sweeps=6)
    np.testing.assert_allclose(list(sweeping(model, cells)), errors, rtol=1e-9)
    for (name, one), other in zip(usual.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-8, msg=name)
    torch.testing.assert_close(model.states(cells).code, usual.states(cells).code, rtol=1e-6, atol=1e-8)


@every_mix
def test_blocks_of_rows_can_be_used_in_every_sweep(kinds: list[int], limits: Limits) -> None:
    """They give the sums that new blocks would give, whatever was computed with them before."""
    limits(block_bytes=20_000)
    cells, every_kind = made_up(kinds)
    cells = cells.take(torch.nonzero(cells.counts)[:, 0])
    model = untrained(every_kind)
    blocks, signatures = row_blocks(model, cells), model.signature(cells)
    assert len(blocks) > 1
    rows = model.posterior_of_rows(cells, signatures)
    for _ in range(3):
        sweep_rows(model, blocks, signatures, rows)
        found, anew = sum_features(model, blocks, rows), sum_features(model, row_blocks(model, cells), rows)
        for name, sums in vars(found).items():
            assert torch.equal(sums, getattr(anew, name)), name


def test_heads_of_numbers_are_put_behind_the_link_alike_to_first_order() -> None:
    """At an average row the chance of a 1 is the number, and it changes as fast with the row's factors."""
    cells, every_kind = made_up([KindType.BINARY])
    model = untrained(every_kind)
    training = FactorisationTraining(model, cells, described(FEATURES), torch.Generator().manual_seed(0))
    list(islice(training.sweeps(), 4))
    assert bool((model.kinds == KindType.RATING).all())
    heads, covariance = model.heads.stacked.numpy().copy(), model.heads.covariances(LATENT + 1).numpy()
    centre = model.row_map[0].numpy()
    to_logistic(model)
    assert bool((model.kinds == KindType.BINARY).all())
    after, scaled = model.heads.stacked.numpy(), model.heads.covariances(LATENT + 1).numpy()
    for j in range(FEATURES):
        number = min(max(heads[j, :-1] @ centre + heads[j, -1], 0.02), 0.98)
        output = after[j, :-1] @ centre + after[j, -1]
        chance = 1 / (1 + np.exp(-output))
        np.testing.assert_allclose(chance, number, rtol=1e-9)
        np.testing.assert_allclose(after[j, :-1] * chance * (1 - chance), heads[j, :-1], rtol=1e-9)
        np.testing.assert_allclose(scaled[j] * (chance * (1 - chance)) ** 2, covariance[j], rtol=1e-9)


def test_where_all_is_binary_the_last_sweep_alone_knows_of_the_link() -> None:
    cells, every_kind = made_up([KindType.BINARY])
    ratings = untrained(torch.full_like(every_kind, KindType.RATING), sweeps=7)
    model = untrained(every_kind, sweeps=7)
    before = [list(islice(sweeping(each, cells), 6)) for each in (ratings, model)]
    np.testing.assert_allclose(before[1], before[0], rtol=1e-9)
    trained, _ = swept([KindType.BINARY], sweeps=7)
    assert trained.kinds.tolist() == every_kind.tolist()
    assert float(trained.heads.weight.abs().max()) > 2 * float(model.heads.weight.abs().max())


@every_mix
def test_standardising_changes_the_factors_and_no_prediction(kinds: list[int]) -> None:
    cells, every_kind = made_up(kinds)
    model = untrained(every_kind, sweeps=6)
    training = watched(model, cells, given=0.3)
    list(islice(training.sweeps(), 5))

    def outputs() -> tuple[Array, Array, Array]:
        """Means of all outputs, and their second moments by the rows' full covariances."""
        rows = model.posterior_of_rows(cells)
        slow = Slow.of(model, cells)
        slow.mean = rows.mean.numpy()
        slow.covariance = unpack(rows.covariance, rows.mean.shape[1]).numpy()
        every = [(i, j) for i in range(ROWS) for j in range(FEATURES)]
        squares = [np.trace(slow.row_moment(i) @ slow.head_moment(j)) for i, j in every]
        states = model.states(cells)
        return (
            grid_logits(model.heads, states, torch.float32).detach().numpy(),
            np.array(squares),
            slow.relative_precision,
        )

    assert not np.allclose(model.row_covariance.numpy(), np.eye(LATENT), atol=0.05)
    before = outputs()
    whiten(model)
    for one, other in zip(before, outputs(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)
    same(model.row_covariance, np.eye(LATENT))
    same(model.row_map[0], np.zeros(LATENT))
    moment = np.mean([Slow.of(model, cells).head_moment(j)[:-1, :-1] for j in range(FEATURES)], axis=0)
    assert np.abs(moment - np.diag(moment.diagonal())).max() < 1e-4 * moment.diagonal().max()
    assert (np.diff(moment.diagonal()) <= 1e-9).all()  # the factor that matters most comes first


@every_mix
def test_of_a_row_nobody_knows_an_average_one_is_believed(kinds: list[int]) -> None:
    model, cells = swept(kinds, sweeps=6)
    states = model.states(cells)
    same(states.activation[0], model.row_shift_shares[0] * model.row_shift)  # nothing is known of it
    same(states.variance[0], np.ones(LATENT))
    assert bool((states.variance[1:] < 1).all())
    assert float(states.noise[0]) == 1


@every_mix
def test_row_states_are_the_fixed_point_from_the_prior(kinds: list[int]) -> None:
    """Some passes of the rows' update, begun at the prior and the usual noise."""
    model, cells = swept(kinds, sweeps=3)
    model.row_shift.zero_()
    found = model.states(cells)
    slow = Slow.of(model, cells)
    for turn in range(RATING_PASSES if set(kinds) == {KindType.RATING} else OTHER_PASSES):
        if turn > 0:
            slow.update_exactness()
        slow.update_rows()
    same(found.activation, slow.mean)
    same(found.code[:, :LATENT], slow.mean)
    same(found.code_std[:, :LATENT], np.sqrt(slow.covariance.diagonal(axis1=1, axis2=2)))
    same(found.variance, slow.covariance.diagonal(axis1=1, axis2=2))
    same(found.code[:, LATENT], np.log(slow.relative_precision))
    same(found.noise, 1 / slow.relative_precision)
    same(found.code[:, LATENT + 2 :], slow.signs[:, 1:])
    assert found.code.shape[1] == model.code_size
    same(found.activation[0], slow.row_prior[0])  # of a row of which nothing is known


@every_mix
def test_a_row_without_observations_predicts_the_means_of_features(kinds: list[int]) -> None:
    model, cells = swept(kinds, sweeps=6)
    counts = cells.transpose().counts.double().numpy()
    sums = np.bincount(cells.index.numpy(), cells.values.double().numpy(), minlength=FEATURES)
    weight, bias = model.weight.double().numpy(), model.bias.double().numpy()
    variance = model.heads.mean_squares().double().numpy().sum(1)  # rows have the variance 1
    precision = model.observation_precision.double().numpy()

    def loss(factors: Array) -> float:
        """Return the negative log-posterior of a row in which each feature has its observations."""
        total = factors @ factors / 2
        for j in range(FEATURES):
            output = weight[j] @ factors + bias[j]
            if model.kinds[j] == KindType.BINARY:
                logit = output / np.sqrt(1 + np.pi / 8 * variance[j])
                total += counts[j] * np.logaddexp(0, logit) - sums[j] * logit
            else:
                total += precision[j] * counts[j] * (output - sums[j] / max(1, counts[j])) ** 2 / 2
        return float(total)

    best = minimize(loss, np.zeros(LATENT), tol=1e-10).x
    means = torch.from_numpy(sums / np.maximum(1, counts))
    found = factors_of_means(model, torch.from_numpy(counts), means)
    np.testing.assert_allclose(found.numpy(), best, atol=2e-3)


def test_where_only_good_rows_stay_an_empty_row_is_not_the_mean_row() -> None:
    """The later columns are observed by the best rows only, as the late weeks of songs in the charts."""
    random = np.random.default_rng(0)
    quality = random.normal(size=300)
    stays = np.arange(20) < 20 * (1 / (1 + np.exp(-2 * quality)))[:, None]
    values = quality[:, None] + 0.1 * random.normal(size=stays.shape)
    rows, columns = (torch.from_numpy(part) for part in np.nonzero(stays))
    cells = Cells.from_pairs(rows, columns, torch.from_numpy(values[stays]).float(), 301, 20)
    model = untrained(torch.full((20,), KindType.REAL), sweeps=10)
    list(model.train_by_sweeps(cells, Description(torch.zeros(20, 0), []), torch.Generator()))
    state = model.states(cells.take(torch.tensor([300])))
    predicted = grid_logits(model.heads, state, torch.float32)[0].detach().numpy()
    means = np.array([values[stays[:, j], j].mean() for j in range(20)])
    mean_row = (model.weight @ model.row_map[0] + model.bias).detach().numpy()
    assert np.abs(predicted - means)[5:15].mean() < 0.5 * np.abs(mean_row - means)[5:15].mean()


def test_shares_of_the_shift_are_least_squares_less_their_errors() -> None:
    random = np.random.default_rng(0)
    gain, square = random.normal(2.0, 1.0, size=60), random.uniform(0.5, 2.0, size=60)
    gain[20:40] -= 1.9  # within chance
    sizes = np.repeat([0, 1, 2], 20)
    expected = []
    for size in range(3):
        rows = np.flatnonzero(sizes == size)
        best = sum(gain[i] for i in rows) / sum(square[i] for i in rows)
        error = np.sqrt(sum((gain[i] - best * square[i]) ** 2 for i in rows)) / sum(square[i] for i in rows)
        expected.append(min(max(best, 0.0) * max(0.0, 1 - (2 * error / best) ** 2), 2.0))
    found = shift_shares(torch.from_numpy(np.stack([gain, square], 1)), torch.from_numpy(sizes))
    np.testing.assert_allclose(found[:3].numpy(), expected)
    assert found[0] > 0.5
    assert found[1] == 0
    assert found[3] == found[2]  # no row has so many observations
    assert found[4] == 0  # many observations need no shift


@pytest.mark.parametrize("chosen", [True, False], ids=["chosen", "at random"])
def test_rows_with_one_observation_are_predicted_as_rows_that_choose(chosen: bool) -> None:
    """Users rate the films they like: those that they have not rated yet, and will, are above the average."""
    random = np.random.default_rng(0)
    liking = random.normal(size=(600, 3)) @ random.normal(size=(3, 40)) + random.normal(size=40)
    observed = random.random(liking.shape) < (1 / (1 + np.exp(2 - 2 * liking)) if chosen else 0.3)
    values = torch.from_numpy(liking + 0.3 * random.normal(size=liking.shape))
    rows, columns = (torch.from_numpy(part) for part in np.nonzero(observed))
    first = torch.cat([torch.ones(1, dtype=torch.bool), rows[1:] != rows[:-1]])

    def cells_where(mask: torch.Tensor) -> Cells:
        return Cells.from_pairs(rows[mask], columns[mask], values[rows, columns][mask], 600, 40)

    known, outside = cells_where(rows < 400), rows >= 400
    model = untrained(torch.full((40,), KindType.REAL), sweeps=10)
    list(model.train_by_sweeps(known, Description(torch.zeros(40, 0), []), torch.Generator().manual_seed(0)))
    shares, errors = model.row_shift_shares.clone(), []
    for share in (shares, torch.zeros_like(shares)):
        model.row_shift_shares.copy_(share)
        outputs = grid_logits(model.heads, model.states(cells_where(outside & first)), torch.float64)
        targets = outside & ~first
        error = (outputs[rows, columns] - values[rows, columns])[targets]
        errors.append(float((error**2).mean().sqrt()))
    if chosen:
        assert errors[0] < 0.985 * errors[1]
    else:
        assert errors[0] < 1.002 * errors[1]


@every_mix
def test_an_unseen_row_is_known_as_one_of_the_table_with_the_same_observations(kinds: list[int]) -> None:
    model, cells = swept(kinds, sweeps=5)
    every = model.states(cells)
    for row in (0, 3, 17):
        own = cells.take(torch.tensor([row]))
        stranger = model.states(Cells(own.indptr, own.index, own.values, FEATURES))
        torch.testing.assert_close(stranger.code, every.code[[row]])
        torch.testing.assert_close(stranger.code_std, every.code_std[[row]])


@every_mix
def test_sweeps_lower_the_error_on_what_was_kept_back(kinds: list[int]) -> None:
    cells, kinds = made_up(kinds, rows=1000, features=20)
    held = torch.arange(len(cells.index)) % 6 == 0
    known, asked = cells.keep(~held), cells.keep(held)
    torch.manual_seed(0)
    model = Factorisation(FactorisationConfig(latent=4, signature=2, sweeps=15), kinds, torch.zeros(0))
    told, errors = [], []
    for error in sweeping(model, known):
        told.append(error)
        logits = grid_logits(model.heads, model.states(known), torch.float32)
        mean = model.likelihood.mean(logits[asked.lines, asked.index], kinds[asked.index])
        errors.append(float((mean - asked.values).square().mean()))
    assert len(errors) == 15
    assert errors[-1] < errors[0]
    assert min(errors[8:]) <= min(errors[:4])  # and later sweeps do no harm
    if KindType.BINARY not in kinds:
        assert told[-1] < told[0]
    means = torch.stack([known.transpose().take(torch.tensor([j])).values.mean() for j in range(20)])
    assert errors[-1] < 0.8 * float((means[asked.index] - asked.values).square().mean())


@pytest.mark.parametrize("seed", [2, 7])
def test_factors_that_shrink_to_zero_start_again(seed: int) -> None:
    """A small table with two strong traits and more factors: without a new start, none would be found."""
    random = np.random.default_rng(seed)
    expected = 0.2 * random.normal(size=(40, 2)) @ random.normal(size=(2, 16))
    values = expected + 0.1 * random.normal(size=(40, 16))
    lines, index = np.nonzero(random.random((40, 16)) < 0.6)
    values = np.clip(np.round(4 * (0.5 + values)), 0, 4)[lines, index] / 4
    parts = (torch.from_numpy(part) for part in (lines, index, values.astype(np.float32)))
    cells = Cells.from_pairs(*parts, 40, 16)
    kinds = torch.full((16,), int(KindType.RATING))
    torch.manual_seed(0)
    model = Factorisation(FactorisationConfig(latent=16), kinds, torch.zeros(0))
    list(sweeping(model, cells))
    outputs = grid_logits(model.heads, model.states(cells), torch.float32).numpy()
    missed = (outputs - outputs.mean(0)) - (expected - expected.mean(0))
    assert (missed**2).sum() < 0.6 * ((expected - expected.mean(0)) ** 2).sum()


def test_a_feature_nobody_observed_gets_the_prior() -> None:
    cells, kinds = made_up([KindType.RATING])
    training = watched(untrained(kinds), cells.keep(cells.index != 4), given=0.3)
    list(islice(training.sweeps(), 3))
    before, after = training.kept[2:4]
    same(after.heads[4], before.head_means[4])
    same(after.spread[4], before.head_covariance)
    assert after.head_exactness[4] == 1


def test_no_observations_at_all_are_survived() -> None:
    cells, kinds = made_up([KindType.RATING])
    model = untrained(kinds)
    none = cells.keep(torch.zeros(len(cells.index), dtype=torch.bool))
    assert next(sweeping(model, none)) == 0
    assert bool(model.states(none).code.isfinite().all())


def test_training_leaves_nothing_behind_but_parameters_and_buffers() -> None:
    """What only training needs is gone with it, and the same start ends the same."""
    cells, kinds = made_up([KindType.BINARY, KindType.RATING])
    torch.manual_seed(0)
    config = FactorisationConfig(latent=LATENT, signature=2, sweeps=3)
    one, other = (Factorisation(config, kinds, torch.zeros(0)) for _ in range(2))
    held = set(vars(one))
    for model in (one, other):
        list(sweeping(model, cells))
    assert set(vars(one)) == held
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


def test_one_row_is_what_it_is_among_others() -> None:
    """A single row has a form of its own, which must give the same numbers."""
    from headstart.core.types import RowPrior

    torch.manual_seed(0)
    kinds = torch.tensor([1, 1, 2, 2, 1])
    backbone = Factorisation(FactorisationConfig(latent=3, signature=2), kinds, torch.zeros(0))
    backbone.row_map.copy_(0.3 * torch.randn(4, 3))
    heads, own = backbone.heads.detach(), torch.tensor([0, 1, -1, 3, -1])
    cells = Cells.from_pairs(
        torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 2, 4, 1, 3]), torch.rand(5), 3, 5
    )
    row_prior = RowPrior(torch.randn(3, 3), 0.5 * torch.eye(3))
    for believed in (None, row_prior):
        every = backbone.states_from_heads(cells, heads, kinds, own, believed)
        for row in range(3):
            at = torch.tensor([row])
            mine = None if believed is None else believed.take(at)
            one = backbone.states_from_heads(cells.take(at), heads, kinds, own, mine)
            for part, whole in zip(one.parts(), every.parts(), strict=True):
                torch.testing.assert_close(part, whole[at], rtol=1e-4, atol=1e-5)
